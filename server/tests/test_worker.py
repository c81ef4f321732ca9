"""The worker contract over a real socket against a real worker process."""

import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import checkpoints
from client import DEVICE, FrameError, FrameRun, Worker, floats, make_plan, mask_of, row, sampled, u32
from penstock.engine.plan import NO_TOKEN, OF_WORDS
from penstock.proto import generate
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.frames import HEAD
from penstock.worker import Work


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return checkpoints.write(folder, checkpoints.config(), shards=2, generation={"eos_token_id": [7, 2]})


both_ways = pytest.mark.parametrize("uses_frames", [False, True], ids=["gRPC", "frames"])


@pytest.fixture(scope="module")
def listening(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(model, tmp_path_factory.mktemp("socket") / "private") as worker:
        worker.prepare()
        yield worker


@pytest.fixture(params=[False, True], ids=["gRPC", "frames"])
def worker(request: pytest.FixtureRequest, listening: Worker) -> Worker:
    """Called in both ways in turn."""
    listening.uses_frames = request.param
    return listening


def failure(worker: Worker, plan: pb.StepPlan, stamp: bool = True) -> grpc.RpcError:
    """The error that a plan is refused with, as the first of a Run or after a good one."""
    run = worker.run()
    run.send_raw(run.numbering.stamp(plan) if stamp else plan)
    with pytest.raises(grpc.RpcError) as caught:
        run.receive()
    return caught.value


def test_describe_says_what_the_model_is(worker: Worker) -> None:
    found = worker.describe()
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    assert (found.model_type, found.recipe) == ("llama", "LlamaForCausalLM")
    assert (found.vocab_size, list(found.eos_ids)) == (199, [2, 7])
    assert (found.dtype, found.block_size, found.max_positions) == ("float32", 16, 512)
    assert found.device.startswith(DEVICE)
    assert found.parameters == sum(t.numel() for t in weights.values())
    assert found.weight_bytes == 4 * found.parameters
    assert found.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert (found.rank, found.world_size, found.frames) == (0, 1, True)
    assert found.device_name and found.max_top_tokens >= 20


@pytest.mark.parametrize("more", [0, 3])
def test_more_threads_than_processors_are_a_warning(more: int, model: Path, tmp_path: Path) -> None:
    processors = len(os.sched_getaffinity(0))
    threads = str(processors + more)
    with Worker(model, tmp_path / "private", "--threads", threads) as worker:
        worker.prepare()
        said = [line["message"] for line in worker.log if line["level"] == "WARN"]
    says = f"--worker-threads {threads}: more than the {processors} processors that this process may use, so that "
    assert said == ([f"{says}threads wait for others that do not run"] if more else [])


def test_plans_in_flight_continue_what_was_sampled(worker: Worker) -> None:
    prompt = [5, 6, 7, 8]
    one_by_one = worker.run()
    expected = sampled(one_by_one.step([row(0, prompt, 0, [0, 1], start={})]))
    for position in range(4, 20):
        expected += sampled(one_by_one.step([row(0, [expected[-1]], position)]))
    one_by_one.end()

    ahead = worker.run()
    ahead.send([row(3, prompt, 0, [4, 5], start={})])
    for position in range(4, 20):
        ahead.send([row(3, None, position)])
    got = [token for _ in range(17) for token in sampled(ahead.receive())]
    assert got == expected
    ahead.end()
    with pytest.raises(StopIteration):
        ahead.receive()


def test_that_a_run_has_begun_is_told_before_any_plan(worker: Worker) -> None:
    run = worker.run()
    run.wait_begun()
    run.end()


def test_a_row_gives_the_same_alone_and_in_a_batch(worker: Worker) -> None:
    start: dict[str, Any] = {"temperatures": 0.8, "seeds": 1234567890123456789, "top_tokens": 4}
    alone = worker.run()
    results = [alone.step([row(2, [9, 8, 7], 0, [9], start=start)])]
    results += [alone.step([row(2, None, position)]) for position in range(3, 10)]
    alone.end()
    batch = worker.run()
    others = [
        row(s, [s + 1] * (5 * s + 3), 0, [20 + 2 * s, 21 + 2 * s], start={"temperatures": 1.5})
        for s in (0, 1, 3)
    ]
    first = batch.step([*others[:2], row(2, [9, 8, 7], 0, [9], start=start), others[2]])
    tokens = [sampled(first)[2]]
    for position in range(3, 10):
        tokens += sampled(
            batch.step([row(0, None, position), row(2, None, position), row(1, None, position + 5)])
        )[1:2]
    assert tokens == [sampled(result)[0] for result in results]
    assert all(len(floats(result.top_logprobs)) == 4 for result in results)
    batch.end()


def test_log_probabilities_of_prompt_and_alternatives_agree(worker: Worker) -> None:
    run = worker.run()
    prompt = [11, 12, 13, 14, 15, 16]
    no_target = 0xFFFFFFFF
    result = run.step(
        [
            row(0, [3], 0, [40], start={}),
            row(1, prompt, 0, [41], start={"top_tokens": 5}, targets=[*prompt[1:], no_target]),
        ]
    )
    logprobs = floats(result.prompt_logprobs)
    assert len(logprobs) == 6 and np.isnan(logprobs[5]) and all(x < 0 for x in logprobs[:5])
    tokens = np.frombuffer(result.top_tokens, "<u4").tolist()
    top = floats(result.top_logprobs)
    assert len(tokens) == 5 and sorted(top, reverse=True) == top
    # Those of the prompt's tokens: of the first prompt of 3 none, of the second 5 each.
    prompt_tokens = np.frombuffer(result.prompt_top_tokens, "<u4").reshape(6, 5)
    prompt_top = np.frombuffer(result.prompt_top_logprobs, "<f4").reshape(6, 5)
    assert (np.diff(prompt_top) <= 0).all()
    for target, logprob, ids, values in zip(prompt[1:], logprobs, prompt_tokens, prompt_top, strict=False):
        if target in ids:
            assert values[list(ids).index(target)] == pytest.approx(logprob, abs=1e-6)
        else:
            assert logprob <= values[-1]
    # The last token fed is where the next is sampled.
    assert prompt_tokens[5].tolist() == tokens and prompt_top[5] == pytest.approx(top, abs=1e-5)
    assert tokens[0] == sampled(result)[1] and top[0] == pytest.approx(floats(result.logprobs)[1], abs=1e-6)
    # The same numbers, one position at a time.
    piecewise = []
    for position, target in enumerate(prompt[1:]):
        start: dict[str, Any] | None = {} if position == 0 else None
        step = run.step(
            [
                row(
                    2,
                    [prompt[position]],
                    position,
                    [42] if start is not None else [],
                    start=start,
                    targets=[target],
                )
            ]
        )
        piecewise += floats(step.prompt_logprobs)
    assert piecewise == pytest.approx(logprobs[:5], abs=1e-4)
    run.end()


def test_what_is_traced_computes_the_same(worker: Worker) -> None:
    run = worker.run()
    plain = sampled(run.step([row(0, [5, 6, 7], 0, [0], start={})]))
    run.end()
    run = worker.run()
    plan = make_plan([row(0, [5, 6, 7], 0, [0], start={})])
    plan.traces = b"\1" * 24
    run.send_raw(run.numbering.stamp(plan))
    assert sampled(run.receive()) == plain
    run.end()


def test_a_step_without_rows_is_answered(worker: Worker) -> None:
    run = worker.run()
    assert run.step([row(0, [1, 2], 0, [0], start={}, sample=False)]).sampled == b""
    result = run.step([], released=[0])
    assert result.number == 2 and result.sampled == b""
    run.end()


def test_a_plan_out_of_step_is_refused_with_both_numbers(worker: Worker) -> None:
    plan = make_plan([row(0, [1], 0, [0], start={})])
    plan.number = 3
    error = failure(worker, plan, stamp=False)
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "number 3" in str(error.details()) and "number 1" in str(error.details())

    plan.number, plan.digest = 1, 0x1234
    error = failure(worker, plan, stamp=False)
    own = zlib.crc32(struct.pack("<Q", 1))
    for column in (
        plan.slots,
        plan.flags,
        plan.positions,
        plan.counts,
        plan.tokens,
        plan.new_block_counts,
        plan.new_pages,
    ):
        own = zlib.crc32(column, own)
    starts = plan.starts
    for field in starts.DESCRIPTOR.fields:
        own = zlib.crc32(getattr(starts, field.name), own)
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "0x00001234" in str(error.details()) and f"{own:#010x}" in str(error.details())


def _change(**columns: bytes) -> pb.StepPlan:
    plan = make_plan([row(0, [1, 2, 3], 0, [0], start={}), row(1, [4], 0, [1], start={})])
    for name, column in columns.items():
        setattr(plan, name, column)
    return plan


def _change_starts(**columns: bytes) -> pb.StepPlan:
    plan = _change()
    for name, column in columns.items():
        setattr(plan.starts, name, column)
    return plan


BAD_PLANS: dict[str, tuple[pb.StepPlan, str]] = {
    "half an element": (_change(slots=b"\0" * 7), "slots"),
    "flags too few": (_change(flags=b"\5"), "flags"),
    "unknown flag": (_change(flags=b"\x85\5"), "flags"),
    "start and continue": (_change(flags=b"\7\5"), "flags"),
    "slot out of range": (_change(slots=u32([0, 8])), "slots"),
    "slot twice": (_change(slots=u32([1, 1])), "slots"),
    "slot not started": (_change(flags=b"\5\4"), "starts"),
    "released out of range": (_change(released=u32([99])), "released"),
    "no token": (_change(counts=u32([3, 0]), tokens=u32([1, 2, 3])), "counts"),
    "too many tokens": (_change(counts=u32([400, 1])), "counts"),
    "tokens missing": (_change(tokens=u32([1, 2, 3])), "tokens"),
    "token over the vocabulary": (_change(tokens=u32([1, 2, 3, 199])), "tokens"),
    "positions missing": (_change(positions=u32([0])), "positions"),
    "block out of range": (_change(new_pages=u32([0, 256])), "new_pages"),
    "blocks missing": (_change(new_pages=u32([0])), "new_pages"),
    "too many blocks for a sequence": (
        _change(new_block_counts=u32([1, 99]), new_pages=u32([0] * 100)),
        "new_pages",
    ),
    "blocks too few for the tokens": (_change(positions=u32([14, 0])), "new_pages"),
    "targets nobody asked for": (_change(prompt_targets=u32([1])), "prompt_targets"),
    "masked without a sample": (_change(flags=b"\x11\5"), "flags"),
    "half a span": (_change(traces=b"\1" * 47), "traces"),
    "seeds missing": (_change_starts(seeds=b"\0" * 8), "starts.seeds"),
    "temperature not a number": (
        _change_starts(temperatures=np.array([np.nan, 0], "<f4").tobytes()),
        "starts.temperatures",
    ),
    "penalty of zero": (
        _change_starts(repetition_penalties=np.array([0, 1], "<f4").tobytes()),
        "starts.repetition",
    ),
    "too many alternatives": (_change_starts(top_tokens=u32([0, 1000])), "starts.top_tokens"),
    "history too short": (_change_starts(history_counts=u32([2, 0])), "starts.history"),
    "bias without its token": (_change_starts(bias_counts=u32([1, 0])), "starts.bias_tokens"),
    "a bias too many": (_change_starts(biases=b"\0" * 4), "starts.biases"),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_plan_that_contradicts_itself_is_refused_by_field(name: str, worker: Worker) -> None:
    plan, field = BAD_PLANS[name]
    error = failure(worker, plan)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, str(error.details())
    assert str(error.details()).startswith(field), str(error.details())
    run = worker.run()
    assert sampled(run.step([row(0, [1], 0, [0], start={})])), "the worker lives on"
    run.end()


@pytest.mark.parametrize(
    ("second", "field"),
    [
        (row(1, None, 3), "slots"),
        (row(0, None, 9), "positions"),
        (row(0, [1] * 20, 3), "new_pages"),
        (row(5, None, 0, [3], start={}), "flags"),
    ],
)
def test_a_plan_that_contradicts_the_slots_is_refused(
    second: dict[str, object], field: str, worker: Worker
) -> None:
    run = worker.run()
    run.step([row(0, [1, 2, 3], 0, [0], start={})])
    run.send([second])
    with pytest.raises(grpc.RpcError) as caught:
        run.receive()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(field)


def test_continuing_a_slot_that_sampled_nothing_is_refused(worker: Worker) -> None:
    run = worker.run()
    run.step([row(0, [1, 2, 3], 0, [0], start={}, sample=False)])
    run.send([row(0, None, 3)])
    with pytest.raises(grpc.RpcError) as caught:
        run.receive()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_masked_row_samples_among_its_tokens_only(worker: Worker) -> None:
    run = worker.run()
    start: dict[str, Any] = {"temperatures": 1.0, "seeds": 5, "top_tokens": 2}
    run.send([row(0, [1, 2, 3], 0, [0], start=start, masked=True), row(1, [4, 5], 0, [1], start=start)])
    run.send_masks(mask_of([17], 199))
    first = run.receive()
    assert sampled(first)[0] == 17
    # The other row and the model's own log probabilities know nothing of it.
    plain = worker.run()
    free = plain.step([row(0, [1, 2, 3], 0, [0], start=start), row(1, [4, 5], 0, [1], start=start)])
    assert sampled(first)[1] == sampled(free)[1]
    assert (first.top_tokens, first.top_logprobs) == (free.top_tokens, free.top_logprobs)
    plain.end()


def test_masks_follow_plans_that_were_sent_before_them(worker: Worker) -> None:
    run = worker.run()
    run.send([row(0, [1, 2, 3], 0, [0], start={}, masked=True)])
    run.send([row(0, None, 3, masked=True)])
    run.send([row(0, None, 4)])
    run.send_masks(mask_of([150, 160], 199), 1)
    (first,) = sampled(run.receive())
    assert first in (150, 160)
    run.send_masks(mask_of([198], 199), 2)
    assert sampled(run.receive()) == [198]
    (third,) = sampled(run.receive())
    again = worker.run()
    assert sampled(again.step([row(0, [1, 2, 3, first, 198], 0, [0], start={})])) == [third]
    again.end()


def test_a_row_without_any_token_in_its_mask_samples_nothing_and_counts_nothing(worker: Worker) -> None:
    start: dict[str, Any] = {"frequency_penalties": 2.0, "history": [1, 2, 3], "history_outputs": 0}
    run = worker.run()
    run.send([row(0, [1, 2, 3], 0, [0], start=start, masked=True)])
    run.send_masks(b"", only=[NO_TOKEN])
    result = run.receive()
    assert len(sampled(result)) == 1 and not result.errors
    # The same token fed again samples what it would have: nothing was counted.
    got = sampled(run.step([row(0, [3], 2)]))
    plain = worker.run()
    assert got == sampled(plain.step([row(0, [1, 2, 3], 0, [0], start=start)]))
    plain.end()


def test_a_mask_that_bias_forbids_is_an_error_of_its_row(worker: Worker) -> None:
    run = worker.run()
    start: dict[str, Any] = {"bias": {17: float("-inf")}}
    run.send([row(0, [1], 0, [0], start=start, masked=True), row(1, [4], 0, [1], start={})])
    run.send_masks(mask_of([17], 199))
    result = run.receive()
    assert [(error.row, "grammar" in error.message) for error in result.errors] == [(0, True)]
    run.end()


@pytest.mark.parametrize(
    ("only", "words", "number", "says"),
    [
        (
            [OF_WORDS] * 3,
            mask_of([1], 199) * 3 + b"1234",
            2,
            "masks.words: 22 words, but 3 masks have 7 each",
        ),
        ([OF_WORDS, 5, OF_WORDS], mask_of([1], 199), 2, "masks.words: 7 words, but 2 masks have 7 each"),
        ([5, NO_TOKEN, 6], mask_of([1], 199), 2, "masks.words: 7 words, but 0 masks"),
        ([5, 6], b"", 2, "masks.only: 2 entries, but the masked rows sample 3 tokens"),
        ([5, 6, 7, 8], b"", 2, "masks.only: 4 entries, but the masked rows sample 3 tokens"),
        ([5, 6, 199], b"", 2, "masks.only: token 199 of 199"),
        ([5, OF_WORDS, 6], mask_of([], 199), 2, "masks.words: a mask without a token"),
        ([OF_WORDS, 5, 6], b"\1" * 3, 2, "masks.words"),
        ([5, 6, 7], b"", 3, "masks of plan 3 came where"),
    ],
)
def test_masks_of_another_width_number_or_plan_are_refused(
    only: list[int], words: bytes, number: int, says: str, worker: Worker
) -> None:
    run = worker.run()
    sampled(run.step([row(0, [1], 0, [0], start={})]))
    run.send([row(0, None, 1, drafts=[7, 8], masked=True)])
    run.send_masks(words, number, only)
    with pytest.raises(grpc.RpcError) as caught:
        run.receive()
    is_late = number != 2
    code = grpc.StatusCode.FAILED_PRECONDITION if is_late else grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.code() == code
    assert says in str(caught.value.details())


@pytest.mark.parametrize("masked", [True, False])
def test_masks_for_a_row_that_is_gone_are_refused(masked: bool, worker: Worker) -> None:
    run = worker.run()
    run.send([row(0, [1], 0, [0], start={}, masked=masked)])
    if masked:
        run.send_masks(mask_of([17], 199))
    assert len(sampled(run.receive())) == 1
    # The plan was answered, and the slot is another's.
    run.send_masks(mask_of([18], 199), 1)
    run.send([row(0, [4], 0, [1], start={}, masked=True)], released=[0])
    run.send_masks(mask_of([19], 199), 2)
    with pytest.raises(grpc.RpcError) as caught:
        run.receive()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "masks of plan 1 came where none were due" in str(caught.value.details())
    newer = worker.run()
    assert sampled(newer.step([row(0, [1, 2, 3], 0, [0], start={})])), "the worker lives on"
    newer.end()


def test_a_run_that_ends_while_masks_are_owed_leaves_the_worker_usable(worker: Worker) -> None:
    run = worker.run()
    run.send([row(0, [1], 0, [0], start={}, masked=True)])
    run.end()
    with pytest.raises(StopIteration):
        run.receive()
    gone = worker.run()
    gone.step([row(0, [1], 0, [0], start={})])  # else the worker may hear of the newer one first
    gone.send([row(0, None, 1, masked=True)])
    newer = worker.run()
    assert sampled(newer.step([row(0, [1, 2, 3], 0, [0], start={})]))
    newer.end()


def test_a_new_run_ends_the_former_and_starts_without_slots(worker: Worker) -> None:
    former = worker.run()
    former.step([row(0, [1, 2, 3], 0, [0], start={})])
    newer = worker.run()
    newer.send([row(0, None, 3)])
    with pytest.raises(grpc.RpcError) as caught:
        newer.receive()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        former.receive()
    assert caught.value.code() == grpc.StatusCode.CANCELLED


def test_a_client_that_goes_away_leaves_the_worker_usable(worker: Worker) -> None:
    gone = worker.run()
    gone.step([row(0, [1, 2, 3], 0, [0], start={})])
    gone.cancel()
    run = worker.run()
    assert sampled(run.step([row(0, [1, 2, 3], 0, [0], start={})]))
    run.end()


def test_check_counts_steps_while_a_run_is_open(worker: Worker) -> None:
    run = worker.run()
    before = worker.check().steps
    run.step([row(0, [1], 0, [0], start={})])
    assert worker.check().steps == before + 1
    run.end()


def test_a_row_of_broken_numbers_fails_alone(tmp_path: Path) -> None:
    config = checkpoints.config()
    weights = checkpoints.tensors(config)
    # One dimension, which only the tokens 13 and 14 have, is more than keys and values can hold.
    weights["model.embed_tokens.weight"][:, 0] = 0
    weights["model.embed_tokens.weight"][13:15, 0] = 8
    for name in "kv":
        weights[f"model.layers.0.self_attn.{name}_proj.weight"][3, 0] = 3e38
    with Worker(checkpoints.write(tmp_path / "model", config, weights), tmp_path / "socket") as worker:
        worker.prepare()
        run = worker.run()
        clean = sampled(run.step([row(1, [5, 6, 7], 0, [0], start={})]))
        result = run.step(
            [
                row(0, [13], 0, [3], start={}),
                row(2, [5, 6, 7], 0, [4], start={}),
                row(3, [5, 14, 7], 0, [5], start={"temperatures": 1.0, "top_ps": 0.9}),
            ]
        )
        assert [error.row for error in result.errors] == [0, 2]
        assert "not numbers" in result.errors[0].message
        assert sampled(result)[1:2] == clean
        # The broken row's blocks, used again, are clean as well.
        again = run.step(
            [row(0, [5, 6, 7], 0, [3, 5], start={}), row(4, [8] * 30, 0, [6, 7], start={})], released=[0, 3]
        )
        assert not again.errors and sampled(again)[:1] == clean


# A device that fails cannot be had; what its operations would raise is raised at the first of them.
FAILS_AT_TOKEN_13 = """
from penstock.engine.decoder_steps import DecoderSteps
from penstock.worker import main
make = DecoderSteps.make
def fail(self, plan, last_sampled):
    if 13 in plan.tokens:
        raise RuntimeError("the device is gone")
    return make(self, plan, last_sampled)
DecoderSteps.make = fail
main()
"""


@both_ways
def test_a_failure_inside_a_step_ends_stream_and_process(uses_frames: bool, tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config())
    with Worker(folder, tmp_path / "socket", program=("-c", FAILS_AT_TOKEN_13)) as worker:
        worker.uses_frames = uses_frames
        worker.prepare()
        run = worker.run()
        run.step([row(0, [1], 0, [0], start={})])
        run.send([row(1, [13], 0, [1], start={})])
        with pytest.raises(grpc.RpcError) as caught:
            run.receive()
        assert caught.value.code() == grpc.StatusCode.INTERNAL, caught.value
        assert str(caught.value.details()) == "RuntimeError: the device is gone"
        assert worker.exit_status() == 1
        (fatal,) = [line for line in worker.log if line.get("fatal")]
        assert fatal["level"] == "ERROR" and "the device is gone" in fatal["message"]


def test_a_cache_that_cannot_fit_names_the_flags(tmp_path: Path) -> None:
    with Worker(checkpoints.write(tmp_path / "model", checkpoints.config()), tmp_path / "socket") as worker:
        for limits, code, words in (
            ({"max_cache_tokens": 1 << 40}, grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-batch-total-tokens"),
            (
                {"memory_fraction": 1e-9, "max_cache_tokens": 0},
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "--max-total-tokens",
            ),
            ({"max_cache_tokens": 16}, grpc.StatusCode.RESOURCE_EXHAUSTED, "--max-batch-total-tokens"),
            ({"max_sequence_tokens": 1000}, grpc.StatusCode.INVALID_ARGUMENT, "512"),
            ({"max_slots": 0}, grpc.StatusCode.INVALID_ARGUMENT, "max_slots"),
            ({"memory_fraction": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT, "memory_fraction"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                worker.prepare(**limits)
            assert caught.value.code() == code
            assert words in str(caught.value.details()), str(caught.value.details())
        prepared = worker.prepare(max_cache_tokens=0)
        assert prepared.pages == 8 * 16, "no more than the limits can use"
        assert prepared.cache_bytes == prepared.pages * 16 * worker.describe().kv_bytes_per_token
        assert prepared.cost.fixed_ns > 0 and prepared.free_bytes > 0


def test_a_router_that_comes_again_finds_the_worker_prepared_and_one_with_other_limits_ends_it(
    model: Path, tmp_path: Path
) -> None:
    with Worker(model, tmp_path / "socket") as worker:
        first = worker.prepare()
        assert worker.prepare() == first
        with pytest.raises(grpc.RpcError) as caught:
            worker.prepare(max_slots=4)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "other limits" in str(caught.value.details())
        assert worker.exit_status() == 1


def test_run_before_prepare_is_refused(tmp_path: Path) -> None:
    with Worker(checkpoints.write(tmp_path / "model", checkpoints.config()), tmp_path / "socket") as worker:
        for worker.uses_frames in (False, True):
            run = worker.run()
            with pytest.raises(grpc.RpcError) as caught:
                run.receive()
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        worker.process.send_signal(signal.SIGTERM)
        assert worker.exit_status() == 0


def test_a_worker_that_was_started_with_signals_ignored_goes_on(model: Path, tmp_path: Path) -> None:
    """As the launcher starts it: whoever stops all of a service at once has the launcher end it, when it has drained."""
    with Worker(model, tmp_path / "socket", ignores_signals=True) as worker:
        worker.prepare()
        run = worker.run()
        for number in (signal.SIGTERM, signal.SIGINT):
            worker.process.send_signal(number)
        assert sampled(run.step([row(0, [1, 2, 3], 0, [0], start={})]))
        assert not any(line["message"] == "stopped" for line in worker.log)


def test_a_worker_tells_whether_a_router_is_connected(model: Path, tmp_path: Path) -> None:
    """Once, also where another one comes before the first has left."""
    with Worker(model, tmp_path / "socket") as worker:
        worker.prepare()
        told: list[bool] = []

        def tells(*lines: bool) -> bool:
            told[:] = [line["serving"] for line in worker.log if "serving" in line]
            return told == [*lines]

        expected: list[bool] = []
        for worker.uses_frames in (False, True):
            first = worker.run()
            assert sampled(first.step([row(0, [1, 2, 3], 0, [0], start={})]))
            second = worker.run()
            assert sampled(second.step([row(0, [1, 2, 3], 0, [0], start={})]))
            with pytest.raises(grpc.RpcError):
                first.receive()
            second.end()
            expected += [True, False]
            until = time.monotonic() + 10
            while not tells(*expected) and time.monotonic() < until:
                time.sleep(0.01)
            assert told == expected


def test_what_is_no_frame_costs_the_call_only(listening: Worker) -> None:
    listening.uses_frames = True
    for spoil, refused in (
        (lambda run: run.send_bytes(b"\xff" * 9), "message: "),
        (lambda run: run.send_message(pb.ToWorker()), "neither a plan nor masks"),
        # A frame that is cut off is a router that went away.
        (lambda run: (run.connection.sendall(HEAD.pack(100, 0) + b"123"), run.end()), None),
    ):
        run = listening.run()
        assert isinstance(run, FrameRun)
        run.wait_begun()
        spoil(run)
        with pytest.raises(grpc.RpcError if refused else StopIteration) as caught:
            run.receive()
        if refused:
            assert isinstance(caught.value, FrameError)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert refused in caught.value.details()
        run = listening.run()
        assert sampled(run.step([row(0, [1, 2, 3], 0, [0], start={})]))
        run.end()


def test_a_router_that_takes_no_results_keeps_no_other_out(listening: Worker) -> None:
    """It holds the thread that computes until its time is up."""
    listening.uses_frames = True
    deaf = listening.run()
    deaf.wait_begun()
    # Their results are more than the socket holds: log probabilities of every token of long prompts, with twenty alternatives.
    for number in range(40):
        tokens = [number % 190 + 1] * 250
        start = {"top_tokens": 20}
        deaf.send([row(0, tokens, 0, list(range(16)), start=start, targets=[5] * 250)], [0] if number else [])
    listening.uses_frames = False
    run = listening.run()
    assert sampled(run.step([row(0, [1, 2, 3], 0, [0], start={})]))
    run.end()


def test_a_path_that_is_too_long_for_frames_has_its_plans_through_grpc(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    short = tmp_path_factory.mktemp("s")
    folder = short / ("x" * (107 - len(str(short)) - len("//worker.sock")))
    with Worker(model, folder) as worker:
        assert len(str(worker.socket)) == 107 and not worker.describe().frames
        worker.prepare()
        assert sampled(worker.run().step([row(0, [1, 2, 3], 0, [0], start={})]))
    assert any("plans come through gRPC" in line["message"] for line in worker.log)


def test_a_worker_dies_with_its_parent_and_with_its_standard_input(model: Path, tmp_path: Path) -> None:
    with Worker(model, tmp_path / "socket") as worker:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.exit_status() == 1
    # A parent that is killed: standard input is no pipe here, so the kernel must do it.
    (tmp_path / "second").mkdir(mode=0o700)
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'penstock.worker', '--model-dir', {str(model)!r}, '--listen',"
        f" {'unix:' + str(tmp_path / 'second' / 's')!r}, '--device', 'cpu'], stdin=subprocess.DEVNULL, stderr=sys.stdout)\n"
        "p.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    while '"ready"' not in (line := parent.stdout.readline()):
        assert '"progress"' in line, line
    parent.kill()
    # The worker holds the other end of the pipe: it closes when the worker is gone.
    assert parent.stdout.read() == ""
    parent.wait(10)


def run_to_the_end(*arguments: str) -> tuple[int, str]:
    """Exit status and last line of a worker that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.worker", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_what_keeps_a_worker_from_starting_is_one_line(model: Path, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    socket = f"unix:{private / 's'}"
    for arguments, status, words in (
        (["--model-dir", str(model), "--listen", f"unix:{open_folder / 's'}"], 1, "0700"),
        (["--model-dir", str(tmp_path / "none"), "--listen", socket], 1, "config.json"),
        (["--model-dir", str(model), "--listen", socket, "--device", "tpu"], 1, "--device"),
        (["--model-dir", str(model), "--listen", socket, "--world-size", "2"], 2, "--world-size"),
    ):
        found, line = run_to_the_end(*arguments)
        assert found == status and words in line, line


def test_the_generated_stubs_are_fresh(tmp_path: Path) -> None:
    generate.generate(tmp_path)
    for name in ("penstock_pb2.py", "penstock_pb2.pyi", "contract.py"):
        committed = Path(generate.__file__).parent / name
        assert (tmp_path / name).read_text() == committed.read_text(), f"run {generate.__file__}"


def test_a_process_that_waits_does_nothing_and_one_that_computes_or_reads_does_something(
    tmp_path: Path,
) -> None:
    work = Work()
    time.sleep(0.3)
    assert not work.goes_on(), "it waited"
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert work.goes_on(), "it computed"
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    time.sleep(0.3)
    work.goes_on()
    (tmp_path / "file").read_bytes()
    time.sleep(0.3)
    assert work.goes_on(), "it read"
