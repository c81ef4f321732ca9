"""Attention to a window and to entries that stand for several tokens each as operations. Called by `recorder`; follows
`CompressedAttention`, choice by choice. Letters as there.
"""

from typing import Any

from penstock.layers.norm import Norm
from penstock.models.compressed_attention import CompressedAttention, Compressor
from penstock.models.program_writer import ProgramWriter, fp32, kind_of, optional_fp32
from penstock_kernels.program import Kind, Layout, Operation


def record_compressed_attention(
    writer: ProgramWriter, layer: int, attention: CompressedAttention, reads_short: int
) -> int:
    """What the layer's last matrix reads, a buffer of bf16. `reads_short`: what attention reads, in bf16."""
    sizes, heads, indexer = attention.config, attention.heads, attention.indexer
    size, rank = sizes.head_dim, sizes.query_rank
    rate = 0 if sizes.compression is None else sizes.compression.rate
    down = writer.buffer("low queries and keys", Layout.F32, rank + size)
    writer.linear(writer.normed, down, attention.down)
    low = writer.buffer("normed low queries", writer.layout, rank)
    writer.norm(down, low, attention.query_norm, columns=rank)
    asked = writer.buffer("asked", Layout.F32, heads * size)
    writer.linear(low, asked, attention.query)
    queries = writer.buffer("queries", Layout.QUERIES, heads * size)
    shape: dict[str, Any] = {"layer": layer, "heads": heads, "kv_heads": 1, "head_dim": size}
    rotation: dict[str, Any] = {"layer": layer, "rope_dim": attention.rope_dim}

    def turn(source: int, target: int, heads: int, size: int, norm: Norm | None, source_at: int = 0) -> None:
        made = writer.add(
            Kind.TURN,
            source,
            target,
            **rotation,
            heads=heads,
            kv_heads=1,
            head_dim=size,
            source_at=source_at,
        )
        _normed(writer, attention, made, norm)

    turn(asked, queries, heads, size, attention.head_norm)
    near = writer.buffer("keys of a window", Layout.BF16, size)
    turn(down, near, 1, size, attention.key_norm, source_at=rank)
    pending, choice = -1, {}
    if attention.pending is not None and attention.compressor is not None:
        pending = writer.buffer("of entries", Layout.BF16, sizes.pending)
        writer.linear(reads_short, pending, attention.pending)
        _pool(writer, layer, attention, attention.compressor, pending, 0)
    if indexer is not None:
        own = sizes.pending * size // sizes.entry
        _pool(writer, layer, attention, indexer.compressor, pending, own)
        low_short = low
        if writer.is_quantized:
            low_short = writer.buffer("normed low queries in bf16", Layout.BF16, rank)
            writer.norm(down, low_short, attention.query_norm, columns=rank)
        index = {"heads": sizes.index_heads, "kv_heads": 1, "head_dim": sizes.index_dim}
        width = sizes.index_heads * sizes.index_dim
        index_asked = writer.buffer("asked of the index", Layout.F32, width)
        writer.linear(low_short, index_asked, indexer.query)
        index_queries = writer.buffer("index queries", Layout.QUERIES, width)
        turn(index_asked, index_queries, sizes.index_heads, sizes.index_dim, None)
        weights = writer.buffer("weights of index heads", Layout.F32, sizes.index_heads)
        writer.short_linear(reads_short, weights, indexer.weigh)
        chosen = writer.buffer("chosen entries", Layout.F32, sizes.most)
        writer.add(
            Kind.CHOOSE,
            index_queries,
            chosen,
            second=weights,
            layer=layer,
            columns=sizes.most,
            rows=rate,
            scale=indexer.scale,
            **index,
        )
        choice = {"third": chosen, "columns": sizes.most}
    attended = writer.buffer("attended", Layout.BF16, heads * size)
    made = writer.add(
        Kind.COMPRESSED_ATTENTION,
        queries,
        attended,
        second=near,
        **shape,
        **choice,
        rows=rate,
        window=sizes.window,
        rope_dim=attention.rope_dim,
        scale=attention.scale,
        sinks=optional_fp32(attention.sinks_H),
    )
    writer.made.rotations.append((made, attention.rope))
    writer.add(Kind.KEEP, near, near, layer=layer, columns=sizes.window - 1)
    if sizes.compression is not None:
        writer.add(Kind.KEEP, pending, pending, layer=layer, columns=sizes.compression.reads - 1, offset=1)
    groups, inner, rows = attention.out_GIO.shape
    out = writer.buffer("of groups", Layout.BF16, groups * rows)
    writer.heads_linear(attended, out, attention.out_GIO.transpose(1, 2), step=inner)
    attention.out_GIO = attention.out_GIO.new_empty((0, inner, rows))
    return out


def _normed(
    writer: ProgramWriter, attention: CompressedAttention, made: Operation, norm: Norm | None
) -> None:
    """How heads are normed, where they are, and by which table they are rotated."""
    if norm is not None:
        made.norm, made.eps, made.norm_weight = kind_of(norm), norm.eps, optional_fp32(norm.weight_E)
    writer.made.rotations.append((made, attention.rope))


def _pool(
    writer: ProgramWriter,
    layer: int,
    attention: CompressedAttention,
    compressor: Compressor,
    pending: int,
    first: int,
) -> None:
    """Entries of what begins at this column, or, behind others, their index keys."""
    compression = compressor.compression
    made = writer.add(
        Kind.POOL,
        pending,
        pending,
        layer=layer,
        heads=1,
        head_dim=compressor.size,
        rope_dim=compressor.rope_dim,
        rows=compression.rate,
        groups=1 + compression.overlaps,
        source_at=first,
        accumulate=first > 0,
        positions=fp32(compressor.bias_VD),
    )
    _normed(writer, attention, made, compressor.norm)
