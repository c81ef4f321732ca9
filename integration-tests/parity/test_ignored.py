"""What transformers' class of a family leaves in a published file, its recipe leaves there as well.

The other tests read what transformers saves, which holds none of these tensors.
"""

import re
from importlib import import_module
from typing import Any

import pytest
from families import FAMILIES

from penstock.models.decoder_loader import COMPUTED
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import recipe_of

# A class's pattern, and a tensor of each kind that it matches in published files.
SAMPLES: dict[str, tuple[str, ...]] = {
    # masks and rotary frequencies
    "inv_freq": ("model.layers.0.self_attn.rotary_emb.inv_freq",),
    "attn.bias": ("h.0.attn.bias", "transformer.h.0.attn.bias"),
    "attention.bias": ("gpt_neox.layers.0.attention.bias",),
    "attention.masked_bias": ("gpt_neox.layers.0.attention.masked_bias",),
    # layers that predict several tokens ahead
    "mtp": ("model.mtp_block.0.mlp.up_proj.weight",),
    "mtp.*": ("mtp.layers.0.norm.weight",),
    "^mtp.*": ("mtp.layers.0.norm.weight",),
    r"^mtp\.": ("mtp.layers.0.norm.weight",),
    r"(^|\.)mtp\..*": ("mtp.0.norm.weight", "model.mtp.0.norm.weight"),
    r"model\.mtp\..*": ("model.mtp.layers.0.norm.weight",),
    r"^model\.mtp\.": ("model.mtp.layers.0.norm.weight",),
    r"model\.mtp_layers\..*": ("model.mtp_layers.0.norm.weight",),
    r"^model\.(language_model\.)?mtp\.": ("model.mtp.norm.weight", "model.language_model.mtp.norm.weight"),
    r"^llm\.mtp\.": ("llm.mtp.layers.0.norm.weight",),
    # encoders
    r"^model.visual.*": ("model.visual.patch_embed.proj.weight",),
    r"audio_tower\.feature_extractor\.": ("audio_tower.feature_extractor.featurizer.window",),
    "packing_position_embedding": ("visual.vision_model.embeddings.packing_position_embedding.weight",),
    "vision_model.head": ("visual.vision_model.head.probe",),
    r"^perception\.preprocessor\.": ("perception.preprocessor.featurizer.window",),
    r"^perception\.encoder\.diarization_model\.preprocessor\.": (
        "perception.encoder.diarization_model.preprocessor.featurizer.fb",
    ),
    r"^perception\.encoder\.diarization_model\.sortformer_modules\.hidden_to_spks\.": (
        "perception.encoder.diarization_model.sortformer_modules.hidden_to_spks.weight",
    ),
    r"\._extra_state$": (
        "llm.model.layers.0.mixer.in_proj._extra_state",
        "perception.encoder.layers.0.a._extra_state",
    ),
    r"^ctc_timestamp\.decoder\.residual_scale$": ("ctc_timestamp.decoder.residual_scale",),
    r"^ctc_timestamp\.decoder\.upsample_factor$": ("ctc_timestamp.decoder.upsample_factor",),
    r"^ctc_timestamp\.tokenizer\.model_proto$": ("ctc_timestamp.tokenizer.model_proto",),
    # what makes images, sound and actions
    r"\.add_q_proj\.": ("layers.0.self_attn.add_q_proj.weight",),
    r"\.add_k_proj\.": ("layers.0.self_attn.add_k_proj.weight",),
    r"\.add_v_proj\.": ("layers.0.self_attn.add_v_proj.weight",),
    r"\.to_add_out\.": ("layers.0.self_attn.to_add_out.weight",),
    r"\.norm_added_q\.": ("layers.0.self_attn.norm_added_q.weight",),
    r"\.norm_added_k\.": ("layers.0.self_attn.norm_added_k.weight",),
    "moe_gen": (
        "layers.0.mlp_moe_gen.gate_proj.weight",
        "layers.0.input_layernorm_moe_gen.weight",
        "layers.0.post_attention_layernorm_moe_gen.weight",
        "norm_moe_gen.weight",
    ),
    **{
        rf"^{name}\.": (f"{name}.fc.weight",)
        for name in (
            "proj_in",
            "proj_out",
            "time_embedder",
            "audio_proj_in",
            "audio_proj_out",
            "action_proj_in",
            "action_proj_out",
        )
    },
    "^audio_modality_embed$": ("audio_modality_embed",),
    "^action_modality_embed$": ("action_modality_embed",),
    r"^(?:model\.language_model\.)?action_modality_embed$": ("model.language_model.action_modality_embed",),
    r"^(?:model\.language_model\.)?action_proj_(?:in|out)\.(?:bias|fc)\.weight$": (
        "action_proj_in.fc.weight",
        "action_proj_out.bias.weight",
    ),
    r"^(?:model\.language_model\.)?time_embedder\.": ("time_embedder.linear_1.weight",),
    r"^(?:model\.language_model\.)?proj_(?:in|out)\.": (
        "proj_in.weight",
        "model.language_model.proj_out.bias",
    ),
    r"^(?:model\.language_model\.)?norm_moe_gen\.": ("norm_moe_gen.weight",),
    **{
        rf"^(?:model\.language_model\.)?layers\.\d+\.{name}_moe_gen\.": (f"layers.0.{name}_moe_gen.weight",)
        for name in ("input_layernorm", "post_attention_layernorm", "mlp")
    },
    r"^(?:model\.language_model\.)?layers\.\d+\.self_attn\.(?:add_[qkv]_proj|to_add_out|norm_added_[qk]|k_norm_und_for_gen)\.": tuple(
        f"layers.0.self_attn.{name}.weight"
        for name in ("add_q_proj", "add_v_proj", "to_add_out", "norm_added_k", "k_norm_und_for_gen")
    ),
}

