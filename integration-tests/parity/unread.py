"""What a recipe need not read of a published config.json: what changes nothing of what the text's decoder computes, says again what another
field says, or has a value that the family's code takes for granted. Any other field has to change what is read of the file: see test_quoted_configs.
"""

from typing import Any

from penstock.models.config import DecoderConfig
from penstock.models.encoder_decoder_config import EncoderDecoderConfig


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Objects that describe something else than the text's decoder; of quantization, see `penstock.quantization`.
OTHER_PARTS = _names("vision_config audio_config vision_lora speech_lora quantization_config mtp")

# Fields that change nothing of what it computes.
OF_NOTHING = (
    # Names, which chose the recipe.
    _names(
        "architectures model_type _name_or_path attn_config.model_type ffn_config.model_type is_encoder_decoder"
    )
    # Tokens, and how texts are generated.
    | _names(
        "bos_token_id eos_token_id pad_token_id unk_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id"
    )
    | _names(
        "force_bos_token_to_be_generated bad_words_ids image_token_id image_token_index video_token_id im_patch_id prefix"
    )
    | _names("max_length num_beams")
    # Training.
    | _names(
        "emb_pdrop resid_pdrop attn_config.attn_pdrop ffn_config.moe_jitter_eps ffn_config.moe_loss_weight initializer_range"
    )
    | _names(
        "input_jitter_noise router_aux_loss_coef output_router_logits rescale_prenorm_residual altup_coef_clip moe_capacity"
    )
    | _names(
        "time_step_min time_step_max time_step_floor time_step_scale time_step_init_scheme do_blenderbot_90_layernorm"
    )
    # Which kernels run, in which pieces and precision, and over how many ranks.
    | _names(
        "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion skip_bias_add"
    )
    | _names(
        "skip_bias_add_qkv offset_alibi attn_implementation attn_config.attn_impl attn_config.attn_uses_sequence_id"
    )
    | _names(
        "cache_implementation fused_add_norm residual_in_fp32 mamba_chunk_size chunk_size mamba_ssm_dtype mamba_ssm_cache_dtype"
    )
    | _names(
        "use_mamba_kernels moe_grouped_gemm use_grouped_mm moe_multimodal_dispatch_use_allgather moe_gating_fp32"
    )
    | _names(
        "expert_dtype torch_dtype ep_size pretraining_tp split_ngram_parts num_logits_to_keep output_past"
    )
    # Layers that predict further tokens.
    | _names(
        "num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings mtp_share_layers mtp_layers_block_type"
    )
    | _names("mtp_hybrid_override_pattern mtp_transformer_layers use_mtp num_mtp_modules _num_mtp_layers")
    # Encoders of images, where their fields are the text's neighbours; positions of three kinds, which are equal in a text.
    | _names(
        "mm_hidden_size mm_projector_type mm_vision_tower mm_tunable_parts pixel_hidden_size spatial_conv_size"
    )
    | _names(
        "temporal_conv_size rope_3d additional_vocab_size rope_scaling.mrope_section rope_scaling.mrope_interleaved"
    )
    | _names("rope_scaling.interleaved rope_scaling.xdrope_section rope_parameters.mrope_section")
    | _names("rope_parameters.mrope_interleaved rope_parameters.xdrope_section")
    | _names("rope_parameters.sliding_attention.mrope_section")
    | _names("rope_parameters.sliding_attention.mrope_interleaved")
    # Other heads than that of the next token.
    | _names("add_classification_head summary_type predict_special_tokens n_special rm_head")
)

