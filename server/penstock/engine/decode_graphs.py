"""Steps of decodes as CUDA graphs: a step's kernels are launched by one call, and Python has no part in it.

Made by the engine for a decoder on a GPU whose attention is the kernel of `penstock_kernels.gpu`. A graph is of so many rows, each of
which feeds the token that its slot sampled last; a step with fewer is filled up with rows of a slot that nobody has. Which slots they are, at which
positions, and with which states, is all that a step sends: what follows from it (tokens, pages, rotary tables) is computed in the graph.
From hidden states to logits everything is in it; sampling is not, since every row may sample in its own way.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.decoder_steps import DecoderSteps
from penstock.engine.device_pages import DevicePages, attentions
from penstock.engine.logits_indices import LogitsIndices
from penstock.engine.plan import Plan
from penstock.engine.tables import BLOCK_SIZE
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Model
from penstock.models.step import Step
from penstock.telemetry import log
from penstock_kernels.gpu.pieces import Pieces

# Rows of the graphs: a step's are filled up to the next of them. Weights are read once for all, so that a few more cost little.
MOST_ROWS = 256


def sizes(most: int) -> list[int]:
    """Rows of the graphs, where a step has up to `most`."""
    found, rows = [], 1
    while rows < most and rows < MOST_ROWS:
        found.append(rows)
        rows += max(1, 1 << max(rows.bit_length() - 2, 0)) if rows > 4 else rows
    return [*found, min(most, MOST_ROWS)]


@dataclass(slots=True)
class Captured:
    """A graph, and where it reads and writes."""

    replay: Callable[[], None]
    compute: "Compute"  # what it reads is kept with it
    columns_3R: Tensor  # int32: slots, positions, places of states
    ids_R: Tensor
    hidden_RE: Tensor


# What a graph computes: tokens and hidden states.
Compute = Callable[[], tuple[Tensor, Tensor]]


def capture(compute: Compute, device: torch.device, pool: Any) -> tuple[Callable[[], None], Tensor, Tensor]:
    """How to compute it again, and where the results are then. `pool`: of memory, shared by graphs of which one runs at a time."""
    # Kernels are compiled and libraries take their workspace before anything is recorded.
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        compute()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        ids_R, hidden_RE = compute()
    return graph.replay, ids_R, hidden_RE


class DecodeGraphs:
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
        began = time.perf_counter()
        self.sizes = sizes(steps.slots.limits.max_slots)
        self.captured: dict[int, Captured] = {}
        pool = torch.cuda.graph_pool_handle()
        # The largest first: what it takes is enough for the others.
        for rows in reversed(self.sizes):
            self.captured[rows] = self._capture(rows, pool)
        log(
            "INFO",
            f"recorded decodes of {self.sizes[0]} to {self.sizes[-1]} rows as {len(self.sizes)} graphs in"
            f" {time.perf_counter() - began:.1f} s",
            progress=True,
        )

    def run(self, plan: Plan) -> tuple[LogitsIndices, Tensor, Tensor, Tensor] | None:
        """What a step reads of hidden states, its tokens, hidden states and logits, where rows are decodes and not too many; else None."""
        rows = len(plan.slots)
        if rows > self.sizes[-1]:
            return None
        self.pages.follow(plan)
        size = next(size for size in self.sizes if size >= rows)
        captured = self.captured[size]
        columns = np.zeros((3, size), np.int32)
        columns[:, rows:] = np.array([[self.pages.spare_slot], [0], [self.spare_place]])
        columns[0, :rows], columns[1, :rows] = plan.slots, plan.positions
        states = self.steps.slots.states
        if states is not None:
            columns[2, :rows] = states.of_slots[plan.slots]
        captured.columns_3R.copy_(torch.from_numpy(columns), non_blocking=True)
        captured.replay()
        every = np.arange(rows)
        indices = LogitsIndices(
            sample_rows=every,
            sample_tokens=every,
            sample_positions=plan.positions + 1,
            prompt_tokens=every[:0],
        )
        return indices, captured.ids_R[:rows], captured.hidden_RE[:rows], self.logits_SV[:rows]

    def _capture(self, rows: int, pool: Any) -> Captured:
        device = self.pages.device
        columns = np.zeros((3, rows), np.int32)
        columns[0], columns[2] = self.pages.spare_slot, self.spare_place
        columns_3R = torch.from_numpy(columns).to(device)
        firsts_R = torch.arange(rows, dtype=torch.int32, device=device)
        compute = partial(self._compute, columns_3R, firsts_R, torch.ones_like(firsts_R))
        replay, ids_R, hidden_RE = capture(compute, device, pool)
        return Captured(replay, compute, columns_3R, ids_R, hidden_RE)

    def _compute(self, columns_3R: Tensor, firsts_R: Tensor, ones_R: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and hidden states; logits where they are wanted."""
        pages, steps, rows = self.pages, self.steps, len(firsts_R)
        slots_R, positions_R, places_R = columns_3R.to(torch.int64)
        ids_R = self.last_sampled.index_select(0, slots_R.clamp(max=len(self.last_sampled) - 1))
        blocks_R, offsets_R = positions_R // BLOCK_SIZE, positions_R % BLOCK_SIZE
        slot_mappings = [
            pages_SW[slots_R, blocks_R].to(torch.int64) * BLOCK_SIZE + offsets_R
            for pages_SW in pages.pages_BSW
        ]
        pieces = Pieces(
            pages.pages_BSW[0] if len(pages.pages_BSW) else columns_3R,
            BLOCK_SIZE,
            columns_3R[0],
            columns_3R[1],
            firsts_R,
            ones_R,
            firsts_R,
            decodes=rows,
            queries=0,
        )
        geometry = steps.geometry
        step = Step(
            ids_R,
            positions_R,
            [rope.at(positions_R) for rope in steps.ropes],
            slot_mappings,
            attentions(pieces, pages, geometry.windows, geometry.views),
            ops.StateMetadata(places_R, []) if geometry.has_state else None,
            rope_tables=steps.ropes,
        )
        hidden_RE = self.model.forward(step, self.caches)
        self.model.logits(hidden_RE, self.logits_SV[:rows])
        return ids_R, hidden_RE
