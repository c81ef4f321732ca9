"""Gemma 4, of all sizes. Must not import torch."""

from penstock.gguf.architecture import KEY_HEADS, Architecture, Config, layer_types
from penstock.gguf.fields import Fields
from penstock.gguf.names import ATTENTION, FEED_FORWARD, Names


def _gemma4(fields: Fields, config: Config) -> None:
    layers = config["num_hidden_layers"]
    kinds = layer_types(fields, config, 6)
    whole, windowed = (
        next((at for at, kind in enumerate(kinds) if kind.startswith(one)), 0) for one in ("full", "sliding")
    )
    per_layer = fields.counts("attention.head_count_kv", layers, config[KEY_HEADS])
    shared = fields.count("attention.shared_kv_layers", 0)
    widths = fields.counts("feed_forward_length", layers, 0)
    experts = fields.count("expert_count", 0)
    config |= {
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "head_dim": fields.count("attention.key_length_swa"),
        "global_head_dim": fields.count("attention.key_length"),
        KEY_HEADS: per_layer[windowed],
        "num_global_key_value_heads": per_layer[whole] if per_layer[whole] != per_layer[windowed] else None,
        "layer_types": kinds,
        "sliding_window": fields.count("attention.sliding_window"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": fields.number("rope.freq_base", 1000000.0),
                "partial_rotary_factor": _rotated(fields),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": fields.number("rope.freq_base_swa", 10000.0),
            },
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_k_eq_v": not fields.has_tensor(f"blk.{whole}.attn_v.weight"),
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": fields.count("embedding_length_per_layer_input", 0),
        "enable_moe_block": experts > 0,
        "attention_bias": False,
    }
    del config["rope_theta"]
    if fields.has_tensor("per_layer_token_embd.weight"):
        config["vocab_size_per_layer_input"] = fields.rows_of("per_layer_token_embd.weight")
    if fields.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = fields.number("final_logit_softcapping")
    if experts:
        config |= {
            "num_experts": experts,
            "top_k_experts": fields.count("expert_used_count"),
            "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        }


def _rotated(fields: Fields) -> float:
    """The part of a head that is rotated: the other frequencies are divided by 1e30."""
    factors = fields.numbers("rope_freqs.weight")
    return 0.25 if factors is None else float((factors < 1e6).mean())


NAMES = Names(
    {
        **ATTENTION,
        **FEED_FORWARD,
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_up_exps.weight": "experts.gate_up_proj",
        "ffn_down_exps.weight": "experts.down_proj",
    },
    outside={
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
    },
)

ARCHITECTURES: dict[str, Architecture] = {
    "gemma4": Architecture("gemma4_text", "Gemma4ForCausalLM", NAMES, _gemma4),
}
"""By `general.architecture`."""
