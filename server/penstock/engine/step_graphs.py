"""Steps as CUDA graphs: a step's kernels are launched by one call, and Python has no part in it.

Made by the engine for a decoder on a GPU whose attention is the kernel of `penstock_kernels.gpu`. There are two kinds. A graph of decodes has so many
rows, each of which feeds the token that its slot sampled last: what slots they are, at which positions, and with which states, is all that
such a step sends, and what follows from it (tokens, pages, rotary tables) is computed in the graph, logits as well. A mixed graph has some
single tokens and some of prompts, in pieces of any size: drafts that are verified, and prompts that come in beside decodes. A step is filled
up to the next larger graph, with rows of a slot that nobody has. Behind decodes a second graph chooses the tokens, where all rows
choose in a usual way (`choice_graphs`).

Long prompts are launched one kernel after the other: a GPU takes longer for each than the host does.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.choice_graphs import ChoiceGraphs, chosen, draws_of
from penstock.engine.columns import I64
from penstock.engine.decoder_steps import DecoderSteps
from penstock.engine.device_pages import DevicePages, attentions, pieces_of
from penstock.engine.logits_indices import LogitsIndices
from penstock.engine.plan import MASKED, Plan, are_decodes
from penstock.engine.slot_sampling import Sampled, SlotSampling
from penstock.engine.tables import BLOCK_SIZE
from penstock.errors import one_line
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Model
from penstock.models.step import Step
from penstock.telemetry import log
from penstock_kernels.gpu.choice import GRAPHS

# Rows of a graph of decodes, and single tokens of a mixed one, at most. Weights are read once for all, so that a few more cost little.
MOST_ROWS = 256

# Of mixed graphs: single tokens, tokens of prompts, and pieces that these come in.
MIXED_SINGLES = (0, 8, 64, MOST_ROWS)
MIXED_TOKENS: tuple[int, ...] = (128, 512, 1024)
MIXED_PIECES = 32


@dataclass(slots=True)
class Replayed:
    """What a step has computed, or will have when the device is there."""

    indices: LogitsIndices
    ids_T: Tensor
    hidden_TE: Tensor
    logits_SV: Tensor | None  # None: not in the graph
    size: int = 0  # of the graph of decodes; 0: it was no such graph


def sizes(most: int) -> list[int]:
    """Rows of the graphs of decodes, where a step has up to `most`."""
    found, rows = [], 1
    while rows < most and rows < MOST_ROWS:
        found.append(rows)
        rows += max(1, 1 << max(rows.bit_length() - 2, 0)) if rows > 4 else rows
    return [*found, min(most, MOST_ROWS)]


def mixed_sizes(most: int, most_tokens: int, has_drafts: bool) -> list[tuple[int, int]]:
    """Single tokens and tokens of prompts of mixed graphs, where a step has up to `most` and `most_tokens`."""
    singles = [size for size in MIXED_SINGLES if size < most] + [min(most, MOST_ROWS)]
    tokens = [0] if has_drafts else []
    tokens += [size for size in MIXED_TOKENS if size <= most_tokens]
    return [(single, many) for many in tokens for single in sorted(set(singles)) if single + many]


class CaptureGoesOn(Exception):
    """No step can be served after this. No RuntimeError: what else cannot be recorded is served without graphs."""


# What a graph computes: of a step tokens and hidden states, of a choice what is told of it.
Compute = Callable[[], tuple[Tensor, ...]]


def capture(
    compute: Compute, device: torch.device, pool: Any
) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """How to compute it again, and where the results are then. `pool`: of memory, shared by graphs of which one runs at a time."""
    # Kernels are compiled and libraries take their workspace before anything is recorded.
    aside = _aside(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        compute()
    own = torch.cuda.current_stream(device)
    own.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    failed: Exception | None = None
    try:
        # Another thread may be asked meanwhile whether the device answers.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            try:
                results = compute()
            except Exception as error:
                failed = error
                raise
    except RuntimeError as error:
        if error is not failed:
            _end_capture(device, pool, error)
        raise
    finally:
        # Some versions of torch stay on the capture's stream where its end fails.
        torch.cuda.set_stream(own)
    return graph.replay, results


def _end_capture(device: torch.device, pool: Any, error: RuntimeError) -> None:
    """Where a capture did not end, torch's allocator goes on as if it were underway: it gives no memory back, so that steps run out of it, and
    asking it to is an error. Tells it the end. Raises CaptureGoesOn where that does not help.
    """
    number = torch.cuda.current_device() if device.index is None else device.index
    try:
        with suppress(RuntimeError):  # what has failed was behind that end
            torch._C._cuda_endAllocateToPool(number, pool)
        torch.cuda.empty_cache()
    except (RuntimeError, AttributeError) as left:
        raise CaptureGoesOn(
            f"a step could not be recorded as a CUDA graph ({one_line(error)}), and torch's allocator has not recovered "
            f"({one_line(left)}): start with {GRAPHS}=none, which serves without graphs"
        ) from error


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """One stream for all graphs: libraries keep a workspace for each that they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def keeping_garbage() -> Iterator[None]:
    """Collects garbage now, and none meanwhile: graphs that nobody has any more, of an engine that was released, must not be freed
    while others are captured.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class Captured:
    """A graph, and where it reads and writes."""

    replay: Callable[[], None]
    compute: Compute  # what it reads is kept with it
    columns: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    def run(self, *columns: np.ndarray[Any, Any]) -> None:
        """Runs it on these, which are sent without waiting for what the device computes."""
        for here, given in zip(self.columns, columns, strict=True):
            here.copy_(torch.from_numpy(given), non_blocking=True)
        self.replay()


class StepGraphs:
    """The graphs of one engine."""

    def __init__(
        self,
        model: Model,
        caches: list[LayerCache],
        steps: DecoderSteps,
        pages: DevicePages,
        last_sampled: Tensor,
        logits_SV: Tensor,
        spare_place: int,
    ) -> None:
        """Captures them. `logits_SV`: where logits are written. `spare_place`: of a state that nobody has."""
        self.model, self.caches, self.steps, self.pages = model, caches, steps, pages
        self.last_sampled, self.logits_SV, self.spare_place = last_sampled, logits_SV, spare_place
        limits = steps.slots.limits
        self.spare_row = steps.geometry.zero_row + BLOCK_SIZE
        began = time.perf_counter()
        pool = torch.cuda.graph_pool_handle()
        shapes = sizes(limits.max_slots)
        self.decodes = self._all(shapes, self._decodes, pool)
        # They run behind those, and may use the same memory.
        self.choices = ChoiceGraphs(last_sampled, logits_SV)
        self.greedy = self._all(shapes, lambda size: self.choices.greedy(self._slots_of(size)), pool)
        self.drawn = self._all(shapes, lambda size: self.choices.drawn(self._slots_of(size)), pool)
        # Runs of a recurrent layer are told apart on the host.
        mixed = []
        if not steps.geometry.has_state:
            singles = limits.max_slots + limits.max_step_drafts
            mixed = mixed_sizes(singles, limits.max_step_tokens, limits.max_step_drafts > 0)
        self.mixed = self._all(mixed, self._mixed, torch.cuda.graph_pool_handle())
        log(
            "INFO",
            f"recorded decodes of 1 to {max(self.decodes)} rows and mixed steps as {len(self.decodes)} and {len(self.mixed)} graphs"
            f" in {time.perf_counter() - began:.1f} s",
            progress=True,
        )

    def run(self, plan: Plan) -> Replayed | None:
        """Computes a step that `SlotTable.apply` has accepted, where a graph fits; else None."""
        if are_decodes(plan):
            return self._run_decodes(plan)
        return self._run_mixed(plan) if self.mixed else None

    def _run_decodes(self, plan: Plan) -> Replayed | None:
        rows = len(plan.slots)
        size = min((size for size in self.decodes if size >= rows), default=0)
        if not size:
            return None
        self.pages.follow(plan)
        columns = np.zeros((3, size), np.int32)
        columns[0, rows:], columns[2, rows:] = self.pages.spare_slot, self.spare_place
        columns[0, :rows], columns[1, :rows] = plan.slots, plan.positions
        states = self.steps.slots.states
        if states is not None:
            columns[2, :rows] = states.of_slots[plan.slots]
        captured = self.decodes[size]
        captured.run(columns)
        every = np.arange(rows)
        indices = LogitsIndices(
            sample_rows=every,
            sample_tokens=every,
            sample_positions=plan.positions + 1,
            prompt_tokens=every[:0],
        )
        ids_R, hidden_RE = captured.results
        return Replayed(indices, ids_R[:rows], hidden_RE[:rows], self.logits_SV[:rows], size)

    def choose(
        self, plan: Plan, replayed: Replayed, sampler: SlotSampling, to_host: Callable[[Tensor], Tensor]
    ) -> Sampled | None:
        """Chooses the tokens of such a step where graphs do, and leaves them to the next one. On the host once what has been asked for is
        done; None: `sampler` has to.
        """
        slots, size = plan.slots, replayed.size
        if not size or not sampler.are_simple[slots].all() or (plan.flags & MASKED).any():
            return None
        if (sampler.temperatures[slots] > 0).any():
            captured = self.drawn[size]
            captured.run(draws_of(sampler, slots, replayed.indices.sample_positions, size))
        else:
            captured = self.greedy[size]
            captured.run()
        return chosen(to_host(captured.results[0]).numpy(), sampler.top_counts[slots])

    def _run_mixed(self, plan: Plan) -> Replayed | None:
        if plan.trees is not None or int(plan.counts.sum()) > max(map(sum, self.mixed)):
            return None
        metadata = self.steps.lay_out(plan, long_prompts=False)
        pieces = metadata.pieces
        if pieces is None:
            return None
        singles, tokens, many = pieces.decodes, pieces.queries, pieces.columns_5P.shape[1] - pieces.decodes
        fitting = [shape for shape in self.mixed if shape[0] >= singles and shape[1] >= tokens]
        if not fitting or many > MIXED_PIECES:
            return None
        size, most_tokens = min(fitting, key=sum)
        captured = self.mixed[size, most_tokens]
        # Singles, what fills them up, and pieces of prompts; behind these pieces without tokens.
        moved = size - singles
        columns = np.zeros((5, size + MIXED_PIECES), np.int32)
        columns[0, :size] = self.pages.spare_slot
        columns[2, :size] = np.arange(size)
        columns[3, :size] = 1
        columns[:4, :singles] = pieces.columns_5P[:4, :singles]
        columns[:4, size : size + many] = pieces.columns_5P[:4, singles:]
        columns[2, size : size + many] += moved
        columns[4] = tokens
        columns[4, :many] = pieces.columns_5P[4, :many]
        given = np.zeros(size + most_tokens, np.int64)
        given[: len(plan.tokens)] = plan.tokens
        sources_T = metadata.sources_T
        sources_T = np.where(
            sources_T < len(plan.tokens), sources_T, sources_T - len(plan.tokens) + len(given)
        )
        tables = len(metadata.slot_mappings)
        by_token = np.zeros((2 + tables, size + most_tokens), np.int64)
        by_token[2:] = self.spare_row
        for row, column_T in enumerate((sources_T, metadata.positions_T, *metadata.slot_mappings)):
            by_token[row, :singles] = column_T[:singles]
            by_token[row, size : size + tokens] = column_T[singles:]
        captured.run(columns, by_token, given)
        ids_T, hidden_TE = captured.results
        return Replayed(_moved(metadata.logits_indices, singles, moved), ids_T, hidden_TE, None)

    def _slots_of(self, size: int) -> Tensor:
        """Where a graph of decodes reads its rows' slots."""
        (columns_3R,) = self.decodes[size].columns
        return columns_3R[0]

    def _all(
        self, shapes: list[Any], record: Callable[[Any], tuple[Compute, tuple[Tensor, ...]]], pool: Any
    ) -> dict[Any, Captured]:
        """Graphs of these shapes, which come with rising size. `pool`: of the memory that they share with others that do not run meanwhile."""
        made = {}
        # The largest first: what it takes is enough for the others.
        with keeping_garbage():
            for shape in reversed(shapes):
                compute, columns = record(shape)
                replay, results = capture(compute, self.pages.device, pool)
                made[shape] = Captured(replay, compute, columns, results)
        return made

    def _decodes(self, rows: int) -> tuple[Compute, tuple[Tensor, ...]]:
        columns = np.zeros((3, rows), np.int32)
        columns[0], columns[2] = self.pages.spare_slot, self.spare_place
        columns_3R = torch.from_numpy(columns).to(self.pages.device)
        ones_R = torch.ones(rows, dtype=torch.int32, device=self.pages.device)
        firsts_R = torch.arange(rows, dtype=torch.int32, device=self.pages.device)
        return partial(self._compute_decodes, columns_3R, firsts_R, ones_R), (columns_3R,)

    def _compute_decodes(self, columns_3R: Tensor, firsts_R: Tensor, ones_R: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and hidden states; logits where they are wanted."""
        pages, rows = self.pages, len(firsts_R)
        slots_R, positions_R, places_R = columns_3R.to(torch.int64)
        ids_R = self.last_sampled.index_select(0, slots_R)
        blocks_R, offsets_R = positions_R // BLOCK_SIZE, positions_R % BLOCK_SIZE
        slot_mappings = [
            pages_SW[slots_R, blocks_R].to(torch.int64) * BLOCK_SIZE + offsets_R
            for pages_SW in pages.pages_BSW
        ]
        columns_5R = torch.stack((columns_3R[0], columns_3R[1], firsts_R, ones_R, firsts_R))
        states = ops.StateMetadata(places_R, []) if self.steps.geometry.has_state else None
        hidden_RE = self._forward(ids_R, positions_R, slot_mappings, columns_5R, rows, 0, states)
        self.model.logits(hidden_RE, self.logits_SV[:rows])
        return ids_R, hidden_RE

    def _mixed(self, shape: tuple[int, int]) -> tuple[Compute, tuple[Tensor, ...]]:
        singles, tokens = shape
        device, tables = self.pages.device, len(self.pages.pages_BSW)
        columns_5P = torch.zeros((5, singles + MIXED_PIECES), dtype=torch.int32, device=device)
        columns_5P[0] = self.pages.spare_slot
        columns_5P[2, :singles] = torch.arange(singles, dtype=torch.int32, device=device)
        columns_5P[3, :singles] = 1
        by_token_CT = torch.zeros((2 + tables, singles + tokens), dtype=torch.int64, device=device)
        by_token_CT[2:] = self.spare_row
        given_T = torch.zeros(singles + tokens, dtype=torch.int64, device=device)
        columns = (columns_5P, by_token_CT, given_T)
        return partial(self._compute_mixed, *columns, singles, tokens), columns

    def _compute_mixed(
        self, columns_5P: Tensor, by_token_CT: Tensor, given_T: Tensor, singles: int, tokens: int
    ) -> tuple[Tensor, Tensor]:
        sources_T, positions_T, *slot_mappings = by_token_CT
        ids_T = torch.cat((given_T, self.last_sampled)).index_select(0, sources_T)
        return ids_T, self._forward(ids_T, positions_T, slot_mappings, columns_5P, singles, tokens, None)

    def _forward(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        slot_mappings: list[Tensor],
        columns_5P: Tensor,
        decodes: int,
        queries: int,
        states: ops.StateMetadata | None,
    ) -> Tensor:
        steps, geometry = self.steps, self.steps.geometry
        pieces = pieces_of(columns_5P, decodes, queries, self.pages)
        step = Step(
            ids_T,
            positions_T,
            [rope.at(positions_T) for rope in steps.ropes],
            slot_mappings,
            attentions(pieces, self.pages, geometry.windows, geometry.views),
            states,
            rope_tables=steps.ropes,
        )
        hidden_TE: Tensor = self.model.forward(step, self.caches)
        return hidden_TE


def _moved(indices: LogitsIndices, singles: int, by: int) -> LogitsIndices:
    """Where what was behind the single tokens is moved further back."""

    def moved(tokens: I64) -> I64:
        return np.where(tokens < singles, tokens, tokens + by)

    return LogitsIndices(
        sample_rows=indices.sample_rows,
        sample_tokens=moved(indices.sample_tokens),
        sample_positions=indices.sample_positions,
        prompt_tokens=moved(indices.prompt_tokens),
    )
