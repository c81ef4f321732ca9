"""Latent attention as operations: what keys and values are made of is applied to queries and to what is attended to, head by head.
Called by `recorder`; follows `LatentAttention`, choice by choice. Letters as there.
"""

from typing import Any

from penstock.models.config import Window
from penstock.models.decoder import LatentAttention
from penstock.models.index_recorder import chosen_keys, record_choice
from penstock.models.program_writer import ProgramWriter, optional_fp32
from penstock_kernels.program import Kind, Layout

LARGEST_LATENT = 2048  # with what is rotated behind it


def record_latent_attention(
    writer: ProgramWriter, layer: int, attention: LatentAttention, window: Window | None, reads_short: int
) -> tuple[int, int]:
    """What the layer's last matrix reads, a buffer of bf16, and what its gates are made of. `reads_short`: what attention reads, in bf16."""
    heads, sizes = attention.heads, attention.sizes
    rank, size = sizes.rank, sizes.plain_dim + sizes.rope_dim
    reads, short, opens = writer.normed, reads_short, reads_short
    if attention.query_down is not None and attention.query_norm is not None:
        low = writer.buffer("low queries", Layout.F32, sizes.query_rank)
        writer.linear(reads, low, attention.query_down)
        reads = writer.buffer("normed low queries", writer.layout, sizes.query_rank)
        writer.norm(low, reads, attention.query_norm, columns=sizes.query_rank)
        short = reads
        if attention.indexer is not None and writer.is_quantized:
            short = writer.buffer("normed low queries in bf16", Layout.BF16, sizes.query_rank)
            writer.norm(low, short, attention.query_norm, columns=sizes.query_rank)
        if sizes.reads_both:
            opens = writer.buffer("low queries, normed and not", Layout.BF16, 2 * sizes.query_rank)
            writer.norm(low, opens, attention.query_norm, columns=sizes.query_rank)
            writer.norm(low, opens, None, columns=sizes.query_rank).target_at = sizes.query_rank
            reads = writer.readable(opens)
    asked = writer.buffer("asked", Layout.BF16, heads * size)
    writer.linear(reads, asked, attention.query)
    latent = writer.buffer("latents", Layout.F32, rank + sizes.rope_dim)
    writer.linear(writer.normed, latent, attention.latent)
    writer.norm(latent, latent, attention.latent_norm, columns=rank)
    if attention.rope_norm is not None:
        turned = writer.norm(latent, latent, attention.rope_norm, columns=sizes.rope_dim)
        turned.source_at = turned.target_at = rank
    # A head's key is its matrix times the latent: the query is multiplied with it instead.
    asked_latents = writer.buffer("asked latents", Layout.BF16, heads * rank)
    writer.heads_linear(asked, asked_latents, attention.keys_HDR.transpose(1, 2), step=size)
    attention.keys_HDR = attention.keys_HDR.new_empty((0, *attention.keys_HDR.shape[1:]))
    cached = (
        rank + sizes.rope_dim
    )  # of layers with other latents queries are laid out otherwise, however many there are
    queries = writer.buffer(f"queries of {cached}", Layout.QUERIES, heads * cached)
    shape: dict[str, Any] = {
        "layer": layer,
        "heads": heads,
        "kv_heads": 1,
        "head_dim": cached,
        "value_dim": rank,
    }
    write = writer.add(
        Kind.WRITE_LATENT,
        asked_latents,
        queries,
        second=asked,
        third=latent,
        **shape,
        rope_dim=sizes.rope_dim,
    )
    if attention.rope is not None:
        writer.made.rotations.append((write, attention.rope))
    if attention.temperature is not None:
        writer.made.temperatures.append((write, attention.temperature))
    if attention.indexer is not None and attention.rope is not None:
        record_choice(writer, layer, attention.indexer, attention.rope, reads_short, short)
    choice = {}
    if sizes.index is not None:
        choice = {"second": chosen_keys(writer, sizes.index), "columns": sizes.index.most}
    found = writer.buffer("latents attended to", Layout.BF16, heads * rank)
    writer.add(
        Kind.ATTENTION,
        queries,
        found,
        **shape,
        window=0 if window is None else window.size,
        chunked=window is not None and window.chunked,
        scale=attention.scale,
        softcap=attention.score_modifiers.softcap,
        sinks=optional_fp32(attention.score_modifiers.sinks_H),
        **choice,
    )
    attended = writer.buffer("attended", Layout.BF16, heads * sizes.value_dim)
    writer.heads_linear(found, attended, attention.values_HVR, step=rank)
    attention.values_HVR = attention.values_HVR.new_empty((0, *attention.values_HVR.shape[1:]))
    return attended, opens
