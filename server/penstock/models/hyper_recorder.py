"""Hyper-connections as operations: streams are one buffer, one behind the other. What a branch reads of them, and what it gives, are where
the residual is in other models. Called by `recorder`; follows `hyper_connections`. Letters as there.
"""

from penstock.layers.linear import Linear
from penstock.models.config import HyperConfig, LowRankHyperConfig
from penstock.models.hyper_connections import (
    HyperConnection,
    HyperHead,
    LowRankConnection,
    LowRankHead,
    MixingConnection,
    StreamNorm,
)
from penstock.models.program_writer import ProgramWriter, fp32
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.program import Activation, Epilogue, Kind, Layout
from penstock_kernels.program import Norm as NormKind


class HyperRecorder:
    """Of all layers of a decoder."""

    def __init__(self, writer: ProgramWriter, config: HyperConfig | LowRankHyperConfig) -> None:
        self.writer, self.config = writer, config
        self.streams = writer.buffer("residual streams", Layout.F32, config.count * writer.width)

    def split(self) -> None:
        """The residual to all streams."""
        for stream in range(self.config.count):
            copied = self.writer.norm(self.writer.x, self.streams, None)
            copied.target_at = stream * self.writer.width

    def read(self, connection: object) -> None:
        """What a branch reads, to where the residual is, and how much of what it gives each stream will have."""
        if isinstance(connection, LowRankConnection):
            self._read_numbers(connection)
        elif isinstance(connection, MixingConnection):
            self._read(connection.weights_YX.weight_OI, connection.base_Y, connection.scale_3)
        else:
            assert isinstance(connection, HyperConnection), "there is no other"
            self._read(connection.weights_YX.weight_OI, connection.base_Y, connection.scale_2)

    def add(self) -> None:
        """What the branch has given, to all streams."""
        streams, rounds = self.config.count, 0
        if isinstance(self.config, HyperConfig):
            rounds = self.config.mixing_rounds
            outputs = streams * (2 + streams if rounds else 2)
            shares, at = self._shares(outputs), outputs + 1 + streams
        else:
            shares, at = self._given(), 0
        self.writer.add(
            Kind.HYPER_ADD,
            self.writer.x,
            self.streams,
            second=shares,
            inner_at=at,
            heads=streams,
            columns=self.writer.width,
            rounds=rounds,
        )

    def join(self, head: object) -> None:
        """One stream of all, to where the residual is."""
        if isinstance(head, LowRankHead):
            self._read_numbers(head.mixing)
            return
        assert isinstance(head, HyperHead), "there is no other"
        self._read(head.weights_AX.weight_OI, head.base_A, head.scale_1)

    def _read(self, weights_YX: Tensor, base_Y: Tensor, scales: Tensor) -> None:
        assert isinstance(self.config, HyperConfig)
        streams = self.config.count
        # Of a share in what is read, in what is given, and of streams in all.
        counts = (streams, streams, streams * streams)
        of_rows = [scales[at : at + 1] for at in range(len(scales)) for _ in range(counts[at])]
        self.writer.add(
            Kind.HYPER_READ,
            self.streams,
            self.writer.x,
            second=self._shares(len(base_Y)),
            heads=self.config.count,
            columns=self.writer.width,
            rows=len(base_Y),
            norm_weight=fp32(weights_YX),
            bias=fp32(base_Y),
            scales=fp32(tensors.cat(of_rows)),
            eps=self.config.norm_eps,
            lowest=self.config.eps,
            alpha=self.config.magnitude,
            rounds=self.config.mixing_rounds,
        )

    def _read_numbers(self, connection: LowRankConnection) -> None:
        """By a share of each number, and, but for the head's, how much of what is given each stream will have."""
        assert isinstance(self.config, LowRankHyperConfig)
        writer, streams, rank = self.writer, self.config.count, self.config.rank
        numbers = streams * writer.width
        normed = writer.buffer("streams normed", Layout.BF16, numbers)
        norm_streams(writer, connection.norm, self.streams, normed)
        parts_OX = connection.parts.weight_OI
        low = writer.buffer("low shares", Layout.BF16, rank)
        down = Linear(parts_OX[:rank].clone())
        writer.linear(
            normed, low, down, epilogue=Epilogue.ACTIVATE, activation=Activation.SILU, scale=1 / streams
        )
        given = -1
        if len(parts_OX) > rank:
            given = self._given()
            writer.linear(normed, given, Linear(parts_OX[rank:].clone()), scale=1 / streams)
        shares = writer.buffer("shares of numbers", Layout.F32, numbers)
        writer.linear(low, shares, connection.up)
        connection.parts.weight_OI = parts_OX.new_empty((0, numbers))
        writer.add(
            Kind.HYPER_MIX,
            shares,
            writer.x,
            second=normed,
            third=given,
            heads=streams,
            columns=writer.width,
        )

    def _given(self) -> int:
        return self.writer.buffer("shares of what is given", Layout.F32, self.config.count)

    def _shares(self, outputs: int) -> int:
        """What makes shares, and they."""
        return self.writer.buffer("shares", Layout.F32, 2 * outputs + 1)


def norm_streams(writer: ProgramWriter, norm: StreamNorm, source: int, target: int) -> None:
    """Each stream by itself."""
    for stream, weight_E in enumerate(norm.weight_AE):
        made = writer.norm(source, target, None)
        made.norm, made.eps, made.norm_weight = NormKind.RMS, norm.eps, fp32(weight_E)
        made.source_at = made.target_at = stream * writer.width
