"""Recurrent state in the worker: what plans may say of it, where it begins, what is kept of it, and what memory it takes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
from client import Worker, make_plan, row, sampled
from driver import Driver
from penstock.doctor.examination import examine
from penstock.doctor.question import Question
from penstock.doctor.report import as_text
from penstock.engine.cache_size import count_draft_states, count_pages, count_snapshots
from penstock.engine.plan import CONTINUE, NO_SNAPSHOT, SAMPLE, START, Plan, greedy_starts
from penstock.engine.preparation import held_state_bytes
from penstock.engine.slots import Limits, SlotTable
from penstock.engine.tables import divide
from penstock.errors import BadPlan, TooLittleMemory
from penstock.models import recipes
from penstock.parallel.group import Pipeline, TensorGroup
from penstock.proto import penstock_pb2 as pb

WIDTH, HIDDEN, KERNEL = 32, 64, 3
CONV, ATTENTION = "conv", "full_attention"
# Of a sequence: what two convolutions of the three layers keep, in fp32.
STATE = 2 * (KERNEL - 1) * WIDTH * 4


def config(kinds: tuple[str, ...] = (CONV, ATTENTION, CONV)) -> dict[str, Any]:
    """LFM2, shrunk."""
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": 99,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": len(kinds),
        "layer_types": list(kinds),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "conv_L_cache": KERNEL,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights."""
    generator = torch.Generator().manual_seed(0)
    made: dict[str, Tensor] = {}

    def matrix(name: str, *shape: int) -> None:
        made[f"{name}.weight"] = torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    def norm(name: str, size: int = WIDTH) -> None:
        made[f"{name}.weight"] = 1 + 0.1 * torch.randn(size, generator=generator)

    matrix("model.embed_tokens", config["vocab_size"], WIDTH)
    norm("model.embedding_norm")
    for index, kind in enumerate(config["layer_types"]):
        at = f"model.layers.{index}."
        norm(at + "operator_norm")
        norm(at + "ffn_norm")
        for name, shape in (("w1", (HIDDEN, WIDTH)), ("w3", (HIDDEN, WIDTH)), ("w2", (WIDTH, HIDDEN))):
            matrix(f"{at}feed_forward.{name}", *shape)
        if kind == CONV:
            matrix(at + "conv.in_proj", 3 * WIDTH, WIDTH)
            matrix(at + "conv.conv", WIDTH, 1, KERNEL)
            matrix(at + "conv.out_proj", WIDTH, WIDTH)
            continue
        for name, rows in (
            ("q_proj", WIDTH),
            ("k_proj", WIDTH // 2),
            ("v_proj", WIDTH // 2),
            ("out_proj", WIDTH),
        ):
            matrix(f"{at}self_attn.{name}", rows, WIDTH)
        norm(at + "self_attn.q_layernorm", WIDTH // 4)
        norm(at + "self_attn.k_layernorm", WIDTH // 4)
    return made


def write(folder: Path, kinds: tuple[str, ...] = (CONV, ATTENTION, CONV)) -> Path:
    made = config(kinds)
    return checkpoints.write(folder, made, tensors(made))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model"))


def plan(
    flags: list[int],
    positions: list[int],
    counts: list[int],
    sources: list[int] | None = None,
    saves: list[tuple[int, int, int]] | None = None,
    drafts: list[int] | None = None,
) -> Plan:
    """Rows of slots 0, 1, ..., each with two blocks if it starts."""
    rows, starts = len(flags), sum(bool(flag & START) for flag in flags)
    none = np.zeros(0, np.uint32)
    made = greedy_starts(starts) if starts else None
    if made is not None and sources is not None:
        made.state_sources = np.array(sources, np.uint32)
    given = sum(count - bool(flag & CONTINUE) for flag, count in zip(flags, counts, strict=True))
    return Plan(
        number=1,
        released=none,
        slots=np.arange(rows),
        flags=np.array(flags, np.uint8),
        positions=np.array(positions),
        counts=np.array(counts),
        tokens=np.full(given, 5, np.uint32),
        new_block_counts=np.array([2 * bool(flag & START) for flag in flags]),
        new_pages=np.arange(2 * starts, dtype=np.uint32),
        prompt_targets=none,
        starts=made,
        drafts=np.array(drafts or [], np.int64),
        saves=np.array(saves or np.zeros((0, 3)), np.int64).reshape(-1, 3),
    )


def slots(**changes: Any) -> SlotTable:
    limits: dict[str, Any] = {
        "has_state": True,
        "snapshots": 3,
        "max_step_drafts": 4,
        "draft_states": 2,
        **changes,
    }
    return SlotTable(Limits(4, 64, 64, pages=8, block_size=16, vocab_size=99, **limits))


FRESH, BEGIN = [NO_SNAPSHOT], [START | SAMPLE]


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (
            plan(BEGIN, [0], [8]),
            "starts.state_sources: 0 entries, but 1 rows of a model with a recurrent state",
        ),
        (plan(BEGIN, [0], [8], [3]), "starts.state_sources: 3, but there are 3 snapshots"),
        (plan(BEGIN, [5], [8], FRESH), "starts.state_sources: a row starts at position 5 without a snapshot"),
        (plan(BEGIN, [0], [8], [0]), "starts.state_sources: a row starts at position 0 with a snapshot"),
        (plan(BEGIN, [0], [8], FRESH, [(0, 8, 3)]), "saves: 3, but there are 3 snapshots"),
        (plan(BEGIN, [0], [8], FRESH, [(1, 8, 0)]), "saves: 1, but there are 1 rows"),
        (plan(BEGIN, [0], [8], FRESH, [(0, 9, 0)]), "saves: row 0 feeds 8 tokens, and its state .* behind 9"),
        (plan(BEGIN, [0], [8], FRESH, [(0, 0, 0)]), "saves: row 0 feeds 8 tokens, and its state .* behind 0"),
        (plan(BEGIN, [0], [8], FRESH, [(0, 4, 0), (0, 8, 0)]), "saves: a snapshot is written twice"),
        (plan(BEGIN, [0], [8], FRESH, [(0, 8, 0), (0, 4, 1)]), "saves: not ascending"),
        (plan(BEGIN * 2, [0, 0], [8, 8], FRESH * 2, [(1, 4, 0), (0, 4, 1)]), "saves: not ascending"),
        (plan(BEGIN, [0], [4], FRESH, drafts=[2]), "drafts: a row of a model with recurrent state"),
        (plan(BEGIN, [0], [4], FRESH, drafts=[3]), "drafts: 3, and 2 of 2 places for the states"),
        (plan(BEGIN * 2, [0, 0], [3, 2], FRESH * 2, drafts=[2, 1]), "drafts: 3, and 2 of 2 places"),
    ],
)
def test_a_plan_that_contradicts_states_is_refused(refused: Plan, why: str) -> None:
    with pytest.raises(BadPlan, match=f"^{why}"):
        slots().apply(refused)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (
            plan(BEGIN, [0], [8], FRESH),
            "starts.state_sources: 1 entries, but 1 rows of a model with no recurrent",
        ),
        (plan(BEGIN, [0], [8], None, [(0, 8, 0)]), "saves: 1 of a model without a recurrent state"),
    ],
)
def test_a_model_without_state_is_told_nothing_of_it(refused: Plan, why: str) -> None:
    with pytest.raises(BadPlan, match=f"^{why}"):
        slots(has_state=False, snapshots=0).apply(refused)


