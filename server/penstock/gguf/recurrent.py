"""Models with layers that keep a state: Qwen 3.5 and Qwen3-Next, LFM 2. Must not import torch."""

from collections.abc import Iterator

import numpy as np

from penstock.gguf.architecture import Architecture, Config, partial_rotary
from penstock.gguf.container import Header
from penstock.gguf.experts import SHARED, SIGMOID, qwen2_moe
from penstock.gguf.fields import Fields
from penstock.gguf.layout import F32, Layout, Made, Order, Part
from penstock.gguf.names import ATTENTION, EXPERTS, FEED_FORWARD, IN_LAYER, Names


def _qwen35(fields: Fields, config: Config) -> None:
    value_heads = fields.count("ssm.time_step_rank", least=1)
    every = fields.count("full_attention_interval", 4, least=1)
    layers = config["num_hidden_layers"]
    recurrent = fields.per_layer("attention.recurrent_layers", layers)
    if recurrent is None:
        recurrent = [(at + 1) % every != 0 for at in range(layers)]
    config |= {
        "partial_rotary_factor": partial_rotary(fields, config),
        "layer_types": ["linear_attention" if one else "full_attention" for one in recurrent],
        "full_attention_interval": every,
        "linear_conv_kernel_dim": fields.count("ssm.conv_kernel"),
        "linear_key_head_dim": fields.count("ssm.state_size"),
        "linear_num_key_heads": fields.count("ssm.group_count", least=1),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": fields.count("ssm.inner_size", least=1) // value_heads,
    }


def _qwen35_moe(fields: Fields, config: Config) -> None:
    qwen2_moe(fields, config)
    config["norm_topk_prob"] = True
    _qwen35(fields, config)


def _in_tiles(heads: int, of_each: int, size: int) -> Order:
    """Of each row of value heads that stand behind one another for each key head, which row it is where those of a key head are apart."""
    rows = np.arange(heads * of_each * size).reshape(of_each, heads, size)
    return rows.swapaxes(0, 1).reshape(-1)


def _with_heads_in_order(header: Header, config: Config) -> Layout:
    """Qwen 3.5's linear attention, whose value heads the converter has put in another order where a key head has several."""
    return dict(_linear_parts(header, config))


def _linear_parts(header: Header, config: Config) -> Iterator[tuple[str, Part]]:
    keys, size = config["linear_num_key_heads"], config["linear_value_head_dim"]
    of_each = config["linear_num_value_heads"] // max(keys, 1)
    wide, one = _in_tiles(keys, of_each, size), _in_tiles(keys, of_each, 1)
    first = np.arange(2 * keys * config["linear_key_head_dim"])
    behind = np.concatenate((first, len(first) + wide))
    rows: dict[str, tuple[str, Order]] = {
        "attn_qkv.weight": ("in_proj_qkv.weight", behind),
        "ssm_conv1d.weight": ("conv1d.weight", behind),
        "attn_gate.weight": ("in_proj_z.weight", wide),
        "ssm_beta.weight": ("in_proj_b.weight", one),
        "ssm_alpha.weight": ("in_proj_a.weight", one),
        "ssm_dt.bias": ("dt_bias", one),
        "ssm_a": ("A_log", one),
    }
    for name, stored in header.tensors.items():
        at = IN_LAYER.fullmatch(name)
        if at is None:
            continue
        layer, inner = f"model.layers.{at[1]}.linear_attn.", at[2]
        if inner == "ssm_out.weight":
            yield f"{layer}out_proj.weight", Part(name, stored.shape, column_order=wide)
        elif inner in rows:
            ours, order = rows[inner]
            # A kernel of a convolution has a dimension of 1 between both.
            shape = (stored.shape[0], 1, *stored.shape[1:]) if inner == "ssm_conv1d.weight" else stored.shape
            # Of another size than is asked for they are left alone, and that is said.
            fitting = order if len(order) == stored.shape[0] else None
            yield (
                layer + ours,
                Part(name, shape, row_order=fitting, change=log_of_negative if inner == "ssm_a" else None),
            )


