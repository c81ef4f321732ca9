"""Several residual streams as operations (Gemma 3n): they are one buffer, a stream behind the other, and a layer computes in the residual,
to which the active one is copied. And gates of which only the largest open. Called by `recorder`; follows `streams`. Letters as there.
"""

from statistics import NormalDist

from penstock.layers.linear import Linear
from penstock.layers.norm import Norm
from penstock.models.config import DecoderConfig, LayerConfig
from penstock.models.decoder import FeedForward
from penstock.models.packing import align_halves
from penstock.models.program_writer import ACTIVATIONS, ProgramWriter, fp32, optional_fp32
from penstock.models.streams import SMALLEST, AlternatingUpdates, LowRankResidual, StreamEnds
from penstock_kernels.program import TILE_OUTPUTS, Kind, Layout, Operation, rounded_up


class StreamsRecorder:
    """Of all layers of a decoder."""

    def __init__(self, writer: ProgramWriter, count: int) -> None:
        self.writer, self.count = writer, count
        self.streams = writer.buffer("residual streams", Layout.F32, count * writer.width)
        self.modes = writer.buffer("modes", Layout.F32, count)

    def split(self, ends: StreamEnds) -> None:
        """The residual to all streams."""
        writer = self.writer
        writer.norm(writer.x, self.streams, None)
        for stream, linear in enumerate(ends.apart, start=1):
            made = self._projected(writer.x, 0, linear)
            self._match(made, writer.x, self.streams, target_at=stream * writer.width)

    def join(self, ends: StreamEnds) -> None:
        """All streams to the residual: their mean."""
        writer = self.writer
        self._copy(0, writer.x)
        for stream, linear in enumerate(ends.together, start=1):
            made = self._projected(self.streams, stream * writer.width, linear)
            self._match(made, self.streams, writer.x, accumulate=True)
        writer.norm(writer.x, writer.x, None, accumulate=True, scale=1 / self.count - 1.0)

    def predict(self, updates: AlternatingUpdates) -> None:
        """What the layer is expected to make of the streams; the active one is the residual then."""
        at = updates.active * self.writer.width
        self._route(self.streams, at, updates)
        self._update(Kind.PREDICT, updates, updates.prediction)
        self._copy(at, self.writer.x)

    def correct(self, updates: AlternatingUpdates) -> None:
        """The prediction, corrected by the residual."""
        self._route(self.writer.x, 0, updates)
        self._update(Kind.CORRECT, updates, updates.correction)

    def output(self, updates: AlternatingUpdates) -> int:
        """The buffer of the active stream in bf16, for what follows in the layer."""
        writer = self.writer
        short = writer.buffer("residual in bf16", Layout.BF16, writer.width)
        copied = self._copy(updates.active * writer.width, short)
        copied.norm_weight = optional_fp32(updates.output_scale_E)
        return short

    def add_to_others(self, given: int, norm: Norm) -> None:
        """The norm of what this buffer has, to every stream but the first."""
        for stream in range(1, self.count):
            added = self.writer.norm(given, self.streams, norm, accumulate=True)
            added.target_at = stream * self.writer.width

    def low_rank(self, beside: LowRankResidual, norm: Norm, reads_short: int) -> int:
        """The buffer of what a layer adds beside attention. `reads_short`: what the norm makes of the residual, in bf16."""
        writer = self.writer
        down = writer.buffer("low rank", Layout.BF16, beside.down.weight_OI.shape[0])
        writer.linear(reads_short, down, beside.down)
        up = writer.buffer("of low rank", Layout.F32, writer.width)
        writer.linear(down, up, beside.up)
        given = writer.buffer("beside attention", Layout.F32, writer.width)
        writer.norm(writer.x, given, norm)
        writer.norm(up, given, beside.norm, accumulate=True)
        return given

    def _route(self, source: int, at: int, updates: AlternatingUpdates) -> None:
        """How tokens weigh the streams."""
        writer = self.writer
        read = writer.buffer("modes read", Layout.BF16, writer.width)
        made, weight_E = writer.norm(source, read, updates.router_norm), updates.router_norm.weight_E
        made.source_at = at
        assert weight_E is not None, "it has a weight"
        made.norm_weight = fp32(weight_E) / writer.width
        writer.linear(read, self.modes, updates.router)

    def _update(self, kind: Kind, updates: AlternatingUpdates, mix: Linear) -> None:
        self.writer.add(
            kind,
            self.streams,
            self.streams,
            second=self.modes,
            third=self.writer.x if kind == Kind.CORRECT else -1,
            heads=self.count,
            columns=self.writer.width,
            offset=updates.active,
            norm_weight=fp32(mix.weight_OI),
        )

    def _copy(self, at: int, target: int) -> Operation:
        copied = self.writer.norm(self.streams, target, None)
        copied.source_at = at
        return copied

    def _projected(self, source: int, at: int, linear: Linear) -> int:
        writer = self.writer
        short = writer.buffer("residual in bf16", Layout.BF16, writer.width)
        writer.norm(source, short, None).source_at = at
        made = writer.buffer("stream", Layout.F32, writer.width)
        writer.linear(short, made, linear)
        return made

    def _match(
        self, source: int, others: int, target: int, *, target_at: int = 0, accumulate: bool = False
    ) -> None:
        """Numbers as large as those that the other buffer begins with."""
        self.writer.add(
            Kind.MATCH,
            source,
            target,
            second=others,
            inner_at=0,
            target_at=target_at,
            columns=self.writer.width,
            eps=SMALLEST,
            accumulate=accumulate,
        )


def sparse_hidden(
    writer: ProgramWriter, config: DecoderConfig, choice: LayerConfig, feed_forward: FeedForward, reads: int
) -> int:
    """What a dense layer's last matrix reads where only the largest gates open, in bf16."""
    if feed_forward.up.quantized is None:
        align_halves(feed_forward.up)
    width = rounded_up(choice.feed_forward, TILE_OUTPUTS)
    both = writer.buffer("gates and numbers", Layout.F32, 2 * width)
    writer.linear(reads, both, feed_forward.up)
    hidden = writer.buffer("hidden", Layout.BF16, width)
    writer.add(
        Kind.SPARSE_GATE,
        both,
        hidden,
        columns=choice.feed_forward,
        inner_at=width,
        alpha=NormalDist().inv_cdf(choice.gate_sparsity),
        activation=ACTIVATIONS[config.activation],
    )
    return hidden
