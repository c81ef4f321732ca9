"""Ranks that torch.distributed brings together, at a host and port and on GPUs: their exchanges on a CPU go over gloo, on GPUs over NCCL,
and every process that reaches their ports is trusted. Used by `rendezvous`.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.errors import PeerLost, UnusableModel
from penstock.parallel.exchange import Exchange, Sending

# In what gloo, NCCL and the store of torch.distributed say, all in small letters; of a host that has vanished it is what the system says.
SIGNS_OF_LOSS = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "connection refused",
    "connection timed out",
    "no route to host",
    "host is down",
    "network is unreachable",
    "pair closure",
    "socket closed",
    "likely closed",
    "got 0 bytes",
    "remote process exited",
    "ncclremoteerror",
    "communicator was aborted",
)

# Longer than any step: a rank that is gone or hangs is for the router to notice, which knows what steps take.
PATIENCE = timedelta(hours=6)


def meet(
    place: SplitResult, rank: int, size: int, parts: list[list[int]], device: torch.device
) -> dict[int, Exchange]:
    """The exchanges of all ranks and of each part that this one is in, by their place in that order."""
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=_store(place, rank, size),
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
    made: dict[int, Exchange] = {0: Distributed(None)}
    if len(parts) > 1:
        # Every rank takes part in making every group.
        for number, part in enumerate(parts, 1):
            group = dist.new_group(part)
            if rank in part and len(part) > 1:
                assert isinstance(group, dist.ProcessGroup)
                made[number] = Distributed(group)
    return made


class Distributed:
    """Over torch.distributed: NCCL on GPUs, gloo between machines. `process_group`: None for all ranks."""

    def __init__(self, process_group: dist.ProcessGroup | None) -> None:
        self._group = process_group
        self._size = dist.get_world_size(process_group)

    def all_reduce(self, part: Tensor) -> None:
        """See Exchange."""
        with _named():
            dist.all_reduce(part, group=self._group)

    def all_gather(self, parts: list[Tensor], part: Tensor) -> None:
        """See Exchange."""
        with _named():
            dist.all_gather(parts, part, group=self._group)

    def broadcast(self, value: Tensor) -> None:
        """See Exchange."""
        with _named():
            dist.broadcast(value, group_src=0, group=self._group)

    def numbers(self, own: int) -> list[int]:
        """See Exchange."""
        found = [torch.empty(1, dtype=torch.int64) for _ in range(self._size)]
        self.all_gather(found, torch.tensor([own]))
        return [int(number) for number in found]

    def send(self, tensor: Tensor, rank: int, tag: int) -> Sending | None:
        """See Exchange."""
        with _named():
            work = dist.isend(tensor, group=self._group, group_dst=rank, tag=tag)
        return None if work is None else _Sent(work)

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        """See Exchange."""
        with _named():
            dist.recv(tensor, group=self._group, group_src=rank, tag=tag)


class _Sent:
    """See Sending."""

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def is_completed(self) -> bool:
        """See Sending."""
        return bool(self._work.is_completed())

    def wait(self) -> None:
        """See Sending."""
        with _named():
            self._work.wait()


@contextmanager
def _named() -> Iterator[None]:
    """Gives what the library raises when another rank is gone its name. Everything else is this rank's own, an error of a kernel before the
    exchange among it, which a GPU reports at its next call.
    """
    try:
        yield
    except RuntimeError as error:
        if is_loss(error):
            raise PeerLost(str(error)) from error
        raise


def is_loss(error: RuntimeError | OSError) -> bool:
    """Whether this is what torch.distributed raises where another rank has ended."""
    text = str(error).lower()
    return any(sign in text for sign in SIGNS_OF_LOSS)


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
