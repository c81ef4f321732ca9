"""How the ranks of one model find each other: an address in, their group out.

Called by `penstock.serving` before the model is loaded. The address comes from whoever starts the workers; nothing
here takes it that they share a machine. Exchanges on a CPU go over gloo, on GPUs over NCCL; what ranks agree on
beside the steps goes over gloo everywhere.
"""

import socket
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import torch
import torch.distributed as dist

from penstock.errors import LostPeer, UnusableModel
from penstock.parallel import ALONE, Pipeline, TensorGroup

# Longer than any step: a rank that is gone or hangs is for the router to notice, which knows what steps take.
PATIENCE = timedelta(hours=6)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def parse(address: str) -> SplitResult:
    """`file:///PATH` (a new file, on a disk that all ranks see) or `tcp://HOST:PORT/NAME`, where rank 0 listens and
    NAME keeps groups at one address apart. Raises ValueError.
    """
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
        return parts
    if parts.scheme == "tcp" and parts.hostname and parts.port:
        return parts
    raise ValueError(f"{address!r} is neither file:///PATH nor tcp://HOST:PORT/NAME")


def meet(address: str, rank: int, size: int, stages: int, device: torch.device) -> TensorGroup:
    """Waits for all `size` ranks and returns the group of this one's stage: neighbouring ranks are shards of one
    stage, in each as many. Raises LostPeer when one ends meanwhile.
    """
    if size == 1:
        return ALONE
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=_store(parse(address), rank, size),
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
        )
        machine = torch.tensor([_machine()])
        machines = [torch.empty_like(machine) for _ in range(size)]
        dist.all_gather(machines, machine)
        shards = size // stages
        # Every rank takes part in making every group.
        parts = [list(range(stage * shards, (stage + 1) * shards)) for stage in range(stages)]
        groups = [dist.new_group(part) for part in parts] if stages > 1 else []
    except RuntimeError as error:
        raise LostPeer(f"the ranks did not find each other at {address}: {error}") from error
    neighbours = sum(int(other) == int(machine) for other in machines)
    everyone = TensorGroup(rank, size, dist.group.WORLD, neighbours)
    if stages == 1:
        return everyone
    stage, shard = divmod(rank, shards)
    group = groups[stage]
    assert isinstance(group, dist.ProcessGroup), "this rank is in it"
    return TensorGroup(shard, shards, group, neighbours, Pipeline(stage, stages, everyone))


def _machine() -> int:
    """A number that ranks on one machine have in common."""
    try:
        name = BOOT_ID.read_bytes()
    except OSError:  # some sandboxes have none
        name = socket.gethostname().encode()
    return zlib.crc32(name)


def _store(address: SplitResult, rank: int, size: int) -> Any:
    """A store of torch.distributed, whose type it does not export."""
    if address.scheme == "file":
        return dist.FileStore(address.path, size)  # type: ignore[attr-defined]
    host, port = address.hostname or "", address.port or 0
    # By itself the store would listen on all interfaces.
    listening = _listen(host, port).detach() if rank == 0 else None
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        is_master=rank == 0,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=listening,
    )
    return dist.PrefixStore(address.path, store)  # type: ignore[attr-defined]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise UnusableModel(
            f"--master-addr, --master-port: cannot listen at {host}:{port}: {error}"
        ) from error
