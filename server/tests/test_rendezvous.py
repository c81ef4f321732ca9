"""Ranks that find each other, as processes of their own, and what they tell each other."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.parallel.rendezvous import parse

# A rank: meets the others, exchanges something, and says what came of it as a line. Then it exchanges again and
# again until it is ended, or loses another.
RANK = """
import json, os, sys
import torch
from penstock.errors import PEER_LOST, PeerLost
from penstock.parallel.rendezvous import meet

address, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
group = meet(address, rank, size, 1, torch.device("cpu"))
told = {
    "sum": group.all_reduce(torch.tensor([1.0, 10.0 * rank])).tolist(),
    "joined": group.all_gather(torch.tensor([[rank, rank], [9, 9]])).tolist(),
    "followed": group.broadcast(torch.tensor([rank + 5])).tolist(),
    "least": group.least(7 - rank),
    "first says": [group.first_says(rank == 0), group.first_says(rank == 1)],
    "neighbours": group.neighbours,
    "memory": group.room(1),
}
print(json.dumps(told), flush=True)
try:
    while True:
        group.least(rank)
except PeerLost as error:
    print(json.dumps(str(error)), flush=True)
    os._exit(PEER_LOST)  # as a worker does: the library aborts when it is taken down with a peer missing
"""


class Rank:
    def __init__(self, address: str, rank: int, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, address, str(rank), str(size)],
            stdout=subprocess.PIPE,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )

    def line(self) -> Any:
        stream: IO[bytes] | None = self.process.stdout
        assert stream is not None
        return json.loads(stream.readline())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_ranks_meet_agree_and_notice_a_killed_one(tmp_path: Path, kind: str) -> None:
    address = f"file://{tmp_path}/ranks" if kind == "file" else f"tcp://127.0.0.1:{free_port()}/group-1"
    ranks = [Rank(address, rank, 2) for rank in range(2)]
    try:
        for rank in ranks:
            told = rank.line()
            assert told == {
                "sum": [2.0, 10.0],
                "joined": [[0, 0, 1, 1], [9, 9, 9, 9]],
                "followed": [5],
                "least": 6,
                "first says": [True, False],
                "neighbours": 2,
                "memory": [1, "are free for each of 2 processes"],
            }
        ranks[1].process.send_signal(signal.SIGKILL)
        lost = ranks[0].line()
        assert ("connection" if kind == "file" else "127.0.0.1") in lost, "it names what it lost"
        assert ranks[0].process.wait(60) == 3
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()


@pytest.mark.parametrize(
    "address", ["", "ranks", "file:", "file://host/path", "tcp://localhost", "tcp://:5/x", "udp://a:5"]
)
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    with pytest.raises(ValueError, match="neither file:///PATH nor tcp://HOST:PORT"):
        parse(address)