@pytest.mark.parametrize(("position", "is_good"), [(8, True), (7, False), (0, False), (9, False)])
@pytest.mark.parametrize("flags", [SAMPLE, CONTINUE | SAMPLE])
def test_a_state_goes_on_where_it_is(position: int, is_good: bool, flags: int) -> None:
    """Keys and values may be written again; a state cannot be rewound."""
    table = slots()
    table.apply(plan(BEGIN, [0], [8], FRESH, [(0, 4, 2), (0, 8, 0)]))
    if is_good:
        table.apply(plan([flags], [position], [1]))
        assert table.filled[0] == 9
        return
    with pytest.raises(BadPlan, match=rf"^positions: row 0 begins at {position}, but slot 0 .*8"):
        table.apply(plan([flags], [position], [1]))


PROMPT = [int(token) for token in torch.randint(3, 99, (40,), generator=torch.Generator().manual_seed(9))]


def test_a_sequence_goes_on_from_a_copy_to_the_last_bit(folder: Path) -> None:
    """Of a prompt in one piece, one in two, and one that begins with a copy that the first kept on its way."""
    driver = Driver(folder, deterministic=True)
    blocks = [0, 1, 2]
    driver.step([row(0, PROMPT, 0, blocks, start={}, saves=[(16, 1), (32, 3)])])
    whole = driver.last_logits()
    driver.step([row(1, PROMPT[32:], 32, [0, 1, 3], start={"state_source": 3})])
    assert torch.equal(driver.last_logits(), whole)
    driver.step([row(1, PROMPT[16:], 16, [0, 4, 5], start={"state_source": 1})])
    assert torch.equal(driver.last_logits(), whole)
    driver.step([row(2, PROMPT[:21], 0, [6, 7, 8], start={})])
    driver.step([row(2, PROMPT[21:], 21)])
    assert torch.equal(driver.last_logits(), whole)


