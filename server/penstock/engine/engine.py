"""One step: plan -> tensors -> forward -> sample -> result.

Called by the service, by one thread at a time. Has no queue and decides nothing: what runs is in the
plan. A step is launched and finished apart, so that on an accelerator the next one can be launched
before the host has seen this one's result; what a slot sampled last stays on the device.
"""

import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.engine.attention_metadata import LogitsIndices, to_device
from penstock.engine.decoder_steps import DecoderSteps
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.drafter import Drafter
from penstock.engine.encoder_decoder_metadata import EncoderDecoderSteps
from penstock.engine.kv_cache import KvCache, numbers_of
from penstock.engine.native_steps import NativeSteps
from penstock.engine.plan import (
    CONTINUE,
    I64,
    MASKED,
    NO_TARGET,
    OWN_DRAFTS,
    PROMPT_LOGPROBS,
    SAMPLE,
    START,
    U32,
    Bools,
    Plan,
)
from penstock.engine.sampling import Drafts, Masks, Sampled, Sampler, most_likely
from penstock.engine.slots import Limits, SlotTable
from penstock.engine.state_cache import StateCache, starting
from penstock.engine.tables import BLOCK_SIZE, Tables, divide
from penstock.engine.threads import Threads
from penstock.engine.transfers import Event, Transfers
from penstock.errors import BadPlan, UnusableModel
from penstock.models import choice
from penstock.models.native import NativeDecoder
from penstock.models.packed_cache import PackedCache
from penstock.models.step import LayerCache
from penstock.parallel.group import ALONE, TensorGroup
from penstock.proto import penstock_pb2 as pb

if TYPE_CHECKING:  # imports what sends spans, which few servers do
    from penstock.engine.spans import StepSpans

# Prompt positions whose logits exist at once, when their log probabilities are wanted.
PROMPT_LOGITS_AT_ONCE = 64

# Rows of every product where results may not depend on how many there are: enough to be worth a call for a
# prompt, and few enough that a lone decode does not pay for many.
TILE = 16

NOT_NUMBERS = "the model produced logits that are not numbers"
NOTHING_LEFT = "grammar, logit bias and min_tokens together forbid every token"


class StepMaker(Protocol):
    """From plans to what a model's forward pass reads."""

    def make(self, plan: Plan, last_sampled: Tensor) -> tuple[LogitsIndices, Any]:
        """Of a plan that `SlotTable.apply` has accepted; `last_sampled` has the last token of every slot."""

    def clear(self) -> None:
        """Forgets the last step."""


@dataclass(slots=True)
class PromptAnswers:
    """Of the P entries of a plan's `prompt_targets`."""

    logprobs_P: Tensor
    top_counts: I64  # (P,) on the host: alternatives wanted of each
    top_tokens_PN: Tensor | None  # N: the most that one wants; None when none does
    top_logprobs_PN: Tensor | None


@dataclass(slots=True)
class Launched:
    """A step whose work has been given to the device. What was computed is on the host once `done` is reached."""

    plan: Plan
    indices: LogitsIndices | None
    sampled: Sampled | None
    prompt: PromptAnswers | None
    done: Event | None
    prepare_ns: int
    forward_ns: int
    sample_ns: int
    began: int = 0  # in nanoseconds since 1970, where the step's span is wanted
    unsampled: "Unsampled | None" = None  # the model has run, and the masks for sampling are awaited
    accepted_R: Tensor | None = (
        None  # drafts, of each row that samples; None: it has none, or another stage knows
    )
    draft_ns: int = 0  # of the drafter


@dataclass(slots=True)
class Unsampled:
    """What sampling needs of a step."""

    ids_T: Tensor
    hidden_TE: Tensor
    logits_SV: Tensor | None  # of the rows that sample, on the ranks of the last stage
    masked_rows: I64  # of the plan


