"""A plan that goes on from the one before is taken over without a second look, and comes to the same as if it had been looked at."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client import Numbering
from penstock.engine.plan import CONTINUE, MASKED, SAMPLE, START, Plan, greedy_starts
from penstock.engine.slots import Limits, SlotTable
from penstock.errors import BadPlan
from penstock.proto import penstock_pb2 as pb
from penstock.rpc.plan_reader import PlanReader

SLOTS = 4


def table() -> SlotTable:
    return SlotTable(Limits(SLOTS, 64, 64, pages=64, block_size=16, vocab_size=99))


def started() -> Plan:
    """Every slot with 14 tokens, of 16 for which there is room."""
    none = np.zeros(0, np.uint32)
    return Plan(
        number=1,
        released=none,
        slots=np.arange(SLOTS),
        flags=np.full(SLOTS, START | SAMPLE, np.uint8),
        positions=np.zeros(SLOTS, np.int64),
        counts=np.full(SLOTS, 14),
        tokens=np.full(14 * SLOTS, 5, np.uint32),
        new_block_counts=np.ones(SLOTS, np.int64),
        new_pages=np.arange(SLOTS, dtype=np.uint32),
        prompt_targets=none,
        starts=greedy_starts(SLOTS),
    )


def column(values: list[int]) -> bytes:
    return np.array(values, "<u4").tobytes()


# What a step of a schedule does differently from the one before, most often nothing.
CHANGES = st.sampled_from(
    [
        "",
        "",
        "",
        "",
        "",
        "a page",
        "masks",
        "other rows",
        "a release",
        "too far",
        "too near",
        "a token",
        "order",
    ]
)


@st.composite
def schedules(draw: st.DrawFn) -> list[pb.StepPlan]:
    """Plans that decode, with here and there a change, some of them wrong."""
    lengths, rows, flag, made = [14] * SLOTS, [0, 1, 2], CONTINUE | SAMPLE, []
    for change in draw(st.lists(CHANGES, min_size=1, max_size=12)):
        plan = pb.StepPlan()
        blocks = [0] * len(rows)
        if change == "masks":
            flag ^= MASKED
        elif change == "other rows":
            rows = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True))
            blocks = [0] * len(rows)
        elif change == "order":
            rows = rows[::-1]
        elif change == "a page":
            blocks[0], plan.new_pages = 1, column([draw(st.integers(4, 63))])
        elif change == "a release":
            plan.released = column([draw(st.integers(0, SLOTS - 1))])
        elif change == "a token":
            plan.tokens = column([7])
        positions = [lengths[row] for row in rows]
        if change in ("too far", "too near"):
            positions[-1] += 1 if change == "too far" else -1
        for row, position in zip(rows, positions, strict=True):
            lengths[row] = position + 1
        plan.slots, plan.flags, plan.counts = column(rows), bytes([flag] * len(rows)), column([1] * len(rows))
        plan.positions, plan.new_block_counts = column(positions), column(blocks)
        made.append(plan)
    return made


def outcome(slots: SlotTable, plan: Plan) -> str:
    try:
        slots.apply(plan)
    except BadPlan as error:
        return str(error)
    return ""


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages=schedules())
def test_what_goes_on_is_as_if_every_plan_were_checked(messages: list[pb.StepPlan]) -> None:
    reader, numbering, ours, checked = PlanReader(), Numbering(), table(), table()
    ours.apply(started())
    checked.apply(started())
    for message in messages:
        plan = reader.read(numbering.stamp(message))
        anew = replace(plan, slots=plan.slots.copy(), flags=plan.flags.copy(), counts=plan.counts.copy())
        said = outcome(checked, anew)
        assert outcome(ours, plan) == said and not anew.goes_on
        if said:
            return
        assert (plan.positions == anew.positions).all()
        for name in ("alive", "has_sampled", "filled", "planned", "block_counts", "pages"):
            assert (getattr(ours, name) == getattr(checked, name)).all(), name


def test_steps_of_the_same_rows_go_on_with_the_pages_that_they_get() -> None:
    reader, numbering, slots = PlanReader(), Numbering(), table()
    slots.apply(started())
    gone_on = []
    for position in range(14, 20):
        is_new = position == 16
        message = pb.StepPlan(
            slots=column([2, 0]),
            flags=bytes([CONTINUE | SAMPLE] * 2),
            counts=column([1, 1]),
            positions=column([position] * 2),
            new_block_counts=column([int(is_new)] * 2),
            new_pages=column([40, 41] if is_new else []),
        )
        plan = reader.read(numbering.stamp(message))
        slots.apply(plan)
        gone_on.append(plan.goes_on)
    assert gone_on == [False, True, True, True, True, True]
    assert slots.pages[0, [2, 0], 1].tolist() == [40, 41]
    slots.clear()
    again = PlanReader().read(Numbering().stamp(message))
    assert outcome(slots, again) == "slots: slot 2 holds no sequence, and its row does not start one"
