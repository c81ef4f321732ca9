"""Two ranks that hold one model: rank 0 in the test's process, rank 1 in a process of its own.

Run as a program it is rank 1: it reads a command a line from standard input, and answers each with a line.
"""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from penstock.parallel import TensorGroup
from penstock.proto import penstock_pb2 as pb

TESTS = Path(__file__).parents[2] / "server" / "tests"
TIMEOUT = 120.0

# The driver of the worker's own tests.
sys.path.insert(0, str(TESTS))


def join(store: str, rank: int) -> TensorGroup:
    """Enters the group that meets at the file `store`."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    return TensorGroup(rank, 2, dist.group.WORLD)


class Pair:
    """Rank 0's side."""

    def __init__(self, folder: Path) -> None:
        store = str(folder / "store")
        self.peer = subprocess.Popen(
            [sys.executable, __file__, store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.group = join(store, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.peer.stdin is not None
        self.peer.stdin.close()
        dist.destroy_process_group()
        self.peer.wait(TIMEOUT)

    def tell(self, **command: Any) -> None:
        """Gives rank 1 a command; `heard` waits for its answer."""
        assert self.peer.stdin is not None
        self.peer.stdin.write(json.dumps(command) + "\n")
        self.peer.stdin.flush()

    def heard(self) -> str:
        """Rank 1's answer: "ok", or what went wrong."""
        assert self.peer.stdout is not None
        return self.peer.stdout.readline().strip()

    def driver(self, folder: Path, dtype: torch.dtype, **limits: Any) -> "PairDriver":
        """A model divided over both."""
        return PairDriver(self, folder, dtype, limits)


class PairDriver:
    """A `Driver` on rank 0 whose plans rank 1 executes, too."""

    def __init__(self, pair: Pair, folder: Path, dtype: torch.dtype, limits: dict[str, Any]) -> None:
        from driver import Driver

        self.pair = pair
        pair.tell(load=str(folder), dtype=str(dtype).removeprefix("torch."), limits=limits)
        try:
            self.driver = Driver(folder, dtype, group=pair.group, **limits)
        finally:
            answer = pair.heard()
        assert answer == "ok", answer

    def step(self, rows: list[dict[str, Any]], released: list[int] | None = None) -> pb.StepResult:
        """Executes one plan on both ranks."""
        from client import make_plan

        plan = self.driver.numbering.stamp(make_plan(rows, released))
        self.pair.tell(plan=base64.b64encode(plan.SerializeToString()).decode())
        result = self.driver.execute(plan)
        answer = self.pair.heard()
        assert answer == "ok", answer
        return result

    def last_logits(self) -> torch.Tensor:
        """Logits (S, V) of the rows that sampled."""
        return self.driver.last_logits()


def main() -> None:
    """Rank 1."""
    from driver import Driver

    group = join(sys.argv[1], 1)
    torch.set_num_threads(1)
    driver: Driver | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "load" in command:
                dtype = getattr(torch, command["dtype"])
                driver = Driver(Path(command["load"]), dtype, group=group, **command["limits"])
            else:
                assert driver is not None
                driver.execute(pb.StepPlan.FromString(base64.b64decode(command["plan"])))
            answer = "ok"
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
