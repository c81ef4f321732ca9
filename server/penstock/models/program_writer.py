"""Appends operations to a program: norms, products with packed weights, and what they read. Used by `recorder` and its parts; knows
no layer. Letters as in `decoder`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.layers.gated_norm import GatedNorm
from penstock.layers.linear import Linear
from penstock.layers.norm import LayerNorm, Norm, RmsNorm
from penstock.models.packing import exact_parts, one_matrix, packed
from penstock.models.recording import Recording
from penstock.parallel.group import TensorGroup
from penstock_kernels import program as programs
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.program import (
    BYTE_INPUTS,
    TILE_OUTPUTS,
    Activation,
    Epilogue,
    Kind,
    Layout,
    Operation,
    Program,
    QuantizedMatrix,
)

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_python": Activation.GELU,
    "gelu_pytorch": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_python_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.QUICK_GELU,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "xielu": Activation.XIELU,
}


class ProgramWriter:
    """Appends to the body, or once `operations` is the head to that."""

    def __init__(self, width: int, is_quantized: bool, group: TensorGroup) -> None:
        """`is_quantized`: the layers' large matrices are, and read bytes."""
        self.group = group
        self._sums = 0  # over ranks
        self.made = Recording(Program())
        self.operations = self.made.program.body
        self.width, self.is_quantized = width, is_quantized
        self._packed: dict[int, Linear] = {}  # by identity
        # What the layers' large products read.
        self.layout = Layout.BYTES if is_quantized else Layout.BF16
        self.x = self.buffer("x", Layout.F32, width)
        self.normed = self.buffer("normed", self.layout, width)

    def buffer(self, name: str, layout: Layout, width: int, rows: int = 1) -> int:
        """The buffer of this name, or of one that says its width where some layer has another one."""
        program = self.made.program
        known = next((one for one in program.buffers if one.name == name), None)
        if known is not None and (known.layout, known.width, known.rows) != (layout, width, rows):
            name = f"{name} of {width}"
        return program.buffer(name, layout, width, rows)

    def add(self, kind: Kind, source: int, target: int, **choices: Any) -> Operation:
        """One more operation."""
        made = Operation(kind, source, target, **choices)
        self.operations.append(made)
        return made

    def norm(
        self,
        source: int,
        target: int,
        norm: Norm | None,
        *,
        accumulate: bool = False,
        scale: float = 1.0,
        columns: int = 0,
        groups: int = 0,
    ) -> Operation:
        """Of `columns` numbers, or E, or of several such groups; None: a copy."""
        made = self.add(
            Kind.NORM,
            source,
            target,
            columns=columns or self.width,
            heads=groups,
            accumulate=accumulate,
            scale=scale,
        )
        if norm is not None:
            made.norm, made.eps = kind_of(norm), norm.eps
            made.norm_weight = optional_fp32(norm.weight_E)
            made.bias = optional_fp32(norm.bias_E) if isinstance(norm, LayerNorm) else None
        return made

    def gated_norm(self, norm: GatedNorm) -> int:
        """The residual, normed and times gates that are made of that, to what the layers' products read; a buffer with it in bf16."""
        short = self.normed
        if self.is_quantized:
            short = self.buffer("normed in bf16", Layout.BF16, self.width)
        self.norm(self.x, short, norm)
        low = self.buffer("low gates of norms", Layout.BF16, len(norm.down.weight_OI))
        self.linear(short, low, norm.down, epilogue=Epilogue.ACTIVATE)
        gates = self.buffer("gates of norms", Layout.F32, self.width)
        self.linear(low, gates, norm.up)
        opens = {"heads": 1, "head_dim": self.width, "columns": self.width}
        self.add(Kind.OPEN, gates, short, **opens, activation=Activation.SIGMOID)
        if self.is_quantized:
            self.add(Kind.QUANTIZE, short, self.normed)
        return short

    def linear(
        self,
        source: int,
        target: int,
        linear: Linear,
        *,
        epilogue: Epilogue = Epilogue.STORE,
        activation: Activation = Activation.SILU,
        scale: float = 1.0,
        softcap: float = 0.0,
        is_packed: bool = False,
    ) -> Operation:
        """A product with a matrix, which is packed where it is no already: by another product, or `is_packed`, a head's."""
        quantized = linear.quantized
        if not is_packed and quantized is None and id(linear) not in self._packed:
            linear.weight_OI = packed(linear.weight_OI)
            self._packed[id(linear)] = linear
        outputs = self.made.program.buffers[target].width * (2 if epilogue == Epilogue.GATE else 1)
        bias = None
        if linear.bias_O is not None:
            bias = tensors.zeros(programs.rounded_up(outputs, TILE_OUTPUTS))
            bias[: len(linear.bias_O)] = linear.bias_O.float()
        made = self.add(
            Kind.LINEAR,
            source,
            target,
            rows=outputs,
            epilogue=epilogue,
            activation=activation,
            scale=scale,
            softcap=softcap,
            bias=bias,
            matrix=linear.number,
        )
        if quantized is None:
            made.weight, made.columns = linear.weight_OI, linear.weight_OI.shape[1]
        else:
            weigh(made, quantized)
        return made

    @contextmanager
    def summed(
        self, target: int, *, adds: bool = False, scale: float = 1.0
    ) -> Iterator[tuple[int, float, bool]]:
        """Where each rank puts its part of what all ranks give, with a scale, and whether it is added there: behind this the sum is
        in the target of fp32, or `scale` times the sum is added to it.
        """
        if self.group.size == 1:
            yield target, scale, adds
            return
        width = self.made.program.buffers[target].width
        # What a rank has written others may read until they meet again.
        part = self.buffer(f"part {self._sums % 2}", Layout.SHARED, width)
        self._sums += 1
        yield part, 1.0, False
        self.add(Kind.REDUCE, part, target, accumulate=adds, scale=scale)

    def own_experts(self, count: int) -> int:
        """How many of a layer's experts are this rank's, as operations name it."""
        return -1 if self.group.size == 1 else len(self.group.share(count))

    def short_linear(self, source: int, target: int, linear: Linear) -> None:
        """A product with a small matrix, of bf16 or fp32, which stays what it is: one of fp32 is the sum of some of bf16."""
        parts = exact_parts(linear.weight_OI)
        linear.weight_OI = linear.weight_OI.new_empty((0, linear.weight_OI.shape[1]))
        for number, part in enumerate(parts):
            one = Linear(part, None if number else linear.bias_O)
            self.linear(source, target, one, epilogue=Epilogue.ADD if number else Epilogue.STORE)

    def heads_linear(self, source: int, target: int, weights_HOI: Tensor, step: int) -> None:
        """Products of each head's numbers of bf16, which are `step` apart, with a matrix of its own."""
        count, rows, _ = weights_HOI.shape
        weight = packed(one_matrix(weights_HOI.contiguous()))
        shape = {"heads": count, "head_dim": step, "rows": rows, "columns": weight.shape[1]}
        self.add(Kind.HEADS, source, target, **shape, weight=weight)

    def readable(self, source: int) -> int:
        """A buffer of bf16 as the layers' large products read it."""
        if not self.is_quantized:
            return source
        buffer = self.made.program.buffers[source]
        target = self.buffer(f"{buffer.name} in bytes", Layout.BYTES, buffer.width, buffer.rows)
        self.add(Kind.QUANTIZE, source, target)
        return target


def weigh(operation: Operation, matrix: QuantizedMatrix) -> None:
    """Has a product multiply with a quantized matrix."""
    operation.weight, operation.columns = matrix.tiles, programs.rounded_up(matrix.columns, BYTE_INPUTS)
    operation.format, operation.scales, operation.sums = matrix.format, matrix.scales, matrix.sums


def kind_of(norm: Norm) -> programs.Norm:
    """As operations name it."""
    return programs.Norm.RMS if isinstance(norm, RmsNorm) else programs.Norm.LAYER


def fp32(tensor: Tensor) -> Tensor:
    """As operations read small tensors."""
    return tensor.float().contiguous()


def optional_fp32(tensor: Tensor | None) -> Tensor | None:
    """The same of one that may not be there."""
    return None if tensor is None else fp32(tensor)
