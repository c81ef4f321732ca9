"""Plans that the CPU engine reads and answers by itself: to the last bit what comes of them in Python, and whatever is unusual comes to Python."""

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import checkpoints
import test_recurrent
from choosers import SETS
from client import make_plan, masks_of, row, sampled, u32
from driver import Driver
from penstock.engine.engine import NOTHING_LEFT
from penstock.engine.plan import Plan
from penstock.errors import BadPlan, OutOfStep
from penstock.models.config import Window
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.frames import HEAD, FrameCall
from penstock.rpc.run_call import RunCall
from penstock_kernels.run import INBOX_BYTES
from test_verify import PROMPT, SAMPLINGS
from windowed import windowed

pytestmark = pytest.mark.skipif(not SETS, reason="the CPU engine was not built")
VOCABULARY, STEPS, BLOCK = 199, 40, 16


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """In bf16, so that the CPU engine runs it."""
    folder = checkpoints.write(tmp_path_factory.mktemp("model"), checkpoints.config())
    return Driver(folder, torch.bfloat16, blocks=128)


@dataclass
class Script:
    """What a router has sent, and what came of it one plan after the other in Python."""

    driver: Driver
    plans: list[pb.StepPlan] = field(default_factory=list)
    masks: dict[int, pb.Masks] = field(default_factory=dict)
    expected: list[pb.StepResult] = field(default_factory=list)

    def step(
        self,
        rows: list[dict[str, Any]],
        masks: list[list[int]] | None = None,
        released: list[int] | None = None,
        copies: list[tuple[int, int]] | None = None,
    ) -> pb.StepResult:
        """Executes a plan, and keeps it."""
        driver = self.driver
        plan = driver.numbering.stamp(make_plan(rows, released, driver.tables, driver.has_state, copies))
        if masks is not None:
            only, words = masks_of(masks, driver.engine.limits.vocab_size)
            self.masks[plan.number] = pb.Masks(number=plan.number, only=only, words=words)
        self.plans.append(plan)
        self.expected.append(driver.execute(plan, masks))
        return self.expected[-1]

    def messages(self, rng: Random) -> Iterator[pb.ToWorker]:
        """The same as a router may send it: masks with their plan or one behind it, plans one ahead of the masks before them."""
        held: pb.Masks | None = None
        for plan in self.plans:
            message, own = pb.ToWorker(plan=plan), self.masks.get(plan.number)
            if held is not None and rng.random() < 0.5:
                message.masks.CopyFrom(held)
                held = None
            yield message
            if held is not None:
                yield pb.ToWorker(masks=held)
            held = own
            if held is not None and rng.random() < 0.3:
                yield pb.ToWorker(masks=held)
                held = None
        if held is not None:
            yield pb.ToWorker(masks=held)


@dataclass
class Outcome:
    """What came back of frames, and which plans Python launched."""

    results: list[pb.StepResult]
    end: tuple[type[Exception], str] | None
    launched: list[int]


def executed(driver: Driver, frames: list[bytes], rng: Random) -> Outcome:
    """By whoever executes the plans of a connection, of which some bytes come at a time."""
    ours, theirs = socket.socketpair()
    data = b"".join(HEAD.pack(len(frame), 0) + frame for frame in frames)

    def send() -> None:
        at = 0
        while at < len(data):
            size = rng.choice([1, 7, 100, 5000, len(data)])
            ours.sendall(data[at : at + size])
            at += size
        ours.shutdown(socket.SHUT_WR)

    received = bytearray()

    def receive() -> None:
        while more := ours.recv(1 << 16):
            received.extend(more)

    call = FrameCall(theirs)
    threads = [threading.Thread(target=one, daemon=True) for one in (send, receive)]
    for thread in threads:
        thread.start()
    launched: list[int] = []
    engine = driver.engine
    launch = engine.launch

    def counted(plan: Plan) -> Any:
        launched.append(plan.number)
        return launch(plan)

    ends: list[Exception | None] = []

    def deliver(item: pb.StepResult | Exception | None) -> None:
        if isinstance(item, pb.StepResult):
            call.answer(item)
        else:
            ends.append(item)
            call.close()

    engine.launch = counted  # type: ignore[method-assign]
    try:
        RunCall(call, deliver).execute(engine)
    finally:
        engine.launch = launch  # type: ignore[method-assign]
    for thread in threads:
        thread.join(10)
    call.release()
    ours.close()
    results, at = [], 0
    while at < len(received):
        length, _ = HEAD.unpack_from(received, at)
        results.append(pb.StepResult.FromString(bytes(received[at + HEAD.size : at + HEAD.size + length])))
        at += HEAD.size + length
    end = ends[0]
    return Outcome(results, None if end is None else (type(end), str(end)), launched)


