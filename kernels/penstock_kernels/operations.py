"""Every operation of the package, imported at once: what `penstock_kernels` gives when it is asked for one of them."""

from penstock_kernels.activation import ACTIVATIONS, gated, gated_capped, gated_clamped, gated_limited, xielu
from penstock_kernels.attention import (
    AttentionMetadata,
    ChunkGroup,
    DecodeGroup,
    FewGroup,
    gathered_at_once,
    paged_attention,
    workspace_bytes,
)
from penstock_kernels.cache import rope_and_write, write_kv
from penstock_kernels.chosen_blocks import choose_blocks, write_block_keys
from penstock_kernels.chosen_head_blocks import choose_head_blocks
from penstock_kernels.chosen_keys import ChosenKeys, choose_keys
from penstock_kernels.compressed_keys import (
    CompressionMetadata,
    WithPast,
    compressed_attention,
    finished_windows,
    pool,
    with_past,
)
from penstock_kernels.convolution import causal_conv, mix_with_previous, previous_ids, previous_tokens
from penstock_kernels.delta_rule import channel_delta_rule, gated_delta_rule
from penstock_kernels.draws import DRAW_ROW, Draws, LogitsSummary, uniform
from penstock_kernels.encoder_decoder_attention import (
    Rectangle,
    bidirectional_attention,
    rectangle_attention,
    score_mask,
)
from penstock_kernels.experts import mix_experts, route, weigh
from penstock_kernels.linear_attention import decayed_attention
from penstock_kernels.matrix import embedding, heads_linear, linear, long_linear
from penstock_kernels.norm import (
    add_rms_norm,
    gated_rms_norm,
    layer_norm,
    rms_norm,
    rms_norm_in_place,
    unit_norm,
)
from penstock_kernels.quantized import quantized_linear
from penstock_kernels.recurrence import TOKENS_AT_ONCE, Run, StateMetadata, Turn
from penstock_kernels.rotary import rope, scale_by_logarithm, scale_by_position
from penstock_kernels.routing import Routing
from penstock_kernels.sampling import (
    accept_draft_trees,
    accept_drafts,
    add_bias,
    add_watermark,
    argmax,
    choose,
    count_tokens,
    greedy,
    green_tokens,
    keep_largest,
    keep_typical,
    log_softmax,
    mask_tokens,
    penalize,
    summarize,
)
from penstock_kernels.scan import linear_recurrence, selective_scan, weighted_key_values
from penstock_kernels.score_modifiers import PLAIN, DistanceBias, ScoreModifiers

__all__ = [
    "ACTIVATIONS",
    "DRAW_ROW",
    "PLAIN",
    "TOKENS_AT_ONCE",
    "AttentionMetadata",
    "ChosenKeys",
    "ChunkGroup",
    "CompressionMetadata",
    "DecodeGroup",
    "DistanceBias",
    "Draws",
    "FewGroup",
    "LogitsSummary",
    "Rectangle",
    "Routing",
    "Run",
    "ScoreModifiers",
    "StateMetadata",
    "Turn",
    "WithPast",
    "accept_draft_trees",
    "accept_drafts",
    "add_bias",
    "add_rms_norm",
    "add_watermark",
    "argmax",
    "bidirectional_attention",
    "causal_conv",
    "channel_delta_rule",
    "choose",
    "choose_blocks",
    "choose_head_blocks",
    "choose_keys",
    "compressed_attention",
    "count_tokens",
    "decayed_attention",
    "embedding",
    "finished_windows",
    "gated",
    "gated_capped",
    "gated_clamped",
    "gated_delta_rule",
    "gated_limited",
    "gated_rms_norm",
    "gathered_at_once",
    "greedy",
    "green_tokens",
    "heads_linear",
    "keep_largest",
    "keep_typical",
    "layer_norm",
    "linear",
    "linear_recurrence",
    "log_softmax",
    "long_linear",
    "mask_tokens",
    "mix_experts",
    "mix_with_previous",
    "paged_attention",
    "penalize",
    "pool",
    "previous_ids",
    "previous_tokens",
    "quantized_linear",
    "rectangle_attention",
    "rms_norm",
    "rms_norm_in_place",
    "rope",
    "rope_and_write",
    "route",
    "scale_by_logarithm",
    "scale_by_position",
    "score_mask",
    "selective_scan",
    "summarize",
    "uniform",
    "unit_norm",
    "weigh",
    "weighted_key_values",
    "with_past",
    "workspace_bytes",
    "write_block_keys",
    "write_kv",
    "xielu",
]
