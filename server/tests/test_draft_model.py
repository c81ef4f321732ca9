"""A draft model in the same worker: the text is the same with it, and a model that drafts for itself is always right."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
from client import DEVICE, Worker, make_plan, row, sampled, u32
from driver import Driver
from penstock import tiny
from penstock.doctor.examination import examine
from penstock.doctor.question import Question
from penstock.engine import draft_model, preparation
from penstock.engine.cache_size import GIB
from penstock.engine.columns import I64
from penstock.engine.engine import Engine
from penstock.engine.plan import Plan
from penstock.engine.slot_sampling import Drafts, SlotSampling
from penstock.engine.slots import SlotTable
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.errors import BadPlan, UnusableModel
from penstock.loading.checks import check_folder
from penstock.loading.memory import Room
from penstock.models.config import DecoderConfig, Window
from penstock.models.recipes import llama
from penstock.proto import penstock_pb2 as pb
from test_go_on import Script, compare
from test_preparation import MOST, longer, prepared
from test_sampling import sampler
from test_verify import CHI_SQUARE, CHI_SQUARE_UNMASKED, PROMPT, SAMPLINGS, TOKENS, Text, accepted, one_by_one

exact_only = pytest.mark.skipif(DEVICE != "cpu", reason="sums depend on the batch there")
PAGES = [0, 1, 2, 3, 4, 5, 6, 7]


def tokenizer(folder: Path, changed: dict[str, int] | None = None) -> Path:
    """Writes a tokenizer.json of 199 tokens into the folder of a model."""
    vocabulary = {f"t{number}": number for number in range(199)} | (changed or {})
    text = {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(text))
    return folder


def llama_of(folder: Path, seed: int = 0, **changes: Any) -> Path:
    made = checkpoints.config(**changes)
    return tokenizer(checkpoints.write(folder, made, checkpoints.tensors(made, seed)))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_of(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def alone(target: Path) -> Driver:
    return Driver(target)


@pytest.fixture(scope="module")
def itself(target: Path) -> Driver:
    """A model that drafts for itself."""
    return Driver(target, draft=target)


SHAPES: dict[str, dict[str, Any]] = {
    "one layer": {"num_hidden_layers": 1},
    "more layers and other heads": {"num_hidden_layers": 5, "num_key_value_heads": 4},
    "narrow": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "another family": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "a family with windows": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 20,
    },
}


def draft_of(folder: Path, shape: dict[str, Any]) -> Path:
    made = checkpoints.config(**shape)
    is_qwen = made["model_type"] == "qwen2"  # it has biases, but for the last projection
    weights = checkpoints.tensors({**made, "attention_bias": is_qwen}, seed=9)
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith("o_proj.bias")}
    return tokenizer(checkpoints.write(folder, made, weights))


def with_own(driver: Driver, start: dict[str, Any], tokens: int, is_known: bool, seed: int = 0) -> Text:
    """A text with drafts of the worker's, beside some that are brought, some that are wrong, and steps without any."""
    rng = Random(seed)
    driver.begin()
    text = Text(driver.step([row(0, PROMPT, 0, PAGES[:6], start=start)]))
    bound = len(PROMPT)
    while len(text.tokens) < tokens:
        position = len(PROMPT) + len(text.tokens) - 1 if is_known else bound
        kind = rng.randrange(4)
        brought = [rng.randrange(199) for _ in range(kind)] if rng.random() < 0.3 else []
        own = 0 if brought or kind == 0 else rng.randrange(1, 7)
        result = driver.step([row(0, None, position, drafts=brought, own=own)])
        bound = position + 1 + own + len(brought)
        text.add(result)
    return text


