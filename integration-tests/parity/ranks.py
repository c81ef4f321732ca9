"""Ranks that hold one model together: the one that answers in the test's process, each other in a process of its own.

Run as a program it is one of the others: it reads a command a line from standard input, and answers each with a line.
"""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import torch

from penstock.parallel.group import TensorGroup
from penstock.parallel.rendezvous import meet
from penstock.proto import penstock_pb2 as pb

TESTS = Path(__file__).parents[2] / "server" / "tests"
TIMEOUT = 120.0

# The driver of the worker's own tests.
sys.path.insert(0, str(TESTS))


def join(store: str, rank: int, shards: int, stages: int) -> TensorGroup:
    """Enters the group that meets at the file `store`."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return meet(f"file://{store}", rank, shards * stages, stages, torch.device("cpu"))


class Ranks:
    """The side of the rank that answers: the first shard of the last stage."""

    def __init__(self, folder: Path, shards: int = 1, stages: int = 1) -> None:
        store, size = str(folder / "store"), shards * stages
        own = size - shards
        self.peers = [
            subprocess.Popen(
                [sys.executable, __file__, store, str(rank), str(shards), str(stages)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for rank in range(size)
            if rank != own
        ]
        self.group = join(store, own, shards, stages)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            assert peer.stdin is not None
            peer.stdin.close()
        for peer in self.peers:
            peer.wait(TIMEOUT)

    def tell(self, **command: Any) -> None:
        """Gives the others a command; `heard` waits for their answers."""
        for peer in self.peers:
            assert peer.stdin is not None
            peer.stdin.write(json.dumps(command) + "\n")
            peer.stdin.flush()

    def heard(self) -> None:
        """Fails when one of the others answers that something went wrong."""
        for peer in self.peers:
            assert peer.stdout is not None
            answer = peer.stdout.readline().strip()
            assert answer == "ok", answer

    def driver(self, folder: Path, dtype: torch.dtype, **limits: Any) -> "RanksDriver":
        """A model divided over all."""
        return RanksDriver(self, folder, dtype, limits)


class RanksDriver:
    """A `Driver` whose plans the other ranks execute, too."""

    def __init__(self, ranks: Ranks, folder: Path, dtype: torch.dtype, limits: dict[str, Any]) -> None:
        from driver import Driver

        self.ranks = ranks
        ranks.tell(load=str(folder), dtype=str(dtype).removeprefix("torch."), limits=limits)
        try:
            self.driver = Driver(folder, dtype, group=ranks.group, **limits)
        finally:
            ranks.heard()

    def begin(self) -> None:
        """A new Run: no slots, on any rank."""
        self.ranks.tell(begin=True)
        self.driver.begin()
        self.ranks.heard()

    def step(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> pb.StepResult:
        """Executes one plan on all ranks."""
        from client import make_plan

        driver = self.driver
        plan = driver.numbering.stamp(make_plan(rows, released, driver.tables, driver.has_state))
        self.ranks.tell(plan=base64.b64encode(plan.SerializeToString()).decode())
        result = self.driver.execute(plan)
        self.ranks.heard()
        return result

    def all_logits(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        """Executes one plan whose rows ask for prompt log probabilities, and returns the logits of all of them."""
        self.step(rows)
        return torch.cat(self.driver.logits)

    def last_logits(self) -> torch.Tensor:
        """Logits (S, V) of the rows that sampled."""
        return self.driver.last_logits()


def main() -> None:
    """One of the others."""
    from driver import Driver

    store, *numbers = sys.argv[1:]
    rank, shards, stages = map(int, numbers)
    group = join(store, rank, shards, stages)
    torch.set_num_threads(1)
    driver: Driver | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "load" in command:
                if driver is not None:
                    driver.begin()  # takes what is on its way from the last stage
                dtype = getattr(torch, command["dtype"])
                driver = Driver(Path(command["load"]), dtype, group=group, **command["limits"])
            elif "begin" in command:
                assert driver is not None
                driver.begin()
            else:
                assert driver is not None
                driver.execute(pb.StepPlan.FromString(base64.b64decode(command["plan"])))
            answer = "ok"
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
