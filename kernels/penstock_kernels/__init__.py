"""Operations of the model's forward pass and of sampling, one function each.

Every function here is the definition of its operation, in plain torch, for CPU and CUDA alike. Faster
backends are measured and tested against it. Called by `penstock.layers` and `penstock.sampling`; knows
nothing of requests, slots or checkpoints.

Letters in tensor names: T tokens in the step, S sequences, Q queries of one sequence, L keys of one
sequence, H query heads, K key/value heads, J = 2 K (keys, then values), D head size, E model width, F
feed-forward width, V vocabulary, B blocks, P tokens per block, N = B P cache rows.
"""

from penstock_kernels.activation import ACTIVATIONS, gated
from penstock_kernels.attention import AttentionLayout, ChunkGroup, DecodeGroup, FewGroup, paged_attention
from penstock_kernels.cache import write_kv
from penstock_kernels.matrix import embedding, linear, linear_add
from penstock_kernels.norm import rms_norm
from penstock_kernels.rope import rope
from penstock_kernels.sampling import (
    add_bias,
    add_watermark,
    argmax,
    choose,
    count_tokens,
    green_tokens,
    keep_largest,
    keep_typical,
    log_softmax,
    penalize,
    uniform,
)

__all__ = [
    "ACTIVATIONS",
    "AttentionLayout",
    "ChunkGroup",
    "DecodeGroup",
    "FewGroup",
    "add_bias",
    "add_watermark",
    "argmax",
    "choose",
    "count_tokens",
    "embedding",
    "gated",
    "green_tokens",
    "keep_largest",
    "keep_typical",
    "linear",
    "linear_add",
    "log_softmax",
    "paged_attention",
    "penalize",
    "rms_norm",
    "rope",
    "uniform",
    "write_kv",
]
