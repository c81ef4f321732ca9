"""Per-layer embeddings as operations: what every layer gets of each token, made once for all layers, and how a layer takes its part. Called
by `recorder`; follows `per_layer_inputs`. Letters as there.
"""

from penstock.models.per_layer_inputs import PerLayerEmbedding, PerLayerInput
from penstock.models.program_writer import ProgramWriter
from penstock_kernels import tensors
from penstock_kernels.program import Activation, Epilogue, Format, Kind, Layout


def record_per_layer_embedding(writer: ProgramWriter, per_layer: PerLayerEmbedding, reads_short: int) -> int:
    """The buffer of what all layers get, (L Y). `reads_short`: embeddings of the vocabulary in bf16."""
    wide, half = per_layer.table.weight_VE.shape[1], in_bf16(0.5**0.5)
    width = wide // per_layer.layers
    given = writer.buffer("per-layer inputs", Layout.F32, wide)
    projected = writer.buffer("projected for layers", Layout.F32, wide)
    writer.add(
        Kind.EMBED,
        -1,
        given,
        columns=wide,
        rows=per_layer.rows,
        scale=in_bf16(width**0.5) * half,
        format=Format.ROWS,
        weight=per_layer.table.weight_VE,
    )
    writer.linear(reads_short, projected, per_layer.projection, scale=in_bf16(writer.width**-0.5))
    writer.norm(
        projected, given, per_layer.norm, accumulate=True, scale=half, columns=width, groups=per_layer.layers
    )
    return given


def record_per_layer_input(
    writer: ProgramWriter,
    layer: int,
    per_layer: PerLayerInput,
    activation: Activation,
    reads_short: int,
    given: int,
) -> int:
    """What the layer adds, before its norm: a buffer of fp32. `given`: what all layers get."""
    width = per_layer.gate.weight_OI.shape[0]
    gates = writer.buffer("per-layer gates", Layout.BF16, width)
    writer.linear(reads_short, gates, per_layer.gate, epilogue=Epilogue.ACTIVATE, activation=activation)
    writer.add(
        Kind.OPEN,
        given,
        gates,
        heads=1,
        head_dim=width,
        columns=width,
        source_at=layer * width,
        activation=Activation.IDENTITY,
    )
    made = writer.buffer("given", Layout.F32, writer.width)
    writer.linear(gates, made, per_layer.out)
    return made


def in_bf16(factor: float) -> float:
    """Factors are rounded to bf16 first, as the families do it."""
    return float(tensors.tensor(factor, dtype=tensors.bfloat16))
