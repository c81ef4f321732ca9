"""N-gram embeddings as operations: rows of a table, how much of them each stream takes, and a convolution over that. Called by `recorder`;
follows `NgramInjection`. Letters as there.
"""

import numpy as np

from penstock.models.hyper_recorder import HyperRecorder, norm_streams
from penstock.models.ngram_embeddings import NgramInjection
from penstock.models.program_writer import ProgramWriter, fp32
from penstock_kernels import tensors
from penstock_kernels.program import Activation, Format, Kind, Layout

OF_CONVOLUTION = 2  # the state: those of the layer's mixer are before it


def record_ngrams(writer: ProgramWriter, layer: int, ngrams: NgramInjection, hyper: HyperRecorder) -> None:
    """Adds to all streams what the n-grams of each token bring."""
    config, table = ngrams.config, ngrams.table
    streams, width = hyper.config.count, writer.width
    numbers = streams * width
    found = writer.buffer("found by n-grams", Layout.F32, len(config.parts) * config.head_dim)
    begins = np.cumsum([0, *config.parts[:-1]])
    hashed = (
        np.array(config.multipliers, np.int64).view(np.int32),
        np.array(config.parts, np.int32),
        begins.astype(np.int32),
    )
    rows = table.table.rows
    with writer.summed(found) as (target, _, _):
        writer.add(
            Kind.NGRAMS,
            target,
            target,
            layer=layer,
            rows=config.before,
            heads=table.heads,
            head_dim=config.head_dim,
            offset=config.end,
            columns=len(table.table.weight_VE),
            first_id=-1 if rows is None else rows.start,
            format=Format.ROWS,
            weight=table.table.weight_VE,
            sums=tensors.of(np.concatenate(hashed), tensors.int32),
        )
    short = writer.buffer("found by n-grams, in bf16", Layout.BF16, len(config.parts) * config.head_dim)
    writer.norm(found, short, None, columns=len(config.parts) * config.head_dim)
    made = writer.buffer("keys and value of n-grams", Layout.F32, numbers + width)
    writer.linear(short, made, ngrams.parts)
    taken = writer.buffer("taken of n-grams", Layout.F32, numbers)
    writer.add(
        Kind.NGRAM_GATE,
        made,
        taken,
        second=hyper.streams,
        heads=streams,
        columns=width,
        eps=ngrams.key_norm.eps,
        norm_weight=fp32(ngrams.key_norm.weight_AE),
        second_weight=fp32(ngrams.query_norm.weight_AE),
    )
    normed = writer.buffer("taken of n-grams, normed", Layout.F32, numbers)
    norm_streams(writer, ngrams.value_norm, taken, normed)
    convolved = writer.buffer("n-grams convolved", Layout.F32, numbers)
    writer.add(
        Kind.CONVOLVE,
        normed,
        convolved,
        layer=layer,
        offset=OF_CONVOLUTION,
        rows=config.kernel,
        dilation=config.dilation,
        columns=numbers,
        norm_weight=fp32(ngrams.weight_WC),
        activation=Activation.SILU,
    )
    for source in (taken, convolved):
        writer.norm(source, hyper.streams, None, accumulate=True, columns=numbers)