@pytest.mark.few(6)
@exact_only
@pytest.mark.parametrize("is_known", [True, False], ids=["positions", "bounds"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_text_is_the_same_with_the_drafts_of_a_model(
    name: str, is_known: bool, alone: Driver, target: Path, tmp_path: Path
) -> None:
    expected = one_by_one(alone, SAMPLINGS[name])
    drafting = Driver(target, draft=draft_of(tmp_path, SHAPES["one layer"]))
    found = with_own(drafting, SAMPLINGS[name], TOKENS, is_known, seed=len(name))
    assert found.first(TOKENS) == expected.first(TOKENS)


@exact_only
@pytest.mark.parametrize("name", SHAPES)
def test_models_of_other_shapes_and_families_draft(
    name: str, alone: Driver, target: Path, tmp_path: Path
) -> None:
    drafting = Driver(target, draft=draft_of(tmp_path, SHAPES[name]))
    for kind in ("greedy with alternatives", "temperature"):
        expected = one_by_one(alone, SAMPLINGS[kind])
        found = with_own(drafting, SAMPLINGS[kind], TOKENS, is_known=False, seed=5)
        assert found.first(TOKENS) == expected.first(TOKENS)


def test_a_model_that_drafts_for_itself_is_always_right(itself: Driver) -> None:
    """Same keys, same noise, same processing: what it draws is what the model samples."""
    rng = Random(3)
    for name, start in SAMPLINGS.items():
        itself.begin()
        result = itself.step([row(0, PROMPT, 0, PAGES[:6], start=start)])
        position = len(PROMPT)
        while position < 80:
            own = rng.randrange(0, 6)
            result = itself.step([row(0, None, position, own=own)])
            assert accepted(result) == ([own] if own else []), f"{name} at {position}"
            position += 1 + own


def test_a_block_that_is_full_is_full_for_both_models(itself: Driver) -> None:
    """Whoever begins behind shared blocks has all that its drafts need, however those were filled: by a prompt, by decodes without
    drafts, by drafts that were brought, and by drafts of the model itself.
    """
    text = one_by_one(itself, {}, tokens=75).tokens
    whole = [*PROMPT, *text]
    ways: dict[str, Callable[[int], dict[str, Any]]] = {
        "decodes": lambda position: row(0, None, position),
        "brought": lambda position: row(
            0, None, position, drafts=whole[position + 1 : position + 1 + (position * 7) % 5]
        ),
        "wrong": lambda position: row(0, None, position, drafts=[(whole[position + 1] + 1) % 199] * 3),
        "own": lambda position: row(0, None, position, own=1 + (position * 5) % 6),
    }
    for name, way in ways.items():
        itself.begin()
        itself.step([row(0, PROMPT, 0, PAGES[:6], start={})])
        position, blocks = len(PROMPT), 0
        while position < 64:
            result = itself.step([way(position)])
            position += len(sampled(result))
            if position // BLOCK_SIZE == blocks:
                continue
            blocks = position // BLOCK_SIZE
            begin = blocks * BLOCK_SIZE
            rest = whole[begin : position + 1]
            # Its last block is its own, and so is its end.
            other = row(1, rest, begin, [*PAGES[:blocks], 6, 7], start={})
            assert sampled(itself.step([other])) == [whole[position + 1]], name
            result = itself.step([row(1, None, position + 1, own=5)], None)
            assert accepted(result) == [5], f"behind {blocks} blocks of {name}"
            itself.step([row(0, None, position)], released=[1])
            position += 1


def test_a_model_that_nobody_asks_takes_in_nothing_and_catches_up(
    itself: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "PATIENCE", 5)
    drafter = itself.engine.drafter
    assert isinstance(drafter, draft_model.DraftModel)
    fed: list[int] = []
    feed = drafter._feed

    def counted(slots: I64, positions: I64, counts: I64, *rest: Any) -> Any:
        fed.append(int(counts.sum()))
        return feed(slots, positions, counts, *rest)

    monkeypatch.setattr(drafter, "_feed", counted)
    itself.begin()
    itself.step([row(0, PROMPT, 0, PAGES[:5], start={})])
    assert fed == [len(PROMPT)]
    at = len(PROMPT)
    for _ in range(5):
        itself.step([row(0, None, at)])
        at += 1
    followed = sum(fed)
    for _ in range(30):
        itself.step([row(0, None, at)])
        at += 1
    # One that begins meanwhile is not fed either.
    itself.step([row(0, None, at), row(1, PROMPT, 0, PAGES[5:], start={})])
    assert sum(fed) == followed
    assert accepted(itself.step([row(0, None, at + 1, own=4), row(1, None, len(PROMPT))])) == [4]
    # It has all of the first and four drafts, of which the last fills a block, and waits for the second to be asked.
    assert sum(fed) == at + 2 + 4
    assert accepted(itself.step([row(0, None, at + 6), row(1, None, len(PROMPT) + 1, own=6)])) == [6]


def test_what_is_missed_is_fed_as_there_is_room() -> None:
    for counts, room, fitting in (
        ([3, 1, 5], 100, [3, 1, 5]),
        ([30, 1, 50], 40, [30, 1, 9]),
        ([30, 1, 50], 20, [18, 1, 1]),
        ([4, 4], 2, [1, 1]),
    ):
        assert draft_model._in_room(np.array(counts), room).tolist() == fitting


@exact_only
def test_rows_of_all_kinds_beside_each_other(itself: Driver) -> None:
    """A prompt in chunks, one that is shared in the same step, decodes with and without drafts, one that starts anew."""
    text = one_by_one(itself, {}, tokens=70).tokens
    other = one_by_one(itself, SAMPLINGS["penalties"], tokens=70).tokens
    whole = [*PROMPT, *text]
    itself.begin()
    itself.step(
        [row(0, PROMPT, 0, [0, 1], start={}), row(1, PROMPT, 0, [2, 3], start=SAMPLINGS["penalties"])]
    )
    at = len(PROMPT)
    long = whole[:40]
    result = itself.step(
        [
            row(0, None, at, own=3),
            row(1, None, at, own=2),
            row(2, long[:20], 0, [4, 5, 6, 7], start={}, sample=False),
        ]
    )
    assert accepted(result) == [3, 2] and sampled(result) == [*text[1:5], *other[1:4]]
    result = itself.step(
        [
            row(2, long[20:], 20),
            row(1, None, at + 3),
            # Behind two blocks, the second of which is filled in this very step.
            row(3, whole[32:41], 32, [4, 5, 8, 9], start={}),
            row(0, None, at + 4, drafts=[(text[5] + 1) % 199, 3]),
        ]
    )
    assert sampled(result) == [whole[40], other[4], whole[41], text[5]]
    result = itself.step(
        [
            row(3, None, 41, own=4),
            row(0, None, at + 7, own=2),
            row(2, None, 40, own=1),
            row(1, None, at + 4, own=5),
        ]
    )
    assert accepted(result) == [4, 2, 1, 5]
    # Preempted: slot 1 starts again in slot 4 with what it has, at the beginning.
    known = [*PROMPT, *other[:11]]
    again = {**SAMPLINGS["penalties"], "history": known, "history_outputs": 11}
    result = itself.step([row(4, known, 0, [10, 11, 12], start=again)], released=[1])
    assert sampled(result) == [other[11]]
    assert accepted(itself.step([row(4, None, len(known), own=6)])) == [6]


@exact_only
@pytest.mark.parametrize("windows", [(None, Window(16)), (Window(24, chunked=True), None)], ids=str)
def test_layers_with_windows_draft_and_are_drafted_for(
    windows: tuple[Window | None, ...], target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_windows(config: dict[str, Any]) -> DecoderConfig:
        read = llama.read_config(config)
        return read.with_layers(window=[windows[i % len(windows)] for i in range(read.num_layers)])

    monkeypatch.setattr(llama, "RECIPE", replace(llama.RECIPE, read=with_windows))
    expected = one_by_one(Driver(target), {})
    itself = Driver(target, draft=target)
    itself.forgets = True
    assert with_own(itself, {}, TOKENS, is_known=False).first(TOKENS) == expected.first(TOKENS)
    itself.begin()
    itself.step([row(0, PROMPT, 0, PAGES[:6], start={})])
    for position in range(len(PROMPT), 80, 5):
        assert accepted(itself.step([row(0, None, position, own=4)])) == [4]


def test_the_cpu_engine_drafts_as_it_decodes() -> None:
    alone = Driver(tiny.MODEL, torch.bfloat16)
    if alone.engine.native is None:
        pytest.skip("there is no CPU engine here")
    itself = Driver(tiny.MODEL, torch.bfloat16, draft=tiny.MODEL)
    for name in ("greedy with alternatives", "penalties", "temperature"):
        expected = one_by_one(alone, SAMPLINGS[name])
        itself.begin()
        text = Text(itself.step([row(0, PROMPT, 0, PAGES[:6], start=SAMPLINGS[name])]))
        while len(text.tokens) < TOKENS:
            result = itself.step([row(0, None, len(PROMPT) + len(text.tokens) - 1, own=4)])
            assert accepted(result) == [4]
            text.add(result)
        assert text.first(TOKENS) == expected.first(TOKENS)


def test_drafts_follow_what_was_started_and_decoded_after_prepare() -> None:
    """Prepare measures steps without drafts; what the plans behind it feed the draft model sees all the same."""
    itself = Driver(tiny.MODEL, torch.bfloat16, draft=tiny.MODEL)
    if itself.engine.native is None:
        pytest.skip("there is no CPU engine here")
    itself.engine.release()
    limits = {"max_slots": 8, "max_step_tokens": 512, "max_sequence_tokens": 256, "max_cache_tokens": 1024}
    request = pb.PrepareRequest(memory_fraction=0.9, max_step_drafts=32, **limits)
    preparation.prepare(itself.engine, request)
    itself.begin()
    script = Script(itself)
    for prompt in (PROMPT, PROMPT[::-1]):
        text = Text(script.step([row(0, prompt, 0, PAGES[:6], start={})]))
        for turn in range(8):
            position = len(prompt) + len(text.tokens) - 1
            result = script.step([row(0, None, position, own=4 if turn % 2 else 0)])
            assert turn % 2 == 0 or accepted(result) == [4]
            text.add(result)
        script.step([], released=[0])
    compare(script, Random(0))


def test_quantized_weights_draft_for_weights_that_are_not() -> None:
    """--quantize is of both; a draft model of other numbers than the model's is only less often right."""
    alone = Driver(tiny.MODEL, torch.bfloat16)
    if alone.engine.native is None:
        pytest.skip("there is no CPU engine here")
    expected = one_by_one(alone, {})
    rough = draft_model.load(
        tiny.MODEL,
        alone.engine.model.config,
        tiny.MODEL,
        torch.bfloat16,
        torch.device("cpu"),
        quantize="int8",
    )
    drafting = Driver(tiny.MODEL, torch.bfloat16, drafter=rough)
    drafting.begin()
    text = Text(drafting.step([row(0, PROMPT, 0, PAGES[:6], start={})]))
    drafted = right = 0
    while len(text.tokens) < TOKENS:
        result = drafting.step([row(0, None, len(PROMPT) + len(text.tokens) - 1, own=4)])
        drafted, right = drafted + 4, right + accepted(result)[0]
        text.add(result)
    assert text.first(TOKENS) == expected.first(TOKENS)
    assert right > drafted / 2


def test_a_draft_model_needs_positions_for_what_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was made for more, of which memory has no room for all."""
    folder, cpu = longer(llama_of(tmp_path)), torch.device("cpu")
    engine = Engine(check_folder(folder), folder, torch.bfloat16, cpu)
    drafter = draft_model.load(folder, engine.model.config, folder, torch.bfloat16, cpu)
    engine.drafter = drafter
    monkeypatch.setattr(preparation, "device_room", lambda _: Room(4 * GIB, GIB + (64 << 20)))
    longest = prepared(engine).max_sequence_tokens
    assert longest < MOST
    drafter.max_positions = longest
    engine.release()
    assert prepared(engine).max_sequence_tokens == longest
    drafter.max_positions = longest - 1
    engine.release()
    with pytest.raises(
        ValueError, match=f"made for {longest - 1} positions, and sequences have up to {longest};"
    ):
        prepared(engine)


class Watching:
    """A drafter that keeps what it is shown, as a head would that drafts from hidden states, and guesses one token always."""

    model_type, parameters, reads_hidden, max_positions = "head", 0, True, 1 << 30
    weight_bytes = kv_bytes_per_token = 0

    def __init__(self) -> None:
        self.hidden: dict[int, Tensor] = {}
        self.asked: list[list[int]] = []

    def page_bytes(self, tables: Tables) -> int:
        return 0

    def working_bytes(self, max_slots: int, max_step_tokens: int, longest: int) -> int:
        return 0

    def allocate(self, slots: SlotTable, sampler: SlotSampling) -> None:
        self.slots = slots

    def release(self) -> None:
        pass

    def clear(self) -> None:
        self.hidden.clear()

    def set_threads(self, threads: int) -> None:
        pass

    def copy_pages(self, copies: I64) -> None:
        pass

    def draft(self, plan: Plan, last_sampled: Any) -> I64:
        own = (plan.flags & pb.ROW_FLAG_OWN_DRAFTS) != 0
        count = int(plan.drafts[own].sum()) if own.any() else 0
        self.asked.append(plan.slots[own].tolist())
        return np.full(count, 7)

    def saw(self, slots: I64, hidden_RE: Any) -> None:
        self.hidden.update(zip(slots.tolist(), torch.as_tensor(hidden_RE).clone(), strict=True))


def test_a_drafter_is_shown_what_the_model_computed_last(target: Path, alone: Driver) -> None:
    """The head of the model, applied to what it was shown, gives the token that was sampled: the place for Medusa and EAGLE."""
    expected = one_by_one(alone, {}).tokens
    watching = Watching()
    driver = Driver(target, drafter=watching)
    driver.begin()

    def next_token(slot: int) -> int:
        hidden = watching.hidden[slot].unsqueeze(0)
        out = torch.empty((1, driver.engine.limits.vocab_size), device=hidden.device)
        return int(driver.engine.model.logits(hidden, out).argmax())

    driver.step([row(0, PROMPT, 0, [0, 1, 2], start={}), row(1, PROMPT, 0, [3, 4, 5], start={})])
    assert next_token(0) == next_token(1) == expected[0]
    right = [*expected[1:3], (expected[3] + 1) % 199, 5]
    result = driver.step([row(0, None, len(PROMPT), drafts=right), row(1, None, len(PROMPT), own=2)])
    assert accepted(result)[0] == 2 and watching.asked[-1] == [1]
    assert next_token(0) == expected[3]
    assert next_token(1) == sampled(result)[-1]


def test_a_drafter_is_shown_what_the_cpu_engine_computed_last() -> None:
    """The same on the path that has no torch."""
    plain = Driver(tiny.MODEL, torch.bfloat16)
    if plain.engine.native is None:
        pytest.skip("there is no CPU engine here")
    expected = one_by_one(plain, {}).tokens
    shown: dict[int, Any] = {}

    class Shown(Watching):
        def saw(self, slots: I64, hidden_RE: Any) -> None:
            shown.update(zip(slots.tolist(), np.array(hidden_RE), strict=True))

    driver = Driver(tiny.MODEL, torch.bfloat16, drafter=Shown())
    driver.begin()

    def next_token(slot: int) -> int:
        out = np.empty((1, driver.engine.limits.vocab_size), np.float32)
        return int(driver.engine.model.logits(np.ascontiguousarray(shown[slot][None]), out).argmax())

    driver.step([row(0, PROMPT, 0, [0, 1, 2], start={})])
    assert next_token(0) == expected[0]
    right = [*expected[1:3], (expected[3] + 1) % 199, 5]
    result = driver.step([row(0, None, len(PROMPT), drafts=right)])
    assert accepted(result)[0] == 2 and next_token(0) == expected[3]
    for position in range(4):
        result = driver.step([row(0, None, len(PROMPT) + 3 + position)])
        assert next_token(0) == sampled(result)[-1] == expected[4 + position]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, int] | None, str]] = {
    "another size of vocabulary": ({"vocab_size": 150}, None, "vocab_size"),
    "another tokenizer": ({}, {"t5": 6, "t6": 5}, "5 is 't5' there and 't6' here"),
    "a recurrent state": (
        {
            "architectures": ["MambaForCausalLM"],
            "model_type": "mamba",
            "state_size": 8,
            "intermediate_size": 128,
            "time_step_rank": 4,
            "conv_kernel": 4,
            "expand": 2,
            "use_bias": False,
            "use_conv_bias": True,
        },
        None,
        "recurrent layers",
    ),
    "an encoder": (
        {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 112,
            "num_layers": 2,
            "num_heads": 4,
            "is_encoder_decoder": True,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
        None,
        "encoder-decoder",
    ),
    "no recipe": ({"architectures": ["NobodyForCausalLM"]}, None, "NobodyForCausalLM"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_draft_is_refused_by_name(
    name: str, target: Path, alone: Driver, tmp_path: Path
) -> None:
    changes, changed, says = REFUSED[name]
    weights = {
        f"tensor {number}": torch.zeros(1) for number in range(8)
    }  # nobody gets as far as to read them
    folder = tokenizer(checkpoints.write(tmp_path, checkpoints.config(**changes), weights), changed)
    where = (torch.float32, torch.device("cpu"))
    with pytest.raises(UnusableModel, match=r"^--speculate-model: ") as refusal:
        draft_model.load(folder, alone.engine.model.config, target, *where)
    assert says in str(refusal.value)


BAD = {
    "without CONTINUE": ([row(0, [3], 7, own=2)], "flags"),
    "masked": ([row(0, None, 7, own=2, masked=True)], "flags"),
    "too many in a step": ([row(0, None, 7, own=40)], "drafts"),
    "no room": ([row(0, None, 7, own=20)], "new_pages"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_row_is_refused_by_field(name: str, itself: Driver) -> None:
    rows, field = BAD[name]
    itself.begin()
    itself.step([row(0, PROMPT, 0, [0], start={})])
    with pytest.raises(BadPlan, match=f"^{field}"):
        itself.step(rows)


def test_own_drafts_of_none_and_of_a_worker_without_a_draft_model_are_refused(
    itself: Driver, alone: Driver
) -> None:
    for driver, drafts in ((itself, [0]), (alone, [2])):
        driver.begin()
        driver.step([row(0, PROMPT, 0, [0], start={})])
        plan = make_plan([row(0, None, 7, own=2)], None, driver.tables)
        plan.drafts = u32(drafts)
        with pytest.raises(BadPlan, match=r"^(flags|counts)"):
            driver.execute(driver.numbering.stamp(plan))


def test_a_worker_says_what_drafts_and_what_it_costs(target: Path, tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "draft", SHAPES["one layer"])
    said = {}
    for name, flags in {"alone": (), "with": ("--draft-model-dir", str(draft))}.items():
        with Worker(target, tmp_path / name, *flags) as worker:
            said[name] = worker.describe(), worker.prepare(max_cache_tokens=0)
            run = worker.run()
            first = sampled(run.step([row(0, PROMPT, 0, [0, 1], start={})]))
            own = 3 if flags else 0
            assert len(first) == 1 and len(accepted(run.step([row(0, None, 7, own=own)]))) == bool(own)
            run.end()
    (alone, prepared), (described, prepared_too) = said["alone"], said["with"]
    assert not alone.HasField("draft_model") and described.draft_model.model_type == "llama"
    assert described.draft_model.parameters < alone.parameters == described.parameters
    assert described.kv_bytes_per_token == alone.kv_bytes_per_token * 4 // 3
    assert described.weight_bytes > alone.weight_bytes
    assert not prepared.HasField("draft_cost") and prepared_too.draft_cost.fixed_ns > 1000
    assert prepared_too.cache_bytes * 3 // prepared_too.pages == prepared.cache_bytes * 4 // prepared.pages


def test_the_doctor_counts_both_models_and_says_what_does_not_fit(target: Path, tmp_path: Path) -> None:
    alone = examine(target, Question(device="cpu"))
    small = draft_of(tmp_path / "small", SHAPES["one layer"])
    both = examine(target, Question(device="cpu", draft=small))
    stored = sum(
        tensor.nbytes for tensor in checkpoints.tensors(checkpoints.config(num_hidden_layers=1)).values()
    )
    assert both.would_serve and both.draft_weight_bytes == stored
    assert both.draft_kv_bytes_per_token == alone.kv_bytes_per_token[0] // 3
    assert both.cache_bytes_per_shard is not None and alone.cache_bytes_per_shard is not None
    assert both.cache_bytes_per_shard < alone.cache_bytes_per_shard
    fits, fits_alone = both.fits[-1].sequences, alone.fits[-1].sequences
    assert fits is not None and fits_alone is not None and fits < fits_alone
    other = tokenizer(draft_of(tmp_path / "other", SHAPES["one layer"]), {"t5": 6, "t6": 5})
    short = draft_of(tmp_path / "short", {"num_hidden_layers": 1, "max_position_embeddings": 128})
    for draft, says in ((other, "its tokenizer"), (short, "128 positions"), (tmp_path / "none", "none")):
        refused = examine(target, Question(device="cpu", draft=draft))
        assert [line for line in refused.problems if line.startswith("--speculate-model: ") and says in line]
    divided = examine(target, Question(device="cpu", draft=small, shards=2))
    assert any("one worker" in line for line in divided.problems)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CHI_SQUARE_UNMASKED)
def test_a_coupled_draft_does_not_change_what_is_drawn(name: str) -> None:
    """100,000 draws, each behind a draft that another distribution drew with the same key: of those that are accepted and of those that
    are not together the target's distribution, and behind an accepted one, too.
    """
    vocabulary, rows, rounds = 12, 500, 200
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(2, vocabulary, generator=generator)
    guessed = logits[:1] + 0.7 * torch.randn(1, vocabulary, generator=generator)
    settings = CHI_SQUARE[name]
    history = {"history": [1, 2, 3], "outputs": 1} if "repetition" in settings else {}
    counts = np.zeros((2, vocabulary))
    behind = np.zeros((vocabulary, vocabulary))
    expected: Any = None
    taken = 0
    for at in range(rounds):
        made = sampler(
            *({"seed": at * rows + seed, **settings, **history} for seed in range(rows)),
            vocabulary=vocabulary,
        )
        made._logprobs_SV = torch.empty((2 * rows, vocabulary))
        nothing = torch.zeros(rows, dtype=torch.int64)
        every = np.arange(rows)
        drafted = made.guess(guessed.repeat(rows, 1), every, np.full(rows, 7), nothing)
        slots, positions = np.repeat(every, 2), np.tile([7, 8], rows)
        drafts = Drafts(np.full(rows, 2), drafted.repeat_interleave(2))
        previous = torch.zeros(2 * rows, dtype=torch.int64)
        if expected is None and not history:
            scores, _ = made.process(logits.repeat(rows, 1), slots, positions, previous, None, drafts)
            expected = scores[:2].double().softmax(-1).numpy()
        found = made.sample(logits.repeat(rows, 1), slots, positions, previous, None, drafts)
        assert found.verified is not None
        tokens = found.tokens_S.view(rows, 2).numpy()
        is_right = tokens[:, 0] == drafted.numpy()
        assert (found.verified.accepted_R.numpy() == is_right).all()
        taken += int(is_right.sum())
        counts[0] += np.bincount(tokens[:, 0], minlength=vocabulary)
        counts[1] += np.bincount(tokens[is_right, 1], minlength=vocabulary)
        for first, second in tokens[is_right]:
            behind[first, second] += 1
    assert 0.2 * rows * rounds < taken < rows * rounds
    if expected is None:  # penalties: what comes second depends on what came first
        made = sampler({"seed": 0, **settings, **history}, vocabulary=vocabulary)
        zero = torch.zeros(1, dtype=torch.int64)
        scores, _ = made.process(logits[:1].clone(), np.zeros(1, np.int64), np.full(1, 7), zero)
        expect(counts[0], scores[0].double().softmax(-1).numpy())
        for first in np.flatnonzero(behind.sum(1) > 2000):
            made = sampler(
                {"seed": 0, **settings, "history": [1, 2, 3, int(first)], "outputs": 2}, vocabulary=vocabulary
            )
            scores, _ = made.process(logits[1:].clone(), np.zeros(1, np.int64), np.full(1, 8), zero)
            expect(behind[first], scores[0].double().softmax(-1).numpy())
        return
    for seen, wanted in zip(counts, expected, strict=True):
        expect(seen, wanted)


def expect(seen: Any, wanted: Any) -> None:
    """Chi-square: of 11 degrees of freedom one in a million is above 49."""
    possible = wanted > 0
    assert (seen[~possible] == 0).all()
    wanted = wanted[possible] * seen.sum()
    assert float(((seen[possible] - wanted) ** 2 / wanted).sum()) < 49


def test_what_is_supposed_is_taken_back() -> None:
    made = sampler({"repetition": 1.5, "history": [1, 2], "outputs": 0}, {})
    before = made._output_RV.clone()
    slots, tokens = np.array([0, 1]), torch.tensor([10, 11])
    made.suppose(slots, tokens, 1)
    assert made._output_RV[made.count_rows[0], 10] == 1 and int(made._output_RV.sum()) == 1
    made.suppose(slots, tokens, -1)
    assert torch.equal(made._output_RV, before)
