"""The text of dots 3 Note, alone or as published with encoders of images and sound: DeepSeek V3.2's attention with gates on what heads
attend to, and layers with a window, whose heads and latents are others.

Source: transformers 5.23 (dots3_note), whose defaults are those of dots-studio/dots3-note-prev.
"""

from dataclasses import replace
from typing import Any

from penstock.errors import UnusableModel
from penstock.models.checkpoint_keys import CheckpointKeys
from penstock.models.config import (
    DecoderConfig,
    IndexConfig,
    LatentConfig,
    LayerConfig,
    NormConfig,
    OutputGate,
    Window,
)
from penstock.models.recipe import DecoderRecipe
from penstock.models.recipes import deepseek, llama
from penstock.models.recipes.fields import Fields
from penstock.models.recipes.qwen3_5 import text_of
from penstock.models.recipes.text_of_vision_models import text_keys

NEAR, ALL, CHOSEN = "sliding_attention", "full_attention", "indexed_attention"
# Of layers with a window: `swa_` and these names in published configurations, `per_layer_config` in those that transformers saves.
OF_WINDOWS = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
DEFAULTS: dict[str, Any] = {
    "hidden_size": 5120,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 524288,
    "rms_norm_eps": 1e-5,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "rope_theta": 80_000_000.0,
    "swa_rope_theta": 50_000.0,
}


def layer_kinds(fields: Fields, layers: int) -> list[str]:
    """What each layer attends to. Published configurations call layers that choose keys `full_attention`."""
    config = fields.config
    windows = fields.flag("use_sliding_window", True)
    chooses = fields.flag("use_dsa", True) if "per_layer_config" not in config else config.get("use_dsa")
    default = [CHOSEN if not windows or at < 2 or at % 4 == 1 else NEAR for at in range(layers)]
    kinds = fields.layer_kinds(layers, default)
    if chooses is not None:
        kinds = [kind if kind == NEAR else CHOSEN if chooses else ALL for kind in kinds]
    if set(kinds) - {NEAR, ALL, CHOSEN}:
        raise UnusableModel(
            f"config.json: layer_types has {sorted(set(kinds))}; served are {CHOSEN}, {ALL} and {NEAR}"
        )
    return kinds


def of_layers(fields: Fields, kinds: list[str]) -> list[dict[str, Any]]:
    """What layers have otherwise than the whole configuration says. Raises UnusableModel."""
    if not fields.part("per_layer_config").config:
        own = {name: fields.config.get(f"swa_{name}", default) for name, default in OF_WINDOWS.items()}
        rotated = fields.config.get("swa_qk_rope_head_dim")
        own["qk_rope_head_dim"] = own["head_dim"] - own["qk_nope_head_dim"] if rotated is None else rotated
        return [own if kind == NEAR else {} for kind in kinds]
    return fields.of_layers(len(kinds), *OF_WINDOWS, "qk_rope_head_dim")


def latent_of(fields: Fields, kind: str, eps: float) -> LatentConfig:
    """Of a layer with these fields. Raises UnusableModel."""
    width, rank, queries = (fields.count(name) for name in ("hidden_size", "kv_lora_rank", "q_lora_rank"))
    rotated = fields.count("qk_rope_head_dim")
    index = None
    if kind == CHOSEN:
        index = IndexConfig(
            heads=fields.count("index_n_heads", default=64),
            head_dim=fields.count("index_head_dim", default=128),
            most=fields.count("index_topk", default=2048),
            interleaved=True,
        )
        if rotated > index.head_dim:
            raise UnusableModel(
                f"config.json: index_head_dim {index.head_dim} is less than qk_rope_head_dim {rotated}, which are rotated"
            )
    return LatentConfig(
        rank=rank,
        rope_dim=rotated,
        plain_dim=fields.count("qk_nope_head_dim"),
        value_dim=fields.count("v_head_dim"),
        query_rank=queries,
        rank_norm=NormConfig(eps),
        query_scale=(width / queries) ** 0.5,
        scale=(width / rank) ** 0.5,
        rope_norm=NormConfig(eps),
        index=index,
    )


def read_config(config: dict[str, Any]) -> DecoderConfig:
    """Checks config.json and names its choices."""
    text = {name: value for name, value in text_of(config).items() if value is not None}
    fields = Fields({**DEFAULTS, **text})
    for name in ("attention_bias", "mlp_bias"):
        fields.refuse(name, False)
    read = llama.read_config(
        {
            **fields.config,
            "head_dim": None,
            "num_key_value_heads": None,
            "rope_parameters": None,
            "rope_scaling": None,
        }
    )
    kinds = layer_kinds(fields, read.num_layers)
    sparse = sparse_layers(fields, read.num_layers)
    shared = fields.count(
        "shared_experts_intermediate_size", "moe_shared_expert_intermediate_size", default=1536
    )
    experts = replace(
        deepseek.sigmoid_experts(fields), shared_width=shared * fields.count("n_shared_experts", default=1)
    )
    window = Window(fields.count("sliding_window", "sliding_window_size", default=512))
    layers = []
    for kind, own, has_experts in zip(kinds, of_layers(fields, kinds), sparse, strict=True):
        layer = Fields({**fields.config, **own})
        latent = latent_of(layer, kind, read.norm.eps)
        layers.append(
            LayerConfig(
                rope=rope_of(layer, kind, latent.rope_dim, read.max_positions),
                window=window if kind == NEAR else None,
                experts=experts if has_experts else None,
                heads=layer.count("num_attention_heads"),
                latent=latent,
            )
        )
    return replace(
        read,
        layers=tuple(layers),
        latent=layers[0].latent,
        interleaved=True,
        output_gate=OutputGate("sigmoid"),
    )


def sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Those with experts: `mlp_layer_types`, or every so many behind the first ones, or as a list of 0 and 1 says."""
    sparse, every = fields.sparse_layers(layers), fields.config.get("moe_layer_freq", 1)
    if fields.config.get("mlp_layer_types") is not None:
        return sparse
    if isinstance(every, list):
        if len(every) != layers:
            raise UnusableModel(f"config.json: moe_layer_freq is not a list of {layers}")
        return [here and bool(has) for here, has in zip(sparse, every, strict=True)]
    freq = fields.count("moe_layer_freq", default=1)
    return [here and at % freq == 0 for at, here in enumerate(sparse)]


def rope_of(fields: Fields, kind: str, size: int, positions: int) -> Any:
    """The rotary table of a layer: all of the rotated part turns, whatever its share in a whole head is."""
    name = "rope_parameters" if fields.config.get("rope_parameters") else "rope_scaling"
    given = fields.part(name).config
    theta = fields.number("rope_theta", default=80_000_000.0)
    if not given and kind == NEAR:
        theta = fields.number("swa_rope_theta", default=50_000.0)
    own = given.get(kind, {} if {NEAR, ALL, CHOSEN} & given.keys() else given)
    entry = {"rope_theta": theta, **own, "partial_rotary_factor": 1.0}
    return Fields({"rope_parameters": entry}).rope(size, positions, theta=theta)


def keys(config: dict[str, Any]) -> CheckpointKeys:
    """Those of the text, alone or within the whole. The layer that predicts a further token comes after the others."""
    layers = Fields(text_of(config)).count("num_hidden_layers", default=46)
    return text_keys(
        replace(
            deepseek.KEYS,
            output_gate="g_proj",
            ignored=(rf"(?:.*\.)?layers\.{layers}\..*", r"(?:.*\.)?mtp\..*"),
        )
    )


RECIPE = DecoderRecipe(read_config, keys, deepseek.DeepseekLoader)
