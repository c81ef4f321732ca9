"""How ranks exchange tensors: over unix sockets where all are processes of one machine, else as `distributed` does it. What the CPU
engine sums up in its steps goes through memory that this gives to the ranks.

Used by `group`, made by `rendezvous`. Both sides of an exchange know what comes, so nothing but the numbers is sent. A
rank that has ended is noticed at once (PeerLost); one that is frozen is waited for, since only the router knows how
long steps last.
"""

import mmap
import os
import queue
import select
import socket
import struct
import threading
from typing import Protocol

import numpy as np

from penstock.errors import PeerLost
from penstock_kernels.later import Tensor, torch

# Bytes that a connection holds until they are read, as far as the system allows it: fewer turns for what is large.
BUFFER = 4 << 20
# From here on a sum of more than two ranks is worth two rounds, in which each rank adds up its part for all.
LARGE = 64 << 10
SIZE = struct.Struct("<q")


class Sending(Protocol):
    """A tensor on its way, whose memory must stay as it is until it has left."""

    def is_completed(self) -> bool:
        """Whether it has left."""

    def wait(self) -> object:
        """Until then. Raises PeerLost."""


class Exchange(Protocol):
    """What a rank tells the others of its group, and hears. Every method raises PeerLost."""

    def all_reduce(self, part: Tensor) -> None:
        """Leaves the sum of every rank's tensor in its memory, to the last bit the same on all ranks."""

    def all_gather(self, parts: list[Tensor], part: Tensor) -> None:
        """Every rank's tensor, in the memory of `parts`. All are contiguous and of one shape."""

    def broadcast(self, value: Tensor) -> None:
        """The first rank's tensor, in the memory of everyone's."""

    def numbers(self, own: int) -> list[int]:
        """A whole number of every rank, in their order."""

    def send(self, tensor: Tensor, rank: int, tag: int) -> Sending | None:
        """To a rank, without waiting for it. None: it has left already."""

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        """What that rank sent with this tag, in this memory."""


