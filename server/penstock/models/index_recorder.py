"""The indexer as operations: keys of an index, queries that score them, and the choice that attention reads. Called by `latent_recorder` and,
where blocks are chosen, `recorder`; follows `Indexer`, choice by choice. Letters as there.
"""

from typing import Any

from penstock.models.config import IndexConfig
from penstock.models.indexer import BlockIndexer, HeadBlockIndexer, Indexer
from penstock.models.program_writer import ProgramWriter, fp32
from penstock_kernels.program import Kind, Layout


def chosen_keys(writer: ProgramWriter, sizes: IndexConfig) -> int:
    """The buffer with what the last indexer has chosen: whole numbers in place of fp32."""
    return writer.buffer("chosen keys", Layout.F32, sizes.most)


def record_choice(
    writer: ProgramWriter, layer: int, indexer: Indexer, rope: int, reads: int, reads_low: int
) -> None:
    """Behind the layer's keys in the cache. Both buffers are of bf16: what attention reads, and what its queries are made of."""
    sizes = indexer.sizes
    keys = writer.buffer("index keys", Layout.F32, sizes.head_dim)
    writer.linear(reads, keys, indexer.key)
    writer.norm(keys, keys, indexer.key_norm, columns=sizes.head_dim)
    width = sizes.heads * sizes.head_dim
    asked = writer.buffer("asked of the index", Layout.F32, width)
    writer.linear(reads_low, asked, indexer.query)
    weights = writer.buffer("weights of index heads", Layout.F32, sizes.heads)
    writer.short_linear(reads, weights, indexer.weigh)
    queries = writer.buffer("index queries", Layout.QUERIES, width)
    shape = {"layer": layer, "heads": sizes.heads, "kv_heads": 1, "head_dim": sizes.head_dim}
    write = writer.add(Kind.WRITE_INDEX, keys, queries, second=asked, rope_dim=indexer.rope_dim, **shape)
    writer.made.rotations.append((write, rope))
    writer.add(
        Kind.CHOOSE,
        queries,
        chosen_keys(writer, sizes),
        second=weights,
        columns=sizes.most,
        scale=indexer.scale,
        **shape,
    )


def record_blocks(
    writer: ProgramWriter, layer: int, indexer: BlockIndexer, rope: int, rope_dim: int, reads_short: int
) -> dict[str, Any]:
    """What attention says of the keys of the blocks that are chosen for it. `reads_short`: what attention reads, in bf16."""
    sizes = indexer.sizes
    width = sizes.heads * sizes.head_dim
    parts = writer.buffer("index queries and key", Layout.F32, width + sizes.head_dim)
    writer.linear(reads_short, parts, indexer.parts)
    queries = writer.buffer("index queries", Layout.QUERIES, width)
    shape = {"layer": layer, "heads": sizes.heads, "kv_heads": 1, "head_dim": sizes.head_dim}
    assert indexer.query_norm.weight_E is not None, "it has a weight"
    write = writer.add(
        Kind.WRITE_BLOCKS,
        parts,
        queries,
        **shape,
        window=sizes.block,
        rope_dim=rope_dim,
        eps=sizes.norm.eps,
        norm_weight=fp32(indexer.query_norm.weight_E),
        second_weight=fp32(indexer.key_weight_C),
    )
    writer.made.rotations.append((write, rope))
    columns = (sizes.most + 1) * sizes.block - 1
    chosen = writer.buffer("chosen keys", Layout.F32, columns)
    writer.add(Kind.CHOOSE, queries, chosen, **shape, columns=columns, window=sizes.block)
    return {"second": chosen, "columns": columns}


def record_head_blocks(
    writer: ProgramWriter, layer: int, indexer: HeadBlockIndexer, rope: int, rope_dim: int, reads_short: int
) -> dict[str, Any]:
    """The same where each of this rank's key heads chooses blocks for itself."""
    sizes = indexer.sizes
    heads = len(indexer.parts.weight_OI) // sizes.head_dim - 1
    width = heads * sizes.head_dim
    parts = writer.buffer("index queries and key", Layout.F32, width + sizes.head_dim)
    writer.linear(reads_short, parts, indexer.parts)
    queries = writer.buffer("index queries", Layout.QUERIES, width)
    shape = {"layer": layer, "heads": heads, "kv_heads": 1, "head_dim": sizes.head_dim}
    weights_C = indexer.query_norm.weight_E, indexer.key_norm.weight_E
    assert weights_C[0] is not None and weights_C[1] is not None, "they have weights"
    write = writer.add(
        Kind.WRITE_INDEX,
        parts,
        queries,
        **shape,
        second=parts,
        source_at=width,
        inner_at=0,
        rope_dim=rope_dim,
        eps=indexer.query_norm.eps,
        norm_weight=fp32(weights_C[0]),
        second_weight=fp32(weights_C[1]),
    )
    writer.made.rotations.append((write, rope))
    columns = sizes.most * sizes.block
    chosen = writer.buffer("chosen keys", Layout.F32, heads * columns)
    writer.add(
        Kind.CHOOSE_FOR_HEADS,
        queries,
        chosen,
        **shape,
        columns=columns,
        window=sizes.block,
        offset=sizes.latest,
    )
    return {"second": chosen, "columns": columns}
