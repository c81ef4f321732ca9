"""From a decoder to a program: the list of operations that the CPU engine runs for it.

Follows `Decoder.forward` and `Decoder.logits`, choice by choice of the configuration, and says of which choices the engine knows
nothing. Weights are packed where they are (`packing`), or were quantized when they were read: a decoder that was recorded cannot
be run by torch any more. Letters as in `decoder`.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.layers.linear import Linear
from penstock.layers.norm import LayerNorm, Norm, RmsNorm
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Attention, Decoder, FeedForward, Layer
from penstock.models.packing import align_halves, packed
from penstock_kernels import program as programs
from penstock_kernels.program import (
    BYTE_INPUTS,
    TILE_OUTPUTS,
    Activation,
    Epilogue,
    Kind,
    Layout,
    NormOver,
    Operation,
    Program,
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
}
NORMS_OVER = {"head": NormOver.HEAD, "heads": NormOver.HEADS, "all": NormOver.ALL}
LARGEST_HEAD = 256


@dataclass
class Recording:
    """A program, and which of its operations rotate by which of the model's tables: those follow from the longest
    sequence."""

    program: Program
    rotations: list[tuple[Operation, int]] = field(default_factory=list)


def unknown_choice(config: DecoderConfig) -> str | None:
    """A choice of the family that the engine does not know, in words; None: its decoder can be recorded."""
    return next(iter(unknown_choices(config)), None)


def unknown_choices(config: DecoderConfig) -> list[str]:
    """All of them."""
    experts = [layer.experts for layer in config.layers if layer.experts is not None]
    checks = (
        (config.has_state, "recurrent layers"),
        (bool(config.attention_gate), "gated attention"),
        (config.latent is not None, "latent attention"),
        (any(layer.temperature is not None for layer in config.layers), "queries scaled by position"),
        (
            config.qk_norm is not None and config.qk_norm_rotated,
            "norms of queries and keys behind the rotation",
        ),
        (any(layer.experts is not None for layer in config.layers), "experts"),
        (any(one.weighs_input for one in experts), "weights of what experts read"),
        (any(one.routing.one_by_one > 0 for one in experts), "experts chosen one by one"),
        (config.experts_beside, "experts beside a dense layer"),
        (any(layer.gate_sparsity > 0 for layer in config.layers), "sparse gates"),
        (bool(config.slopes), "linear biases (ALiBi)"),
        (config.sinks, "attention sinks"),
        (not config.same_heads, "heads of several sizes"),
        (any(layer.keys_of is not None for layer in config.layers), "layers that share keys"),
        (any(layer.values_are_keys for layer in config.layers), "values that are keys"),
        (config.value_norm is not None, "normalised values"),
        (config.value_scale != 1.0, "scaled values"),
        (bool(config.out_gate), "gates of what is attended to"),
        (any(layer.heads for layer in config.layers), "layers with heads of their own number"),
        (config.layer_scales, "scaled layers"),
        (config.streams is not None, "several residual streams"),
        (config.per_layer is not None, "per-layer embeddings"),
        (any(not layer.qk_normed for layer in config.layers), "layers without norms of queries"),
        (bool(config.embedding_width), "an embedding of another width"),
        (config.activation not in ACTIVATIONS, f"the activation {config.activation}"),
        (config.qk_norm is not None and config.qk_norm.bias, "biases in the norms of queries and keys"),
        (config.head_dim > LARGEST_HEAD or config.head_dim % 2 == 1, f"heads of {config.head_dim}"),
        (bool(config.clip_qkv) and config.qk_norm is not None, "clipped queries with norms"),
    )
    return [what for is_there, what in checks if is_there]


def record(decoder: Decoder) -> Recording:
    """The decoder's program. Packs its weights."""
    return _Recorder(decoder).record()


