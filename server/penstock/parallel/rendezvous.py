"""How the ranks of one model find each other: an address in, their group out.

Called by `penstock.startup` before the model is loaded. The address comes from whoever starts the workers. Ranks on
CPUs of one machine meet in a private folder and speak over unix sockets (`exchange`), so that no other user can come
between them. At a host and port, and on GPUs, torch.distributed brings them together (`distributed`).
"""

import os
import socket
import stat
import struct
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from penstock.errors import PeerLost, UnusableModel
from penstock.loading.memory import device_room
from penstock.parallel.exchange import Exchange, Local
from penstock.parallel.group import ALONE, Pipeline, TensorGroup

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


# How often a rank that does not listen yet is tried, and how long one that is there may take to say who it is.
POLL_SECONDS = 0.01
GREETING_SECONDS = 10.0
GREETING = struct.Struct("<II")  # rank, group
# Bytes that the address of a unix socket has room for (unix(7)).
LONGEST_SOCKET_PATH = 107


def parse(address: str) -> SplitResult:
    """`file:///PATH` (a new name, in a folder of this user alone) or `tcp://HOST:PORT/NAME`, where rank 0 listens and
    NAME keeps groups at one address apart. Raises ValueError.
    """
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
        return parts
    if parts.scheme == "tcp" and parts.hostname and parts.port:
        return parts
    raise ValueError(f"{address!r} is neither file:///PATH nor tcp://HOST:PORT/NAME")


def meet(address: str, rank: int, size: int, stages: int, device: Any) -> TensorGroup:
    """Waits for all `size` ranks and returns the group of this one's stage: neighbouring ranks are shards of one
    stage, in each as many. Raises PeerLost when one ends meanwhile, and UnusableModel where they cannot meet for another reason.
    """
    if size == 1:
        return ALONE
    place = parse(address)
    shards = size // stages
    parts = [list(range(stage * shards, (stage + 1) * shards)) for stage in range(stages)]
    free = device_room(device).free if device.type == "cpu" else None
    try:
        is_local = place.scheme == "file" and device.type == "cpu"
        if is_local:
            # What stages send each other on the way has connections of its own.
            everyone_again = [list(range(size))] if stages > 1 else []
            made = _meet_here(Path(place.path), rank, [list(range(size)), *parts, *everyone_again])
            neighbours = size
        else:
            from penstock.parallel import distributed

            try:
                made = distributed.meet(place, rank, size, parts, device)
                own = _machine()
                neighbours = made[0].numbers(own).count(own)
            except (RuntimeError, OSError) as error:
                if distributed.is_loss(error):
                    raise
                raise UnusableModel(f"the ranks cannot meet at {address}: {error}") from error
    except (RuntimeError, OSError) as error:
        raise PeerLost(f"the ranks did not find each other at {address}: {error}") from error
    everyone = TensorGroup(rank, size, made[0], neighbours, is_local=is_local, free_bytes=free)
    if stages == 1:
        return everyone
    stage, shard = divmod(rank, shards)
    pipeline = Pipeline(stage, stages, everyone, made.get(1 + stages, made[0]))
    return TensorGroup(shard, shards, made.get(1 + stage), neighbours, pipeline, is_local, free)


def _meet_here(path: Path, rank: int, groups: list[list[int]]) -> dict[int, Exchange]:
    """The exchanges of those groups that this rank is in, by their number.

    Each rank listens at a socket of its own beside `path` and is called by the later ones. Nobody else can enter the
    folder; a caller's user is checked nevertheless, as the kernel tells it (SO_PEERCRED, unix(7)).
    """
    _check_private(path.parent)
    own = [number for number, group in enumerate(groups) if rank in group and len(group) > 1]
    peers: dict[int, dict[int, socket.socket]] = {number: {} for number in own}
    with _Folder(path.parent) as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(folder.address(f"{path.name}.{rank}"))
        listener.listen(2 * sum(map(len, groups)))
        for number in own:
            for peer in groups[number]:
                if peer < rank:
                    link = _call(folder.address(f"{path.name}.{peer}"))
                    link.sendall(GREETING.pack(rank, number))
                    peers[number][peer] = link
        while any(len(peers[number]) < len(groups[number]) - 1 for number in own):
            link, _ = listener.accept()
            greeting = _greeting(link)
            if greeting is None:
                link.close()
                continue
            peer, number = greeting
            if number not in peers or peer not in groups[number] or peer <= rank or peer in peers[number]:
                link.close()
                continue
            peers[number][peer] = link
        (path.parent / f"{path.name}.{rank}").unlink(missing_ok=True)
    return {
        number: Local(
            groups[number].index(rank), {groups[number].index(peer): link for peer, link in links.items()}
        )
        for number, links in peers.items()
    }


def _call(address: str) -> socket.socket:
    """A connection to a rank that listens there, or will. Waits without a limit: the launcher ends this process when the
    other rank is lost.
    """
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(address)
            return link
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            time.sleep(POLL_SECONDS)


def _greeting(link: socket.socket) -> tuple[int, int] | None:
    """Who calls, and for which group. None: nobody of ours."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user != os.geteuid():
        return None
    link.settimeout(GREETING_SECONDS)
    try:
        said = link.recv(GREETING.size, socket.MSG_WAITALL)
    except OSError:
        return None
    link.settimeout(None)
    return GREETING.unpack(said) if len(said) == GREETING.size else None


def _check_private(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UnusableModel(f"--rendezvous: {folder} must be a folder of this user with the mode 0700")


class _Folder:
    """Addresses of sockets in a folder whose own path may be too long for one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> "_Folder":
        self._descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def address(self, name: str) -> str:
        direct = str(self._folder / name)
        return (
            direct
            if len(os.fsencode(direct)) <= LONGEST_SOCKET_PATH
            else f"/proc/self/fd/{self._descriptor}/{name}"
        )


def _machine() -> int:
    """A number that ranks on one machine have in common."""
    try:
        name = BOOT_ID.read_bytes()
    except OSError:  # some sandboxes have none
        name = socket.gethostname().encode()
    return zlib.crc32(name)