class Local:
    """Over unix sockets: one connection to each of the others, which nobody else has a way to.

    A sum is the same on all ranks: of two numbers the order does not matter, more are added up in one place or in one
    order.
    """

    def __init__(self, rank: int, peers: dict[int, socket.socket]) -> None:
        self._rank = rank
        self._peers = peers
        self._size = len(peers) + 1
        self._letters: dict[int, _Letters] = {}
        for peer in peers.values():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)

    @property
    def descriptors(self) -> dict[int, int]:
        """Of each other rank the number of its socket, which breaks when that rank ends."""
        return {rank: peer.fileno() for rank, peer in self._peers.items()}

    def shared_memory(self, size: int) -> mmap.mmap:
        """Memory of zeros that all ranks see, and no other process: made by the first, of as many bytes on all of them."""
        try:
            if self._rank == 0:
                descriptor = os.memfd_create("penstock ranks")
                os.ftruncate(descriptor, size)
                for peer in self._peers.values():
                    socket.send_fds(peer, [SIZE.pack(size)], [descriptor])
            else:
                said, found, *_ = socket.recv_fds(self._peers[0], SIZE.size, 1)
                if len(said) < SIZE.size or len(found) != 1:
                    raise PeerLost("rank 0 closed its connection")
                (descriptor,) = found
                assert SIZE.unpack(said) == (size,), "all ranks prepare for the same steps"
            with os.fdopen(descriptor, "rb"):
                return mmap.mmap(descriptor, size)
        except OSError as error:
            raise PeerLost(f"the ranks share no memory: {error}") from error

    def all_reduce(self, part: Tensor) -> None:
        """See Exchange."""
        if self._size == 2:
            other = torch.empty_like(part)
            (peer,) = self._peers
            self._swap({peer: _bytes(part)}, {peer: _bytes(other)})
            part += other
            return
        flat = part.view(-1)
        if part.nbytes < LARGE:
            all_RN = flat.new_empty(self._size, flat.numel())
            self.all_gather(list(all_RN), flat)
            _sum_in_order(all_RN, flat)
            return
        pieces = list(flat.tensor_split(self._size))
        own = pieces[self._rank]
        theirs_RN = own.new_empty(self._size, own.numel())
        theirs_RN[self._rank] = own
        self._swap(
            {peer: _bytes(pieces[peer]) for peer in self._peers},
            {peer: _bytes(theirs_RN[peer]) for peer in self._peers},
        )
        _sum_in_order(theirs_RN, own)
        self.all_gather(pieces, own)

    def all_gather(self, parts: list[Tensor], part: Tensor) -> None:
        """See Exchange. Parts may differ in length where each rank knows those of all."""
        if parts[self._rank] is not part:
            parts[self._rank].copy_(part)
        own = _bytes(part)
        self._swap(dict.fromkeys(self._peers, own), {peer: _bytes(parts[peer]) for peer in self._peers})

    def broadcast(self, value: Tensor) -> None:
        """See Exchange."""
        content = _bytes(value)
        if self._rank == 0:
            self._swap(dict.fromkeys(self._peers, content), {})
        else:
            self._swap({}, {0: content})

    def numbers(self, own: int) -> list[int]:
        """See Exchange."""
        found = np.zeros((self._size, 1), np.int64)
        found[self._rank] = own
        content = [row.view(np.uint8).data for row in found]
        self._swap(
            dict.fromkeys(self._peers, content[self._rank]), {peer: content[peer] for peer in self._peers}
        )
        return [int(number) for number in found[:, 0]]

    def send(self, tensor: Tensor, rank: int, tag: int) -> Sending:
        """See Exchange. To one rank everything goes with one tag, and in order."""
        if rank not in self._letters:
            self._letters[rank] = _Letters(self._peers[rank])
        return self._letters[rank].send(_bytes(tensor))

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        """See Exchange."""
        self._swap({}, {rank: _bytes(tensor)})

    def _swap(self, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        """Sends and receives at once, so that ranks that send each other more than a socket holds do not wait for
        each other for ever.
        """
        try:
            outgoing = {rank: rest for rank, left in outgoing.items() if (rest := self._push(rank, left))}
            while outgoing:
                # What does not fit leaves as the others read.
                moved = False
                for rank, left in [*incoming.items()]:
                    count = self._pull(rank, left, socket.MSG_DONTWAIT)
                    incoming[rank], moved = left[count:], moved or count > 0
                for rank, left in [*outgoing.items()]:
                    rest = self._push(rank, left)
                    moved = moved or len(rest) < len(left)
                    outgoing[rank] = rest
                incoming = {rank: left for rank, left in incoming.items() if left}
                outgoing = {rank: left for rank, left in outgoing.items() if left}
                if not moved:
                    self._wait(outgoing, incoming)
            for rank, left in incoming.items():
                while left:
                    left = left[self._pull(rank, left, socket.MSG_WAITALL) :]
        except OSError as error:
            raise PeerLost(f"the connection to another rank broke: {error}") from error

    def _push(self, rank: int, left: memoryview) -> memoryview:
        """What is left after as much was sent as fits."""
        if not left:
            return left
        try:
            return left[self._peers[rank].send(left, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            return left

    def _pull(self, rank: int, left: memoryview, flags: int) -> int:
        """Bytes received."""
        if not left:
            return 0
        try:
            count = self._peers[rank].recv_into(left, len(left), flags)
        except BlockingIOError:
            return 0
        if count == 0:
            raise PeerLost(f"rank {rank} closed its connection")
        return count

    def _wait(self, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        poll = select.poll()
        for rank in outgoing.keys() | incoming.keys():
            events = (select.POLLOUT if rank in outgoing else 0) | (select.POLLIN if rank in incoming else 0)
            poll.register(self._peers[rank], events)
        poll.poll()


class _Letters:
    """What is sent to one rank and not waited for, by a thread of its own, in order."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._queue: queue.SimpleQueue[_Letter] = queue.SimpleQueue()
        self._last: _Letter | None = None
        threading.Thread(target=self._run, name="send", daemon=True).start()

    def send(self, content: memoryview) -> "_Letter":
        letter = _Letter(content)
        if self._last is None or self._last.is_completed():
            # Mostly it fits into the socket, and no thread has to wake up for it.
            try:
                letter.content = content[
                    self._peer.send(content, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :
                ]
            except BlockingIOError:
                pass
            except OSError as error:
                letter.error = error
        if letter.error is None and letter.content:
            self._queue.put(letter)
        else:
            letter.sent.set()
        self._last = letter
        return letter

    def _run(self) -> None:
        while True:
            letter = self._queue.get()
            try:
                self._peer.sendall(letter.content, socket.MSG_NOSIGNAL)
            except OSError as error:
                letter.error = error
            letter.sent.set()


class _Letter:
    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.sent = threading.Event()
        self.error: OSError | None = None

    def is_completed(self) -> bool:
        return self.sent.is_set()

    def wait(self) -> None:
        self.sent.wait()
        if self.error is not None:
            raise PeerLost(f"the connection to another rank broke: {self.error}") from self.error


def _sum_in_order(parts_RN: Tensor, into_N: Tensor) -> None:
    """The sum of all ranks' parts, in their order whatever the shape. Half precision is rounded once."""
    wide = torch.float32 if into_N.dtype in (torch.float16, torch.bfloat16) else into_N.dtype
    total_N = parts_RN[0].to(wide, copy=True)
    for part_N in parts_RN[1:]:
        total_N += part_N
    into_N.copy_(total_N)


def _bytes(tensor: Tensor) -> memoryview:
    """A contiguous tensor's memory."""
    content: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return content
