"""What ranks of the CPU engine give together, each on a thread of its own: sums, parts of a table and of logits, and what one tells the
others; and that one which has ended is noticed.
"""

import mmap
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.cpu_engine import CpuProgram, RankLost
from penstock_kernels.program import Epilogue, Kind, Layout, Norm, Operation, Program
from test_cpu_engine import SETS, close, packed, random

WIDTH, HIDDEN, VOCABULARY, LONGEST, TOKENS, ROWS = 80, 192, 50, 64, 40, 9
TABLE_VE = random(VOCABULARY, WIDTH, seed=1)
LAYERS = [
    (
        random(HIDDEN, WIDTH, scale=WIDTH**-0.5, seed=at),
        random(WIDTH, HIDDEN, scale=HIDDEN**-0.5, seed=9 + at),
    )
    for at in range(3)
]
HEAD_VE = random(VOCABULARY, WIDTH, scale=WIDTH**-0.5, seed=5)


def divided(rank: int, ranks: int) -> Program:
    """A rank's part of a residual network: rows of the table, hidden numbers and logits are divided."""
    program = Program()
    x = program.buffer("x", Layout.F32, WIDTH)
    read, inner = (
        program.buffer("read", Layout.BF16, WIDTH),
        program.buffer("inner", Layout.BF16, HIDDEN // ranks),
    )
    parts = [program.buffer(f"part {turn}", Layout.SHARED, WIDTH) for turn in range(2)]
    rows = -(-VOCABULARY // ranks)
    own = slice(rank * rows, min((rank + 1) * rows, VOCABULARY))
    table = torch.zeros(rows, WIDTH)
    table[: own.stop - own.start] = TABLE_VE[own]
    shape: dict[str, Any] = {"columns": WIDTH, "rows": rows, "first_id": own.start}
    program.body.append(Operation(Kind.EMBED, -1, parts[0], weight=packed(table), **shape))
    program.body.append(Operation(Kind.REDUCE, parts[0], x))
    for at, (up_FE, down_EF) in enumerate(LAYERS):
        mine = slice(rank * HIDDEN // ranks, (rank + 1) * HIDDEN // ranks)
        up, down = packed(up_FE[mine]), packed(down_EF[:, mine])
        program.body += [
            Operation(Kind.NORM, x, read, columns=WIDTH, norm=Norm.RMS, eps=1e-6),
            Operation(
                Kind.LINEAR,
                read,
                inner,
                rows=HIDDEN // ranks,
                columns=96,
                weight=up,
                epilogue=Epilogue.ACTIVATE,
            ),
            Operation(Kind.LINEAR, inner, parts[1 - at % 2], rows=WIDTH, columns=down.shape[1], weight=down),
            Operation(Kind.REDUCE, parts[1 - at % 2], x, accumulate=True, scale=0.5),
        ]
    head = torch.zeros(rows, WIDTH)
    head[: own.stop - own.start] = HEAD_VE[own]
    chosen = program.buffer("chosen", Layout.EXTERNAL, WIDTH)
    logits = program.buffer("logits", Layout.EXTERNAL, rows)
    program.head = [
        Operation(Kind.NORM, chosen, read, columns=WIDTH),
        Operation(Kind.LINEAR, read, logits, rows=rows, columns=96, weight=packed(head)),
    ]
    return program


def whole(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states and logits in plain torch."""
    x_TE = TABLE_VE.bfloat16().float()[ids]
    for up_FE, down_EF in LAYERS:
        read_TE = torch.nn.functional.rms_norm(x_TE, (WIDTH,), eps=1e-6).bfloat16().float()
        inner_TF = torch.nn.functional.silu(read_TE @ up_FE.bfloat16().float().T).bfloat16().float()
        x_TE = x_TE + 0.5 * inner_TF @ down_EF.bfloat16().float().T
    return x_TE, x_TE.bfloat16().float() @ HEAD_VE.bfloat16().float().T


class Group:
    """Ranks in this process, which are called at once."""

    def __init__(self, ranks: int, instruction_set: str = SETS[0], threads: int = 1) -> None:
        self.programs = [CpuProgram(divided(rank, ranks), instruction_set, threads) for rank in range(ranks)]
        self.memory = mmap.mmap(-1, self.programs[0].shared_bytes(TOKENS, ROWS, ranks))
        self.sockets: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
        for one in range(ranks):
            for other in range(one):
                self.sockets[one][other], self.sockets[other][one] = socket.socketpair()
        for rank, program in enumerate(self.programs):
            program.reserve(TOKENS, ROWS, LONGEST)
            numbers = {other: link.fileno() for other, link in self.sockets[rank].items()}
            program.share(self.memory, TOKENS, ROWS, rank, numbers, VOCABULARY)
        self.threads = ThreadPoolExecutor(ranks)

    def each(self, call: Callable[[int, CpuProgram], Any]) -> list[Any]:
        return [
            made.result(30) for made in [self.threads.submit(call, *one) for one in enumerate(self.programs)]
        ]


def step(program: CpuProgram, ids: Tensor) -> np.ndarray[Any, Any]:
    """Hidden states of one row of tokens."""
    slots, first, counts = (np.array([number], np.int64) for number in (0, 0, len(ids)))
    program.step(ids.numpy(), slots, first, counts, np.zeros((1, 1, 4), np.int64))
    return program.rows(0, len(ids)).copy()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("ranks", "threads"), [(2, 1), (2, 2), (3, 1), (4, 1)])
def test_ranks_give_what_one_gives_and_all_the_same(name: str, ranks: int, threads: int) -> None:
    group = Group(ranks, name, threads)
    for turn, count in enumerate((1, TOKENS, 7, 1, 33, 2)):
        ids = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(turn))
        exact_TE, exact_TV = whole(ids)
        found = group.each(lambda _, program: step(program, ids))  # noqa: B023 - called at once
        assert all(np.array_equal(other, found[0]) for other in found)
        close(torch.from_numpy(found[0]), exact_TE)
        chosen_SE = found[0][-ROWS:]
        for _ in range(2):  # logits of one step may be asked for in several pieces
            logits = [np.full((len(chosen_SE), VOCABULARY), 7.0, np.float32) for _ in range(ranks)]
            group.each(lambda rank, program: program.head(chosen_SE, logits[rank]))  # noqa: B023
            close(torch.from_numpy(logits[0]), exact_TV[-ROWS:])
            assert (np.stack(logits[1:]) == 7).all(), "only rank 0 is given logits"
        # More than is told in one meeting, and less.
        told = [np.full((8192 if turn % 2 else 1) + 9 * turn, rank, np.int64) for rank in range(ranks)]
        told[0][:] = np.arange(len(told[0]))
        group.each(lambda rank, program: program.tell(told[rank]))  # noqa: B023
        assert all(np.array_equal(numbers, told[0]) for numbers in told)


@pytest.mark.parametrize("call", ["step", "head", "tell"])
def test_a_rank_that_has_ended_is_noticed_by_those_that_wait(call: str) -> None:
    group = Group(3)
    group.each(lambda _, program: step(program, torch.arange(5)))

    def wait(rank: int, program: CpuProgram) -> str:
        if rank == 1:
            time.sleep(0.2)
            for link in group.sockets[1].values():
                link.close()
            return ""
        with pytest.raises(RankLost) as lost:
            if call == "step":
                step(program, torch.arange(5))
            elif call == "head":
                program.head(np.zeros((1, WIDTH), np.float32), np.zeros((1, VOCABULARY), np.float32))
            else:
                program.tell(np.zeros(1, np.int64))
        return str(lost.value)

    began = time.monotonic()
    assert group.each(wait) == [
        "another rank of the model has ended",
        "",
        "another rank of the model has ended",
    ]
    assert time.monotonic() - began < 5
    # And whatever is asked of it from then on.
    with pytest.raises(RankLost):
        step(group.programs[0], torch.arange(5))


def test_what_ranks_cannot_do_is_refused_in_one_line() -> None:
    alone = CpuProgram(divided(0, 2), SETS[0], 1)
    alone.reserve(TOKENS, ROWS, LONGEST)
    with pytest.raises(RuntimeError, match="a step of one rank without the others"):
        step(alone, torch.arange(5))
    with pytest.raises(RuntimeError, match="nobody to tell"):
        alone.tell(np.zeros(1, np.int64))
    twice = divided(0, 2)
    twice.body[-2].target = twice.body[-1].source = twice.body[-5].source
    with pytest.raises(ValueError, match="do not take turns"):
        CpuProgram(twice, SETS[0], 1)
    local = divided(0, 2)
    local.body[1].source = 0
    with pytest.raises(ValueError, match="what ranks sum up is shared"):
        CpuProgram(local, SETS[0], 1)