def told(result: pb.StepResult) -> bytes:
    """But for how long it took."""
    copy = pb.StepResult.FromString(result.SerializeToString())
    for name in ("prepare_ns", "forward_ns", "sample_ns", "draft_ns"):
        copy.ClearField(name)
    return copy.SerializeToString(deterministic=True)


def compare(script: Script, rng: Random, most: int | None = None) -> Outcome:
    """Executes the script's messages. `most`: plans that Python may launch; None: any."""
    outcome = executed(script.driver, [m.SerializeToString() for m in script.messages(rng)], rng)
    assert outcome.end is None
    assert [told(result) for result in outcome.results] == [told(result) for result in script.expected]
    if most is not None:
        assert len(outcome.launched) <= most, outcome.launched
    return outcome


class Rows:
    """Sequences beside each other, each with blocks of its own, which it gets when it needs them."""

    def __init__(self, script: Script, starts: list[dict[str, Any]], masked: list[bool]) -> None:
        self.script, self.masked = script, masked
        self.ends = [0] * len(starts)  # as far as the router knows
        self.blocks = [0] * len(starts)
        self.texts: list[list[int]] = [[] for _ in starts]
        rows = [
            row(slot, PROMPT, 0, self.grow(slot, len(PROMPT)), start=start, masked=masked[slot])
            for slot, start in enumerate(starts)
        ]
        self.take(script.step(rows, self.masks_for([0] * len(starts), Random(0))), [[] for _ in starts])

    def grow(self, slot: int, tokens: int) -> list[int]:
        """The blocks that it gets to feed so many more tokens."""
        before, self.blocks[slot] = (
            self.blocks[slot],
            max(-(-(self.ends[slot] + tokens) // BLOCK), self.blocks[slot]),
        )
        self.ends[slot] += tokens
        return [slot * 16 + number for number in range(before, self.blocks[slot])]

    def masks_for(
        self, drafts: list[int], rng: Random, some: list[list[int]] | None = None
    ) -> list[list[int]] | None:
        """Of each sample of masked rows; `some`: tokens that are among those of each sample."""
        if not any(self.masked):
            return None
        made = []
        for slot, is_masked in enumerate(self.masked):
            if not is_masked:
                continue
            for at in range(drafts[slot] + 1):
                wanted = some[slot][at : at + 1] if some is not None else []
                others = rng.sample(range(VOCABULARY), rng.choice([1, 2, 60]))
                made.append(sorted({*wanted, *others[: None if not wanted else rng.choice([0, 2, 60])]}))
        return made

    def step(self, guesses: list[list[int]], rng: Random, exact: bool = True) -> None:
        """Each row's next token, behind drafts. `exact`: the plan has the positions; else their bounds."""
        rows = []
        for slot, drafts in enumerate(guesses):
            position = len(PROMPT) + len(self.texts[slot]) - 1
            if exact:
                self.ends[slot] = position
            else:
                position = self.ends[slot]
            blocks = self.grow(slot, 1 + len(drafts))
            rows.append(row(slot, None, position, blocks, masked=self.masked[slot], drafts=drafts))
        masks = self.masks_for([len(drafts) for drafts in guesses], rng, guesses)
        self.take(self.script.step(rows, masks), guesses)

    def take(self, result: pb.StepResult, guesses: list[list[int]]) -> None:
        accepted = iter(np.frombuffer(result.accepted, "<u4").tolist())
        tokens = iter(sampled(result))
        for slot, drafts in enumerate(guesses):
            count = 1 + (next(accepted) if drafts else 0)
            self.texts[slot] += [next(tokens) for _ in range(count)]


def without_tops(name: str) -> dict[str, Any]:
    return {key: value for key, value in SAMPLINGS[name].items() if key != "top_tokens"}


NAMES = list(SAMPLINGS)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("masks", [False, True], ids=["free", "masks"])
@pytest.mark.parametrize("drafts", [False, True], ids=["", "drafts"])
def test_what_the_engine_answers_is_what_python_does(
    seed: int, masks: bool, drafts: bool, driver: Driver
) -> None:
    rng = Random(seed)
    count = [1, 1, 2, 3, 6, 8][seed]
    driver.begin()
    script = Script(driver)
    starts = [without_tops(rng.choice(NAMES) if seed else "greedy") for _ in range(count)]
    rows = Rows(script, starts, [masks and (slot == 0 or rng.random() < 0.5) for slot in range(count)])
    for turn in range(STEPS):
        guesses: list[list[int]] = [[] for _ in range(count)]
        if drafts and turn >= 2 and rng.random() < 0.7:
            for slot in range(count):
                if rng.random() < 0.7:
                    guesses[slot] = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(4))]
        rows.step(guesses, rng, exact=rng.random() < 0.5)
    compare(script, rng, most=1)  # where the first one begins with biases


