"""Prepare: sizes the cache, warms the device up and fits the cost model.

Called once by the service, before Run. Times real steps of made-up sequences, cheapest first, within a
budget, so that a small model is ready at once and a large one is still measured.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from penstock.engine.cache_groups import cache_groups
from penstock.engine.cache_size import (
    SHORTEST_CONTEXT,
    count_draft_states,
    count_pages,
    count_snapshots,
    longest_that_fits,
    spare,
    state_places_bytes,
)
from penstock.engine.drafter import FLAG
from penstock.engine.engine import Engine
from penstock.engine.kv_cache import numbers_of, page_bytes
from penstock.engine.plan import CONTINUE, NO_SNAPSHOT, OWN_DRAFTS, SAMPLE, START, Plan, greedy_starts
from penstock.engine.slots import Limits
from penstock.engine.state_cache import state_bytes
from penstock.engine.step_memory import PROMPT_LOGITS_AT_ONCE, torch_step_bytes
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.engine.warm_up import warm_up
from penstock.errors import TooLittleMemory
from penstock.layers.module import packed_matrices
from penstock.loading.memory import Room, device_room
from penstock.models.packed_cache import Measured
from penstock.parallel.group import TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock.telemetry import log

WARM_UP_SECONDS = 0.25
# On a GPU kernels are loaded, and some compiled, when a shape is first seen.
WARM_UP_SECONDS_ON_GPU = 10.0
# Tokens of a prompt behind which a GPU has enough to do.
LONG_STEP = 2048
# A step is timed with all threads and with one, in turns, at least twice: up to so many times, as long as they took no more together.
SHORT_STEP_TURNS, SHORT_STEPS_NS = 8, 12e6
# A step that takes less than this share of what an earlier start has measured shows that it was measured beside other work.
FAR_FASTER = 0.5


def prepare(engine: Engine, request: pb.PrepareRequest) -> pb.Prepared:
    """Allocates for the request's limits. Raises ValueError naming the field, or TooLittleMemory."""
    config = engine.model.config
    # Padding and the decoder's start take positions beside those of input and output.
    most = config.max_positions + (2 * BLOCK_SIZE if engine.has_encoder else 0)
    longest = request.max_sequence_tokens or most
    for name in ("max_slots", "max_step_tokens"):
        if getattr(request, name) < 1:
            raise ValueError(f"{name} is 0")
    if longest > max(most, config.most_positions):
        raise ValueError(
            f"max_sequence_tokens is {longest}, and the model was made for {config.most_positions} "
            "(--max-total-tokens)"
        )
    if not 0 < request.memory_fraction <= 1:
        raise ValueError(f"memory_fraction is {request.memory_fraction:g}, not over 0 and at most 1")
    room = _free_room(engine)
    everyone = engine.group.everyone
    if request.max_sequence_tokens == 0:
        longest = everyone.least(_longest_that_fits(engine, request, room, most))
    drafter = engine.drafter
    if drafter is not None and longest > drafter.max_positions:
        raise ValueError(
            f"{FLAG}: the draft model was made for {drafter.max_positions} positions, and sequences have up to {longest}; "
            "lower --max-total-tokens"
        )
    if engine.has_encoder and min(request.max_step_tokens, longest) <= BLOCK_SIZE:
        raise ValueError(
            f"max_step_tokens or max_sequence_tokens is {min(request.max_step_tokens, longest)}, and an encoder's "
            f"shortest input takes {BLOCK_SIZE} beside the decoder's start"
        )
    available = _available(engine, request, room, _step_bytes_of_all(engine, request, longest))
    tables = engine.tables(longest)
    if drafter is not None and tables.full == 0:
        raise ValueError(
            f"{FLAG}: no layer of the model attends to every earlier token, and no page would keep what its draft model attends to"
        )
    snapshots, draft_states, states = 0, 0, 0
    max_step_drafts = request.max_step_drafts
    if config.has_state:
        held = state_bytes(config.state_shapes(engine.group), engine.arrays.itemsize)
        snapshots = _agreed(
            everyone,
            lambda: count_snapshots(held, request.max_slots, available),
            "another shard has too little memory for its recurrent states; lower --max-batch-size",
        )
        draft_states = everyone.least(count_draft_states(held, max_step_drafts, request.max_slots, available))
        if draft_states < max_step_drafts:
            log(
                "INFO",
                f"memory has room for the states of {draft_states} drafts in a step, instead of {max_step_drafts}",
                progress=True,
            )
        max_step_drafts = draft_states
        states = (request.max_slots + snapshots + draft_states) * held
        available = max(available - states, 0)
    pages = 0
    if tables.count:
        pages = _agreed(
            everyone,
            lambda: count_pages(
                _page_bytes(engine, tables),
                tables,
                request.max_slots,
                longest,
                request.max_step_tokens,
                request.max_cache_tokens,
                available,
                states,
            ),
            "another shard has too little memory for its KV cache; lower --max-total-tokens",
        )
    if longest < most and request.max_sequence_tokens == 0 and everyone.rank == 0:
        log(
            "WARN",
            f"the KV cache has room for sequences of up to {longest} tokens, and the model was made for "
            f"{config.max_positions}: longer requests are refused",
            progress=True,
        )
    engine.allocate(
        Limits(
            max_slots=request.max_slots,
            max_step_tokens=request.max_step_tokens,
            max_sequence_tokens=longest,
            pages=pages,
            block_size=BLOCK_SIZE,
            tables=tables,
            vocab_size=config.vocab_size,
            has_encoder=engine.has_encoder,
            max_side_positions=config.max_side_positions,
            max_step_drafts=max_step_drafts,
            has_state=config.has_state,
            snapshots=snapshots,
            draft_states=draft_states,
            adapters=len(engine.adapters),
            has_drafter=drafter is not None,
            # A GPU would launch such a step kernel by kernel, which takes longer than its drafts save.
            draft_trees=engine.verifies_trees and engine.device.type != "cuda",
        )
    )
    if engine.threads is not None:
        engine.threads.expected = None
        engine.threads.use(engine.threads.most)
    # What the draft model takes in beside prompts the router learns from what steps take.
    engine.drafter = None
    if engine.device.type == "cuda" and engine.group.everyone.size == 1:
        warm_up(engine)
    cost = _fit(_measure(engine)) if drafter is not None else _cost(engine, request)
    engine.drafter = drafter
    draft_cost = _measure_drafts(engine) if drafter is not None else None
    if engine.threads is not None:
        engine.threads.expected = lambda fed, attended: (
            cost.fixed_ns + cost.per_token_ns * fed + cost.per_context_token_ns * attended
        )
    engine.clear()
    return pb.Prepared(
        pages=pages,
        cost=cost,
        cache_bytes=_cache_bytes(engine),
        free_bytes=_free_bytes(engine),
        groups=_groups(engine, tables),
        snapshots=snapshots,
        draft_cost=draft_cost,
        draft_trees=engine.limits.draft_trees,
        draft_states=draft_states,
        max_sequence_tokens=longest,
    )