class Engine:
    """The model, and after `prepare` the cache and the slots."""

    def __init__(
        self,
        config: dict[str, Any],
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorGroup = ALONE,
        trusted: bool = False,
        deterministic: bool = False,
        implementation: str = "auto",
        quantize: str = "",
        quantize_head: bool = False,
        packed_cache: PackedCache | None = None,
    ) -> None:
        """`deterministic`: what a token gets does not depend on what else is in the step, in any dtype. `quantize`: "int8" or
        "int4", of weights while they are read. `packed_cache`: where packed weights are kept between starts.
        """
        self.dtype = dtype
        self.device = device
        self.transfers = Transfers(device)
        self.group = group
        self.recipe, self.model = choice.load(
            config,
            folder,
            dtype,
            device,
            group,
            trusted,
            implementation,
            quantize,
            quantize_head,
            packed_cache,
        )
        self.packed_cache = packed_cache
        self.deterministic = deterministic
        if deterministic:
            if group.size > 2:
                raise UnusableModel(
                    f"--deterministic: the sums of {group.size} shards depend on the batch; the most is --num-shard 2"
                )
            self.model.make_batch_invariant(TILE)
        # Where sums depend on the number of threads, and may not, or where ranks wait for each other, it stays as it is.
        self.threads: Threads | None = None
        is_free = dtype != torch.float32 and not deterministic and group.everyone.size == 1
        if device.type == "cpu" and is_free and torch.get_num_threads() > 1:
            self.threads = Threads(torch.get_num_threads(), self._set_threads)
        self.steps = 0
        self.spans: StepSpans | None = None
        self.drafter: Drafter | None = None  # set before `allocate`
        self._prepared = False
        self._aside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def depth(self) -> int:
        """Steps worth launching before the first is finished: on a CPU a launch is the whole work."""
        return 2 if self.device.type == "cuda" else 1

    @property
    def device_name(self) -> str:
        """Processor or accelerator, as the system names it."""
        if self.device.type == "cuda":
            return str(torch.cuda.get_device_name(self.device))
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return "cpu"

    @property
    def native(self) -> NativeDecoder | None:
        """The model, where the CPU engine runs it."""
        return self.model if isinstance(self.model, NativeDecoder) else None

    @property
    def has_encoder(self) -> bool:
        """Whether every sequence begins with what an encoder reads."""
        return self.model.config.has_encoder

    @property
    def verifies_trees(self) -> bool:
        """Whether drafts may be a tree. The path that is accepted would have to be told to the other ranks, and to a drafter, which
        keeps what was fed by its position.
        """
        config = self.model.config
        is_plain = not (config.has_encoder or config.has_state)
        return is_plain and self.drafter is None and self.group.everyone.size == 1

    def tables(self, longest: int) -> Tables:
        """How the cache is divided when no sequence has more than `longest` tokens."""
        return divide(self.model.config.layer_windows, longest)

    def allocate(self, limits: Limits) -> None:
        """Makes cache, slots and tables for these limits."""
        self.limits = limits
        config, group = self.model.config, self.group
        self.cache = KvCache(
            limits.tables,
            numbers_of(config.cached_layers(group)),
            self.model.cache_shape,
            self.dtype,
            self.device,
            limits.pages,
        )
        self.states: StateCache | None = None
        self.layer_caches = self.cache.layers
        if config.has_state:
            shapes = config.state_shapes(group)
            self.states = StateCache(shapes, limits.max_slots, limits.snapshots, self.dtype, self.device)
            self.layer_caches = self._layer_caches(self.states)
        self.slots = SlotTable(limits)
        self.sampler = Sampler(limits.max_slots, limits.vocab_size, self.device, limits.max_step_drafts)
        # At most this many rows of logits exist at once; on a CPU their pages are taken when first used.
        most = max(limits.max_slots + limits.max_step_drafts, PROMPT_LOGITS_AT_ONCE)
        self._logits_SV = torch.empty((most, limits.vocab_size), dtype=torch.float32, device=self.device)
        self.last_sampled = torch.zeros(limits.max_slots, dtype=torch.int64, device=self.device)
        # Of each step whose samples the last stage has not sent back yet, the slots that sampled. First stage only.
        self._awaited: deque[I64] = deque()
        # The last step, if it verified drafts and the lengths of its slots are not known yet.
        self._unsettled: Launched | None = None
        self.model.serve_up_to(limits.max_sequence_tokens)
        self.step_maker = self._make_step_maker()
        if self.drafter is not None:
            self.drafter.allocate(self.slots, self.sampler)
        self._prepared = True

    def _layer_caches(self, states: StateCache) -> list[LayerCache]:
        """Of each layer what it keeps: keys and values, a state, both or neither."""
        numbers, cached = self.model.config.cached_layers(self.group), iter(self.cache.layers)
        none = LayerCache(torch.empty(0, *self.model.cache_shape), 0)
        return [
            replace(none if number is None else next(cached), states=tensors)
            for number, tensors in zip(numbers, states.layers, strict=True)
        ]

    def _make_step_maker(self) -> StepMaker:
        if self.native is not None:
            limits = self.limits
            self.native.reserve(limits.max_step_tokens, len(self._logits_SV), limits.max_sequence_tokens)
            return NativeSteps(self.slots)
        where = (self.slots, self.cache.zero_row, self.dtype, self.device, self.deterministic)
        return EncoderDecoderSteps(*where) if self.has_encoder else DecoderSteps(self.model, *where)

    def release(self) -> None:
        """Gives back what `allocate` made."""
        self.clear()
        if self.drafter is not None:
            self.drafter.release()
        del self.cache, self.states, self.layer_caches, self.slots, self.sampler
        self._prepared = False

    @property
    def prepared(self) -> bool:
        """Whether `allocate` has been called."""
        return self._prepared

    def clear(self) -> None:
        """Forgets all slots: a new Run begins."""
        self._receive_back(len(self._awaited))
        self._unsettled = None
        self.step_maker.clear()
        self.slots.clear()
        self.sampler.clear()
        if self.drafter is not None:
            self.drafter.clear()

    def step(self, plan: Plan, words: U32 | None = None) -> pb.StepResult:
        """Launches and finishes; `words` are the plan's masks."""
        launched = self.launch(plan)
        if self.awaits_masks(launched):
            self.choose(launched, words)
        return self.finish(launched)

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Checks the plan against the slots and gives its work to the device. Raises BadPlan.

        Where this rank samples and rows are masked, `choose` gives it the rest.
        """
        traced_since = time.time_ns() if plan.traces and self.spans is not None else 0
        began = time.perf_counter_ns()
        self._settle()
        self.slots.apply(plan)
        if len(plan.copies):
            self.cache.copy_pages(plan.copies)
            if self.drafter is not None:
                self.drafter.copy_pages(plan.copies)
        if len(plan.released):
            self.sampler.release(plan.released.astype(np.int64))
        if plan.starts is not None:
            self.sampler.start(plan.slots[(plan.flags & START) != 0], plan.starts)
            if self.states is not None:
                self.states.start(*starting(plan))
        self.steps += 1
        if len(plan.slots) == 0:
            self.step_maker.clear()
            return Launched(plan, None, None, None, None, time.perf_counter_ns() - began, 0, 0)
        if self._awaited:
            self._receive_back(self._due(plan))
        tokens = int(plan.counts.sum())
        if self.threads is not None:
            self.threads.begin(tokens)
        draft_ns = 0
        if self.drafter is not None:
            draft_ns = self._add_drafts(plan, self.drafter)
        indices, step = self.step_maker.make(plan, self.last_sampled)
        prepared = time.perf_counter_ns()
        hidden_TE = self._forward(step)
        forwarded = time.perf_counter_ns()
        launched = Launched(
            plan,
            indices,
            None,
            None,
            None,
            prepared - began - draft_ns,
            forwarded - prepared,
            0,
            traced_since,
            draft_ns=draft_ns,
        )
        logits_SV = None
        if self.group.is_last_stage and len(indices.sample_rows):
            # Every rank computes logits and learns what was sampled; the stage's rank 0 samples and answers.
            chosen_SE = hidden_TE.index_select(0, to_device(indices.sample_tokens, self.device))
            logits_SV = self.model.logits(chosen_SE, self._logits_SV[: len(chosen_SE)])
        launched.sample_ns = time.perf_counter_ns() - forwarded
        launched.unsampled = Unsampled(step.ids_T, hidden_TE, logits_SV, np.flatnonzero(plan.flags & MASKED))
        if not (self.group.is_output_rank and len(launched.unsampled.masked_rows)):
            self.choose(launched, None)
        return launched

    @torch.inference_mode()
    def choose(self, launched: Launched, words: U32 | None) -> None:
        """Samples in a step whose model has been launched. `words`: the masks, as the contract has them. Raises BadPlan."""
        began = time.perf_counter_ns()
        plan, indices, unsampled = launched.plan, launched.indices, launched.unsampled
        assert unsampled is not None and indices is not None, "it was launched and nothing was sampled"
        launched.unsampled = None
        masks = None
        if words is not None:
            masks = self._masks(words, unsampled.masked_rows, indices)
        sampled = prompt = None
        if self.group.is_last_stage:
            if unsampled.logits_SV is not None:
                sampled = self._sample(launched, indices, unsampled.ids_T, unsampled.logits_SV, masks)
                if self.drafter is not None and self.drafter.reads_hidden:
                    self._show(self.drafter, launched, indices, unsampled.hidden_TE)
            if len(indices.prompt_tokens):
                prompt = self._prompt_logprobs(plan, indices, unsampled.hidden_TE)
        elif self.group.is_first_stage and len(indices.sample_rows):
            self._awaited.append(plan.slots[(plan.flags & SAMPLE) != 0])
        launched.sampled = None if sampled is None else self._sampled_to_host(sampled)
        if launched.accepted_R is not None:
            launched.accepted_R = self.transfers.to_host(launched.accepted_R)
            self._unsettled = launched
        launched.prompt = None if prompt is None else self._prompt_to_host(prompt)
        launched.done = self.transfers.mark()
        launched.sample_ns += time.perf_counter_ns() - began
        if self.threads is not None:
            attended = int((plan.counts * plan.positions + plan.counts * (plan.counts + 1) // 2).sum())
            took = launched.prepare_ns + launched.forward_ns + launched.sample_ns
            self.threads.end(int(plan.counts.sum()), attended, took)

    def _masks(self, words: U32, masked_rows: I64, indices: LogitsIndices) -> Masks:
        """Of the rows that sample, those that are masked. Raises BadPlan for masks of another number or width."""
        width = -(-self.limits.vocab_size // 32)
        if len(words) != len(masked_rows) * width:
            raise BadPlan(
                f"masks.words: {len(words)} words, but {len(masked_rows)} rows are masked, each with {width}"
            )
        # A mask is of the token behind the row's drafts.
        rows = np.searchsorted(indices.sample_rows, masked_rows, side="right") - 1
        return Masks(rows, words.reshape(-1, width).view(np.int32))

    def number(self, launched: Launched) -> int:
        """Of its plan."""
        return launched.plan.number

    def awaits_masks(self, launched: Launched) -> bool:
        """Whether the step goes on with `choose`."""
        return launched.unsampled is not None

    def is_done(self, launched: Launched) -> bool:
        """Whether `finish` would return at once."""
        return launched.unsampled is None and (launched.done is None or launched.done.query())

    def finish(self, launched: Launched) -> pb.StepResult:
        """Waits for this step, and none after it, and packs the result."""
        if launched.done is not None:
            launched.done.synchronize()
        result = pb.StepResult(
            number=launched.plan.number,
            prepare_ns=launched.prepare_ns,
            forward_ns=launched.forward_ns,
            sample_ns=launched.sample_ns,
            draft_ns=launched.draft_ns,
        )
        sampled, indices = launched.sampled, launched.indices
        if sampled is not None and indices is not None:
            # What was sampled behind a draft that was not accepted is nobody's.
            valid: Bools = np.ones(len(indices.sample_rows), np.bool_)
            if sampled.verified is not None and launched.accepted_R is not None:
                accepted_R, verified = launched.accepted_R.numpy(), sampled.verified
                if verified.kept_S is not None:
                    valid = verified.kept_S.numpy()
                else:
                    valid = verified.offsets_S <= accepted_R[verified.rows_S]
                result.accepted = accepted_R[verified.has_drafts_R].astype("<u4").tobytes()
            result.sampled = sampled.tokens_S.numpy()[valid].astype("<u4").tobytes()
            result.logprobs = sampled.logprobs_S.numpy()[valid].astype("<f4", copy=False).tobytes()
            if sampled.top_tokens_SN is not None and sampled.top_logprobs_SN is not None:
                wanted = sampled.top_counts > 0
                counts = np.where(valid, sampled.top_counts, 0)[wanted]
                result.top_tokens = first_of_each(sampled.top_tokens_SN, counts, "<u4")
                result.top_logprobs = first_of_each(sampled.top_logprobs_SN, counts, "<f4")
            rows = indices.sample_rows[valid]
            for good_S, message in ((sampled.sound_S, NOT_NUMBERS), (sampled.possible_S, NOTHING_LEFT)):
                good = np.ones(len(rows), np.bool_) if good_S is None else good_S.numpy()[valid]
                if not good.all():
                    failed = {error.row for error in result.errors}
                    for row in rows[~good].tolist():
                        if row not in failed:
                            failed.add(row)
                            result.errors.add(row=row, message=message)
        prompt = launched.prompt
        if prompt is not None:
            logprobs = prompt.logprobs_P.numpy().copy()
            logprobs[launched.plan.prompt_targets == NO_TARGET] = np.nan
            result.prompt_logprobs = logprobs.astype("<f4", copy=False).tobytes()
            if prompt.top_tokens_PN is not None and prompt.top_logprobs_PN is not None:
                result.prompt_top_tokens = first_of_each(prompt.top_tokens_PN, prompt.top_counts, "<u4")
                result.prompt_top_logprobs = first_of_each(prompt.top_logprobs_PN, prompt.top_counts, "<f4")
        if launched.began and self.spans is not None:
            self.spans.record(launched.plan, result, launched.began)
        return result

    def _sampled_to_host(self, sampled: Sampled) -> Sampled:
        to_host, verified = self.transfers.to_host, sampled.verified
        if verified is not None and verified.kept_S is not None:
            verified = replace(verified, kept_S=to_host(verified.kept_S))
        return replace(
            sampled,
            verified=verified,
            tokens_S=to_host(sampled.tokens_S),
            logprobs_S=to_host(sampled.logprobs_S),
            sound_S=to_host(sampled.sound_S),
            possible_S=None if sampled.possible_S is None else to_host(sampled.possible_S),
            top_tokens_SN=None if sampled.top_tokens_SN is None else to_host(sampled.top_tokens_SN),
            top_logprobs_SN=None if sampled.top_logprobs_SN is None else to_host(sampled.top_logprobs_SN),
        )

    def _prompt_to_host(self, prompt: PromptAnswers) -> PromptAnswers:
        to_host = self.transfers.to_host
        return replace(
            prompt,
            logprobs_P=to_host(prompt.logprobs_P),
            top_tokens_PN=None if prompt.top_tokens_PN is None else to_host(prompt.top_tokens_PN),
            top_logprobs_PN=None if prompt.top_logprobs_PN is None else to_host(prompt.top_logprobs_PN),
        )

    @torch.inference_mode()
    def check(self) -> None:
        """A tiny computation on the device. Raises when it gives a wrong answer.

        On a GPU it does not queue up behind a step, which may be waiting for another rank.
        """
        with nullcontext() if self._aside is None else torch.cuda.stream(self._aside):
            if int(torch.arange(4, device=self.device).sum()) != 6:
                raise RuntimeError("the device cannot add")

    def _sample(
        self,
        launched: Launched,
        indices: LogitsIndices,
        ids_T: Tensor,
        logits_SV: Tensor,
        masks: Masks | None,
    ) -> Sampled | None:
        plan, rows = launched.plan, indices.sample_rows
        tokens_S = to_device(indices.sample_tokens, self.device)
        drafts = self._drafts(plan, tokens_S, ids_T) if len(plan.drafts) else None
        sampled = None
        if self.group.is_output_rank:
            positions = indices.sample_positions
            previous_S = ids_T.index_select(0, tokens_S)
            # Of every step, whatever its rows want: a row's log probability must not depend on the others.
            summary = None if self.native is None else self.native.summarize(logits_SV, masks)
            draw = None if self.native is None else self.native.draw
            sampled = self.sampler.sample(
                logits_SV, plan.slots[rows], positions, previous_S, masks, drafts, summary, draw
            )
        sampling = (plan.flags & SAMPLE) != 0
        told = torch.empty(
            (1 if drafts is None else 2, int(sampling.sum())), dtype=torch.int64, device=self.device
        )
        if sampled is not None and sampled.verified is not None:
            told[0], told[1] = sampled.verified.last_tokens_R, sampled.verified.accepted_R
        elif sampled is not None:
            told[0] = sampled.tokens_S
        told = self.group.broadcast(told)
        self.last_sampled.index_copy_(0, to_device(plan.slots[sampling], self.device), told[0])
        if self.group.pipeline is not None:
            self.group.pipeline.send_back(told[0])
        if drafts is not None:
            launched.accepted_R = told[1]
        return sampled

    def _drafts(self, plan: Plan, tokens_S: Tensor, ids_T: Tensor) -> Drafts:
        """A sample is compared with the token that the next sample of its row follows."""
        fed_S = ids_T.index_select(0, tokens_S)
        sampling = (plan.flags & SAMPLE) != 0
        counts_R = plan.drafts[sampling] + 1
        parents_S = None
        if plan.trees is not None:
            firsts_R = np.zeros(len(plan.slots), np.int64)
            firsts_R[sampling] = np.cumsum(counts_R) - counts_R
            firsts_D = firsts_R[plan.trees.rows_D]
            parents_S = np.full(int(counts_R.sum()), -1)
            parents_S[firsts_D + plan.trees.numbers_D] = firsts_D + plan.trees.parents_D
        return Drafts(counts_R, fed_S.roll(-1), (plan.flags[sampling] & MASKED) != 0, parents_S)

    def _add_drafts(self, plan: Plan, drafter: Drafter) -> int:
        """Turns rows with OWN_DRAFTS into rows whose drafts are in the plan. Returns how long that took, in nanoseconds."""
        began = time.perf_counter_ns()
        drafts_D = drafter.draft(plan, self.last_sampled)
        own = (plan.flags & OWN_DRAFTS) != 0
        if own.any():
            # The first token of a row that continues is not in the plan.
            given = plan.counts - ((plan.flags & CONTINUE) != 0) - np.where(own, plan.drafts, 0)
            places = np.repeat((np.cumsum(given) - given)[own], plan.drafts[own])
            plan.tokens = np.insert(plan.tokens, places, drafts_D.cpu().numpy().astype(np.uint32))
            plan.flags = plan.flags & ~np.uint8(OWN_DRAFTS)
        return time.perf_counter_ns() - began

    def _show(self, drafter: Drafter, launched: Launched, indices: LogitsIndices, hidden_TE: Tensor) -> None:
        """Gives the drafter what was computed of the tokens behind which rows sampled last."""
        plan = launched.plan
        rows = np.flatnonzero(plan.flags & SAMPLE)
        samples = plan.drafts[rows] + 1 if len(plan.drafts) else np.ones(len(rows), np.int64)
        lasts_R = to_device(np.cumsum(samples) - samples, self.device)
        if launched.accepted_R is not None:
            lasts_R = lasts_R + launched.accepted_R
        tokens_R = to_device(indices.sample_tokens, self.device).index_select(0, lasts_R)
        drafter.saw(plan.slots[rows], hidden_TE.index_select(0, tokens_R))

    def _set_threads(self, count: int) -> None:
        if self.native is not None:
            self.native.set_threads(count)
        else:
            torch.set_num_threads(count)
        if self.drafter is not None:
            self.drafter.set_threads(count)

    def _settle(self) -> None:
        """Waits for the drafts of the last step, if it had some: where its slots end is the beginning of this one."""
        last, self._unsettled = self._unsettled, None
        if last is None:
            return
        if last.done is not None:
            last.done.synchronize()
        assert last.accepted_R is not None
        if last.plan.trees is not None:
            self._move_path(last, last.plan.trees)
        rows = (last.plan.flags & SAMPLE) != 0
        self.slots.settle(last.plan.slots[rows], last.plan.drafts[rows] - last.accepted_R.numpy())

    def _move_path(self, last: Launched, trees: DraftTrees) -> None:
        """Brings what the cache has of accepted drafts of trees to their positions."""
        assert last.sampled is not None and last.sampled.verified is not None and last.indices is not None
        verified, rows_S, plan = last.sampled.verified, last.indices.sample_rows, last.plan
        assert verified.kept_S is not None
        numbers_S, depths_S = (
            verified.offsets_S,
            last.indices.sample_positions - plan.positions[rows_S] - 1,
        )
        is_moved = verified.kept_S.numpy() & trees.are_trees_R[rows_S] & (numbers_S != depths_S)
        if not is_moved.any():
            return
        rows = rows_S[is_moved]
        places = plan.positions[rows] + np.stack((numbers_S[is_moved], depths_S[is_moved]))
        pages = self.slots.pages[:, plan.slots[rows], places // BLOCK_SIZE]
        sources, targets = (pages * BLOCK_SIZE + places % BLOCK_SIZE).swapaxes(0, 1)
        if self.native is not None:
            self.native.move(sources, targets)
        else:
            self.cache.move(list(sources), list(targets))

    def _forward(self, step: Any) -> Tensor:
        """This stage's layers, between the stage before and the next one."""
        pipeline = self.group.pipeline
        if pipeline is None:
            return self.model.forward(step, self.layer_caches)
        given_TE = None
        if not self.group.is_first_stage:
            shape = (len(step.ids_T), self.model.config.width)
            given_TE = pipeline.receive(torch.empty(shape, dtype=self.dtype, device=self.device))
        hidden_TE = self.model.forward(step, self.layer_caches, given_TE)
        if not self.group.is_last_stage:
            pipeline.send_on(hidden_TE)
        return hidden_TE

    def _due(self, plan: Plan) -> int:
        """How many awaited steps to receive now: up to the last one whose slots this plan continues, and those that the
        last stage must have finished. Not more: it may not have begun the next one.
        """
        assert self.group.pipeline is not None, "nothing is awaited without one"
        done = max(len(self._awaited) - self.group.pipeline.in_flight, 0)
        slots = plan.slots[(plan.flags & CONTINUE) != 0]
        continued = (count for count, sampled in enumerate(self._awaited, 1) if np.isin(sampled, slots).any())
        return max((done, *continued))

    def _receive_back(self, steps: int) -> None:
        """The first stage receives what the last one sampled in the `steps` oldest awaited steps."""
        for _ in range(steps):
            slots = self._awaited.popleft()
            assert self.group.pipeline is not None, "nothing is awaited without one"
            sampled_S = self.group.pipeline.receive_back(len(slots)).to(self.device)
            self.last_sampled.index_copy_(0, to_device(slots, self.device), sampled_S)

    def _prompt_logprobs(self, plan: Plan, indices: LogitsIndices, hidden_TE: Tensor) -> PromptAnswers | None:
        targets = np.where(plan.prompt_targets == NO_TARGET, 0, plan.prompt_targets).astype(np.int64)
        targets_T = to_device(targets, self.device)
        tokens_T = to_device(indices.prompt_tokens, self.device)
        rows = np.flatnonzero(plan.flags & PROMPT_LOGPROBS)
        top_counts = np.repeat(self.sampler.top_counts[plan.slots[rows]], plan.counts[rows])
        most = int(top_counts.max(initial=0))
        parts, tops = [], []
        for begin in range(0, len(targets), PROMPT_LOGITS_AT_ONCE):
            some = slice(begin, begin + PROMPT_LOGITS_AT_ONCE)
            chosen_TE = hidden_TE.index_select(0, tokens_T[some])
            logits_TV = self.model.logits(chosen_TE, self._logits_SV[: len(chosen_TE)])
            if not self.group.is_output_rank:
                continue
            chosen_T1 = logits_TV.gather(1, targets_T[some].unsqueeze(1))
            total_T1 = logits_TV.logsumexp(-1, keepdim=True)
            parts.append((chosen_T1 - total_T1).squeeze(1))
            if most:
                tokens_TN = most_likely(logits_TV, most)
                tops.append((tokens_TN, logits_TV.gather(1, tokens_TN) - total_T1))
        if not parts:
            return None
        tokens_PN = torch.cat([tokens for tokens, _ in tops]) if tops else None
        logprobs_PN = torch.cat([logprobs for _, logprobs in tops]) if tops else None
        return PromptAnswers(torch.cat(parts), top_counts, tokens_PN, logprobs_PN)


def first_of_each(table_RN: Tensor, counts: I64, dtype: str) -> bytes:
    """The first `counts` (R,) of each row of a table on the host, one after the other, as a column of `dtype`."""
    table = table_RN.numpy()
    return table[np.arange(table.shape[1]) < counts[:, None]].astype(dtype).tobytes()
