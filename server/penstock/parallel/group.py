"""The ranks that hold one model together: which rank holds which part, and their collectives.

Used by the layers and the engine. A rank alone is a group of one, in which nothing is sent, and which does without torch. How the
ranks find each other is for `rendezvous` to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import UnusableModel

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.parallel.exchange import Exchange, Sending


@dataclass(frozen=True)
class TensorGroup:
    """Ranks that each hold a part of every layer and compute every step together (tensor parallel)."""

    rank: int = 0
    size: int = 1
    exchange: Exchange | None = None  # None: alone, or never asked to exchange anything
    neighbours: int = 1  # ranks on this one's machine, itself included: they share its memory
    pipeline: Pipeline | None = None  # None: this group holds all layers
    is_local: bool = True  # whether all ranks are processes of one machine, which can share memory
    free_bytes: int | None = None  # of the machine's memory as the ranks met; None: it is not shared

    @property
    def everyone(self) -> TensorGroup:
        """All ranks that hold the model, over all stages."""
        return self if self.pipeline is None else self.pipeline.everyone

    @property
    def is_first_stage(self) -> bool:
        """Whether token ids come in here."""
        return self.pipeline is None or self.pipeline.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether tokens are sampled here."""
        return self.pipeline is None or self.pipeline.stage == self.pipeline.stages - 1

    @property
    def is_output_rank(self) -> bool:
        """Whether this rank samples and returns results: the first shard of the last stage."""
        return self.is_last_stage and self.rank == 0

    def layers(self, count: int, joined: Sequence[str | None] = ()) -> range:
        """Those that this rank has a part of: about as many in every stage. `joined` says of a layer why no stage begins with it;
        None: one may. Raises UnusableModel when there are fewer layers than stages, or than may begin one.
        """
        if self.pipeline is None:
            return range(count)
        stages, stage = self.pipeline.stages, self.pipeline.stage
        if count < stages:
            raise UnusableModel(f"--pipeline-parallel {stages} is more than the model's layers ({count})")
        free = [at for at in range(1, count) if at >= len(joined) or joined[at] is None]
        if len(free) + 1 < stages:
            layer, why = next((at, why) for at, why in enumerate(joined) if why is not None and at > 0)
            found = f"layers {', '.join(map(str, free))}" if free else "none of its layers"
            raise UnusableModel(
                f"--pipeline-parallel {stages}: of this model a further stage can begin with {found} only, for layer {layer} "
                f"{why}; use {len(free) + 1}" + (" or fewer" if len(free) else "")
            )
        begins = [0]
        for at in range(1, stages):
            even = even_part(count, at, stages).start
            left = free[: len(free) - (stages - 1 - at)]
            begins.append(min((one for one in left if one > begins[-1]), key=lambda one: abs(one - even)))
        return range(begins[stage], [*begins, count][stage + 1])

    def room(self, free: int) -> tuple[int, str]:
        """Bytes that weights may take of the memory that is `free`, and what an error says of them. Where ranks share it, an equal part of
        what was free before any of them had read: those that are done with their checks have begun to.
        """
        if self.free_bytes is None:
            return free, "are free"
        part = min(free, self.free_bytes // self.neighbours)
        return part, f"are free for each of {self.neighbours} processes"

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of every rank's tensor, in its memory."""
        if self.exchange is not None:
            self.exchange.all_reduce(part)
        return part

    def all_gather(self, part_SV: Tensor) -> Tensor:
        """Every rank's columns (S, V / size) side by side in rank order: (S, V). All parts have one shape."""
        if self.exchange is None:
            return part_SV
        import torch

        part_SV = part_SV.contiguous()
        parts = [torch.empty_like(part_SV) for _ in range(self.size)]
        self.exchange.all_gather(parts, part_SV)
        return torch.cat(parts, -1)

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's tensor, in the memory of everyone's."""
        if self.exchange is not None:
            self.exchange.broadcast(value)
        return value

    def least(self, number: int) -> int:
        """The smallest of every rank's numbers."""
        if self.exchange is None:
            return number
        return min(self.exchange.numbers(number))

    def check_batch_invariance(self) -> None:
        """Raises UnusableModel where what torch sums up over these ranks depends on what else is in the batch."""
        if self.size > 2:
            raise UnusableModel(
                f"--deterministic: the sums of {self.size} shards depend on the batch; the most is --num-shard 2"
            )

    def first_says(self, decision: bool) -> bool:
        """Rank 0's decision, where each rank by itself might come to another."""
        if self.exchange is None:
            return decision
        return bool(self.exchange.numbers(int(decision))[0])

    def share(self, count: int) -> range:
        """This rank's part of `count` things, as even as can be; the first ranks have one more."""
        return even_part(count, self.rank, self.size)

    def even_share(self, count: int, what: str) -> range:
        """The same where every rank must have as many. Raises UnusableModel, naming `what`."""
        if count % self.size:
            raise UnusableModel(f"--num-shard {self.size} does not divide {what} ({count})")
        return self.share(count)

    def key_heads(self, kv_heads: int) -> range:
        """This rank's key heads. With fewer key heads than ranks, several ranks hold the same one."""
        if kv_heads >= self.size:
            return self.even_share(kv_heads, "the key heads (num_key_value_heads)")
        if self.size % kv_heads:
            raise UnusableModel(
                f"--num-shard {self.size} is no multiple of the key heads (num_key_value_heads {kv_heads})"
            )
        head = self.rank * kv_heads // self.size
        return range(head, head + 1)


ALONE = TensorGroup()


class Pipeline:
    """Stages that each hold some of the layers, and what goes from one to another: hidden states onwards, and what
    the last one sampled back to the first, which feeds it.

    Each is a tensor group; shard r of a stage speaks with shard r of another. What is sent is not waited for,
    so that a stage goes on with its next step while the next stage computes this one.
    """

    def __init__(
        self, stage: int, stages: int, everyone: TensorGroup, exchange: Exchange | None = None
    ) -> None:
        self.stage, self.stages, self.everyone = stage, stages, everyone
        self._exchange = exchange  # of all ranks; None: never asked to send anything
        self._shards = everyone.size // stages
        self._shard = everyone.rank % self._shards
        # Plans that may be in flight: what was sampled in an older step has been sent, and may be received at once.
        self.in_flight = stages + 1
        self._sent: deque[tuple[Sending, Tensor]] = deque()

    def send_on(self, hidden_TE: Tensor) -> None:
        """To the next stage. The tensor must not be written any more."""
        self._send(hidden_TE.contiguous(), self.stage + 1, HIDDEN)

    def receive(self, hidden_TE: Tensor) -> Tensor:
        """What the stage before sent, in this memory."""
        return self._receive(hidden_TE, self.stage - 1, HIDDEN)

    def send_back(self, sampled_S: Tensor) -> None:
        """From the last stage to the first."""
        self._send(sampled_S.cpu(), 0, SAMPLED)

    def receive_back(self, count: int) -> Tensor:
        """What the last stage sampled in the oldest step that was not received yet: (S,) int64, on the host."""
        import torch

        return self._receive(torch.empty(count, dtype=torch.int64), self.stages - 1, SAMPLED)

    def _send(self, tensor: Tensor, stage: int, tag: int) -> None:
        assert self._exchange is not None
        while self._sent and (len(self._sent) > self.in_flight or self._sent[0][0].is_completed()):
            self._sent.popleft()[0].wait()
        sending = self._exchange.send(tensor, self._rank_in(stage), tag)
        if sending is not None:
            self._sent.append((sending, tensor))  # its memory is read until then

    def _receive(self, tensor: Tensor, stage: int, tag: int) -> Tensor:
        assert self._exchange is not None
        self._exchange.receive(tensor, self._rank_in(stage), tag)
        return tensor

    def _rank_in(self, stage: int) -> int:
        return stage * self._shards + self._shard


# Tags that keep the two kinds of messages between two ranks apart.
HIDDEN, SAMPLED = 1, 2


def even_part(count: int, place: int, places: int) -> range:
    """One of `places` parts of `count` things, as even as can be; the first have one more."""
    least, more = divmod(count, places)
    begin = place * least + min(place, more)
    return range(begin, begin + least + (place < more))


def ranges(parts: Sequence[range]) -> list[slice]:
    """Ranges of rows as slices, neighbours joined."""
    found: list[slice] = []
    for part in parts:
        if len(part) == 0:
            continue
        if found and found[-1].stop == part.start:
            found[-1] = slice(found[-1].start, part.stop)
        else:
            found.append(slice(part.start, part.stop))
    return found
