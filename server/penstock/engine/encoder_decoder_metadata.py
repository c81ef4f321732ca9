"""Where each token of an encoder-decoder's step goes, as `penstock.engine.attention_metadata` has it for decoders.

A sequence's first positions are its encoder's: whole blocks, of which `encoder_counts` tokens are read and the
rest is padding that is never computed. Its decoder's follow. Rows of the cache at positions of the encoder hold
what the decoder's layers attend to across, at positions of the decoder what they attend to among themselves: one
block table for both.

Letters: U tokens that encoders read in this step, T tokens of decoders, S sequences.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

import penstock_kernels as ops
from penstock.engine.columns import I64, Bools
from penstock.engine.device_copies import to_device
from penstock.engine.logits_indices import LogitsIndices, sampled_positions
from penstock.engine.plan import CONTINUE, Plan
from penstock.engine.slots import SlotTable
from penstock.models.step import EncoderDecoderStep, Reading

# A rectangle may hold this many times the score entries that its rows need, and this many more.
WASTE_FACTOR = 1.5
WASTE_FREE = 4096


class EncoderDecoderSteps:
    """Makes the steps of one model from plans that `SlotTable.apply` has accepted."""

    def __init__(
        self,
        slots: SlotTable,
        zero_row: int,
        dtype: torch.dtype,
        device: torch.device,
        exact: bool = False,
    ) -> None:
        self.slots, self.block_size = slots, slots.limits.block_size
        self.zero_row, self.dtype, self.device = zero_row, dtype, device
        self.exact = exact

    def clear(self) -> None:
        """Nothing is kept from step to step."""

    def make(self, plan: Plan, last_sampled: Tensor) -> tuple[LogitsIndices, EncoderDecoderStep]:
        """`last_sampled` has the last token of every slot."""
        slots, size = self.slots, self.block_size
        tables = slots.pages[0, plan.slots]
        read = slots.encoder_counts[plan.slots]
        begins = -(-read // size) * size  # where the decoder's part begins
        given = self._on(plan.tokens.astype(np.int64))
        continuing = (plan.flags & CONTINUE) != 0
        # The first token of a row that continues is its slot's, and what follows it are its drafts.
        fed = plan.counts - continuing
        first_fed = np.cumsum(fed) - fed - continuing

        # A row that begins at position 0 has all that its encoder reads.
        encoding = np.flatnonzero((plan.positions == 0) & (read > 0))
        reading = None
        if len(encoding):
            counts = read[encoding]
            rows_U, positions_U = _ragged(encoding, counts)
            reading = Reading(
                ids_U=given.index_select(0, self._on(first_fed[rows_U] + positions_U)),
                positions_U=self._on(positions_U),
                slot_mapping_U=self._on(self._slot_mapping(tables, rows_U, positions_U)),
                counts=counts.tolist(),
            )

        # What is left of each row are its decoder's tokens.
        ends = plan.positions + plan.counts
        firsts = np.maximum(plan.positions, begins)
        counts = np.maximum(ends - firsts, 0)
        rows_T, offsets_T = _ragged(np.arange(len(counts)), counts)
        fed_T = firsts[rows_T] + offsets_T  # positions in the sequence
        skipped = np.minimum(firsts, ends) - plan.positions
        sources_T = np.where(
            continuing[rows_T] & (offsets_T == 0),
            len(plan.tokens) + plan.slots[rows_T],
            first_fed[rows_T] + skipped[rows_T] + offsets_T,
        )
        own, across = [], []
        contexts = ends - begins  # keys that a row's last token sees of its own kind
        token_ends = np.cumsum(counts)
        some = np.flatnonzero(counts)
        queries = firsts - begins  # position of each row's first token
        for rows in rectangles(some, counts[some], contexts[some]):
            own.append(self._own(rows, tables, begins, token_ends, counts, queries, contexts))
        for rows in rectangles(some, counts[some], read[some]):
            across.append(self._across(rows, tables, token_ends, counts, read))
        sample_rows, behind = sampled_positions(plan)
        # What an encoder reads has no probabilities.
        indices = LogitsIndices(
            sample_rows=sample_rows,
            sample_tokens=(token_ends - 1)[sample_rows] - behind,
            sample_positions=ends[sample_rows] - behind,
            prompt_tokens=np.zeros(0, np.int64),
        )
        step = EncoderDecoderStep(
            reading=reading,
            ids_T=torch.cat((given, last_sampled)).index_select(0, self._on(sources_T)),
            positions_T=self._on(fed_T - begins[rows_T]),
            slot_mapping_T=self._on(self._slot_mapping(tables, rows_T, fed_T)),
            own=own,
            across=across,
        )
        return indices, step

    def _own(
        self, rows: I64, tables: I64, begins: I64, token_ends: I64, counts: I64, firsts: I64, contexts: I64
    ) -> ops.Rectangle:
        """Each query sees the decoder's tokens up to itself."""
        queries, keys = int(counts[rows].max()), int(contexts[rows].max())
        # Queries past a row's end see what the last one sees: they are padding, and must not divide by zero.
        at_SQ = np.minimum(firsts[rows][:, None] + np.arange(queries), contexts[rows][:, None] - 1)
        distances_SQL = at_SQ[:, :, None] - np.arange(keys)
        hidden = distances_SQL < 0
        seen = np.arange(keys) < contexts[rows][:, None]
        return self._rectangle(
            rows,
            tables,
            begins,
            token_ends,
            counts,
            seen,
            mask=hidden if hidden.any() else None,
            distances=np.maximum(distances_SQL, 0),
        )

    def _across(self, rows: I64, tables: I64, token_ends: I64, counts: I64, read: I64) -> ops.Rectangle:
        """Each query sees all that its encoder has read."""
        seen = np.arange(int(read[rows].max())) < read[rows][:, None]
        mask = None if seen.all() else ~seen[:, None, :]
        return self._rectangle(rows, tables, np.zeros_like(read), token_ends, counts, seen, mask, None)

    def _rectangle(
        self,
        rows: I64,
        tables: I64,
        begins: I64,
        token_ends: I64,
        counts: I64,
        seen: Bools,
        mask: Bools | None,
        distances: I64 | None,
    ) -> ops.Rectangle:
        sequences, keys = seen.shape
        queries = int(counts[rows].max())
        within = np.minimum(np.arange(queries), counts[rows][:, None] - 1)
        tokens = ((token_ends - counts)[rows][:, None] + within).reshape(-1)
        real = (np.arange(queries) < counts[rows][:, None]).reshape(-1)
        in_order = len(tokens) == token_ends[-1] and bool((tokens == np.arange(len(tokens))).all())
        positions = begins[rows][:, None] + np.arange(keys)
        slot_mapping = self._slot_mapping(tables, rows[:, None], np.where(seen, positions, 0))
        mask_S1QL = None
        if mask is not None:
            mask_S1QL = torch.zeros(mask.shape, dtype=self.dtype, device=self.device)
            mask_S1QL = mask_S1QL.masked_fill_(to_device(mask, self.device), -torch.inf).unsqueeze(1)
        return ops.Rectangle(
            sequences=sequences,
            queries=queries,
            keys=keys,
            tokens_SQ=None if in_order else self._on(tokens),
            real=None if real.all() else self._on(np.flatnonzero(real)),
            slot_mapping_SL=self._on(np.where(seen, slot_mapping, self.zero_row).reshape(-1)),
            mask_S1QL=mask_S1QL,
            distances_SQL=None if distances is None else self._on(distances.reshape(-1)),
            exact=self.exact,
        )

    def _slot_mapping(self, tables: I64, rows: I64, positions: I64) -> I64:
        """The cache rows of these positions of these rows' sequences."""
        return tables[rows, positions // self.block_size] * self.block_size + positions % self.block_size

    def _on(self, column: I64) -> Tensor:
        return to_device(column, self.device)


def _ragged(rows: I64, counts: I64) -> tuple[I64, I64]:
    """Each row as often as it counts, and 0, 1, 2, ... within each."""
    return np.repeat(rows, counts), np.arange(int(counts.sum())) - np.repeat(
        np.cumsum(counts) - counts, counts
    )


def rectangles(rows: I64, queries: I64, keys: I64) -> Iterator[I64]:
    """Rows, with the number of queries and keys of each, in groups that are padded to rectangles with little waste."""
    if len(rows) == 0:
        return
    if (
        len(rows) * int(queries.max()) * int(keys.max())
        <= WASTE_FACTOR * int((queries * keys).sum()) + WASTE_FREE
    ):
        yield rows
        return
    order = np.lexsort((-keys, -queries))
    begin, needed, longest = 0, 0, 0
    for end, at in enumerate(order):
        area, longer = int(queries[at] * keys[at]), max(longest, int(keys[at]))
        padded = int(queries[order[begin]]) * longer * (end - begin + 1)
        if end > begin and padded > WASTE_FACTOR * (needed + area) + WASTE_FREE:
            yield rows[order[begin:end]]
            begin, needed, longer = end, 0, int(keys[at])
        needed, longest = needed + area, longer
    yield rows[order[begin:]]
