"""A plan that goes on from the one before is taken over without a second look, and comes to the same as if it had been looked at."""

from dataclasses import replace

import numpy as np
import pytest
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
    return SlotTable(Limits(SLOTS, 64, 64, pages=64, block_size=16, vocab_size=99, max_step_drafts=8))


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
        "drafts",
        "drafts",
        "drafts",
        "bad drafts",
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
def schedules(draw: st.DrawFn) -> list[tuple[pb.StepPlan, list[int]]]:
    """Plans that decode, with here and there a change, some of them wrong; and how many drafts of each row turn out to be."""
    lengths, rows, flag, made = [14] * SLOTS, [0, 1, 2], CONTINUE | SAMPLE, []
    bounds = list(lengths)  # what lengths may be, as far as the router knows
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
        counts, rejected = [1] * len(rows), [0] * len(rows)
        if change in ("drafts", "bad drafts"):
            drafts = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
            if any(drafts):
                plan.drafts, counts = column(drafts), [1 + few for few in drafts]
                rejected = [draw(st.integers(0, few)) for few in drafts]
                few = sum(drafts) - (change == "bad drafts" and draw(st.booleans()))
                plan.tokens = column(
                    [draw(st.integers(97, 98 + (change == "bad drafts"))) for _ in range(few)]
                )
                if change == "bad drafts" and draw(st.booleans()):
                    counts[-1] += 1
        if draw(st.booleans()):  # it has heard of the last steps
            bounds = list(lengths)
        positions = [bounds[row] for row in rows]
        if change in ("too far", "too near"):
            positions[-1] += 1 if change == "too far" else -1
        for row, position, count, wrong in zip(rows, positions, counts, rejected, strict=True):
            lengths[row] = min(position, lengths[row]) + count - wrong
            bounds[row] = position + count
        plan.slots, plan.flags, plan.counts = column(rows), bytes([flag] * len(rows)), column(counts)
        plan.positions, plan.new_block_counts = column(positions), column(blocks)
        made.append((plan, rejected))
    return made


def outcome(slots: SlotTable, plan: Plan) -> str:
    try:
        slots.apply(plan)
    except BadPlan as error:
        return str(error)
    return ""


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages=schedules())
def test_what_goes_on_is_as_if_every_plan_were_checked(
    messages: list[tuple[pb.StepPlan, list[int]]],
) -> None:
    reader, numbering, ours, checked = PlanReader(), Numbering(), table(), table()
    ours.apply(started())
    checked.apply(started())
    for message, rejected in messages:
        plan = reader.read(numbering.stamp(message))
        anew = replace(plan, slots=plan.slots.copy(), flags=plan.flags.copy(), counts=plan.counts.copy())
        said = outcome(checked, anew)
        assert outcome(ours, plan) == said and not anew.goes_on
        if said:
            return
        assert (plan.positions == anew.positions).all()
        for name in ("alive", "has_sampled", "filled", "planned", "block_counts", "pages"):
            assert (getattr(ours, name) == getattr(checked, name)).all(), name
        if len(plan.drafts):
            ours.settle(plan.slots, np.array(rejected))
            checked.settle(plan.slots, np.array(rejected))


def test_chains_of_drafts_go_on_and_what_cannot_be_one_is_looked_at() -> None:
    reader, numbering, slots = PlanReader(), Numbering(), table()
    slots.apply(started())

    def apply(positions: list[int], drafts: list[int], rejected: list[int], tokens: list[int]) -> Plan:
        message = pb.StepPlan(
            slots=column([2, 0]),
            flags=bytes([CONTINUE | SAMPLE] * 2),
            counts=column([1 + few for few in drafts]),
            positions=column(positions),
            new_block_counts=column([0, 0]),
            tokens=column(tokens),
            drafts=column(drafts) if any(drafts) else b"",
        )
        plan = reader.read(numbering.stamp(message))
        slots.block_counts[:] = 4
        slots.apply(plan)
        if any(drafts):
            slots.settle(plan.slots, np.array(rejected))
        return plan

    assert not apply([14, 14], [2, 0], [1, 0], [7, 8]).goes_on, "it is the first"
    bounded = apply([17, 15], [0, 0], [0, 0], [])
    assert bounded.goes_on and bounded.positions.tolist() == [16, 15]
    both = apply([18, 16], [1, 3], [0, 3], [7, 8, 9, 7])
    assert both.goes_on and both.positions.tolist() == [17, 16]
    known = apply([19, 17], [0, 0], [0, 0], [])
    assert known.goes_on and slots.filled[[2, 0]].tolist() == [20, 18]
    again = apply([20, 18], [0, 0], [0, 0], [])
    assert again.goes_on and slots.planned[[2, 0]].tolist() == [21, 19]
    for drafts, tokens, words in (
        ([9, 0], [7] * 9, "max_step_drafts"),
        ([1, 0], [99], "tokens in the vocabulary"),
        ([2, 0], [7], "tokens: 1 entries"),
    ):
        with pytest.raises(BadPlan, match=words):
            apply([21, 19], drafts, [0, 0], tokens)


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
