"""How large the KV cache is, and its memory.

Called by Prepare. Never takes more than the limits can use, and on a CPU leaves the machine room to live.
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import TooLittleMemory
from penstock.tables import BLOCK_SIZE, Tables

GIB = 1 << 30
CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Room:
    """Memory of the device, in bytes: all of it, and what may still be taken."""

    total: int
    free: int


def cpu_room() -> Room:
    """The machine's memory, or the control group's where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit, used in _control_group_limits():  # files that the system keeps in memory count as free
        total = min(total, limit)
        free = min(free, limit - used)
    return Room(total, max(free, 0))


def _control_group_limits() -> list[tuple[int, int]]:
    """(limit, used) of every control group above this process that limits memory; versions 2 and 1."""
    found = []
    try:
        groups = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = CONTROL_GROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = CONTROL_GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inside = root / path.lstrip("/")
        for folder in (inside, *inside.parents):
            if not folder.is_relative_to(root):
                break
            try:
                limit, used = ((folder / name).read_text().strip() for name in names)
                found.append((int(limit), int(used) - _reclaimable(folder)))
            except (OSError, ValueError):  # no such group here, or "max": no limit
                continue
    return found


def _reclaimable(group: Path) -> int:
    """Bytes of files that a control group's memory holds, and gives back when it needs them."""
    kinds = ("inactive_file", "active_file", "total_inactive_file", "total_active_file")
    lines = (group / "memory.stat").read_text().splitlines()
    sizes = {name: int(size) for name, size in (line.split() for line in lines) if name in kinds}
    # Version 1 says both what is the group's own and the sums with the groups below it.
    return sum(sizes[kind] for kind in kinds[2:] if kind in sizes) or sum(sizes.values())


def device_room(device: torch.device) -> Room:
    """Memory of the device the model is on."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Room(total, free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return cpu_room()


def spare(
    room: Room, device: torch.device, memory_fraction: float, held: int, working: int, neighbours: int = 1
) -> int:
    """Bytes that the cache may take of `room`, when the process holds `held` and a step needs `working`.

    `neighbours` ranks, this one included, share a machine's memory, and each takes as much of it.
    """
    share, left = int(room.total * memory_fraction), room.free
    if device.type == "cpu":
        share //= neighbours
        left = (left - max(GIB, room.total // 10)) // neighbours
    share -= held
    return max(min(share, left) - working, 0)


def count_pages(
    page_bytes: int,
    tables: Tables,
    max_slots: int,
    max_sequence_tokens: int,
    max_step_tokens: int,
    max_cache_tokens: int,
    available: int,
) -> int:
    """Pages to allocate, at least one sequence's worth. Raises TooLittleMemory, naming limits and flags."""
    fits = available // page_bytes - 1  # one more page holds the zeros that padding reads
    sequence = tables.pages(max_sequence_tokens, max_step_tokens)
    if fits < sequence:
        raise TooLittleMemory(
            f"a sequence of {max_sequence_tokens} tokens needs {_mib(sequence * page_bytes)} of KV cache, and "
            f"{_mib(available)} are free for it; lower --max-total-tokens"
        )
    if max_cache_tokens == 0:
        return min(fits, max_slots * tables.count * -(-max_sequence_tokens // BLOCK_SIZE))
    wanted = tables.count * -(-max_cache_tokens // BLOCK_SIZE)
    if wanted < sequence:
        raise TooLittleMemory(
            f"a KV cache of {max_cache_tokens} tokens holds no sequence of {max_sequence_tokens}; raise "
            f"--max-batch-total-tokens to {max_sequence_tokens} or more, or lower --max-total-tokens"
        )
    if fits < wanted:
        raise TooLittleMemory(
            f"a KV cache of {max_cache_tokens} tokens needs {_mib(wanted * page_bytes)}, and {_mib(available)} "
            f"are free for it, which hold {fits // tables.count * BLOCK_SIZE} tokens; lower --max-batch-total-tokens"
        )
    return wanted


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Where a layer's keys and values are: in which rows, the slot's table says."""

    rows_NJD: Tensor
    table: int


class KvCache:
    """A tensor for each place of a page, (N, J, D): rows of pages 0 .. pages - 1, then one page of zeros.

    Layers whose pages are in different tables share a tensor: they never have the same page.
    """

    def __init__(
        self,
        tables: Tables,
        layers: range,
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        pages: int,
    ) -> None:
        """`layers`: this rank's. `shape`: (J, D)."""
        self.zero_row = pages * BLOCK_SIZE
        self.bytes = pages * page_bytes(tables, layers, shape, dtype)
        whole = ((pages + 1) * BLOCK_SIZE, *shape)
        places = {place: _zeros(whole, dtype, device) for place in _places(tables, layers)}
        self.layers = [LayerCache(places[tables.of[at][1]], tables.of[at][0]) for at in layers]
        self.tensors_NJD: list[Tensor] = list(places.values())


def page_bytes(tables: Tables, layers: range, shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Bytes of a page on a rank that has these layers."""
    return BLOCK_SIZE * len(_places(tables, layers)) * shape[0] * shape[1] * dtype.itemsize


def _places(tables: Tables, layers: range) -> list[int]:
    return sorted({tables.of[at][1] for at in layers})


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Fresh pages of the kernel are zeros, and are taken only when first written.
    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