def test_a_copy_that_is_kept_behind_a_decode_is_of_that_token(folder: Path) -> None:
    driver = Driver(folder, deterministic=True)
    driver.step([row(0, PROMPT[:31], 0, [0, 1, 2], start={}), row(1, PROMPT[:9], 0, [5], start={})])
    driver.step([row(1, [7], 9), row(0, [PROMPT[31]], 31, saves=[(1, 2)])])
    driver.step([row(0, PROMPT[32:], 32)])
    whole = driver.last_logits()
    driver.step([row(3, PROMPT[32:], 32, [0, 1, 4], start={"state_source": 2})])
    assert torch.equal(driver.last_logits(), whole)


def test_sources_are_read_before_a_plan_writes_to_their_places(folder: Path) -> None:
    driver = Driver(folder, deterministic=True)
    driver.step([row(0, PROMPT, 0, [0, 1, 2], start={}, saves=[(16, 0), (32, 1)])])
    whole = driver.last_logits()
    driver.step(
        [
            row(1, PROMPT[:32], 0, [8, 9, 10], start={}, saves=[(7, 0)]),
            row(2, PROMPT[16:], 16, [0, 4, 5], start={"state_source": 0}),
        ]
    )
    assert torch.equal(driver.last_logits()[1:], whole)
    driver.step([row(3, PROMPT[16:], 16, [0, 6, 7], start={"state_source": 0})])
    assert not torch.equal(driver.last_logits(), whole), "the place was written after it was read"


def test_a_slot_begins_anew_whatever_it_held(folder: Path) -> None:
    driver = Driver(folder, deterministic=True)
    driver.step([row(0, PROMPT, 0, [0, 1, 2], start={})])
    whole = driver.last_logits()
    assert driver.engine.states is not None
    for layer in driver.engine.states.layers:
        for state_P in layer:
            state_P.fill_(torch.nan)
    driver.step([row(0, PROMPT, 0, [0, 1, 2], start={})])
    assert torch.equal(driver.last_logits(), whole)


def test_a_worker_says_what_states_take(folder: Path, tmp_path: Path) -> None:
    with Worker(folder, tmp_path / "socket") as worker:
        described = worker.describe()
        assert described.state_bytes == STATE
        assert described.kv_bytes_per_token == 2 * 2 * 8 * 4  # of the one layer that attends
        with pytest.raises(grpc.RpcError) as caught:
            worker.prepare(memory_fraction=1e-9)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-batch-size" in str(caught.value.details())
        prepared = worker.prepare(
            max_slots=6, max_sequence_tokens=64, max_cache_tokens=64, max_step_drafts=12
        )
        assert prepared.snapshots == 4 * 6 and prepared.draft_states == 12 and not prepared.draft_trees
        pages = prepared.pages * 16 * described.kv_bytes_per_token
        assert prepared.cache_bytes == pages + (6 + prepared.snapshots + prepared.draft_states) * STATE


