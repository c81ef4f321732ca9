"""The ranks that hold one model together: which part of it is whose, and what they tell each other.

Used by the layers and the engine. A rank alone is a group of one, in which nothing is sent. How the ranks find
each other is for `penstock.serving` to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.errors import UnusableModel


@dataclass(frozen=True)
class TensorGroup:
    """Ranks that each hold a part of every layer and compute every step together (tensor parallel)."""

    rank: int = 0
    size: int = 1
    process_group: dist.ProcessGroup | None = None

    def add_up(self, part: Tensor) -> Tensor:
        """The sum of every rank's tensor, in its memory."""
        if self.size > 1:
            dist.all_reduce(part, group=self.process_group)
        return part

    def join(self, part_SV: Tensor) -> Tensor:
        """Every rank's columns (S, V / size) side by side in rank order: (S, V). All parts have one shape."""
        if self.size == 1:
            return part_SV
        parts = [torch.empty_like(part_SV) for _ in range(self.size)]
        dist.all_gather(parts, part_SV.contiguous(), group=self.process_group)
        return torch.cat(parts, -1)

    def follow(self, value: Tensor) -> Tensor:
        """Rank 0's tensor, in the memory of everyone's."""
        if self.size > 1:
            dist.broadcast(value, group_src=0, group=self.process_group)
        return value

    def share(self, count: int) -> range:
        """This rank's part of `count` things, as even as can be; the first ranks have one more."""
        least, more = divmod(count, self.size)
        begin = self.rank * least + min(self.rank, more)
        return range(begin, begin + least + (self.rank < more))

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
