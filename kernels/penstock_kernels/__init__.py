"""Operations of the model's forward pass and of sampling, one function each.

Every function here is the definition of its operation, in plain torch, for CPU and CUDA alike. Faster
backends are measured and tested against it. Called by `penstock.layers` and `penstock.engine.sampling`; knows
nothing of requests, slots or checkpoints.

Letters in tensor names: T tokens in the step, S sequences, Q queries of one sequence, L keys of one
sequence, H query heads, K key/value heads, J = 2 K (keys, then values), D head size, E model width, F
feed-forward width, V vocabulary, B blocks, P tokens per block, N = B P cache rows, X experts. Modules say which others
they have.
"""

from penstock_kernels.activation import ACTIVATIONS, gated, gated_clamped, gated_limited, xielu
from penstock_kernels.attention import (
    PLAIN,
    AttentionMetadata,
    ChunkGroup,
    DecodeGroup,
    FewGroup,
    ScoreModifiers,
    gathered_at_once,
    paged_attention,
    workspace_bytes,
)
from penstock_kernels.cache import write_kv
from penstock_kernels.causal_conv import causal_conv
from penstock_kernels.chosen_keys import ChosenKeys, choose_keys
from penstock_kernels.delta_rule import channel_delta_rule, gated_delta_rule
from penstock_kernels.encoder_decoder_attention import (
    Rectangle,
    bidirectional_attention,
    rectangle_attention,
    score_mask,
)
from penstock_kernels.experts import Routing, mix_experts, route
from penstock_kernels.linear_attention import decayed_attention
from penstock_kernels.matrix import embedding, heads_linear, linear
from penstock_kernels.norm import gated_rms_norm, layer_norm, rms_norm, unit_norm
from penstock_kernels.recurrence import TOKENS_AT_ONCE, Run, StateMetadata
from penstock_kernels.rope import rope, scale_by_position
from penstock_kernels.sampling import (
    DRAW_ROW,
    DrawRows,
    Draws,
    LogitsSummary,
    accept_draft_trees,
    accept_drafts,
    add_bias,
    add_watermark,
    argmax,
    choose,
    count_tokens,
    green_tokens,
    keep_largest,
    keep_typical,
    log_softmax,
    mask_tokens,
    penalize,
    summarize,
    uniform,
)
from penstock_kernels.scan import linear_recurrence, selective_scan

__all__ = [
    "ACTIVATIONS",
    "DRAW_ROW",
    "PLAIN",
    "TOKENS_AT_ONCE",
    "AttentionMetadata",
    "ChosenKeys",
    "ChunkGroup",
    "DecodeGroup",
    "DrawRows",
    "Draws",
    "FewGroup",
    "LogitsSummary",
    "Rectangle",
    "Routing",
    "Run",
    "ScoreModifiers",
    "StateMetadata",
    "accept_draft_trees",
    "accept_drafts",
    "add_bias",
    "add_watermark",
    "argmax",
    "bidirectional_attention",
    "causal_conv",
    "channel_delta_rule",
    "choose",
    "choose_keys",
    "count_tokens",
    "decayed_attention",
    "embedding",
    "gated",
    "gated_clamped",
    "gated_delta_rule",
    "gated_limited",
    "gated_rms_norm",
    "gathered_at_once",
    "green_tokens",
    "heads_linear",
    "keep_largest",
    "keep_typical",
    "layer_norm",
    "linear",
    "linear_recurrence",
    "log_softmax",
    "mask_tokens",
    "mix_experts",
    "paged_attention",
    "penalize",
    "rectangle_attention",
    "rms_norm",
    "rope",
    "route",
    "scale_by_position",
    "score_mask",
    "selective_scan",
    "summarize",
    "uniform",
    "unit_norm",
    "workspace_bytes",
    "write_kv",
    "xielu",
]
