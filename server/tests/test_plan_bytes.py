"""Any bytes in a plan's columns are a plan, or are refused as a wrong one: nothing else is raised, and what is taken
names only slots, pages and tokens that there are."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client import Numbering
from penstock.engine.plan import START_COLUMNS
from penstock.engine.slots import Limits, SlotTable
from penstock.engine.tables import Tables, divide
from penstock.errors import BadPlan, OutOfStep
from penstock.models.config import Window
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.plan_reader import PlanReader

COLUMNS = [field.name for field in pb.StepPlan.DESCRIPTOR.fields if field.type == field.TYPE_BYTES]
STARTS = [field.name for field in pb.Starts.DESCRIPTOR.fields if field.type == field.TYPE_BYTES]

NUMBERS = st.one_of(st.integers(0, 5), st.sampled_from((15, 16, 17, 63, 64, 2**31, 2**32 - 1)))


def packed(kind: str, values: list[Any]) -> bytes:
    return np.array(values).astype(kind).tobytes()


def column(name: str) -> st.SearchStrategy[bytes]:
    """Mostly whole elements, mostly small."""
    kinds = {"flags": "u1", "seeds": "<u8"}
    kind = kinds.get(name, "<u4")
    whole = st.lists(NUMBERS, max_size=6).map(lambda values: packed(kind, values))
    if name == "flags":
        whole = st.lists(st.integers(0, 15), max_size=6).map(bytes)
    floats = st.lists(st.floats(width=32), max_size=6).map(lambda values: packed("<f4", values))
    return st.one_of(st.just(b""), whole, whole, floats, st.binary(max_size=30))


@st.composite
def good_starts(draw: st.DrawFn, rows: int) -> dict[str, bytes]:
    ones = ("top_ps", "typical_ps", "repetition_penalties")
    ragged = ("history", "bias_tokens", "biases", "end_tokens", "encoder_counts", "state_sources")
    values = {
        name: packed("<u8" if name == "seeds" else "<f4", [1.0 if name in ones else 0] * rows)
        for name in STARTS
        if name not in ragged
    }
    return values | {
        draw(st.sampled_from(STARTS)): draw(column("")) for _ in range(draw(st.sampled_from((0, 0, 0, 1))))
    }


@st.composite
def plans(draw: st.DrawFn) -> pb.StepPlan:
    """Rows that fit together, but for a number here and there or a whole column; or columns of anything."""
    plan = pb.StepPlan()
    if draw(st.booleans()):
        slots = draw(st.lists(st.integers(0, 3), max_size=4, unique=True))
        kinds = draw(st.sampled_from(((5, 1, 13), (5, 1, 13), (5, 1, 13, 4, 2, 6, 0))))
        flags = [draw(st.sampled_from(kinds)) for _ in slots]
        drafts = [draw(st.sampled_from((0,) * 8 + (1, 3))) if flag & 12 == 4 else 0 for flag in flags]
        counts = [
            (1 if flag & 2 else draw(st.integers(1, 20))) + n for flag, n in zip(flags, drafts, strict=True)
        ]
        blocks = [draw(st.sampled_from((0, 1, 2, 2, 2))) for _ in slots]
        fed = sum(count - (flag & 2 != 0) for flag, count in zip(flags, counts, strict=True))
        targets = sum(count for flag, count in zip(flags, counts, strict=True) if flag & 8)
        most_token, most_page = draw(st.sampled_from(((49, 31), (49, 31), (49, 40), (60, 31))))
        plan.slots, plan.flags = packed("<u4", slots), bytes(flags)
        plan.counts, plan.new_block_counts = packed("<u4", counts), packed("<u4", blocks)
        plan.positions = packed("<u4", [0 if flag & 1 else draw(NUMBERS) for flag in flags])
        plan.tokens = packed("<u4", [draw(st.integers(0, most_token)) for _ in range(fed)])
        plan.new_pages = packed("<u4", [draw(st.integers(0, most_page)) for _ in range(sum(blocks))])
        plan.prompt_targets = packed("<u4", [7] * targets)
        plan.drafts = packed("<u4", drafts) if any(drafts) else b""
        starting = sum(flag & 1 for flag in flags)
        for name, value in draw(good_starts(starting)).items() if starting else ():
            setattr(plan.starts, name, value)
        names = draw(st.lists(st.sampled_from(COLUMNS), max_size=1))
    else:
        names = COLUMNS
        for name in draw(st.lists(st.sampled_from(STARTS), max_size=8)):
            setattr(plan.starts, name, draw(column(name)))
    for name in names:
        given = getattr(plan, name)
        if len(given) >= 4 and name != "flags" and draw(st.booleans()):
            numbers = np.frombuffer(given, "<u4").copy()
            numbers[draw(st.integers(0, len(numbers) - 1))] = draw(NUMBERS)
            setattr(plan, name, numbers.tobytes())
        else:
            setattr(plan, name, draw(column(name)))
    return plan


TABLES = {
    "one table": divide([None, None], 256),
    "a window": divide([None, Window(20)], 256),
    "windows alone": divide([Window(32, chunked=True)], 256),
}


def slot_table(tables: Tables, has_encoder: bool) -> SlotTable:
    return SlotTable(
        Limits(
            max_slots=4,
            max_step_tokens=64,
            max_sequence_tokens=256,
            pages=32,
            block_size=16,
            vocab_size=50,
            has_encoder=has_encoder,
            max_step_drafts=8,
            tables=tables,
        )
    )


def check(table: SlotTable) -> None:
    """What is in the table can be used as an index."""
    limits = table.limits
    assert (table.filled[table.alive] <= table.block_counts[table.alive] * limits.block_size).all()
    assert (table.block_counts <= table.width).all() and (table.block_counts >= 0).all()
    assert (table.pages >= 0).all() and (table.pages <= limits.pages).all()


@pytest.mark.few(3)
@pytest.mark.parametrize("has_encoder", [False, True], ids=["decoder", "encoder-decoder"])
@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES.keys())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages=st.lists(plans(), min_size=1, max_size=4))
def test_any_columns_are_a_plan_or_a_wrong_one(
    tables: Tables, has_encoder: bool, messages: list[pb.StepPlan]
) -> None:
    table, reader, numbering = slot_table(tables, has_encoder), PlanReader(), Numbering()
    for message in messages:
        try:
            plan = reader.read(numbering.stamp(message))
            table.apply(plan)
        except BadPlan:
            return  # a Run ends with it, and the next one begins without slots
        check(table)


@settings(max_examples=300, deadline=None)
@given(junk=st.binary(max_size=200), numbers=st.tuples(st.integers(0, 3), st.integers(0, 2**32 - 1)))
def test_any_message_is_out_of_step_or_a_wrong_plan(junk: bytes, numbers: tuple[int, int]) -> None:
    message = pb.StepPlan(number=numbers[0], digest=numbers[1])
    try:
        message.MergeFromString(junk)
    except DecodeError:
        return  # gRPC answers for it
    with pytest.raises((OutOfStep, BadPlan)):
        PlanReader().read(message)
        raise OutOfStep("it was one")


def test_the_plans_of_this_test_are_often_good() -> None:
    """Or it would show nothing of what is behind the first checks. What is drawn depends on the numbers in the modules that are loaded, which
    Hypothesis tries: of 300 there were 25 on one machine, and 30 and more on others.
    """
    taken, refused = 0, set()

    @settings(max_examples=600, deadline=None, database=None, derandomize=True)
    @given(message=plans())
    def count(message: pb.StepPlan) -> None:
        nonlocal taken
        try:
            slot_table(TABLES["one table"], False).apply(PlanReader().read(Numbering().stamp(message)))
            taken += 1
        except BadPlan as error:
            refused.add(str(error).partition(":")[0])

    count()
    assert taken >= 30 and len(refused) >= 12, (taken, refused)


def test_the_table_of_start_columns_is_that_of_the_contract() -> None:
    contract = (Path(__file__).resolve().parents[2] / "proto" / "penstock.proto").read_text()
    message = contract.partition("message Starts {")[2].partition("\n}")[0]
    # The comment that says a column's type is behind it or, where it is long, before it.
    found = re.findall(
        r"^  (?://\s*\[(\w+)\][^\n]*\n(?:  //[^\n]*\n)*  )?bytes (\w+) = \d+;(?: *// \[(\w+)\](?: ragged by (\w+))?)?",
        message,
        re.M,
    )
    types = {"u64": "<u8", "u32": "<u4", "f32": "<f4"}
    expected = [(name, types[before or behind], by) for before, name, behind, by in found]
    assert [(column.name, column.dtype, column.ragged_by) for column in START_COLUMNS] == expected
    assert [column.name for column in START_COLUMNS] == STARTS


def test_the_routers_table_has_the_same_defaults() -> None:
    source = (Path(__file__).resolve().parents[2] / "proto" / "src" / "starts.rs").read_text()
    rows = re.findall(r"^    (\w+): \w+ = ([\w.:]+), (each|optional);", source, re.M)
    numbers = {"u32::MAX": 0xFFFFFFFF}
    found = [
        (name, numbers[default] if default in numbers else float(default), kind == "optional")
        for name, default, kind in rows
    ]
    assert found == [
        (column.name, column.default, column.optional) for column in START_COLUMNS if not column.ragged_by
    ]
