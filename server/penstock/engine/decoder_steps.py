"""From plans to what a decoder's forward pass reads. Made by the engine, for recipes' decoders and transformers' models."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.attention_metadata import (
    Geometry,
    StepMetadata,
    continued,
    make_step_metadata,
)
from penstock.engine.columns import I64
from penstock.engine.device_copies import to_device
from penstock.engine.device_pages import DevicePages, reads_pages, seen_through
from penstock.engine.logits_indices import LogitsIndices
from penstock.engine.plan import Plan, are_decodes
from penstock.engine.slots import SlotTable
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.layers.rope_table import RopeTable
from penstock.models.model import Model
from penstock.models.step import Step


class DecoderSteps:
    """Makes the steps of one model from plans that `SlotTable.apply` has accepted."""

    def __init__(
        self,
        model: Model,
        slots: SlotTable,
        zero_row: int,
        dtype: torch.dtype,
        device: torch.device,
        exact: bool = False,
        tables: Tables | None = None,
    ) -> None:
        """`tables`: where the model's layers are, if not where those of the slots' own model are."""
        self.slots, self.device = slots, device
        limits, config = slots.limits, model.config
        self.pages: DevicePages | None = None
        if tables is None and reads_pages(config, device, exact):
            self.pages = DevicePages(slots, zero_row // BLOCK_SIZE + 1, device)
        tables = limits.tables if tables is None else tables
        # A row in flight may run one token past the longest sequence.
        positions = slots.width * BLOCK_SIZE
        self.ropes = [
            RopeTable(rope, limits.max_sequence_tokens, positions, dtype, device) for rope in config.ropes
        ]
        rows, size = model.cache_shape
        self.geometry = Geometry(
            block_size=BLOCK_SIZE,
            zero_row=zero_row,
            heads=rows,
            windows=tuple(
                window if window is None or window.size < limits.max_sequence_tokens else None
                for window in config.windows
            ),
            views=tuple(sorted({(window, tables.of[layer][0]) for window, layer in model.views()})),
            tables=tables.count,
            has_state=config.has_state,
            compressions=config.compressions,
            simple=config.simple_attention,
            exact=exact,
            head_dim=size,
            dtype=dtype,
            device=device,
        )
        self.steady: tuple[StepMetadata, Plan] | None = (
            None  # the last step, where the next may differ by a token a row
        )

    def clear(self) -> None:
        """Forgets the last step."""
        self.steady = None

    def make(self, plan: Plan, last_sampled: Tensor) -> tuple[LogitsIndices, Step]:
        """`last_sampled` has the last token of every slot."""
        metadata = self._metadata(plan)
        if metadata.pieces is not None and self.pages is not None:
            pieces = metadata.pieces.on_device(self.pages)
            for (window, table), attention in metadata.views.items():
                attention.pieces = seen_through(pieces, window, self.pages.pages_BSW[table])
        given_T = to_device(plan.tokens.astype(np.int64), self.device)
        ids_T = torch.cat((given_T, last_sampled)).index_select(0, to_device(metadata.sources_T, self.device))
        positions_T = to_device(metadata.positions_T, self.device)
        for compression in metadata.compressions:
            compression.ropes = [rope.at(compression.positions_M) for rope in self.ropes]
        step = Step(
            ids_T,
            positions_T,
            [rope.at(positions_T) for rope in self.ropes],
            [to_device(slot_mapping, self.device) for slot_mapping in metadata.slot_mappings],
            metadata.attentions,
            metadata.states,
            compressions=metadata.compressions,
            rope_tables=self.ropes,
            adapted=self._adapted(metadata.slots_T) if self.slots.limits.adapters else (),
        )
        return metadata.logits_indices, step

    def _adapted(self, slots_T: I64) -> list[tuple[int, Tensor | None]]:
        """See AdaptedRows."""
        adapters_T = self.slots.adapters[slots_T]
        found = [number for number in np.unique(adapters_T).tolist() if number > 0]
        if len(found) == 1 and (adapters_T > 0).all():
            return [(found[0] - 1, None)]
        return [
            (number - 1, to_device(np.flatnonzero(adapters_T == number), self.device)) for number in found
        ]

    def _metadata(self, plan: Plan) -> StepMetadata:
        """The plan's metadata. On a CPU, where a step is over before the next begins, made from the last one's."""
        steady = self.device.type == "cpu" and are_decodes(plan) and not len(plan.released)
        if steady and self.steady is not None:
            metadata, last_plan = self.steady
            if continued(metadata, last_plan, plan, self.slots, self.geometry):
                self.steady = metadata, plan
                return metadata
        metadata = self.lay_out(plan)
        self.steady = (metadata, plan) if steady else None
        return metadata

    def lay_out(self, plan: Plan, long_prompts: bool = True) -> StepMetadata:
        """Made anew; see `make_step_metadata`."""
        if self.pages is not None:
            self.pages.follow(plan)
        return make_step_metadata(plan, self.slots, self.geometry, self.pages is not None, long_prompts)