def test_models_whose_layers_are_all_recurrent_have_no_pages(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", (CONV, CONV))
    assert divide((), 64).count == 0
    with Worker(folder, tmp_path / "socket") as worker:
        assert worker.describe().kv_bytes_per_token == 0
        prepared = worker.prepare(max_slots=4, max_sequence_tokens=64, max_cache_tokens=64)
        (group,) = prepared.groups
        assert (prepared.pages, group.kind, group.tables, group.layers) == (0, pb.CACHE_KIND_STATE, 0, 2)
        assert prepared.snapshots > 0 and prepared.cost.fixed_ns > 0
        run = worker.run()
        # Blocks are counted, and have no pages.
        rows = [row(0, PROMPT, 0, [0, 1, 2], start={}, saves=[(32, 1)]), row(1, PROMPT[:5], 0, start={})]
        run.send_raw(run.numbering.stamp(make_plan(rows, None, divide((), 64), has_state=True)))
        whole = sampled(run.receive())
        again = [row(0, PROMPT[32:], 32, start={"state_source": 1}), row(1, None, 5)]
        run.send_raw(run.numbering.stamp(make_plan(again, None, divide((), 64), has_state=True)))
        assert sampled(run.receive())[0] == whole[0]


def test_slots_come_before_copies_and_both_are_counted() -> None:
    assert count_snapshots(100, 8, 1 << 20) == 32
    assert count_snapshots(100, 8, 800 + 2000) == 5  # a quarter of what the slots leave
    assert count_snapshots(100, 8, 900) == 1
    assert count_snapshots(0, 8, 0) == 32  # the recurrent layers are another stage's
    with pytest.raises(
        TooLittleMemory, match=r"of 8 sequences .* 1 MiB, and 0 MiB are free .*--max-batch-size"
    ):
        count_snapshots(1 << 17, 8, 1 << 10)
    with pytest.raises(
        TooLittleMemory, match=r"need 9 MiB, and 4 MiB are free for them, which hold those of 3; lower"
    ):
        count_snapshots(1 << 20, 8, 4 << 20)
    tables = divide((None,), 64)
    with pytest.raises(
        TooLittleMemory,
        match=r"1 MiB are free for it beside 8 MiB of recurrent states; .* or --max-batch-size, or raise --memory-fraction",
    ):
        count_pages(1 << 20, tables, 4, 64, 64, 0, 1 << 20, states=8 << 20)
    with pytest.raises(
        TooLittleMemory, match=r"beside 8 MiB .*, which hold 64 tokens; .*-total-tokens or --max-batch-size"
    ):
        count_pages(1 << 20, tables, 4, 64, 64, 128, 5 << 20, states=8 << 20)


def test_states_in_front_of_drafts_take_a_part_of_what_slots_leave() -> None:
    assert count_draft_states(100, 64, 8, 1 << 20) == 64
    assert count_draft_states(100, 64, 8, 800 + 2400) == 3
    assert count_draft_states(100, 64, 8, 900) == 0
    assert count_draft_states(0, 64, 8, 0) == 64  # the recurrent layers are another stage's
    assert count_draft_states(100, 0, 8, 1 << 20) == 0


def test_a_stage_may_have_no_cache_or_no_state() -> None:
    """Of three stages of a layer each, one attends and two do not."""
    read = recipes.read_config(config())
    groups = [TensorGroup(pipeline=Pipeline(at, 3, TensorGroup(at, 3))) for at in range(3)]
    assert [read.cached_layers(group) for group in groups] == [[None], [0], [None]]
    tables = divide(read.layer_windows, 64)
    limits = (tables, 4, 64, 64)
    assert count_pages(0, *limits, 0, 0) == 4 * 4 and count_pages(0, *limits, 128, 0) == 8
    assert read.has_state, "so plans name where states begin on every rank"
    engines: list[Any] = [
        SimpleNamespace(model=SimpleNamespace(config=read), group=group, arrays=SimpleNamespace(itemsize=4))
        for group in groups
    ]
    assert [held_state_bytes(engine) for engine in engines] == [STATE // 2, 0, STATE // 2]


def test_the_doctor_says_what_states_take(folder: Path) -> None:
    whole = examine(folder, Question())
    assert whole.state_bytes == [STATE] and whole.kv_bytes_per_token == [2 * 2 * 8 * 4] and whole.fits
    assert examine(folder, Question(shards=2)).state_bytes == [STATE // 2] * 2
    stages = examine(folder, Question(stages=3))
    assert stages.state_bytes == [STATE // 2, 0, STATE // 2]
    assert stages.kv_bytes_per_token == [0, 2 * 2 * 8 * 4, 0]
    told = [(group.kind, group.tables, group.layers, group.bytes) for group in whole.cache_groups]
    assert told == [("full", 1, 1, 2 * 2 * 8 * 4), ("state", 0, 2, STATE)]
    assert "caches        1 layer attends to all tokens; 2 layers keep a state" in as_text(whole)