def test_right_drafts_are_accepted(driver: Driver) -> None:
    """Of free rows, whose text is the same with drafts."""
    driver.begin()
    plain = Rows(Script(driver), [{}, without_tops("penalties"), without_tops("temperature")], [False] * 3)
    for _ in range(60):
        plain.step([[], [], []], Random(0))
    driver.begin()
    script, rng = Script(driver), Random(1)
    rows = Rows(script, [{}, without_tops("penalties"), without_tops("temperature")], [False] * 3)
    for _ in range(20):
        guesses = []
        for slot in range(3):
            known = len(rows.texts[slot])
            guess = plain.texts[slot][known : known + rng.randrange(4)]
            if guess and rng.random() < 0.4:
                guess[-1] = (guess[-1] + 1) % VOCABULARY
            guesses.append(guess)
        rows.step(guesses, rng, exact=rng.random() < 0.5)
    for slot in range(3):
        assert rows.texts[slot] == plain.texts[slot][: len(rows.texts[slot])]
    assert max(len(text) for text in rows.texts) > 30
    compare(script, rng, most=1)


def unusual(name: str, rows: Rows, rng: Random) -> None:
    """One plan that is not for the engine."""
    script, ends = rows.script, rows.ends
    position = ends[0]
    if name == "a row starts with alternatives":
        start = {"top_tokens": 2}
        script.step([row(0, None, position, rows.grow(0, 1)), row(5, PROMPT, 0, [100], start=start)])
    elif name == "a tree":
        drafts, parents = [3, 4, 5], [0, 0, 1]
        script.step(
            [
                row(0, None, position, rows.grow(0, 4), drafts=drafts, parents=parents),
                row(1, None, ends[1], rows.grow(1, 1)),
            ]
        )
        ends[0] -= 1  # the longest path has two
    elif name == "no rows":
        script.step([])
    elif name == "prompts' numbers":
        script.step([row(0, [5, 6], position, rows.grow(0, 2), targets=[6, 7])])
    elif name == "a row begins again":
        script.step([row(0, [5], position - 1, rows.grow(0, 0))])