# Fields that say what one of these says, too.
AGAIN: dict[str, tuple[str, ...]] = {
    "attention_head_dim": ("head_dim",),
    "attention_layers": ("attention_types",),  # as a list
    "block_dim": ("hidden_size",),
    "block_norm_eps": ("norm_eps",),
    "conv_dim": ("hidden_size",),
    "conv_dim_out": ("hidden_size",),
    "decoder_sparse_step": ("mlp_layer_types",),
    "expand": ("intermediate_size", "mamba_num_heads"),
    "expert_hidden_dim": ("moe_intermediate_size",),
    "experts_per_token": ("num_experts_per_tok",),
    "first_last_k_dense_replace": ("is_moe_layer",),
    "full_attention_interval": ("layer_types",),
    "head_dim": ("v_head_dim",),
    "hidden_act": ("hidden_activation",),
    "initial_context_length": ("rope_scaling",),
    "interleave_moe_layer_step": ("moe_layers",),
    "intermediate_size": ("block_ff_dim", "shared_intermediate_size"),
    "layer_norm_epsilon": ("norm_epsilon",),
    "layer_norm_eps": ("rms_norm_eps",),
    "mamba_d_state": ("ssm_state_size",),
    "mamba_expand": ("mamba_d_ssm",),
    "max_position_embeddings": ("model_max_length",),
    "max_seq_len": ("max_position_embeddings",),
    "mlp_expansion_factor": ("intermediate_size",),
    "mlp_only_layers": ("mlp_layer_types",),
    "moe_router_enable_expert_bias": ("moe_router_use_sigmoid",),
    "n_ctx": ("n_positions",),
    "n_layer": ("num_hidden_layers",),
    "n_shared_experts": ("moe_shared_expert_intermediate_size",),
    "no_rope_layer_interval": ("no_rope_layers",),
    "num_experts_per_tok": ("moe_topk", "moe_num_experts"),
    "num_heads": ("num_attention_heads",),
    "num_hidden_layers": ("hybrid_override_pattern", "layers_block_type", "encoder_layers"),
    "org_vocab_size": ("vocab_size",),
    "partial_rotary_factor": ("rope_parameters", "attn_rotary_emb"),
    "qk_head_dim": ("qk_rope_head_dim",),
    "rms_norm_eps": ("layer_norm_epsilon",),
    "rope_parameters.original_max_position_embeddings": (
        "rope_parameters.full_attention.original_max_position_embeddings",
    ),
    # Of a whole model, where kinds of layers have their own.
    "rope_parameters.rope_theta": ("rope_parameters.sliding_attention.rope_theta",),
    "rope_parameters.rope_type": ("rope_parameters.sliding_attention.rope_type",),
    "rope_parameters.type": ("rope_parameters.rope_type",),
    "rope_scaling.original_max_position_embeddings": ("original_max_position_embeddings",),
    "rope_scaling.type": ("rope_scaling.rope_type",),
    "rope_theta": ("rope_parameters",),
    "rotary_dim": ("rope_parameters", "qk_rope_head_dim", "partial_rotary_factor"),
    "sliding_window": ("sliding_window_size",),
    "sliding_window_pattern": ("layer_types",),
    "swa_v_head_dim": ("v_head_dim",),
    "theta": ("rope_theta",),
    "time_step_rank": ("mamba_num_heads",),
    "type": ("rope_scaling",),
}

# Values that the families that have these fields take for granted.
GRANTED: dict[str, tuple[object, ...]] = {
    "activation_function": ("gelu",),  # of StarCoder 2, which reads hidden_act
    "add_bias_logits": (False,),
    "apply_mla_qkv_lora_rescale": (True,),
    "attention_bias": (True,),  # of MiMo, as of Qwen 2
    "attention_gate_type": ("headwise",),
    "attn_rotary_emb": (64,),  # of Bamba: half of a head
    "bias": (False,),  # of Galactica 30B: transformers' class has enable_bias, and does not read this
    "block_use_swiglu": (True,),
    "embedding_fraction": (1.0,),
    "enable_ihc": (True,),
    "extra_pos_embeddings": (0, 1, 2),  # rows that the table has before those of positions, by family
    "full_attn_mod": (1,),
    "gating_type": ("elementwise",),
    "group_norm_size": (1,),
    "interpolate_factor": (1,),
    "kv_channels": (128,),  # of Nemotron: the width over heads
    "layernorm_full_attention_beta": (1.0,),
    "layernorm_linear_attention_beta": (1.0,),
    "layernorm_mlp_beta": (1.0,),
    "learned_embeddings": (True,),
    "learned_pos_emb": (True,),  # of MPT, where there are no biases by distance
    "linear_silu": (True,),
    "lm_head": (True,),
    "lm_head_bias": (False,),
    "mamba_proj_bias": (False,),
    "mamba_use_mlp": (True,),
    "max_sequence_length": (2048,),  # of InstructBLIP: the positions of its class
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "norm_topk_prob": (True,),
    "norm_type": ("rms",),
    "normalization_function": ("rmsnorm",),
    "num_kv_heads_for_linear_attn": (0,),
    "pad_vocab_size_multiple": (8,),  # the vocabulary is rounded up in what is saved
    "qk_layer_norms": (False,),
    "qk_norm": (True,),
    "rms_norm": (True,),
    "rope_interleave": (True,),
    "rotary": (True,),
    "rope_scaling.type": ("default",),  # of ERNIE 4.5 VL
    "rotary_scaling_factor": (1.0,),
    "scale_attn_weights": (True,),
    "scale_embeddings": (False,),
    "shared_expert_intermediate_size": (0,),
    "swa_attention_gate_type": ("headwise",),
    "tie_word_embeddings": (False,),  # of mT5, whose head is the checkpoint's
    "use_mixed_mlp_moe": (True,),
    "use_moe": (True,),
    "use_mrope": (False,),
    "use_norm_bias": (False,),  # of StableLM 2 12B: transformers' class gives every norm of a layer a bias
    "use_parallel_block": (True,),
    "use_pos_enc": (True,),
    "use_resampler": (False,),
    "use_rmsnorm": (True,),
    "use_rotary_pos_emb": (True,),
    "use_routing_bias": (True,),
}