def log_of_negative(numbers: F32) -> F32:
    """What -exp was taken of."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(-numbers)


def _next_parts(header: Header, config: Config) -> Layout:
    """Qwen3-Next's, whose rows go by key heads: of each its query, its key, its values and their gates."""
    keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    sizes = (keys, size, values)

    def joined(qkv: F32, z: F32) -> F32:
        return _by_key_heads(qkv, z, *sizes)

    made: dict[str, Part | Made] = {}
    for name, stored in header.tensors.items():
        at = IN_LAYER.fullmatch(name)
        if at is None:
            continue
        layer, inner = f"model.layers.{at[1]}.linear_attn.", at[2]
        if inner == "attn_qkv.weight":
            shape = (2 * keys * size + 2 * values, stored.shape[-1])
            made[f"{layer}in_proj_qkvz.weight"] = Made(
                (name, name.replace("attn_qkv", "attn_gate")), shape, joined
            )
        elif inner == "ssm_conv1d.weight":
            made[f"{layer}conv1d.weight"] = Part(name, (stored.shape[0], 1, *stored.shape[1:]))
        elif inner == "ssm_a":
            made[f"{layer}A_log"] = Part(name, stored.shape, change=log_of_negative)
    return made


def _by_key_heads(qkv: F32, z: F32, keys: int, size: int, values: int) -> F32:
    width = qkv.shape[-1]
    q, k, v = np.split(qkv, (keys * size, 2 * keys * size))
    parts = [one.reshape(keys, -1, width) for one in (q, k, v, z)]
    made: F32 = np.concatenate(parts, 1).reshape(-1, width)
    return made


def _lfm2(fields: Fields, config: Config) -> None:
    layers = config["num_hidden_layers"]
    heads = fields.counts("attention.head_count_kv", layers, 0)
    config |= {
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "conv_L_cache": fields.count("shortconv.l_cache"),
        "conv_bias": False,
        "norm_eps": config.pop("rms_norm_eps"),
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": config["intermediate_size"],
    }


def _lfm2_moe(fields: Fields, config: Config) -> None:
    _lfm2(fields, config)
    del config["block_auto_adjust_ff_dim"], config["block_ff_dim"]
    config |= {
        "num_dense_layers": fields.count("leading_dense_block_count", 0),
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "use_expert_bias": fields.count("expert_gating_func", SIGMOID) == SIGMOID,
    }


def _kernels(header: Header, config: Config) -> Layout:
    """Convolutions' kernels, with a dimension of 1 between both."""
    return {
        f"model.layers.{name.split('.')[1]}.conv.conv.weight": Part(
            name, (stored.shape[0], 1, *stored.shape[1:])
        )
        for name, stored in header.tensors.items()
        if name.endswith(".shortconv.conv.weight")
    }


QWEN = {
    **ATTENTION,
    **FEED_FORWARD,
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ssm_norm": "linear_attn.norm",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_out": "linear_attn.out_proj",
}
QWEN_NAMES = Names(
    {**QWEN, **SHARED, "ffn_gate_inp": "mlp.gate"},
    EXPERTS,
    without_one=True,
    as_they_are=frozenset({"ssm_norm"}),
)
LFM = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b.bias": "feed_forward.expert_bias",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
LFM_EXPERTS = {
    "ffn_gate_exps": "feed_forward.experts.{}.w1",
    "ffn_down_exps": "feed_forward.experts.{}.w2",
    "ffn_up_exps": "feed_forward.experts.{}.w3",
}
LFM_NAMES = Names(
    LFM,
    LFM_EXPERTS,
    outside={
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.embedding_norm",
        "output": "lm_head",
    },
)

ARCHITECTURES: dict[str, Architecture] = {
    "qwen35": Architecture("qwen3_5_text", "Qwen3_5ForCausalLM", QWEN_NAMES, _qwen35, _with_heads_in_order),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", QWEN_NAMES, _qwen35_moe, _with_heads_in_order
    ),
    "qwen3next": Architecture("qwen3_next", "Qwen3NextForCausalLM", QWEN_NAMES, _qwen35_moe, _next_parts),
    "lfm2": Architecture("lfm2", "Lfm2ForCausalLM", LFM_NAMES, _lfm2, _kernels),
    "lfm2moe": Architecture("lfm2_moe", "Lfm2MoeForCausalLM", LFM_NAMES, _lfm2_moe, _kernels),
}
"""By `general.architecture`."""