@pytest.mark.parametrize(
    "name",
    ["a row starts with alternatives", "a tree", "no rows", "prompts' numbers", "a row begins again"],
)
def test_what_is_unusual_comes_to_python(name: str, driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(2)
    rows = Rows(script, [without_tops("top-p"), {}], [False, False])
    for _ in range(12):
        rows.step([[], []], rng)
    unusual(name, rows, rng)
    number = len(script.plans)
    for _ in range(12):
        # How much of a tree is accepted only the worker knows; its row goes on at the bound.
        script.step([row(slot, None, rows.ends[slot], rows.grow(slot, 1)) for slot in (0, 1)])
    assert compare(script, rng).launched == [number]


WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a slot twice": ([row(0, None, 20, [0]), row(0, None, 20, [1])], "slots: a slot is named twice"),
    "nobody's slot": ([row(4, None, 20, [0])], "slot 4 holds no sequence"),
    "a page": ([row(5, PROMPT, 0, [128], start={})], "new_pages: 128"),
    "no page": ([row(5, PROMPT, 0, [], start={})], "new_pages: row 0 ends at 7"),
    "a token": ([row(5, [VOCABULARY], 0, [100], start={})], "tokens: 199"),
    "ahead": ([row(0, None, 40, [1, 2])], "positions: row 0 begins at 40"),
    "a temperature": ([row(5, PROMPT, 0, [100], start={"temperatures": np.nan})], "starts.temperatures"),
    "a slot that was released": ([row(1, None, 20, [17])], "slot 1 holds no sequence"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused_as_ever(name: str, driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(10)
    rows = Rows(script, [{}, {}], [False, False])
    for _ in range(6):
        rows.step([[], []], rng)
    wrong, says = WRONG[name]
    plan = driver.numbering.stamp(make_plan(wrong, [1] if "released" in name else None, driver.tables))
    frames = [message.SerializeToString() for message in (*script.messages(rng), pb.ToWorker(plan=plan))]
    outcome = executed(driver, frames, rng)
    assert outcome.end is not None and outcome.end[0] is BadPlan and says in outcome.end[1]
    assert [told(result) for result in outcome.results] == [told(result) for result in script.expected]


def test_a_mask_that_is_none_comes_to_python(driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(3)
    rows = Rows(script, [{}, {}], [True, False])
    for turn in range(20):
        if turn == 10:
            # The first row samples nothing this time: it starts again with all its tokens.
            plan = [
                row(0, None, rows.ends[0], rows.grow(0, 1), masked=True),
                row(1, None, rows.ends[1], rows.grow(1, 1)),
            ]
            rows.take(script.step(plan, [[]]), [[], []])
        else:
            rows.step([[], []], rng, exact=turn < 10)
    compare(script, rng)


def test_rows_without_a_token_are_told(driver: Driver) -> None:
    """A held end and a bias that forbid everything but the end: once, and the row goes on."""
    driver.begin()
    script, rng = Script(driver), Random(4)
    nothing = {
        "bias": {token: -np.inf for token in range(VOCABULARY) if token != 3},
        "first_ends": 30,
        "ends": [3],
    }
    rows = Rows(script, [nothing, {}], [False, False])
    for _ in range(12):
        rows.step([[], []], rng)
    assert NOTHING_LEFT in {error.message for result in script.expected for error in result.errors}
    assert compare(script, rng).launched == [1]


def test_alternatives_are_pythons(driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(5)
    rows = Rows(script, [{"top_tokens": 3}], [False])
    for _ in range(8):
        rows.step([[]], rng)
    outcome = compare(script, rng)
    assert len(outcome.launched) == len(script.plans)


def test_a_message_longer_than_the_inbox_is_read(driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(6)
    rows = Rows(script, [{}], [False])
    for _ in range(6):
        rows.step([[]], rng)
    history = [int(token) for token in np.random.default_rng(0).integers(0, VOCABULARY, INBOX_BYTES // 2)]
    start = {"repetition_penalties": 1.2, "history": history}
    script.step([row(0, None, rows.ends[0], rows.grow(0, 1)), row(5, PROMPT, 0, [100], start=start)])
    for turn in range(6):
        script.step([row(0, None, rows.ends[0], rows.grow(0, 1)), row(5, None, len(PROMPT) + turn)])
    compare(script, rng, most=8)


@pytest.mark.parametrize("windows", [False, True], ids=["state", "windows"])
def test_other_layers(windows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state stays where it is, and pages of windows are in tables of their own."""
    if windows:
        other = windowed((None, Window(16)), tmp_path, monkeypatch, dtype=torch.bfloat16)
    else:
        config = test_recurrent.config() | {"torch_dtype": "bfloat16"}
        folder = checkpoints.write(tmp_path, config, test_recurrent.tensors(config))
        other = Driver(folder, torch.bfloat16)
    assert other.engine.native is not None
    script, rng = Script(other), Random(7)
    position = len(PROMPT)
    script.step(
        [row(slot, [t % 99 for t in PROMPT], 0, [slot * 8, slot * 8 + 1], start={}) for slot in range(2)]
    )
    for turn in range(12):
        script.step([row(slot, None, position + turn) for slot in range(2)])
    script.step([row(slot, None, position + 12, drafts=[7, 8]) for slot in range(2)])
    compare(script, rng, most=4)


@pytest.mark.parametrize("what", ["digest", "number", "masks"])
def test_what_is_wrong_is_refused_as_ever(what: str, driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(8)
    rows = Rows(script, [{}], [False])
    for _ in range(10):
        rows.step([[]], rng)
    messages = list(script.messages(rng))
    if what == "digest":
        messages[8].plan.digest ^= 1
        says = "plan 9 says digest"
    elif what == "number":
        del messages[8]
        says = "plan number 10 came where number 9 was due"
    else:
        messages.insert(8, pb.ToWorker(masks=pb.Masks(number=8, only=u32([1]))))
        says = "masks of plan 8 came where none were due"
    outcome = executed(driver, [message.SerializeToString() for message in messages], rng)
    assert outcome.end is not None and outcome.end[0] is OutOfStep and says in outcome.end[1]
    assert [told(result) for result in outcome.results] == [told(result) for result in script.expected[:8]]


def test_a_frame_that_is_cut_off_is_a_router_that_left(driver: Driver) -> None:
    driver.begin()
    script, rng = Script(driver), Random(9)
    rows = Rows(script, [{}], [False])
    for _ in range(10):
        rows.step([[]], rng)
    frames = [message.SerializeToString() for message in script.messages(rng)]
    ours, theirs = socket.socketpair()
    data = b"".join(HEAD.pack(len(frame), 0) + frame for frame in frames)
    ours.sendall(data[:-3])
    ours.shutdown(socket.SHUT_WR)
    ends: list[object] = []
    numbers: list[int] = []

    def deliver(item: object) -> None:
        if isinstance(item, pb.StepResult):
            numbers.append(item.number)
        else:
            ends.append(item)

    call = FrameCall(theirs)
    RunCall(call, deliver).execute(driver.engine)
    assert ends == [None]
    ours.setblocking(False)
    answered = ours.recv(1 << 16)
    at = 0
    while at < len(answered):
        (length,) = struct.unpack_from("<I", answered, at)
        numbers.append(pb.StepResult.FromString(answered[at + HEAD.size : at + HEAD.size + length]).number)
        at += HEAD.size + length
    assert sorted(numbers) == list(range(1, len(frames)))
