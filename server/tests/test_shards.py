"""One model in two worker processes, driven through the contract: what ranks answer, refuse, and notice of each other."""

import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
import torch

import checkpoints
from client import DEVICE, Run, Worker, make_plan, masks_of, row, sampled
from penstock.errors import UnusableModel
from penstock.loading import device
from penstock.loading.device import device_of, gpu_of
from penstock.proto import penstock_pb2 as pb

T = TypeVar("T")

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="two ranks need two GPUs")

PROMPT = [5, 6, 7, 8, 9, 10, 11]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config())


@contextmanager
def started(
    model: Path, folder: Path, size: int = 2, stages: int = 1, *options: str, **how: Any
) -> Iterator[list[Worker]]:
    """Ranks that have loaded their parts."""
    place = ["--rendezvous", f"file://{folder}/ranks", "--world-size", str(size), "--stages", str(stages)]
    with ExitStack() as stack:
        ranks = [
            Worker(model, folder / f"{rank}", "--rank", str(rank), "--threads", "1", *place, *options, **how)
            for rank in range(size)
        ]
        for rank in ranks:
            stack.enter_context(rank)
        yield ranks


def together(ranks: list[Worker], call: Callable[[Worker], T]) -> list[T]:
    """The same call of all ranks at once: they wait for each other in it."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(call, ranks))


def steps(plans: list[list[dict[str, Any]]], runs: list[Run]) -> list[list[pb.StepResult]]:
    """Sends all plans to each rank, and reads all results of each."""
    for rows in plans:
        for run in runs:
            run.send(rows)
    return [[run.receive() for _ in plans] for run in runs]


def two_sequences() -> list[list[dict[str, Any]]]:
    """Plans for a greedy and a sampled sequence, the second with the log probabilities of its prompt."""
    start: dict[str, Any] = {"temperatures": 0.8, "seeds": 123456789, "top_tokens": 3}
    targets = [*PROMPT[1:], 0xFFFFFFFF]
    plans = [[row(0, PROMPT, 0, [0], start={}), row(1, PROMPT, 0, [1, 2], start=start, targets=targets)]]
    for position in range(len(PROMPT), 40):
        first = [3 + position // 16] if position in (16, 32) else []
        second = [6] if position == 32 else []
        rows = [row(0, None, position, first), row(1, None, position, second)]
        # Now together, now apart: in a pipeline, one is then in the first stage while the other is in the last.
        plans += [rows] if position % 3 == 0 else [rows[:1], rows[1:]]
    # One that can only give 9: two of its drafts are right, and then one. What follows knows its position.
    forced: dict[str, Any] = {"bias": {9: float("inf")}, "repetition_penalties": 1.1, "history": PROMPT}
    plans.append([row(0, None, 40, drafts=[0]), row(2, PROMPT, 0, [7, 8], start=forced)])
    plans.append([row(2, None, 7, drafts=[9, 9, 1, 9])])
    plans.append([row(1, None, 40), row(2, None, 10, drafts=[9])])
    plans.append([row(2, None, 12)])
    return plans


@pytest.fixture(scope="module")
def whole(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pb.ModelDescription, list[pb.StepResult]]:
    """What one rank alone is and answers."""
    with Worker(model, tmp_path_factory.mktemp("alone") / "private") as alone:
        description = alone.describe()
        alone.prepare()
        (results,) = steps(two_sequences(), [alone.run()])
    return description, results


@pytest.mark.parametrize(
    ("shards", "stages"),
    [(2, 2), *(pytest.param(*other, marks=pytest.mark.tail) for other in ((2, 1), (1, 2), (1, 3)))],
)
def test_several_ranks_give_what_one_gives_and_only_one_answers(
    model: Path,
    whole: tuple[pb.ModelDescription, list[pb.StepResult]],
    tmp_path: Path,
    shards: int,
    stages: int,
) -> None:
    size = shards * stages
    description, expected = whole
    with started(model, tmp_path, size, stages) as ranks:
        parts = [rank.describe() for rank in ranks]
        assert [(part.rank, part.world_size, part.stages) for part in parts] == [
            (rank, size, stages) for rank in range(size)
        ]
        assert all(part.parameters == description.parameters for part in parts), "of the whole model"
        assert sum(part.kv_bytes_per_token for part in parts) == description.kv_bytes_per_token
        assert all(part.weight_bytes < 0.75 * description.weight_bytes for part in parts)
        pages = {prepared.pages for prepared in together(ranks, lambda rank: rank.prepare())}
        assert len(pages) == 1
        results = steps(two_sequences(), [rank.run() for rank in ranks])

    answering = size - shards
    for one, two in zip(expected, results[answering], strict=True):
        assert sampled(two) == sampled(one)
        assert two.top_tokens == one.top_tokens
        assert two.accepted == one.accepted
        assert len(two.prompt_logprobs) == len(one.prompt_logprobs)
        assert [result.number for result in expected] == [result.number for result in results[answering]]
    for rank, others in enumerate(results):
        for one, two in zip(expected, others, strict=True):
            assert two.number == one.number
            assert rank == answering or not (two.sampled or two.logprobs or two.prompt_logprobs)


def masked_steps(runs: list[Run]) -> list[list[pb.StepResult]]:
    """Of a drawn and a greedy row that are masked beside one that is not, in steps that go on from each other; the first rank gets the
    masks.
    """
    start: dict[str, Any] = {"temperatures": 0.8, "seeds": 5, "repetition_penalties": 1.1, "history": PROMPT}
    plans = [
        [row(slot, PROMPT, 0, [2 * slot, 2 * slot + 1], start=start if slot else {}) for slot in range(3)]
    ]
    for position in range(len(PROMPT), 20):
        plans.append([row(slot, None, position, masked=slot < 2) for slot in range(3)])
    for number, rows in enumerate(plans):
        for run in runs:
            run.send(rows)
        if number:
            # The second row is forced now and then.
            masks = [[number, 40, 50], [number] if number % 3 == 0 else [number, 60, 70]]
            only, words = masks_of(masks, 199)
            runs[0].send_masks(words, only=np.frombuffer(only, "<u4").tolist())
    return [[run.receive() for _ in plans] for run in runs]


def test_shards_that_await_masks_give_what_one_rank_gives(model: Path, tmp_path: Path) -> None:
    with Worker(model, tmp_path / "alone") as alone:
        alone.prepare()
        (expected,) = masked_steps([alone.run()])
    with started(model, tmp_path) as ranks:
        together(ranks, lambda rank: rank.prepare())
        results = masked_steps([rank.run() for rank in ranks])
    assert [sampled(one) for one in results[0]] == [sampled(one) for one in expected]
    assert not any(other.sampled for other in results[1])
    for number, one in enumerate(map(sampled, results[0])):
        assert number == 0 or (one[0] in (number, 40, 50) and one[1] in (number, 60, 70)), number


def test_the_ranks_of_a_stage_move_the_same_path_of_a_tree(model: Path, tmp_path: Path) -> None:
    at = len(PROMPT)
    with started(model, tmp_path) as ranks:
        assert all(prepared.draft_trees for prepared in together(ranks, lambda rank: rank.prepare()))
        prompt = [row(0, PROMPT, 0, [0, 1], start={})]
        one_by_one = [prompt, *([row(0, None, position)] for position in range(at, 30))]
        answers = steps(one_by_one, [rank.run() for rank in ranks])[0]
        expected = [token for result in answers for token in sampled(result)]
        # A wrong draft beside each right one, and before it: the whole path is out of its place.
        right = expected[1:6]
        drafts = [token for draft in right for token in ((draft + 1) % 199, draft)]
        parents = [2 * (number // 2) for number in range(len(drafts))]
        tree = [row(0, None, at, drafts=drafts, parents=parents)]
        behind = [[row(0, None, position)] for position in range(at + 1 + len(right), 30)]
        results = steps([prompt, tree, *behind], [rank.run() for rank in ranks])
    assert results[0][1].accepted == len(right).to_bytes(4, "little")
    assert [token for result in results[0] for token in sampled(result)] == expected
    assert not any(result.sampled or result.accepted for result in results[1])


def test_samples_that_nobody_continues_are_not_piled_up(model: Path, tmp_path: Path) -> None:
    with started(model, tmp_path, 2, 2) as ranks:
        together(ranks, lambda rank: rank.prepare())
        plans = [[row(number % 8, PROMPT, 0, [number % 8], start={})] for number in range(40)]
        results = steps(plans, [rank.run() for rank in ranks])
        assert len({tuple(sampled(result)) for result in results[1]}) == 1
        # A new Run begins without what the last one left underway.
        again = steps([*plans[:1], [row(0, None, len(PROMPT))]], [rank.run() for rank in ranks])
        assert sampled(again[1][0]) == sampled(results[1][0])


def test_a_rank_that_is_out_of_step_refuses_and_the_other_waits_and_lives(
    model: Path, tmp_path: Path
) -> None:
    with started(model, tmp_path) as ranks:
        together(ranks, lambda rank: rank.prepare())
        runs = [rank.run() for rank in ranks]
        good = [row(0, PROMPT, 0, [0], start={})]
        steps([good], runs)
        begun = ranks[0].check().steps
        runs[0].send([row(0, None, len(PROMPT))])
        wrong = runs[1].numbering.stamp(make_plan([row(0, None, len(PROMPT))]))
        wrong.digest ^= 1
        runs[1].send_raw(wrong)
        with pytest.raises(grpc.RpcError) as caught:
            runs[1].receive()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        # The first rank waits for the second in the middle of the step, and says that it lives, and where it is.
        while ranks[0].check().steps == begun:
            pass
        assert ranks[0].check().steps == begun + 1 > ranks[1].check().steps

        ranks[1].process.send_signal(signal.SIGKILL)
        with pytest.raises(grpc.RpcError) as caught:
            runs[0].receive()
        assert caught.value.code() == grpc.StatusCode.ABORTED, "it blames the other"
        assert ranks[0].exit_status() == 3
        assert any(
            entry["level"] == "WARN" and "lost another rank" in entry["message"] for entry in ranks[0].log
        )
        assert not any(entry.get("fatal") for entry in ranks[0].log)


def test_a_number_of_ranks_that_does_not_divide_the_model_is_said_by_each(tmp_path: Path) -> None:
    model = checkpoints.write(
        tmp_path / "model", checkpoints.config(num_attention_heads=1, num_key_value_heads=1)
    )
    arguments = ["--threads", "1", "--world-size", "2", "--rendezvous", f"file://{tmp_path}/ranks"]
    ranks = [Worker(model, tmp_path / f"{rank}", "--rank", str(rank), *arguments) for rank in range(2)]
    for rank in ranks:
        assert rank.exit_status() == 1
        (fatal,) = [entry["message"] for entry in rank.log if entry.get("fatal")]
        assert fatal.startswith("--num-shard 2 does not divide"), fatal


def test_ranks_on_hosts_of_their_own_take_the_gpus_of_their_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for gpus, expected in ((1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (4, [0, 1, 2, 3])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert [device_of("auto", gpu_of(rank)).index for rank in range(4)] == expected
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UnusableModel, match="--device cuda:N names one"):
        device_of("cuda", 1)  # of one host
    assert device_of("cuda:0", 1).index == 0


def test_a_gpu_that_torch_does_not_see_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose driver is older than the CUDA that torch is built for."""
    why = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020)."

    def is_available() -> bool:
        warnings.warn(f"{why}\n(Triggered internally at c10/cuda/CUDAFunctions.cpp:119.)", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(device, "may_have_accelerator", lambda: True)
    told: list[str] = []
    assert device_of("auto", tell=told.append).type == "cpu"
    reason = f"it is built for CUDA 13.2: {why}"
    assert told == [f"this machine has a GPU's driver, and torch sees no GPU: {reason}; the CPU serves"]
    with pytest.raises(UnusableModel) as refused:
        device_of("cuda")
    assert str(refused.value) == f"--device: there is no cuda on this machine that torch sees: {reason}"
    monkeypatch.setattr(device, "may_have_accelerator", lambda: False)
    assert device_of("auto", tell=told.append).type == device_of("cpu", tell=told.append).type == "cpu"
    assert len(told) == 1
