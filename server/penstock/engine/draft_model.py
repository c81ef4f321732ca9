"""A smaller model that makes drafts (--speculate-model): see `Drafter`.

Its keys and values are in arrays of its own, in rows that the pages of the served model name: so a block is one block for
both. Every prompt goes through both models. What a slot samples the draft model takes in later: when it is asked for drafts, and at
the latest when a block is full, up to 16 tokens at once, which costs a fraction of feeding them one by one.

Where nobody asks for drafts for a while, because they are not worth what they cost, it takes in nothing. When it is asked again it
takes in what it has missed of the texts that are to go on; what it has missed of a prefix that others share makes its drafts worse, which
is found out as any wrong draft is.

It draws with the keys (seed, position) of the model that is served, from logits that are processed in the same way, so that the two
choose the same token wherever their distributions agree.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.arrays import Arrays, HostArrays
from penstock.engine.columns import I64, Bools
from penstock.engine.drafter import FLAG
from penstock.engine.engine import TILE
from penstock.engine.kv_cache import KvCache, numbers_of, page_bytes
from penstock.engine.native_steps import NativeSteps
from penstock.engine.plan import CONTINUE, OWN_DRAFTS, SAMPLE, START, Plan
from penstock.engine.slot_sampling import SlotSampling
from penstock.engine.slots import SlotTable
from penstock.engine.step_memory import working_bytes
from penstock.engine.tables import BLOCK_SIZE, Tables
from penstock.errors import UnusableModel
from penstock.loading.checks import check_folder
from penstock.loading.vocabulary import refuse_other_vocabulary
from penstock.models import building, recipes
from penstock.models.cache_format import FORMATS
from penstock.models.model import Model, ModelConfig
from penstock.models.native import NativeDecoder
from penstock.models.packed_cache import PackedCache
from penstock.parallel.group import ALONE
from penstock_kernels.later import torch
from penstock_kernels.program import Array

if TYPE_CHECKING:
    from penstock.engine.decoder_steps import DecoderSteps

NO_DRAFTS: I64 = np.zeros(0, np.int64)
# Steps without a draft of its own after which it takes in nothing.
PATIENCE = 64


class DraftModel:
    """A loaded draft model. After `allocate` it has a cache, and keeps step with the slots.

    Letters: R rows of OWN_DRAFTS, K the most drafts of one, N tokens of the texts of all slots.
    """

    reads_hidden = False

    def __init__(self, config: dict[str, Any], model: Model, dtype: Any, device: Any) -> None:
        self.model, self.dtype, self.device = model, dtype, device
        self.is_exact = False
        self.model_type = str(config.get("model_type", ""))
        self.parameters = model.parameters
        shape = model.config
        self.max_positions = shape.most_positions
        self._layers = numbers_of(shape.cached_layers(ALONE))

    @property
    def is_native(self) -> bool:
        """Whether the CPU engine runs it."""
        return isinstance(self.model, NativeDecoder)

    def make_batch_invariant(self) -> None:
        """With --deterministic: what it guesses does not depend on the batch, as what the model samples does not."""
        self.model.make_batch_invariant(TILE)
        self.is_exact = True

    @property
    def weight_bytes(self) -> int:
        """See Drafter."""
        return sum(tensor.nbytes for tensor in self.model.weights())

    def page_bytes(self, tables: Tables) -> int:
        """See Drafter."""
        return page_bytes(self._tables(tables), self._layers, self.model.cache_shape, self.dtype.itemsize)

    @property
    def kv_bytes_per_token(self) -> int:
        """See Drafter."""
        rows, size = self.model.cache_shape
        return len(self._layers) * rows * size * int(self.dtype.itemsize)

    def working_bytes(self, max_slots: int, max_step_tokens: int, longest: int) -> int:
        """See Drafter."""
        tokens, config = fed_at_once(max_slots, max_step_tokens), self.model.config
        texts = 8 * max_slots * longest
        if not isinstance(self.model, NativeDecoder):
            return texts + working_bytes(config, self.dtype, self.device, max_slots, tokens, longest)
        # Logits, and what sampling makes of them.
        logits = 4 * 4 * max_slots * config.vocab_size
        return texts + self.model.workspace_bytes(tokens, max_slots, longest) + logits

    def _make_arrays(self) -> Arrays:
        if self.is_native:
            return HostArrays()
        from penstock.engine.torch_arrays import TorchArrays

        return TorchArrays(self.dtype, self.device)

    def _tables(self, tables: Tables) -> Tables:
        """Where its layers are: they keep every token, so in the tables of the served model's layers that do."""
        full = max(tables.full, 1)
        of = tuple((layer % full, layer // full) for layer in range(len(self._layers)))
        return Tables(tables.full, tables.windows, of)

    def allocate(self, slots: SlotTable, sampler: SlotSampling) -> None:
        """See Drafter."""
        limits = slots.limits
        self._slots, self._sampler = slots, sampler
        tables = self._tables(limits.tables)
        shape = self.model.cache_shape
        self._arrays = self._make_arrays()
        self.cache = KvCache(tables, self._layers, shape, self._arrays, limits.pages)
        self.model.serve_up_to(limits.max_sequence_tokens)
        self._steps: NativeSteps | DecoderSteps
        if isinstance(self.model, NativeDecoder):
            tokens = fed_at_once(limits.max_slots, limits.max_step_tokens)
            self.model.reserve(tokens, limits.max_slots, limits.max_sequence_tokens)
            self._steps = NativeSteps(slots, self.model.narrows)
        else:
            zero_row = self.cache.zero_row
            where = (self.model, slots, zero_row, self.dtype, self.device, self.is_exact)
            from penstock.engine import decoder_steps

            self._steps = decoder_steps.DecoderSteps(*where, tables=tables)
        self._logits_SV = self._arrays.empty(limits.max_slots, limits.vocab_size)
        # Tokens of each slot that its cache has. What lies behind, up to the slot's own length, is in its text.
        self._fed: I64 = np.zeros(limits.max_slots, np.int64)
        self._places = limits.max_sequence_tokens + limits.max_step_drafts + 1
        self._text_N = self._arrays.zeros(limits.max_slots * self._places)
        self._most_fed = fed_at_once(limits.max_slots, limits.max_step_tokens)
        self._nothing: Any = self._arrays.zeros(0)
        self._steps_unasked = 0

    def release(self) -> None:
        """See Drafter."""
        del self.cache, self._steps, self._slots, self._sampler, self._logits_SV, self._text_N

    def clear(self) -> None:
        """See Drafter: a slot starts with its own position."""
        self._steps.clear()
        self._steps_unasked = 0

    def copy_pages(self, copies: I64) -> None:
        """See Drafter."""
        self.cache.copy_pages(copies)

    def set_threads(self, threads: int) -> None:
        """See Drafter."""
        if isinstance(self.model, NativeDecoder):
            self.model.set_threads(threads)
        else:
            torch.set_num_threads(threads)

    def saw(self, slots: I64, hidden_RE: Array) -> None:
        """See Drafter: it reads nothing of the model that is served."""

    def draft(self, plan: Plan, last_sampled: Array) -> I64:
        """See Drafter."""
        slots, positions, flags = plan.slots, plan.positions, plan.flags
        continuing, own = (flags & CONTINUE) != 0, (flags & OWN_DRAFTS) != 0
        starting = (flags & START) != 0
        self._fed[slots[starting]] = positions[starting]
        # Drafts that were rejected have left it behind the slot.
        self._fed[slots] = begins = np.minimum(self._fed[slots], positions)
        drafts = plan.drafts if len(plan.drafts) else np.zeros(len(slots), np.int64)
        given = plan.counts - continuing - np.where(own, drafts, 0)
        self._remember(plan, continuing, given, last_sampled)
        self._steps_unasked = 0 if own.any() else self._steps_unasked + 1
        if self._steps_unasked > PATIENCE:
            return NO_DRAFTS

        # Rows that go on without drafts of ours wait until they fill a block; and where it did not follow them it waits to be asked.
        ends = positions + plan.counts
        fills = ends // BLOCK_SIZE > begins // BLOCK_SIZE
        has_followed = positions - begins < BLOCK_SIZE
        until = np.where(own, positions + 1, np.where(has_followed & (fills | ~continuing), ends, begins))
        rows = np.flatnonzero(until > begins)
        if len(rows) == 0:
            return NO_DRAFTS
        counts = _in_room((until - begins)[rows], self._most_fed)
        rows_T = np.repeat(rows, counts)
        positions_T = begins[rows_T] + np.arange(len(rows_T)) - np.repeat(np.cumsum(counts) - counts, counts)
        ids_T = self._text_N[self._arrays.of(self._place(slots[rows_T], positions_T))]
        chosen_R = self._feed(slots[rows], begins[rows], counts, ids_T, own[rows])
        drafted = NO_DRAFTS
        if own.any():
            drafted = self._go_on(slots[own], positions[own], drafts[own], chosen_R, last_sampled)
        # What did not fit is fed when it is asked again; its drafts are any until then.
        fed = begins[rows] + counts
        cut = fed < until[rows]
        self._fed[slots[rows]] = np.where(own[rows] & ~cut, self._fed[slots[rows]], fed)
        return drafted

    def _go_on(
        self, slots: I64, positions: I64, drafts: I64, hidden_RE: Array | None, last_sampled: Array
    ) -> I64:
        """Draws each row's drafts one after the other, from what was computed of the token before the first."""
        assert hidden_RE is not None, "its rows sample"
        of = self._arrays.of
        most = int(drafts.max())
        drafted_KR = self._arrays.zeros(most, len(slots))
        previous_R = self._here(last_sampled)[of(slots)]
        supposed: list[tuple[I64, Array]] = []
        drawing = np.arange(len(slots))
        self._fed[slots] = positions + 1
        for at in range(most):
            drawn_R = self._draw(hidden_RE, slots[drawing], positions[drawing] + 1 + at, previous_R)
            drafted_KR[at, of(drawing)] = drawn_R
            if at + 1 < most:
                supposed.append((slots[drawing], drawn_R))
                self._sampler.suppose(*supposed[-1], 1)
            # The last draft of a row is fed only where it fills a block: if it is accepted, others may begin there.
            wants = drafts[drawing] > at + 1
            fills = (positions[drawing] + at + 2) % BLOCK_SIZE == 0
            feeding = np.flatnonzero(wants | fills)
            if len(feeding) == 0:
                break
            fed_R = drawn_R[of(feeding)]
            rows = drawing[feeding]
            hidden = self._feed(
                slots[rows], positions[rows] + 1 + at, np.ones(len(rows), np.int64), fed_R, wants[feeding]
            )
            self._fed[slots[rows]] = positions[rows] + at + 2
            drawing = rows[wants[feeding]]
            if hidden is None:
                break
            hidden_RE = hidden
            previous_R = fed_R[of(np.flatnonzero(wants[feeding]))]
        for some, tokens in supposed:
            self._sampler.suppose(some, tokens, -1)
        rows = np.repeat(np.arange(len(slots)), drafts)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(drafts) - drafts, drafts)
        drafted = drafted_KR.reshape(-1)[of(offsets * len(slots) + rows)]
        self._text_N[of(self._place(slots[rows], positions[rows] + 1 + offsets))] = drafted
        on_host: I64 = np.asarray(drafted if self.is_native else drafted.cpu())
        return on_host

    def _remember(self, plan: Plan, continuing: Bools, given: I64, last_sampled: Array) -> None:
        """Notes what the rows feed, but for drafts of our own."""
        of = self._arrays.of
        rows = np.flatnonzero(continuing)
        if len(rows):
            slots = plan.slots[rows]
            last = self._here(last_sampled)[of(slots)]
            self._text_N[of(self._place(slots, plan.positions[rows]))] = last
        if len(plan.tokens):
            offsets = np.arange(len(plan.tokens)) - np.repeat(np.cumsum(given) - given, given)
            positions = np.repeat(plan.positions + continuing, given) + offsets
            places = self._place(np.repeat(plan.slots, given), positions)
            self._text_N[of(places)] = of(plan.tokens.astype(np.int64))

    def _here(self, array: Array) -> Array:
        """As this model's arrays are: the model that is served may have others."""
        return np.asarray(array) if self.is_native else torch.as_tensor(array)

    def _place(self, slots: I64, positions: I64) -> I64:
        """Of a slot's token at a position, in the texts."""
        return slots * self._places + positions

    def _feed(self, slots: I64, positions: I64, counts: I64, ids_T: Array, samples: Bools) -> Array | None:
        """Runs the model over rows of tokens. Returns the hidden states behind those that sample; None: none does."""
        none = np.zeros(0, np.uint32)
        step_plan = Plan(
            number=0,
            released=none,
            slots=slots,
            flags=np.where(samples, SAMPLE, 0).astype(np.uint8),
            positions=positions,
            counts=counts,
            tokens=np.arange(len(ids_T), dtype=np.uint32),  # in the order in which the rows have them
            new_block_counts=np.zeros(len(slots), np.int64),
            new_pages=none,
            prompt_targets=none,
            starts=None,
        )
        # Its slots are not the served model's: nothing is read of what they have sampled.
        indices, step = self._steps.make(step_plan, self._nothing)
        step.ids_T = ids_T[step.ids_T]
        hidden_TE = self.model.forward(step, self.cache.layers)
        if len(indices.sample_rows) == 0:
            return None
        return hidden_TE[self._arrays.of(indices.sample_tokens)]

    def _draw(self, hidden_RE: Array, slots: I64, positions: I64, previous_R: Array) -> Array:
        logits_RV = self.model.logits(hidden_RE, self._logits_SV[: len(slots)])
        drawn_R = self._here(self._sampler.guess(logits_RV, slots, positions, previous_R))
        # Of logits that are not numbers any token may come, as long as it is one.
        return drawn_R.clip(0, logits_RV.shape[1] - 1)


def _in_room(counts: I64, room: int) -> I64:
    """Of so many tokens of each row, those that are fed in this step: at least one of each, and of the first rows the most."""
    spare = counts - 1
    before = np.cumsum(spare) - spare
    fitting: I64 = 1 + np.clip(room - len(counts) - before, 0, spare)
    return fitting


def fed_at_once(max_slots: int, max_step_tokens: int) -> int:
    """The most tokens that a step of the served model has it take in: what it was not told of each slot is less than a block."""
    return max_step_tokens + (BLOCK_SIZE - 1) * max_slots


def load(
    folder: Path,
    served: ModelConfig,
    served_folder: Path,
    dtype: Any,
    device: Any,
    trusted: bool = False,
    quantize: str = "",
    quantize_head: bool = False,
    packed_cache: PackedCache | None = None,
    cache_dtype: str = "auto",
    threads: int = 0,
) -> DraftModel:
    """The draft model in `folder` for a model that is served. Raises UnusableModel, which says of which flag it speaks."""
    try:
        config = check_folder(folder, trusted)
        refuse(config, served, served_folder, folder)
        _, model = building.load(
            config,
            folder,
            dtype,
            device,
            ALONE,
            trusted,
            "penstock",
            quantize,
            quantize_head,
            packed_cache,
            cache_dtype,
            threads,
        )
    except UnusableModel as error:
        raise UnusableModel(f"{FLAG}: {error}") from error
    if isinstance(model, NativeDecoder):
        model.cache_format = FORMATS[cache_dtype]
    return DraftModel(config, model, dtype, device)


def refuse(config: dict[str, Any], served: ModelConfig, served_folder: Path, folder: Path) -> ModelConfig:
    """Raises UnusableModel where the model that this config.json describes cannot draft for the one that is served; else its shape."""
    refuse_served(served)
    shape = recipes.read_config(config)
    if shape.has_encoder:
        raise UnusableModel("an encoder-decoder makes no drafts")
    if shape.has_state:
        raise UnusableModel(
            "a model with recurrent layers makes no drafts: its state cannot be taken back to before a wrong one"
        )
    if shape.vocab_size != served.vocab_size:
        raise UnusableModel(
            f"its vocabulary has {shape.vocab_size} tokens (vocab_size), and that of the model has {served.vocab_size}"
        )
    refuse_other_vocabulary(served_folder, folder)
    return shape


def refuse_served(served: ModelConfig) -> None:
    """Raises UnusableModel where no drafts can be verified by the model that is served."""
    if served.has_encoder:
        raise UnusableModel("the model is an encoder-decoder, and a draft model reads no encoder's input")
