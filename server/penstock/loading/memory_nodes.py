"""Memory of the nodes (NUMA) that this process is bound to, by `cpuset.mems` or `numactl --membind`.

When these are full the kernel takes nothing from other nodes: it kills, however much is free there.
"""

import ctypes
import os
from pathlib import Path

NODES, OWN_STATUS = Path("/sys/devices/system/node"), Path("/proc/self/status")
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
BIND = 2
FLAGS = 1 << 15 | 1 << 13  # static nodes, and balancing; with relative ones the mask would not name nodes
MOST_NODES = 1024
KEPT_FILES = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


def bound_room() -> tuple[int, int] | None:
    """(total, free) of them, files that are kept in memory being free; None: all nodes, or the system does not say."""
    try:
        all_nodes = _numbers((NODES / "has_memory").read_text())
        usable = all_nodes & _allowed()
        policy = bound_by_policy()
        if policy is not None:
            usable &= policy
        if not usable or usable == all_nodes:
            return None
        sizes = [_sizes(node) for node in usable]
        return sum(size["MemTotal"] for size in sizes), sum(
            size[kind] for size in sizes for kind in KEPT_FILES
        )
    except (OSError, ValueError, KeyError, IndexError):
        return None


def bound_by_policy() -> set[int] | None:
    """The nodes of this thread's policy, which it has from whoever started the process; None: it binds to none."""
    number = GET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return None
    mode = ctypes.c_int()
    mask = (ctypes.c_uint8 * (MOST_NODES // 8))()
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    arguments = (ctypes.byref(mode), mask, ctypes.c_ulong(MOST_NODES), None, ctypes.c_ulong(0))
    if call(ctypes.c_long(number), *arguments) != 0 or mode.value & ~FLAGS != BIND:
        return None
    bits = int.from_bytes(bytes(mask), "little")
    return {node for node in range(MOST_NODES) if bits >> node & 1}


def _allowed() -> set[int]:
    """The nodes that the control group's `cpuset.mems` leaves."""
    for line in OWN_STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            return _numbers(value)
    raise ValueError("no nodes are named")


def _numbers(text: str) -> set[int]:
    """Of a list as the kernel writes it: `0-1,4`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _sizes(node: int) -> dict[str, int]:
    """Bytes by kind, of lines such as `Node 0 MemFree: 12 kB`."""
    lines = (NODES / f"node{node}" / "meminfo").read_text().splitlines()
    words = [line.split() for line in lines]
    return {line[2].rstrip(":"): int(line[3]) * 1024 for line in words if len(line) > 3}