class _Recorder:
    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.config: DecoderConfig = decoder.config
        self.made = Recording(Program())
        config = self.config
        mixers = [layer.attention for layer in decoder.layers if layer.attention is not None]
        self.is_quantized = any(mixer.out.quantized is not None for mixer in mixers)
        # What the layers' products read.
        self.layout = Layout.BYTES if self.is_quantized else Layout.BF16
        self.x = self._buffer("x", Layout.F32, config.width)
        self.normed = self._buffer("normed", self.layout, config.width)

    def record(self) -> Recording:
        program = self.made.program
        self.operations = program.body
        self._embed()
        for index, layer in enumerate(self.decoder.layers):
            self._layer(index, layer)
        self.operations = program.head
        self._head()
        return self.made

    def _buffer(self, name: str, layout: Layout, width: int) -> int:
        return self.made.program.buffer(name, layout, width)

    def _embed(self) -> None:
        config, ends = self.config, self.decoder.ends
        assert ends.embedding is not None and ends.head is not None, "asked of a decoder in one piece"
        is_tied = ends.head.weight_OI is ends.embedding.weight_VE
        ends.embedding.weight_VE = packed(ends.embedding.weight_VE)
        if is_tied:
            ends.head.weight_OI = ends.embedding.weight_VE
        elif ends.head.quantized is None:
            ends.head.weight_OI = packed(ends.head.weight_OI)
        # The factor is rounded to bf16 first, as the families that have one do.
        scale = float(torch.tensor(config.embedding_scale, dtype=torch.bfloat16))
        positions = None if ends.positions is None else _fp32(ends.positions.weight_VE)
        self.operations.append(
            Operation(
                Kind.EMBED,
                -1,
                self.x,
                columns=config.width,
                scale=scale,
                weight=ends.embedding.weight_VE,
                positions=positions,
                offset=config.position_offset,
            )
        )
        if ends.embedding_norm is not None:
            self._norm(self.x, self.x, ends.embedding_norm)

    def _layer(self, index: int, layer: Layer) -> None:
        config = self.config
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(attention, Attention) and isinstance(feed_forward, FeedForward)
        self._read(layer.attention_norm)
        reads = self.normed
        if config.parallel and layer.feed_forward_norm is not None:
            reads = self._buffer("normed twice", self.layout, config.width)
            self._norm(self.x, reads, layer.feed_forward_norm)
        attended = self._attention(index, attention)
        self._add(attended, attention.out, None if config.parallel else layer.attention_out_norm)
        if not config.parallel:
            self._read(layer.feed_forward_norm)
        hidden = self._feed_forward(feed_forward, reads)
        self._add(hidden, feed_forward.out, None if config.parallel else layer.feed_forward_out_norm)

    def _read(self, norm: Norm | None) -> None:
        """What a branch reads."""
        if self.config.residual_normed and norm is not None:
            self._norm(self.x, self.x, norm)
            norm = None
        self._norm(self.x, self.normed, norm)

    def _attention(self, index: int, attention: Attention) -> int:
        config = self.config
        heads, kv_heads, size = attention.heads, attention.kv_heads, attention.head_dim
        qkv = self._buffer("qkv", Layout.F32, (heads + 2 * kv_heads) * size)
        queries = self._buffer("queries", Layout.QUERIES, heads * size)
        attended = self._buffer("attended", Layout.BF16, heads * size)
        shape: dict[str, Any] = {"layer": index, "heads": heads, "kv_heads": kv_heads, "head_dim": size}
        self._linear(self.normed, qkv, attention.qkv)
        write = Operation(Kind.WRITE_KV, qkv, queries, **shape, clip=attention.clip)
        if attention.q_norm is not None and attention.k_norm is not None:
            write.norm, write.eps = _kind(attention.q_norm), attention.q_norm.eps
            write.norm_over = NORMS_OVER[config.qk_norm_over]
            write.norm_weight = _optional_fp32(attention.q_norm.weight_E)
            write.second_weight = _optional_fp32(attention.k_norm.weight_E)
        self.operations.append(write)
        if attention.rope is not None:
            write.rope_dim = attention.rope_dim
            self.made.rotations.append((write, attention.rope))
        window = config.windows[attention.window]
        self.operations.append(
            Operation(
                Kind.ATTENTION,
                queries,
                attended,
                **shape,
                window=0 if window is None else window.size,
                chunked=window is not None and window.chunked,
                scale=attention.scale,
                softcap=attention.score_modifiers.softcap,
            )
        )
        return self._quantized(attended)

    def _feed_forward(self, feed_forward: FeedForward, reads: int) -> int:
        config = self.config
        out = feed_forward.out
        width = out.weight_OI.shape[1] if out.quantized is None else out.quantized.columns
        gated = config.gated
        if gated:
            if feed_forward.up.quantized is None:
                align_halves(feed_forward.up)
            width = programs.rounded_up(width, TILE_OUTPUTS)
        hidden = self._buffer("hidden", Layout.BF16, width)
        self._linear(
            reads,
            hidden,
            feed_forward.up,
            epilogue=Epilogue.GATE if gated else Epilogue.ACTIVATE,
            activation=ACTIVATIONS[config.activation],
        )
        return self._quantized(hidden)

    def _quantized(self, source: int) -> int:
        """The buffer as the layers' products read it."""
        if not self.is_quantized:
            return source
        buffer = self.made.program.buffers[source]
        target = self._buffer(f"{buffer.name} in bytes", Layout.BYTES, buffer.width)
        self.operations.append(Operation(Kind.QUANTIZE, source, target))
        return target

    def _add(self, source: int, out: Linear, norm: Norm | None) -> None:
        """The residual plus what a branch gives, which is normed before or after it is added."""
        config = self.config
        if norm is not None and config.branch_norm:
            given = self._buffer("given", Layout.F32, config.width)
            self._linear(source, given, out)
            self._norm(given, self.x, norm, accumulate=True, scale=config.residual_scale)
        else:
            self._linear(source, self.x, out, epilogue=Epilogue.ADD, scale=config.residual_scale)
        if norm is not None and config.sum_norm:
            self._norm(self.x, self.x, norm)

    def _head(self) -> None:
        config, ends = self.config, self.decoder.ends
        assert ends.head is not None, "asked of a decoder in one piece"
        chosen = self._buffer("chosen", Layout.EXTERNAL, config.width)
        logits = self._buffer("logits", Layout.EXTERNAL, config.vocab_size)
        layout = Layout.BF16 if ends.head.quantized is None else Layout.BYTES
        normed = self._buffer("chosen normed", layout, config.width)
        self._norm(chosen, normed, ends.norm)
        self._linear(normed, logits, ends.head, scale=config.logit_scale, softcap=config.logit_softcap)

    def _norm(
        self, source: int, target: int, norm: Norm | None, *, accumulate: bool = False, scale: float = 1.0
    ) -> None:
        made = Operation(
            Kind.NORM, source, target, columns=self.config.width, accumulate=accumulate, scale=scale
        )
        if norm is not None:
            made.norm, made.eps = _kind(norm), norm.eps
            made.norm_weight = _optional_fp32(norm.weight_E)
            made.bias = _optional_fp32(norm.bias_E) if isinstance(norm, LayerNorm) else None
        self.operations.append(made)

    def _linear(
        self,
        source: int,
        target: int,
        linear: Linear,
        *,
        epilogue: Epilogue = Epilogue.STORE,
        activation: Activation = Activation.SILU,
        scale: float = 1.0,
        softcap: float = 0.0,
    ) -> None:
        quantized = linear.quantized
        if linear is not self.decoder.ends.head and quantized is None:
            linear.weight_OI = packed(linear.weight_OI)
        outputs = self.made.program.buffers[target].width * (2 if epilogue == Epilogue.GATE else 1)
        bias = None
        if linear.bias_O is not None:
            bias = torch.zeros(programs.rounded_up(outputs, TILE_OUTPUTS))
            bias[: len(linear.bias_O)] = linear.bias_O.float()
        made = Operation(
            Kind.LINEAR,
            source,
            target,
            rows=outputs,
            epilogue=epilogue,
            activation=activation,
            scale=scale,
            softcap=softcap,
            bias=bias,
        )
        if quantized is None:
            made.weight, made.columns = linear.weight_OI, linear.weight_OI.shape[1]
        else:
            made.weight, made.columns = quantized.tiles, programs.rounded_up(quantized.columns, BYTE_INPUTS)
            made.format, made.scales, made.sums = quantized.format, quantized.scales, quantized.sums
        self.operations.append(made)


def _kind(norm: Norm) -> programs.Norm:
    return programs.Norm.RMS if isinstance(norm, RmsNorm) else programs.Norm.LAYER


def _fp32(tensor: Tensor) -> Tensor:
    return tensor.float().contiguous()


def _optional_fp32(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _fp32(tensor)