# Patterns that match nothing in a published file of the family.
WITHOUT = {
    ("OLMo Hybrid", "^mtp.*"),  # of the class that its own is made from
    ("GPT-2", "crossattention.bias"),  # refused by config.json
}

# Of the layer behind the last, which predicts a further token: its number.
BEHIND = re.compile(r"\\\.layers\\\.(\d+)|\?layers\\\.(\d+)")


def class_of(config: dict[str, Any]) -> Any:
    """Of transformers."""
    transformers, auto = (
        import_module("transformers"),
        import_module("transformers.models.auto.modeling_auto"),
    )
    names = {
        **auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    named = config["architectures"][0]
    return getattr(transformers, named if hasattr(transformers, named) else names[config["model_type"]])


def ending_at(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """With this many layers, and one behind them that predicts a further token."""
    if "text_config" in config:
        return {**config, "text_config": ending_at(config["text_config"], layers)}
    return {**config, "num_hidden_layers": layers, "num_nextn_predict_layers": 1}


@pytest.mark.tail
def test_what_transformers_leaves_in_a_file_has_no_place_in_a_recipe_either() -> None:
    seen, left = set(), []
    for family, config in FAMILIES.items():
        for pattern in getattr(class_of(config), "_keys_to_ignore_on_load_unexpected", None) or ():
            if (family, pattern) in WITHOUT:
                continue
            behind = BEHIND.search(pattern)
            if behind is None:
                names, ended = SAMPLES[pattern], config
                seen.add(pattern)
            else:
                number = behind[1] or behind[2]
                whole = "model.language_model." if "language_model" in pattern else "model."
                names, ended = (f"{whole}layers.{number}.eh_proj.weight",), ending_at(config, int(number))
            recipe = recipe_of(ended)
            assert isinstance(recipe, DecoderRecipe)
            ignored = re.compile("|".join(f"(?:{one})" for one in (COMPUTED, *recipe.keys(ended).ignored)))
            for name in names:
                assert re.search(pattern, name), f"{name} is no sample of {pattern}"
                if not ignored.fullmatch(name):
                    left.append((family, name))
    assert not left
    assert seen == SAMPLES.keys()
