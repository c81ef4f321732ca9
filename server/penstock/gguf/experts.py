"""Models with experts. Must not import torch."""

from collections.abc import Iterator

import numpy as np

from penstock.gguf.architecture import HEADS, Architecture, Config, partial_rotary
from penstock.gguf.container import Header
from penstock.gguf.dense import LLAMA_NAMES, granite
from penstock.gguf.fields import Fields
from penstock.gguf.layout import F32, Layout, Made
from penstock.gguf.names import ATTENTION, EXPERTS, FEED_FORWARD, NORMS, Names

SIGMOID = 2  # of `expert_gating_func`


def _experts(fields: Fields, config: Config) -> None:
    config |= {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen2_moe(fields: Fields, config: Config) -> None:
    _experts(fields, config)
    config["shared_expert_intermediate_size"] = fields.count("expert_shared_feed_forward_length")
    config["norm_topk_prob"] = False


def qwen3_moe(fields: Fields, config: Config) -> None:
    _experts(fields, config)
    config["norm_topk_prob"] = True


def _olmoe(fields: Fields, config: Config) -> None:
    config |= {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "norm_topk_prob": False,
    }


def _granite_moe(fields: Fields, config: Config) -> None:
    granite(fields, config)
    config |= {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
    }


def _gates_and_ups(header: Header, config: Config) -> Layout:
    """What Granite has of all experts in one tensor."""
    return dict(_joined(header, "model.layers.{}.block_sparse_moe.input_linear.weight"))


def _joined(header: Header, name: str) -> Iterator[tuple[str, Made]]:
    for gate, stored in header.tensors.items():
        if gate.endswith(".ffn_gate_exps.weight"):
            experts, rows, columns = stored.shape
            parts = (gate, gate.replace("ffn_gate_exps", "ffn_up_exps"))
            yield (
                name.format(gate.split(".")[1]),
                Made(parts, (experts, 2 * rows, columns), _one_behind_the_other, is_stack=True),
            )


def _one_behind_the_other(gates: F32, ups: F32) -> F32:
    return np.concatenate((gates, ups), 1)


def _shared_and_routed(fields: Fields, config: Config) -> None:
    """As DeepSeek names it."""
    config |= {
        "n_routed_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "n_shared_experts": fields.count("expert_shared_count", 0),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "first_k_dense_replace": fields.count("leading_dense_block_count", 0),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
        "norm_topk_prob": fields.flag("expert_weights_norm", False),
        "n_group": fields.count("expert_group_count", 1) or 1,
        "topk_group": fields.count("expert_group_used_count", 1) or 1,
    }


def _glm4_moe(fields: Fields, config: Config) -> None:
    _shared_and_routed(fields, config)
    config |= {
        "partial_rotary_factor": partial_rotary(fields, config),
        "attention_bias": fields.has_tensor("blk.0.attn_q.bias"),
        "use_qk_norm": fields.has_tensor("blk.0.attn_q_norm.weight"),
        "num_nextn_predict_layers": 0,
    }


def _deepseek(fields: Fields, config: Config) -> None:
    _shared_and_routed(fields, config)
    # Since keys and values are divided in the file, it counts sizes of both before they are compressed.
    whole = "" if fields.has_tensor("blk.0.attn_kv_b.weight") else "_mla"
    rotated = fields.count("rope.dimension_count")
    has_sigmoid = fields.count("expert_gating_func", 1) == SIGMOID
    config |= {
        "model_type": "deepseek_v3" if has_sigmoid else "deepseek_v2",
        "architectures": ["DeepseekV3ForCausalLM" if has_sigmoid else "DeepseekV2ForCausalLM"],
        "head_dim": None,
        "num_key_value_heads": config[HEADS],
        "q_lora_rank": fields.count("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": fields.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": fields.count(f"attention.key_length{whole}") - rotated,
        "v_head_dim": fields.count(f"attention.value_length{whole}"),
        "topk_method": "noaux_tc"
        if has_sigmoid
        else "group_limited_greedy"
        if config["n_group"] > 1
        else "greedy",
        "scoring_func": "sigmoid" if has_sigmoid else "softmax",
        "num_nextn_predict_layers": 0,
    }
    scaling = config.get("rope_scaling")
    if scaling is not None:
        # llama.cpp keeps a tenth of it.
        scale = round(fields.number("rope.scaling.yarn_log_multiplier", 0.1) * 10, 6)
        scaling |= {"mscale": scale, "mscale_all_dim": scale, "type": "yarn"}


def _compressed(header: Header, config: Config) -> Layout:
    """Keys and values of one matrix, which the file has apart, each head's keys turned."""
    sizes = config["qk_nope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
    rows = config[HEADS] * (sizes[0] + sizes[1])
    return {
        f"model.layers.{name.split('.')[1]}.self_attn.kv_b_proj.weight": Made(
            (name, name.replace("attn_k_b", "attn_v_b")), (rows, sizes[2]), _keys_and_values
        )
        for name in header.tensors
        if name.endswith(".attn_k_b.weight")
    }


def _keys_and_values(keys_HRD: F32, values_HDR: F32) -> F32:
    """(heads, rank, keys) and (heads, values, rank): (heads x (keys + values), rank)."""
    joined = np.concatenate((keys_HRD.swapaxes(1, 2), values_HDR), 1)
    return joined.reshape(-1, joined.shape[-1])


def _minimax_m2(fields: Fields, config: Config) -> None:
    config |= {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "rotary_dim": fields.count("rope.dimension_count"),
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "use_routing_bias": fields.has_tensor("blk.0.exp_probs_b.bias"),
    }


def _ernie_moe(fields: Fields, config: Config) -> None:
    layers = config["num_hidden_layers"]
    config |= {
        "moe_num_experts": fields.count("expert_count"),
        "moe_k": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "moe_num_shared_experts": fields.count("expert_shared_count", 0),
        "moe_layer_interval": fields.count("interleave_moe_layer_step", 1),
        "moe_layer_start_index": fields.count("leading_dense_block_count", 0),
        "moe_layer_end_index": layers - 1,
    }


QWEN_EXPERTS = Names({**ATTENTION, **NORMS, "ffn_gate_inp": "mlp.gate"}, EXPERTS)
SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}


def _gpt_oss(fields: Fields, config: Config) -> None:
    layers = config["num_hidden_layers"]
    config |= {
        "intermediate_size": fields.count("expert_feed_forward_length"),
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "sliding_window": fields.count("attention.sliding_window"),
        "layer_types": ["full_attention" if at % 2 else "sliding_attention" for at in range(layers)],
        "attention_bias": True,
        "swiglu_limit": 7.0,
    }
    if "rope_scaling" in config:
        # As it is published; llama.cpp has it in its code.
        config["rope_scaling"]["truncate"] = False


def _gpt_oss_experts(header: Header, config: Config) -> Layout:
    """Of all experts in one tensor, (in, out) and with gates and ups taking turns."""
    made: dict[str, Made] = {}
    for gate, stored in header.tensors.items():
        if ".ffn_gate_exps." in gate:
            at = f"model.layers.{gate.split('.')[1]}.mlp.experts."
            up, down = (gate.replace("ffn_gate_exps", name) for name in ("ffn_up_exps", "ffn_down_exps"))
            experts, inner, *inputs = stored.shape
            if inputs:
                made[f"{at}gate_up_proj"] = Made(
                    (gate, up), (experts, *inputs, 2 * inner), _in_turns_by_inputs, is_stack=True
                )
                made[f"{at}down_proj"] = Made((down,), (experts, inner, *inputs), _by_inputs, is_stack=True)
            else:
                made[f"{at}gate_up_proj_bias"] = Made(
                    (gate, up), (experts, 2 * inner), _in_turns, is_stack=True
                )
                made[f"{at}down_proj_bias"] = Made(
                    (down,), (experts, config["hidden_size"]), _as_it_is, is_stack=True
                )
    return made


def _in_turns(gates: F32, ups: F32) -> F32:
    made: F32 = np.stack((gates, ups), 2).reshape(len(gates), -1, *gates.shape[2:])
    return made


def _in_turns_by_inputs(gates: F32, ups: F32) -> F32:
    return _by_inputs(_in_turns(gates, ups))


def _by_inputs(matrices: F32) -> F32:
    made: F32 = matrices.swapaxes(1, 2)
    return made


def _as_it_is(numbers: F32) -> F32:
    return numbers


SHARED_EXPERTS = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
ROUTED = {"ffn_gate_inp": "mlp.gate", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
DEEPSEEK = Names(
    {
        **ATTENTION,
        **FEED_FORWARD,
        **NORMS,
        **ROUTED,
        **SHARED_EXPERTS,
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
    },
    EXPERTS,
)
MINIMAX = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
}

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2moe": Architecture(
        "qwen2_moe", "Qwen2MoeForCausalLM", Names({**QWEN_EXPERTS.in_layer, **SHARED}, EXPERTS), qwen2_moe
    ),
    "qwen3moe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", QWEN_EXPERTS, qwen3_moe),
    "olmoe": Architecture("olmoe", "OlmoeForCausalLM", QWEN_EXPERTS, _olmoe),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        Names(
            {
                **LLAMA_NAMES.in_layer,
                "ffn_gate_inp": "block_sparse_moe.router.layer",
                "ffn_down_exps": "block_sparse_moe.output_linear",
            },
            pairs=LLAMA_NAMES.pairs,
        ),
        _granite_moe,
        _gates_and_ups,
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        Names(
            {
                **ATTENTION,
                **FEED_FORWARD,
                "attn_norm": "input_layernorm",
                "post_attention_norm": "post_attention_layernorm",
                **ROUTED,
                **SHARED_EXPERTS,
            },
            EXPERTS,
        ),
        _glm4_moe,
    ),
    "deepseek2": Architecture("deepseek_v3", "DeepseekV3ForCausalLM", DEEPSEEK, _deepseek, _compressed),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        Names(
            {
                **ATTENTION,
                "attn_norm": "input_layernorm",
                "post_attention_norm": "post_attention_layernorm",
                "attn_sinks.weight": "self_attn.sinks",
                "ffn_gate_inp": "mlp.router",
            }
        ),
        _gpt_oss,
        _gpt_oss_experts,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        Names(
            {
                **ATTENTION,
                **NORMS,
                "ffn_gate_inp": "block_sparse_moe.gate",
                "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
            },
            MINIMAX,
        ),
        _minimax_m2,
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        Names(
            {
                **ATTENTION,
                **FEED_FORWARD,
                **NORMS,
                **SHARED_EXPERTS,
                "ffn_gate_inp": "mlp.gate",
                "exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias",
            },
            EXPERTS,
        ),
        _ernie_moe,
    ),
}  # fmt: skip
"""By `general.architecture`."""