ALWAYS_OR_NEVER_NORMED = _names("bailing_hybrid cohere2_moe molmo2_text qwen3 qwen3_omni_moe_text step3p5")

# What an encoder-decoder's family fixes; SIDES of test_quoted_configs compares it.
OF_SIDES = _names(
    "normalize_before normalize_embedding add_final_layer_norm static_position_embeddings dense_act_fn is_gated_act"
)


def need_not_be_read(
    text: dict[str, Any], read: DecoderConfig | EncoderDecoderConfig, path: str, value: object
) -> bool:
    """Whether a recipe may pass by this value, at this path of a text's part."""
    if path.split(".")[0] in OTHER_PARTS or path in OF_NOTHING:
        return True
    if any(_has(text, name) for name in AGAIN.get(path, ())) or value in GRANTED.get(path, ()):
        return True
    if isinstance(read, EncoderDecoderConfig):
        return path in OF_SIDES or path == "n_positions"
    return any(is_so and path in names for is_so, names in _unused(text, read))


def _has(text: dict[str, Any], path: str) -> bool:
    """Whether something is there."""
    name, _, below = path.partition(".")
    return text.get(name) is not None and (not below or _has(text[name], below))


def _unused(text: dict[str, Any], read: DecoderConfig) -> list[tuple[bool, frozenset[str]]]:
    """Whether a model has no use for some fields, and which."""
    experts = [layer.experts for layer in read.layers if layer.experts is not None]
    family = text.get("model_type")
    return [
        # All heads have one latent.
        (bool(read.latents), _names("num_key_value_heads swa_num_key_value_heads head_dim")),
        (bool(read.latents), _names("partial_rotary_factor rope_parameters.partial_rotary_factor")),
        (text.get("use_mla") is False, _names("qk_nope_head_dim qk_rope_head_dim v_head_dim")),
        (read.kv_heads == read.heads, _names("num_key_value_heads")),
        (text.get("multi_query") is True, _names("num_kv_heads")),
        # All layers attend to all keys; or none of them, to a window as long as what can be read.
        (
            set(read.windows) == {None},
            _names("sliding_window max_window_layers use_sliding_window layer_types"),
        ),
        ("layer_types" in text, _names("max_window_layers use_sliding_window")),
        (family in ("qwen3_moe", "qwen3_next", "dots3_note"), _names("use_sliding_window layer_types")),
        # Llama 4 without experts, whose width the other field is; the temperature is of layers that are not rotated.
        (family == "llama4_text" and not experts, _names("intermediate_size")),
        (
            family == "llama4_text" and all(layer.rope for layer in read.layers),
            _names("attn_temperature_tuning attn_scale floor_scale"),
        ),
        # These have norms of queries and keys, or none, whatever the file says.
        (family in ALWAYS_OR_NEVER_NORMED, _names("use_qk_norm")),
        (not experts, _names("num_experts num_experts_per_tok num_local_experts routed_scaling_factor")),
        (
            len(experts) == read.num_layers,
            _names("intermediate_size first_k_dense_replace mlp_intermediate_size"),
        ),
        (bool(experts) and experts[0].routing.top_groups == 1, _names("n_group topk_group")),
        (not read.ropes, _names("rope_theta partial_rotary_factor")),
        (
            not any(layer.recurrent for layer in read.layers),
            frozenset(name for name in text if name[:6] == "mamba_"),
        ),
        (read.per_layer is None, _names("vocab_size_per_layer_input")),
        (not read.shares_keys, _names("use_double_wide_mlp")),
        (not text.get("block_auto_adjust_ff_dim"), _names("block_ffn_dim_multiplier block_multiple_of")),
        # Sizes that follow from others there.
        (family in ("bamba", "mamba2", "falcon_mamba"), _names("mamba_dt_rank expand")),
        # Heads of a size make the width; the gate comes before the norm, whatever the file says.
        (family == "mamba2", _names("intermediate_size time_step_rank norm_before_gate")),
        (not text.get("mamba_rms_norm"), _names("mamba_norm_before_gate")),
        (text.get("use_cla") is False, _names("cla_share_factor")),
        # Hunyuan's alpha stretches the base, and nothing else.
        (
            "alpha" in (text.get("rope_scaling") or {}),
            frozenset(
                f"rope_scaling.{name}"
                for name in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
            ),
        ),
        # All layers compress their keys.
        (
            bool(read.compressed) and None not in [one and one.compression for one in read.compressed],
            _names("rope_theta"),
        ),
        (
            family in ("minimax_m2", "minimax_m3", "mixtral", "minimax", "minimax_text_01"),
            _names("shared_moe_mode rotary_dim"),
        ),
        # The first value is of a dense layer, which this does not cap, and the last one of a layer that predicts a further token.
        (family == "step3p5", _names("swiglu_limits")),
        # Of our reading of Nemotron-H, see the recipe.
        (family == "nemotron_h", _names("attention_bias")),
    ]
