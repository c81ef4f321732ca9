"""Total and free memory of the machine, the control group or the accelerator.

Asked before weights are read, before the cache is sized, and by the doctor.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.loading import memory_nodes

CONTROL_GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Room:
    """Total and free memory of the device, in bytes."""

    total: int
    free: int


def cpu_room() -> Room:
    """The machine's memory, or where that is less the control group's, or that of the nodes that the process is bound to."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit, used in _control_group_limits():  # files that the system keeps in memory count as free
        total = min(total, limit)
        free = min(free, limit - used)
    bound = memory_nodes.bound_room()
    if bound is not None:
        total, free = min(total, bound[0]), min(free, bound[1])
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
            # Beyond `high` nobody is killed: threads that take memory are put to sleep.
            root, limits, usage = CONTROL_GROUPS, ["memory.max", "memory.high"], "memory.current"
        elif "memory" in controllers.split(","):
            root = CONTROL_GROUPS / "memory"
            limits, usage = ["memory.limit_in_bytes"], "memory.usage_in_bytes"
        else:
            continue
        inside = root / path.lstrip("/")
        for folder in (inside, *inside.parents):
            if not folder.is_relative_to(root):
                break
            for name in limits:
                try:
                    limit, used = (int((folder / kind).read_text()) for kind in (name, usage))
                    found.append((limit, used - _reclaimable(folder)))
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


def device_room(device: Any) -> Room:
    """Memory of the device the model is on: torch's, or `host.Processor`."""
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        return Room(total, free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return cpu_room()
