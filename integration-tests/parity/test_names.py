"""Checkpoints of one family under the different names that they have on the hub, and configurations that no
recipe knows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from models import ids, make
from ranks import TESTS  # noqa: F401  (where the driver is)
from safetensors import safe_open
from transformers import Gemma3TextConfig

from penstock.errors import UnusableModel
from penstock.models import recipes
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config

# A family, other names for its tensors, and what such checkpoints hold besides.
RENAMED: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "GPT-2": (lambda name: name.removeprefix("transformer."), ("h.0.attn.bias", "h.1.attn.masked_bias")),
    "BLOOM": (lambda name: name.removeprefix("transformer."), ()),
    "GPT-J": (lambda name: name, ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
    "OPT": (lambda name: name.removeprefix("model."), ()),
    "GPT": (lambda name: name.removeprefix("transformer."), ("h.0.attn.bias",)),
    "CodeGen": (lambda name: name, ("transformer.h.0.attn.causal_mask",)),
    "GPT-Neo": (
        lambda name: name,
        ("transformer.h.0.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"),
    ),
    "Falcon 7B": (lambda name: name, ("lm_head.weight",)),
    "Pythia, GPT-NeoX": (
        lambda name: {"embed_out.weight": "lm_head.weight", "lm_head.weight": "embed_out.weight"}.get(
            name, name
        ),
        (
            "gpt_neox.layers.0.attention.bias",
            "gpt_neox.layers.0.attention.masked_bias",
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
        ),
    ),
    "Qwen3-Next": (lambda name: name, ("mtp.fc.weight", "mtp.layers.0.mlp.gate.weight")),
    "Qwen 3.5": (
        lambda name: name.replace("model.", "model.language_model."),
        ("model.visual.patch_embed.proj.weight", "mtp.norm.weight"),
    ),
    # What is published, where transformers saves other names.
    "Kimi Linear": (lambda name: name.replace("layers.0.block_sparse_moe.", "layers.0.mlp."), ()),
    "OLMo Hybrid": (
        lambda name: name.replace("layers.2.feedforward_layer_norm", "layers.2.post_attention_layernorm"),
        (),
    ),
    "Nemotron-H": (lambda name: name, ("mtp.layers.0.norm.weight",)),
}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ("GPT-2", {"add_cross_attention": True}, "add_cross_attention is True"),
    ("GPT-2", {"n_head": 5}, "5 attention heads do not divide the width 64"),
    ("Falcon 7B", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2"),
    ("Falcon 40B", {"parallel_attn": False}, "parallel_attn is False"),
    ("Falcon 40B", {"num_kv_heads": 3}, "no multiple of num_kv_heads 3"),
    ("Falcon 7B", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
    ("StarCoder2", {"norm_type": "rms_norm"}, "norm_type is 'rms_norm'"),
    ("StarCoder2", {"mlp_type": "gated"}, "mlp_type is 'gated'"),
    ("MPT", {"attn_config": {"alibi": False}}, "alibi is False"),
    ("MPT", {"attn_config": {"qk_ln": True}}, "qk_ln is True"),
    ("MPT", {"attn_config": {"prefix_lm": True}}, "prefix_lm is True"),
    ("MPT", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type is 'multiquery_attention'"),
    ("MPT", {"attn_config": [1]}, "attn_config is not an object"),
    ("MPT", {"no_bias": False}, "no_bias is False"),
    ("MPT", {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'"),
    ("MPT", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale is 'inv_sqrt_d_model'"),
    ("Phi 3.5 mini, Phi 3 128k", {"partial_rotary_factor": 0.5}, "is not a list of 4 positive numbers"),
    ("Phi 4", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "type 'yarn'; of Phi 3 only longrope"),
    ("Mistral Small 3.1", {"text_config": {"model_type": "ministral3"}}, "model_type is 'ministral3'"),
    ("Gemma 3 with images", {"text_config": [1]}, "text_config is not an object"),
    ("CodeGen", {"n_head": 2}, "n_head is 2, no multiple of 4"),
    ("GPT-Neo", {"attention_types": [[["global", "local"], 3]]}, "attention_types does not say"),
    ("GPT-Neo", {"attention_types": 7}, "attention_types does not say"),
    ("OPT", {"activation_function": "mish"}, "unsupported activation_function 'mish'"),
    (
        "Qwen3-Next",
        {"linear_num_value_heads": 3},
        "linear_num_value_heads 3 is no multiple of linear_num_key",
    ),
    ("Qwen3-Next", {"layer_types": ["mamba"] * 4}, "layer_types names 'mamba'"),
    ("Qwen 3.5", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("LFM2", {"layer_types": ["conv", "conv", "linear_attention", "conv"]}, "names 'linear_attention'"),
    ("Granite 4 (dense)", {"mamba_n_heads": 7}, "7 heads .mamba_n_heads. of 16 in 1 groups do not make 128"),
    ("Granite 4 (dense)", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
    ("Bamba", {"time_step_limit": [0.0]}, "time_step_limit is not a list of two numbers"),
    ("Falcon-H1", {"ssm_multipliers": [1.0]}, "ssm_multipliers is not a list of 5 numbers"),
    ("Nemotron-H", {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern is 'M-X', not a text of"),
    ("Nemotron 3 (experts)", {"moe_latent_size": -1}, "moe_latent_size is -1"),
    ("Kimi Linear", {"mla_use_nope": False}, "mla_use_nope is False"),
    (
        "Kimi Linear",
        {"linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1]}},
        "each of 4 layers once",
    ),
    ("Kimi Linear", {"linear_attn_config": {"full_attn_layers": [9]}}, "full_attn_layers .* layers, 1 to 4"),
    ("MiniMax-Text-01", {"layer_types": ["conv"] * 4}, "not full or linear attention for each layer"),
    ("RecurrentGemma", {"block_types": ["mamba"]}, "block_types is not a list of recurrent and attention"),
    ("OLMo Hybrid", {"linear_num_value_heads": 6}, "linear_num_value_heads 6 is no multiple"),
]


def test_experts_of_qwen_3_5_may_be_stacked(tmp_path: Path) -> None:
    """As they are published: two tensors for all experts of a layer."""
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    folder = make(tmp_path, FAMILIES["Qwen 3.5 (experts)"])

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, list(range(3, 20)), 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    for at in {name.partition(".experts.")[0] for name in tensors if ".experts." in name}:

        def stacked(which: str, at: str = at) -> torch.Tensor:
            names = [f"{at}.experts.{expert}.{which}.weight" for expert in range(6)]
            return torch.stack([tensors.pop(name) for name in names])

        tensors[f"{at}.experts.gate_up_proj"] = torch.cat((stacked("gate_proj"), stacked("up_proj")), 1)
        tensors[f"{at}.experts.down_proj"] = stacked("down_proj")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(), before)


@pytest.mark.parametrize("family", RENAMED)
def test_a_checkpoint_may_have_the_other_names_of_its_family(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from client import row
    from driver import Driver

    rename, added = RENAMED[family]
    folder = make(tmp_path, FAMILIES[family])
    prompt = ids(199, 3, 20)

    def logits() -> torch.Tensor:
        driver = Driver(folder, torch.float32)
        driver.step([row(0, prompt, 0, [0, 1], start={})])
        return driver.last_logits()

    before = logits()
    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(name): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys() or added
    renamed |= {name: torch.ones(1) for name in added}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits(), before, atol=0, rtol=0)


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_a_choice_that_the_recipe_does_not_know_is_refused_by_name(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnusableModel, match=message):
        read_config(FAMILIES[family] | changes)


def test_a_tensor_that_holds_several_parts_is_counted_once(tmp_path: Path) -> None:
    config = FAMILIES["BLOOM"]
    folder = make(tmp_path, config)
    with pytest.raises(UnusableModel) as caught:
        recipes.load(
            config | {"hidden_size": 192, "n_embed": 192}, folder, torch.float32, torch.device("cpu")
        )
    with safe_open(folder / "model.safetensors", "pt") as file:
        count = len(file.keys())
    assert f"contradicts config.json: {count} tensors of another shape: " in str(caught.value)
    assert str(caught.value).count("h.0.self_attention.query_key_value.weight") == 1


def test_what_the_published_gemma_3_leaves_out_is_known() -> None:
    text: dict[str, Any] = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    read = read_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    theirs = Gemma3TextConfig(**text)
    assert isinstance(read, DecoderConfig)
    assert (read.vocab_size, read.heads, read.kv_heads) == (
        theirs.vocab_size,
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
    )
    assert (read.head_dim, read.max_positions) == (theirs.head_dim, theirs.max_position_embeddings)
    assert read.scale == theirs.query_pre_attn_scalar**-0.5 and read.norm.eps == theirs.rms_norm_eps
    assert [w and w.size for w in read.layer_windows] == [
        1024 if kind == "sliding_attention" else None for kind in theirs.layer_types or ()
    ]
    assert [layer.rope and layer.rope.theta for layer in read.layers] == [
        1e4 if kind == "sliding_attention" else 1e6 for kind in theirs.layer_types or ()
    ]
    assert read.tied_head
