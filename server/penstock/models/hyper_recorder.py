"""Hyper-connections as operations: streams are one buffer, one behind the other. What a branch reads of them, and what it gives, are where
the residual is in other models. Called by `recorder`; follows `hyper_connections`. Letters as there.
"""

from penstock.models.config import HyperConfig
from penstock.models.hyper_connections import HyperConnection, HyperHead, MixingConnection
from penstock.models.program_writer import ProgramWriter, fp32
from penstock_kernels import tensors
from penstock_kernels.later import Tensor
from penstock_kernels.program import Kind, Layout


class HyperRecorder:
    """Of all layers of a decoder."""

    def __init__(self, writer: ProgramWriter, config: HyperConfig) -> None:
        self.writer, self.config = writer, config
        self.streams = writer.buffer("residual streams", Layout.F32, config.count * writer.width)

    def split(self) -> None:
        """The residual to all streams."""
        for stream in range(self.config.count):
            copied = self.writer.norm(self.writer.x, self.streams, None)
            copied.target_at = stream * self.writer.width

    def read(self, connection: object) -> None:
        """What a branch reads, to where the residual is, and how much of what it gives each stream will have."""
        if isinstance(connection, MixingConnection):
            self._read(connection.weights_YX.weight_OI, connection.base_Y, connection.scale_3)
            return
        assert isinstance(connection, HyperConnection), "unknown_choice names others"
        self._read(connection.weights_YX.weight_OI, connection.base_Y, connection.scale_2)

    def add(self) -> None:
        """What the branch has given, to all streams."""
        streams = self.config.count
        outputs = streams * (2 + streams if self.config.mixing_rounds else 2)
        self.writer.add(
            Kind.HYPER_ADD,
            self.writer.x,
            self.streams,
            second=self._shares(outputs),
            inner_at=outputs + 1 + streams,
            heads=streams,
            columns=self.writer.width,
            rounds=self.config.mixing_rounds,
        )

    def join(self, head: object) -> None:
        """One stream of all, to where the residual is."""
        assert isinstance(head, HyperHead), "unknown_choice names others"
        self._read(head.weights_AX.weight_OI, head.base_A, head.scale_1)

    def _read(self, weights_YX: Tensor, base_Y: Tensor, scales: Tensor) -> None:
        streams = self.config.count
        counts = (
            streams,
            streams,
            streams * streams,
        )  # of a share in what is read, in what is given, and of streams in all
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

    def _shares(self, outputs: int) -> int:
        """What makes shares, and they."""
        return self.writer.buffer("shares", Layout.F32, 2 * outputs + 1)