def _longest_that_fits(engine: Engine, request: pb.PrepareRequest, room: Room, most: int) -> int:
    """How long a sequence may be at most for this rank's memory and the KV cache that is asked for."""
    if engine.tables(most).count == 0:
        return most  # what is kept of a sequence is the same, however long it is
    config = engine.model.config
    state = state_bytes(config.state_shapes(engine.group), engine.arrays.itemsize) if config.has_state else 0

    def taken(longest: int) -> int:
        """By pages that hold a sequence, or those that are asked for, and one of zeros."""
        tables = engine.tables(longest)
        asked = tables.count * -(-request.max_cache_tokens // BLOCK_SIZE)
        pages = asked or tables.pages(longest, request.max_step_tokens)
        return (pages + 1) * _page_bytes(engine, tables)

    def holds(longest: int) -> bool:
        tables = engine.tables(longest)
        asked = tables.count * -(-request.max_cache_tokens // BLOCK_SIZE)
        if asked and asked < tables.pages(longest, request.max_step_tokens):
            return False
        return taken(longest) <= _available(engine, request, room, 0)

    def fits(longest: int) -> bool:
        left = _available(engine, request, room, _step_bytes_of_all(engine, request, longest))
        if state:
            left -= state_places_bytes(state, request.max_step_drafts, request.max_slots, left)
        return taken(longest) <= left

    shortest = min(SHORTEST_CONTEXT, request.max_cache_tokens or SHORTEST_CONTEXT)
    return longest_that_fits(shortest, most, holds, fits)


def _free_room(engine: Engine) -> Room:
    """The device's memory. What is mapped from the packed cache takes none that is counted as taken, and will: that of all ranks on this
    machine, who have about as much each.
    """
    room = device_room(engine.device)
    mapped = 0 if engine.packed_cache is None else engine.packed_cache.mapped_bytes
    return Room(room.total, max(room.free - mapped * engine.group.neighbours, 0))


def _available(engine: Engine, request: pb.PrepareRequest, room: Room, working: int) -> int:
    """Bytes for cache and states, where a step needs `working`."""
    return spare(
        room,
        engine.device,
        request.memory_fraction,
        held=weight_bytes(engine),
        working=working,
        neighbours=engine.group.neighbours,
    )


def _step_bytes_of_all(engine: Engine, request: pb.PrepareRequest, longest: int) -> int:
    """What the largest step needs beside weights and cache, with a draft model's."""
    slots, tokens = request.max_slots, request.max_step_tokens
    needed = _step_bytes(engine, slots, tokens, longest, request.max_step_drafts)
    return needed + (0 if engine.drafter is None else engine.drafter.working_bytes(slots, tokens, longest))


def _page_bytes(engine: Engine, tables: Tables) -> int:
    layers = numbers_of(engine.model.config.cached_layers(engine.group))
    drafted = 0 if engine.drafter is None else engine.drafter.page_bytes(tables)
    return page_bytes(tables, layers, engine.model.cache_shape, engine.arrays.itemsize) + drafted


def _groups(engine: Engine, tables: Tables) -> list[pb.CacheGroup]:
    rows, size = engine.model.cache_shape
    itemsize = engine.arrays.itemsize
    drafted = 0 if engine.drafter is None else engine.drafter.kv_bytes_per_token
    groups = cache_groups(
        engine.model.config, tables, engine.group, rows * size * itemsize, itemsize, drafted
    )
    return [
        pb.CacheGroup(
            kind=f"CACHE_KIND_{group.kind.upper()}",
            tables=group.tables,
            reach=group.reach,
            layers=group.layers,
            bytes=group.bytes,
        )
        for group in groups
    ]


def _cost(engine: Engine, request: pb.PrepareRequest) -> pb.CostModel:
    """What steps cost: measured, unless an earlier start of the same has done so, and has kept it beside the packed weights."""
    entry = None if engine.native is None else engine.native.entry
    if entry is None or engine.native is None:
        return _fit(_measure(engine))
    # No draft is in what is timed.
    without_drafts = pb.PrepareRequest()
    without_drafts.CopyFrom(request)
    without_drafts.ClearField("max_step_drafts")
    of = {
        "request": without_drafts.SerializeToString(deterministic=True).hex(),
        "threads": engine.native.threads,
        "processor": engine.device_name,
        "processors": len(os.sched_getaffinity(0)),
        "cache": engine.native.cache_format.name,
    }
    choices = [] if engine.threads is None else engine.threads.choices
    known = entry.measured(of)
    if known is not None and len(known.threads) != len(choices):
        known = None
    everyone = engine.group.everyone
    if not everyone.least(int(known is not None)):
        known = None  # what one rank measures takes all
    if known is not None:
        cost = pb.CostModel(
            fixed_ns=known.fixed_ns,
            per_token_ns=known.per_token_ns,
            per_context_token_ns=known.per_context_token_ns,
        )
        if not everyone.first_says(_is_faster(engine, known)):
            for choice, count in zip(choices, known.threads, strict=True):
                choice.settled = count
            return cost
        log("INFO", "steps are faster than an earlier start has found: they are measured anew", progress=True)
    cost = _fit(_measure(engine))
    costs = (cost.fixed_ns, cost.per_token_ns, cost.per_context_token_ns)
    entry.take_measured(of, Measured(*costs, [choice.settled for choice in choices]))
    return cost


def _is_faster(engine: Engine, known: Measured) -> bool:
    """Whether a small step takes far less than it did when it was measured: something else was computing then. That one takes more
    may be for what computes now, and says nothing."""
    rows, fed, cached = next(iter(_timed_shapes(engine)))
    _run(engine, rows, fed, cached)  # the first step pays for what is set up once
    attended = _attended(rows, fed, cached)
    expected = known.fixed_ns + rows * fed * known.per_token_ns + attended * known.per_context_token_ns
    return _fastest(engine, rows, fed, cached) < FAR_FASTER * expected


def _agreed(group: TensorGroup, count: Callable[[], int], elsewhere: str) -> int:
    """The fewest pages or snapshots that any rank has room for. Raises TooLittleMemory on all ranks or on none."""
    try:
        counted, refusal = count(), None
    except TooLittleMemory as error:
        counted, refusal = 0, error
    counted = group.least(counted)
    if refusal is not None:
        raise refusal
    if counted == 0:
        raise TooLittleMemory(elsewhere)
    return counted


def _cache_bytes(engine: Engine) -> int:
    held = engine.cache.bytes + (0 if engine.states is None else engine.states.bytes)
    if engine.drafter is not None:
        held += engine.limits.pages * engine.drafter.page_bytes(engine.limits.tables)
    return held


def weight_bytes(engine: Engine) -> int:
    """Bytes of the weights, each counted once, those of a draft model among them."""
    held = sum(int(tensor.nbytes) for tensor in engine.model.weights())
    return held + (0 if engine.drafter is None else engine.drafter.weight_bytes)


def kv_bytes_per_token(engine: Engine) -> int:
    """Bytes that this rank's cache holds for one token."""
    rows, size = engine.model.cache_shape
    layers = numbers_of(engine.model.config.cached_layers(engine.group))
    drafted = 0 if engine.drafter is None else engine.drafter.kv_bytes_per_token
    return len(layers) * rows * size * engine.arrays.itemsize + drafted


def held_state_bytes(engine: Engine) -> int:
    """Bytes that this rank holds of a sequence, however long it is; 0: it has no recurrent layer."""
    return state_bytes(engine.model.config.state_shapes(engine.group), engine.arrays.itemsize)


def _step_bytes(
    engine: Engine, max_slots: int, max_step_tokens: int, longest: int, max_step_drafts: int
) -> int:
    config, native = engine.model.config, engine.native
    if native is None:
        needed = torch_step_bytes(
            config,
            engine.dtype,
            engine.device,
            engine.deterministic,
            engine.group.everyone.size,
            max_slots,
            max_step_tokens,
            longest,
            max_step_drafts,
        )
        if engine.adapters:
            from penstock.models import adapted_models

            needed += adapted_models.step_bytes(engine.model, min(max_step_tokens, max_slots * longest))
        return needed + _written_out_bytes(engine)
    rows = max(max_slots + max_step_drafts, PROMPT_LOGITS_AT_ONCE)
    # Logits, and what sampling makes of them in four steps.
    return native.workspace_bytes(max_step_tokens, rows, longest) + 4 * 4 * rows * config.vocab_size


def _written_out_bytes(engine: Engine) -> int:
    """Of the largest matrix of 8 or 4 bits as products of many rows have it (`gpu/quantized.py`): in graphs of decodes, in mixed ones and in
    steps without a graph.
    """
    numbers = max((one.outputs * one.inputs for one in packed_matrices(engine.model)), default=0)
    itemsize: int = engine.dtype.itemsize
    return 3 * numbers * itemsize


def _free_bytes(engine: Engine) -> int:
    room = device_room(engine.device)
    if engine.device.type == "cpu":
        # Its pages are not taken yet.
        return max(room.free - _cache_bytes(engine), 0)
    return room.free


def _shapes(limits: Limits, on_gpu: bool = False) -> Iterator[tuple[int, int, int]]:
    """(rows, tokens of each, cached tokens of each) worth timing, cheapest first."""
    slots, tokens = limits.max_slots, limits.max_step_tokens
    longest = limits.max_sequence_tokens
    context = max(min(longest - 2, 1024), 0)  # a sequence that goes on has one more
    yield from (
        (1, 1, 0),
        (1, 1, 0),
        (1, 1, context),
        (min(slots, tokens, 8), 1, 0),
        (1, min(tokens, longest, 32), 0),
        (min(slots, tokens, 8), 1, context),
        (min(slots, tokens, 32), 1, 0),
        (1, min(tokens, longest, 128), 0),
        (min(slots, tokens, 32), 1, context),
        (1, min(tokens, longest, 512), 0),
    )
    if on_gpu:
        yield 1, min(tokens, longest, LONG_STEP), 0


def _read_by_encoders(limits: Limits) -> Iterator[tuple[int, int, int]]:
    """The same where a sequence begins with what an encoder reads: (rows, positions fed, positions before them)."""
    for rows, fed, cached in _shapes(limits):
        shape = (
            (rows, 1, max(cached, BLOCK_SIZE))
            if cached
            else (rows, -(-fed // BLOCK_SIZE) * BLOCK_SIZE + 1, 0)
        )
        read = _encoder_tokens(*shape[1:])
        side = limits.max_side_positions or limits.max_sequence_tokens
        end = shape[1] + shape[2]
        if (
            rows * shape[1] <= limits.max_step_tokens
            and end <= limits.max_sequence_tokens
            and max(read, end - read) <= side
        ):
            yield shape


def _encoder_tokens(fed: int, cached: int) -> int:
    """What the encoder of a made-up sequence reads: all but the first of the decoder, or half of what is cached."""
    return fed - 1 if cached == 0 else max(cached // (2 * BLOCK_SIZE), 1) * BLOCK_SIZE


def _measure(engine: Engine) -> list[tuple[int, int, float]]:
    """(tokens fed, tokens attended to, nanoseconds) of steps, as many as the budget allows."""
    measured: list[tuple[int, int, float]] = []
    on_gpu = engine.device.type == "cuda"
    deadline = time.perf_counter() + (WARM_UP_SECONDS_ON_GPU if on_gpu else WARM_UP_SECONDS)
    for rows, fed, cached in _timed_shapes(engine):
        if not measured:
            _run(engine, rows, fed, cached)  # the first step pays for what is set up once
        slowest = max((ns * max(rows * fed / tokens, 1) for tokens, _, ns in measured), default=0.0)
        # More tokens in a step cost less each; the guess is for both runs of the shape.
        is_late = time.perf_counter() + slowest * 2e-9 / 8 > deadline
        # Steps of one token alone say nothing of what a token costs. Every rank runs every step, or none does.
        if len(measured) >= 3 and measured[-1][0] > 1 and engine.group.everyone.first_says(is_late):
            break
        _run(engine, rows, fed, cached)
        measured.append((rows * fed, _attended(rows, fed, cached), _fastest(engine, rows, fed, cached)))
    return measured


def _timed_shapes(engine: Engine) -> Iterator[tuple[int, int, int]]:
    if engine.has_encoder:
        return _read_by_encoders(engine.limits)
    return _shapes(engine.limits, engine.device.type == "cuda")


def _attended(rows: int, fed: int, cached: int) -> int:
    """Tokens that are attended to: each token's own, and all before it."""
    return rows * (fed * cached + fed * (fed + 1) // 2)


def _fastest(engine: Engine, rows: int, fed: int, cached: int) -> float:
    """Times a step with all threads, and with one where that may be chosen; the time with those that it chooses for its kind."""
    threads = engine.threads
    if threads is None:
        return min(_run(engine, rows, fed, cached) for _ in range(2))
    # In turns, and short steps more often: memory is as slow as what other machines read beside us, for milliseconds at a time.
    best = alone = float("inf")
    spent = 0.0
    for turn in range(SHORT_STEP_TURNS):
        if turn >= 2 and spent > SHORT_STEPS_NS:
            break
        threads.use(threads.most)
        together = _run(engine, rows, fed, cached)
        threads.use(1)
        by_one = _run(engine, rows, fed, cached)
        best, alone, spent = min(best, together), min(alone, by_one), spent + together + by_one
    threads.use(threads.most)
    # The last of a kind that is measured is the largest.
    choice = threads.choice(rows * fed)
    choice.settle(alone, best)
    return alone if choice.settled == 1 else best


def _run(engine: Engine, rows: int, fed: int, cached: int) -> float:
    """Times one step of made-up sequences. All share pages: what they hold does not matter. Where decodes are recorded, a token is fed as
    they feed it, by a second step.
    """
    goes_on = engine.graphs is not None and fed == 1 and fed + cached < engine.limits.max_sequence_tokens
    blocks = -(-(fed + cached + int(goes_on)) // BLOCK_SIZE)
    none = np.zeros(0, np.uint32)
    shared = np.arange(blocks * engine.limits.tables.count, dtype=np.uint32) % max(engine.limits.pages, 1)
    starts = greedy_starts(rows)
    if engine.has_encoder:
        read = np.full(rows, _encoder_tokens(fed, cached), np.uint32)
        starts = dataclasses.replace(starts, encoder_counts=read)
    if engine.limits.has_state:
        source = np.full(rows, 0 if cached else NO_SNAPSHOT, np.uint32)
        starts = dataclasses.replace(starts, state_sources=source)
    if engine.limits.adapters:
        starts = dataclasses.replace(starts, adapters=np.zeros(rows, np.uint32))
    plan = Plan(
        number=1,
        released=none,
        slots=np.arange(rows),
        flags=np.full(rows, START | SAMPLE, np.uint8),
        positions=np.full(rows, cached),
        counts=np.full(rows, fed),
        tokens=np.zeros(rows * fed, np.uint32),
        new_block_counts=np.full(rows, blocks),
        new_pages=np.tile(shared, rows),
        prompt_targets=none,
        starts=starts,
    )
    # All begin together: what the last stage of a pipeline measures is then the whole step.
    engine.group.everyone.least(0)
    began = time.perf_counter_ns()
    engine.step(plan)
    if goes_on:
        flags, positions = np.full(rows, CONTINUE | SAMPLE, np.uint8), plan.positions + 1
        plan = Plan(
            2,
            none,
            plan.slots,
            flags,
            positions,
            plan.counts,
            none,
            np.zeros(rows, np.int64),
            none,
            none,
            None,
        )
        began = time.perf_counter_ns()
        engine.step(plan)
    return float(time.perf_counter_ns() - began)


def _measure_drafts(engine: Engine) -> pb.CostModel | None:
    """What one more draft costs, by the number of rows that get one. None: no row can have any."""
    measured: list[tuple[int, float]] = []
    for rows in (1, 2, 8, 32):
        drafts = min(4, engine.limits.max_step_drafts // rows, engine.limits.max_step_tokens // rows - 1)
        rows_fit = rows <= engine.limits.max_slots
        room = engine.limits.max_sequence_tokens > BLOCK_SIZE + drafts
        if drafts < 1 or not rows_fit or not room:
            break
        for _ in range(2):  # the first pays for what is set up once
            taken = min(_draft(engine, rows, drafts) for _ in range(2))
        measured.append((rows, taken / drafts))
    if not measured:
        return None
    rows_measured, times = (np.array(column, np.float64) for column in zip(*measured, strict=True))
    per_row = 0.0
    if len(measured) > 1:
        # Least squares of relative errors.
        columns = np.stack((np.ones_like(times), rows_measured), 1) / times[:, None]
        per_row = max(float(np.linalg.lstsq(columns, np.ones_like(times), rcond=None)[0][1]), 0.0)
    fixed = float(np.median(times - per_row * rows_measured))
    return pb.CostModel(fixed_ns=max(fixed, 0.1 * float(times.min())), per_token_ns=per_row)


def _draft(engine: Engine, rows: int, drafts: int) -> float:
    """How long the drafter takes for so many drafts of made-up sequences, in nanoseconds."""
    engine.clear()
    _run(engine, rows, 1, 0)
    none = np.zeros(0, np.uint32)
    plan = Plan(
        number=2,
        released=none,
        slots=np.arange(rows),
        flags=np.full(rows, CONTINUE | SAMPLE | OWN_DRAFTS, np.uint8),
        positions=np.ones(rows, np.int64),
        counts=np.full(rows, 1 + drafts),
        tokens=none,
        new_block_counts=np.zeros(rows, np.int64),
        new_pages=none,
        prompt_targets=none,
        starts=None,
        drafts=np.full(rows, drafts),
    )
    return float(engine.step(plan).draft_ns)


def _fit(measured: list[tuple[int, int, float]]) -> pb.CostModel:
    """Least squares of relative errors, no term negative."""
    tokens, contexts, times = (np.array(column, np.float64) for column in zip(*measured, strict=True))
    columns = np.stack((np.ones_like(tokens), tokens, contexts), 1) / times[:, None]
    # Of steps that are alike in something nothing says what that costs.
    active = [0, *(at for at in (1, 2) if len(np.unique((tokens, contexts)[at - 1])) > 1)]
    terms = np.zeros(3)
    while active:
        solution = np.linalg.lstsq(columns[:, active], np.ones_like(times), rcond=None)[0]
        if (solution >= 0).all():
            terms[active] = solution
            break
        active.remove(active[int(np.argmin(solution))])
    # A step is never free, whatever the fit says.
    fixed = max(terms[0], 0.1 * float(times.min()))
    return pb.CostModel(fixed_ns=fixed, per_token_ns=float(terms[1]), per_context_token_ns=float(terms[2]))
