"""One step: plan -> tensors -> forward -> sample -> result.

Called by the service, by one thread at a time. Has no queue and decides nothing: what runs is in the
plan. A step is launched and finished apart, so that on an accelerator the next one can be launched
before the host has seen this one's result; what a slot sampled last stays on the device.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.adapters import Adapter
from penstock.engine import backend
from penstock.engine.columns import I64, Bools
from penstock.engine.draft_trees import DraftTrees
from penstock.engine.drafter import Drafter
from penstock.engine.kv_cache import KvCache, numbers_of
from penstock.engine.launched import Launched, PromptAnswers, Unsampled, Verdict
from penstock.engine.logits_indices import LogitsIndices
from penstock.engine.native_repeats import Repeats
from penstock.engine.native_run import NativeRun
from penstock.engine.native_sampling import NativeSampler
from penstock.engine.plan import (
    CONTINUE,
    MASKED,
    NO_TARGET,
    OWN_DRAFTS,
    PROMPT_LOGPROBS,
    SAMPLE,
    START,
    MaskColumns,
    Plan,
)
from penstock.engine.slot_sampling import Drafts, Masks, Sampled
from penstock.engine.slots import Limits, SlotTable
from penstock.engine.state_cache import StateCache, starting
from penstock.engine.step_memory import PROMPT_LOGITS_AT_ONCE
from penstock.engine.tables import BLOCK_SIZE, Tables, divide
from penstock.engine.threads import KINDS, Threads
from penstock.models.cache_format import FORMATS
from penstock.models.config import BlockIndexConfig, DecoderConfig
from penstock.models.layer_cache import LayerCache
from penstock.models.model import Model
from penstock.models.native import NativeModel, tell
from penstock.models.packed_cache import PackedCache
from penstock.parallel.group import ALONE, TensorGroup
from penstock.proto import penstock_pb2 as pb
from penstock_kernels.program import Array
from penstock_kernels.run import MOST_MADE, Inbox, Pause

if TYPE_CHECKING:
    # Imports what sends spans, which few servers do.
    from penstock.engine.spans import StepSpans
    from penstock.engine.step_graphs import StepGraphs

# Rows of every product where results may not depend on how many there are: enough to be worth a call for a
# prompt, and few enough that a lone decode does not pay for many.
TILE = 16

NOT_NUMBERS = "the model produced logits that are not numbers"
NOTHING_LEFT = "grammar, logit bias and min_tokens together forbid every token"


class Engine:
    """The model, and after `prepare` the cache and the slots."""

    def __init__(
        self,
        config: dict[str, Any],
        folder: Path,
        dtype: Any,
        device: Any,
        group: TensorGroup = ALONE,
        trusted: bool = False,
        deterministic: bool = False,
        implementation: str = "auto",
        quantize: str = "",
        quantize_head: bool = False,
        packed_cache: PackedCache | None = None,
        found: tuple[str, Model] | None = None,
        cache_dtype: str = "auto",
        threads: int = 0,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """`deterministic`: what a token gets does not depend on what else is in the step, in any dtype. `quantize`: of
        `packing.FORMATS`, weights while they are read. `packed_cache`: where packed weights are kept between starts. `found`: what `choice.find`
        gave, with which nothing is loaded. `cache_dtype`: of `cache_format.FORMATS`. `dtype` and `device` are torch's, or of `tensors` and `host`
        where the CPU engine runs the model. `threads`: its; 0: all. `adapters`: that sequences may be computed with. Raises UnusableModel.
        """
        self.dtype = dtype
        self.device = device
        self.group = group
        if found is None:
            from penstock.models import building

            found = building.load(
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
                cache_dtype,
                threads,
            )
        self.recipe, self.model = found
        self.adapters = [replace(one, pairs={}) for one in adapters]  # what they change is the model's by now
        if adapters:
            from penstock.models import adapted_models

            adapted_models.adapt(self.model, adapters, config, folder, group, trusted)
        self.stage_width = self.model.config.stage_width(
            self.model.config.layers_of(group).start
        )  # of what it receives
        if self.native is not None:
            self.native.cache_format = FORMATS[cache_dtype]
            if cache_dtype != "auto":
                tell(f"keys and values are held as {cache_dtype}")
        self.arrays = backend.make_arrays(self.native, dtype, device)
        self.packed_cache = packed_cache
        self.deterministic = deterministic
        if deterministic:
            if self.native is None:
                group.check_batch_invariance()
            self.model.make_batch_invariant(TILE)
        # Where sums depend on the number of threads, and may not, or where ranks wait for each other, it stays as it is.
        self.threads: Threads | None = None
        is_free = dtype.itemsize < 4 and not deterministic and group.everyone.size == 1
        if device.type == "cpu" and is_free:
            most = self._most_threads()
            self.threads = Threads(most, self._set_threads) if most > 1 else None
        self._steps: I64 = np.zeros(1, np.int64)
        self.spans: StepSpans | None = None
        self.drafter: Drafter | None = None  # set before `allocate`
        self.graphs: StepGraphs | None = None
        self._prepared = False

    @property
    def steps(self) -> int:
        """Begun since the worker began."""
        return int(self._steps[0])

    @property
    def depth(self) -> int:
        """Steps worth launching before the first is finished: on a CPU a launch is the whole work."""
        return 2 if self.device.type == "cuda" else 1

    @property
    def device_name(self) -> str:
        """Processor or accelerator, as the system names it."""
        if self.device.type == "cuda":
            import torch

            return str(torch.cuda.get_device_name(self.device))
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return "cpu"

    @property
    def native(self) -> NativeModel | None:
        """The model, where the CPU engine runs it."""
        return self.model if isinstance(self.model, NativeModel) else None

    @property
    def has_encoder(self) -> bool:
        """Whether every sequence begins with what an encoder reads."""
        return self.model.config.has_encoder

    @property
    def verifies_trees(self) -> bool:
        """Whether drafts may be a tree. The path that is accepted would have to be told to the stages before, to a drafter, which
        keeps what was fed by its position, and to the keys of blocks.
        """
        config = self.model.config
        has_blocks = isinstance(config, DecoderConfig) and isinstance(config.index, BlockIndexConfig)
        is_plain = not (config.has_encoder or config.has_state or has_blocks)
        return is_plain and self.drafter is None and self.group.pipeline is None

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
            self.arrays,
            limits.pages,
        )
        self.states: StateCache | None = None
        self.layer_caches = self.cache.layers
        if config.has_state:
            shapes = config.state_shapes(group)
            places = (limits.max_slots, limits.snapshots, limits.draft_states)
            self.states = StateCache(shapes, *places, self.arrays)
            self.layer_caches = self._layer_caches(self.states)
        self.slots = SlotTable(limits)
        if self.native is not None and self.adapters:
            self.native.follow_adapters(self.slots.adapters)
        self.sampler = backend.make_sampler(self.native, limits, self.device)
        # At most this many rows of logits exist at once; on a CPU their pages are taken when first used.
        most = max(limits.max_slots + limits.max_step_drafts, PROMPT_LOGITS_AT_ONCE)
        self._logits_SV = self.arrays.empty(most, limits.vocab_size)
        # Of slots; behind them a place for rows that nobody has, which fill up graphs.
        self.last_sampled = self.arrays.zeros(limits.max_slots + 1)
        # Of each step whose samples the last stage has not sent back yet, the slots that sampled. First stage only.
        self._awaited: deque[I64] = deque()
        # The last step, if it verified drafts and the lengths of its slots are not known yet.
        self._unsettled: Launched | None = None
        self._forget_repeats()
        self._run: NativeRun | None = None  # made behind the first step
        self.model.serve_up_to(limits.max_sequence_tokens)
        where = (self.cache.zero_row, self.dtype, self.device, self.deterministic)
        self.step_maker = backend.make_step_maker(self.model, self.slots, len(self._logits_SV), *where)
        if self.device.type == "cuda" and group.everyone.size == 1:
            place = 0 if self.states is None else self.states.spare_place
            given = (self.arrays, self.last_sampled, self._logits_SV, place)
            self.graphs = backend.make_graphs(self.model, self.layer_caches, self.step_maker, *given)
        if self.drafter is not None:
            self.drafter.allocate(self.slots, self.sampler)
        self._prepared = True

    def _layer_caches(self, states: StateCache) -> list[LayerCache]:
        """Of each layer what it keeps: keys and values, a state, both or neither."""
        numbers, cached = self.model.config.cached_layers(self.group), iter(self.cache.layers)
        none = LayerCache(self.arrays.pages(0, *self.model.cache_shape), 0)
        return [
            replace(none if number is None else next(cached), states=tensors)
            for number, tensors in zip(numbers, states.layers, strict=True)
        ]

    def _most_threads(self) -> int:
        if self.native is not None:
            return self.native.threads
        import torch

        return torch.get_num_threads()

    def release(self) -> None:
        """Gives back what `allocate` made."""
        self.clear()
        if self.drafter is not None:
            self.drafter.release()
        self.graphs = self._run = None
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
        self._forget_repeats()
        self.step_maker.clear()
        self.slots.clear()
        self.sampler.clear()
        if self.drafter is not None:
            self.drafter.clear()

    def step(self, plan: Plan, masks: MaskColumns | None = None) -> pb.StepResult:
        """Launches and finishes."""
        launched = self.launch(plan)
        if self.awaits_masks(launched):
            self.choose(launched, masks)
        return self.finish(launched)

    def go_on(self, inbox: Inbox) -> Launched | None:
        """Has the CPU engine read plans and answer them, as long as they ask for nothing unusual. Returns a step of which something is left: its
        choice with masks. Where there is a draft model, Python has all plans: whatever is fed is for it, too.
        """
        run, states = self._run, self.slots.states
        if run is None or self.drafter is not None:
            return None
        self._settle()
        if states is not None and states.are_unsettled:
            return None
        while True:
            pause = self._go_on(run, inbox)
            # Where nothing has come for a while, the next message is waited for in Python, which sleeps until it is there.
            if pause == Pause.MESSAGE or (pause == Pause.STEPS and not run.made):
                return None
            if pause == Pause.MASKS:
                return self._left(run, inbox.number)

    def _make_run(self) -> NativeRun | None:
        """For the CPU engine, which has to know where the caches are, as it does behind a step."""
        native, sampler, answers = self.native, self.sampler, self.group.is_output_rank
        if native is None or not isinstance(sampler, NativeSampler):
            return None
        where = (self.last_sampled, self._steps, self._logits_SV)
        return NativeRun(native, self.slots, sampler, *where, answers, (NOT_NUMBERS, NOTHING_LEFT))

    def _go_on(self, run: NativeRun, inbox: Inbox) -> Pause:
        threads = self.threads
        assert self.native is not None, "it runs"
        as_it_is = [(self.native.threads, MOST_MADE)] * (len(KINDS) + 1)
        before = inbox.number
        pause = run.go_on(inbox, as_it_is if threads is None else threads.ahead())
        if threads is not None:
            threads.were(run.made)
        if inbox.number != before:
            self.slots.went_on()
            self._forget_repeats()
            self.step_maker.clear()
        return pause

    def _left(self, run: NativeRun, number: int) -> Launched:
        """A step that was run, and whose masks are not usual."""
        plan, prepare_ns, forward_ns = run.left(number)
        indices, step = self.step_maker.make(plan, self.last_sampled)
        logits_SV = self._logits_SV[: len(indices.sample_rows)]
        launched = Launched(plan, None, None, None, prepare_ns, forward_ns, 0, rows_S=indices.sample_rows)
        launched.unsampled = Unsampled(indices, step.ids_T, None, logits_SV)
        return launched

    def launch(self, plan: Plan) -> Launched:
        """Checks the plan against the slots and gives its work to the device. Raises BadPlan.

        Where this rank samples and rows are masked, `choose` gives it the rest.
        """
        with self.arrays.computing():
            return self._launch(plan)

    def _launch(self, plan: Plan) -> Launched:
        traced_since = time.time_ns() if plan.traces and self.spans is not None else 0
        began = time.perf_counter_ns()
        self._settle()
        self.slots.apply(plan)
        repeats = self._repeats_of(plan)
        if repeats is not None and repeats.serves(plan):
            return self._repeat(plan, repeats, began, traced_since)
        if len(plan.copies):
            self.cache.copy_pages(plan.copies)
            if self.drafter is not None:
                self.drafter.copy_pages(plan.copies)
        if len(plan.released):
            self.sampler.release(plan.released.astype(np.int64))
        if plan.starts is not None:
            self.sampler.start(plan.slots[(plan.flags & START) != 0], plan.starts)
            if self.states is not None:
                self.states.start(*starting(plan, self.slots))
        self._steps[0] += 1
        if len(plan.slots) == 0:
            self.step_maker.clear()
            return Launched(plan, None, None, None, time.perf_counter_ns() - began, 0, 0)
        if self._awaited:
            self._receive_back(self._due(plan))
        tokens = int(plan.counts.sum())
        if self.threads is not None:
            self.threads.begin(tokens)
        draft_ns = 0
        if self.drafter is not None:
            draft_ns = self._add_drafts(plan, self.drafter)
        logits_SV = None
        replayed = None
        # What is recorded is of tokens without an adapter.
        if self.graphs is not None and not (self.adapters and self.slots.adapters[plan.slots].any()):
            replayed = self.graphs.run(plan)
        if replayed is not None:
            prepared = time.perf_counter_ns()
            indices, ids_T, hidden_TE = replayed.indices, replayed.ids_T, replayed.hidden_TE
            logits_SV = replayed.logits_SV
        else:
            indices, step = self.step_maker.make(plan, self.last_sampled)
            prepared = time.perf_counter_ns()
            ids_T, hidden_TE = step.ids_T, self._forward(step)
            if self._run is None:
                self._run = self._make_run()
        forwarded = time.perf_counter_ns()
        launched = Launched(
            plan,
            None,
            None,
            None,
            prepared - began - draft_ns,
            forwarded - prepared,
            0,
            traced_since,
            rows_S=indices.sample_rows,
            draft_ns=draft_ns,
        )
        if logits_SV is None and self.group.is_last_stage and len(indices.sample_rows):
            # Every rank computes logits and learns what was sampled; the stage's rank 0 samples and answers.
            chosen_SE = hidden_TE[self.arrays.of(indices.sample_tokens)]
            logits_SV = self.model.logits(chosen_SE, self._logits_SV[: len(chosen_SE)])
        if self.graphs is not None and replayed is not None and self.drafter is None:
            launched.sampled = self.graphs.choose(plan, replayed, self.sampler, self.arrays.to_host)
            if launched.sampled is not None:
                launched.done = self.arrays.mark()
                launched.sample_ns = time.perf_counter_ns() - forwarded
                return launched
        launched.sample_ns = time.perf_counter_ns() - forwarded
        launched.unsampled = Unsampled(indices, ids_T, hidden_TE, logits_SV)
        if not (self.group.is_output_rank and (plan.flags & MASKED).any()):
            self._choose(launched, None)
        return launched

    def _forget_repeats(self) -> None:
        self.repeats: Repeats | None = None
        self._asked_repeats = False

    def _repeats_of(self, plan: Plan) -> Repeats | None:
        """What computes a plan in one call, if it goes on from the one before."""
        if not plan.goes_on:
            self._forget_repeats()
        elif not self._asked_repeats:
            self._asked_repeats = True
            native, sampler, samples = self.native, self.sampler, self.group.is_output_rank
            if native is not None and isinstance(sampler, NativeSampler) and self.drafter is None:
                self.repeats = Repeats(plan, native, sampler, self.slots, self._logits_SV, samples)
        return self.repeats

    def _repeat(self, plan: Plan, repeats: Repeats, began: int, traced_since: int) -> Launched:
        """A step in one call, but for the choice where masks are awaited."""
        self._steps[0] += 1
        if self.threads is not None:
            self.threads.begin(len(plan.slots) + len(plan.tokens))
        repeats.begin(plan, self.last_sampled[plan.slots])
        prepared = time.perf_counter_ns()
        repeats.run()
        times = (prepared - began, time.perf_counter_ns() - prepared, 0, traced_since)
        launched = Launched(plan, None, None, None, *times)
        if repeats.awaits_masks:
            launched.unsampled = repeats
        else:
            self._take(launched, repeats, None)
        return launched

    def _take(self, launched: Launched, repeats: Repeats, columns: MaskColumns | None) -> None:
        """What such a step has sampled, or samples now that its masks are there."""
        began = time.perf_counter_ns()
        plan, masks = launched.plan, None
        if columns is not None:
            masks = repeats.masks(plan, columns)
        taken = repeats.take(plan, masks)
        self.last_sampled[plan.slots] = taken.last_tokens_R
        paths = taken.paths
        if paths is not None:
            if paths.moved_M3:
                self._move_path(plan, *np.array(paths.moved_M3).T)
            self.slots.settle(plan.slots, plan.drafts - paths.accepted_R)
            launched.accepted_V = paths.accepted_R[plan.drafts > 0]
        launched.sampled, launched.rows_S = taken.sampled, taken.rows_S
        launched.sample_ns = time.perf_counter_ns() - began
        self._end(launched)

    def _end(self, launched: Launched) -> None:
        """Tells how long a step took."""
        if self.threads is None:
            return
        plan, counts = launched.plan, launched.plan.counts
        tokens = len(plan.slots)
        if plan.goes_on and not len(plan.drafts):
            attended = int(plan.positions.sum()) + tokens
        else:
            attended = int((counts * plan.positions + counts * (counts + 1) // 2).sum())
            tokens = int(counts.sum())
        took = launched.prepare_ns + launched.forward_ns + launched.sample_ns
        self.threads.end(tokens, attended, took)

    def choose(self, launched: Launched, columns: MaskColumns | None) -> None:
        """Samples in a step whose model has been launched. `columns`: its masks. Raises BadPlan where they are not."""
        with self.arrays.computing():
            self._choose(launched, columns)

    def _choose(self, launched: Launched, columns: MaskColumns | None) -> None:
        plan, unsampled = launched.plan, launched.unsampled
        assert unsampled is not None, "it was launched and nothing was sampled"
        launched.unsampled = None
        if isinstance(unsampled, Repeats):
            self._take(launched, unsampled, columns)
            return
        began, indices = time.perf_counter_ns(), unsampled.indices
        masks = None
        if columns is not None:
            masks = Masks.of_plan(plan, indices.sample_rows, columns, self.limits.vocab_size)
        sampled = prompt = None
        if self.group.is_last_stage:
            if unsampled.logits_SV is not None:
                sampled = self._sample(launched, indices, unsampled.ids_T, unsampled.logits_SV, masks)
                if self.drafter is not None and self.drafter.reads_hidden:
                    assert unsampled.hidden_TE is not None, "the drafter's step is Python's"
                    self._show(self.drafter, launched, indices, unsampled.hidden_TE)
            if len(indices.prompt_tokens):
                assert unsampled.hidden_TE is not None, "a prompt's log probabilities are Python's"
                prompt = self._prompt_logprobs(plan, indices, unsampled.hidden_TE)
        elif self.group.is_first_stage and len(indices.sample_rows):
            self._awaited.append(plan.slots[(plan.flags & SAMPLE) != 0])
        launched.sampled = None if sampled is None else self._sampled_to_host(sampled)
        verdict = launched.verdict
        if verdict is not None:
            verdict.accepted_R = self.arrays.to_host(verdict.accepted_R)
            if verdict.kept_S is not None:
                verdict.kept_S = self.arrays.to_host(verdict.kept_S)
            self._unsettled = launched
        launched.prompt = None if prompt is None else self._prompt_to_host(prompt)
        launched.done = self.arrays.mark()
        launched.sample_ns += time.perf_counter_ns() - began
        self._end(launched)

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
        sampled, verdict = launched.sampled, launched.verdict
        if sampled is not None:
            # What was sampled behind a draft that was not accepted is nobody's.
            valid: Bools | slice = slice(None)
            accepted_V = launched.accepted_V
            if verdict is not None:
                valid, accepted_V = verdict.is_kept_S(), verdict.accepted_V()
            if accepted_V is not None:
                result.accepted = accepted_V.astype("<u4").tobytes()
            result.sampled = np.asarray(sampled.tokens_S)[valid].astype("<u4").tobytes()
            result.logprobs = np.asarray(sampled.logprobs_S)[valid].astype("<f4", copy=False).tobytes()
            if sampled.top_tokens_SN is not None and sampled.top_logprobs_SN is not None:
                counts = np.zeros_like(sampled.top_counts)
                counts[valid] = sampled.top_counts[valid]
                counts = counts[sampled.top_counts > 0]
                result.top_tokens = first_of_each(sampled.top_tokens_SN, counts, "<u4")
                result.top_logprobs = first_of_each(sampled.top_logprobs_SN, counts, "<f4")
            for good_S, message in ((sampled.sound_S, NOT_NUMBERS), (sampled.possible_S, NOTHING_LEFT)):
                if good_S is None or (good := np.asarray(good_S)[valid]).all():
                    continue
                failed = {error.row for error in result.errors}
                for row in launched.rows_S[valid][~good].tolist():
                    if row not in failed:
                        failed.add(row)
                        result.errors.add(row=row, message=message)
        prompt = launched.prompt
        if prompt is not None:
            logprobs = np.asarray(prompt.logprobs_P).copy()
            logprobs[launched.plan.prompt_targets == NO_TARGET] = np.nan
            result.prompt_logprobs = logprobs.astype("<f4", copy=False).tobytes()
            if prompt.top_tokens_PN is not None and prompt.top_logprobs_PN is not None:
                result.prompt_top_tokens = first_of_each(prompt.top_tokens_PN, prompt.top_counts, "<u4")
                result.prompt_top_logprobs = first_of_each(prompt.top_logprobs_PN, prompt.top_counts, "<f4")
        if launched.began and self.spans is not None:
            self.spans.record(launched.plan, result, launched.began)
        return result

    def _sampled_to_host(self, sampled: Sampled) -> Sampled:
        if self.native is not None:
            return sampled
        to_host = self.arrays.to_host
        return replace(
            sampled,
            tokens_S=to_host(sampled.tokens_S),
            logprobs_S=to_host(sampled.logprobs_S),
            sound_S=to_host(sampled.sound_S),
            possible_S=None if sampled.possible_S is None else to_host(sampled.possible_S),
            top_tokens_SN=None if sampled.top_tokens_SN is None else to_host(sampled.top_tokens_SN),
            top_logprobs_SN=None if sampled.top_logprobs_SN is None else to_host(sampled.top_logprobs_SN),
        )

    def _prompt_to_host(self, prompt: PromptAnswers) -> PromptAnswers:
        to_host = self.arrays.to_host
        return replace(
            prompt,
            logprobs_P=to_host(prompt.logprobs_P),
            top_tokens_PN=None if prompt.top_tokens_PN is None else to_host(prompt.top_tokens_PN),
            top_logprobs_PN=None if prompt.top_logprobs_PN is None else to_host(prompt.top_logprobs_PN),
        )

    def check(self) -> None:
        """A tiny computation on the device. Raises when it gives a wrong answer."""
        with self.arrays.computing():
            self.arrays.check()

    def _sample(
        self,
        launched: Launched,
        indices: LogitsIndices,
        ids_T: Array,
        logits_SV: Array,
        masks: Masks | None,
    ) -> Sampled | None:
        plan, rows = launched.plan, indices.sample_rows
        tokens_S = self.arrays.of(indices.sample_tokens)
        drafts = self._drafts(plan, tokens_S, ids_T) if len(plan.drafts) else None
        sampled = None
        if self.group.is_output_rank:
            positions = indices.sample_positions
            previous_S = ids_T[tokens_S]
            sampled = self.sampler.sample(logits_SV, plan.slots[rows], positions, previous_S, masks, drafts)
        sampling = (plan.flags & SAMPLE) != 0
        # The last token of each row; with drafts how many were accepted; with trees which samples are on an accepted path.
        count = int(sampling.sum())
        numbers = count if drafts is None else 2 * count
        told = self.arrays.zeros(numbers if plan.trees is None else numbers + len(rows))
        if sampled is not None and sampled.verified is not None:
            verified = sampled.verified
            told[:count], told[count:numbers] = verified.last_tokens_R, verified.accepted_R
            if verified.kept_S is not None:
                told[numbers:] = verified.kept_S
        elif sampled is not None:
            told[:count] = sampled.tokens_S
        if self.native is None:
            self.group.broadcast(told)
        else:
            self.native.tell(told)
        self.last_sampled[self.arrays.of(plan.slots[sampling])] = told[:count]
        if self.group.pipeline is not None:
            self.group.pipeline.send_back(told[:count])
        if drafts is not None:
            kept_S = None if plan.trees is None else told[numbers:]
            launched.verdict = Verdict(indices, drafts, told[count:numbers], kept_S)
        return sampled

    def _drafts(self, plan: Plan, tokens_S: Array, ids_T: Array) -> Drafts:
        """A sample is compared with the token that the next sample of its row follows."""
        fed_S = ids_T[tokens_S]
        sampling = (plan.flags & SAMPLE) != 0
        counts_R = plan.drafts[sampling] + 1
        parents_S = None
        if plan.trees is not None:
            firsts_R = np.zeros(len(plan.slots), np.int64)
            firsts_R[sampling] = np.cumsum(counts_R) - counts_R
            firsts_D = firsts_R[plan.trees.rows_D]
            parents_S = np.full(int(counts_R.sum()), -1)
            parents_S[firsts_D + plan.trees.numbers_D] = firsts_D + plan.trees.parents_D
        next_S = fed_S[self.arrays.of(np.arange(1, len(fed_S) + 1) % len(fed_S))]
        return Drafts(counts_R, next_S, parents_S)

    def _add_drafts(self, plan: Plan, drafter: Drafter) -> int:
        """Turns rows with OWN_DRAFTS into rows whose drafts are in the plan. Returns how long that took, in nanoseconds."""
        began = time.perf_counter_ns()
        drafts_D = drafter.draft(plan, self.last_sampled)
        own = (plan.flags & OWN_DRAFTS) != 0
        if own.any():
            # The first token of a row that continues is not in the plan.
            given = plan.counts - ((plan.flags & CONTINUE) != 0) - np.where(own, plan.drafts, 0)
            places = np.repeat((np.cumsum(given) - given)[own], plan.drafts[own])
            plan.tokens = np.insert(plan.tokens, places, drafts_D.astype(np.uint32))
            plan.flags = plan.flags & ~np.uint8(OWN_DRAFTS)
        return time.perf_counter_ns() - began

    def _show(self, drafter: Drafter, launched: Launched, indices: LogitsIndices, hidden_TE: Array) -> None:
        """Gives the drafter what was computed of the tokens behind which rows sampled last."""
        plan = launched.plan
        rows = np.flatnonzero(plan.flags & SAMPLE)
        samples = plan.drafts[rows] + 1 if len(plan.drafts) else np.ones(len(rows), np.int64)
        lasts_R = self.arrays.of(np.cumsum(samples) - samples)
        if launched.verdict is not None:
            lasts_R = lasts_R + launched.verdict.accepted_R
        tokens_R = self.arrays.of(indices.sample_tokens)[lasts_R]
        drafter.saw(plan.slots[rows], hidden_TE[tokens_R])

    def _set_threads(self, count: int) -> None:
        if self.native is not None:
            self.native.set_threads(count)
        else:
            import torch

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
        verdict = last.verdict
        assert verdict is not None, "it had drafts"
        if last.plan.trees is not None:
            self._move_accepted(last.plan, verdict, last.plan.trees)
        rows = (last.plan.flags & SAMPLE) != 0
        self.slots.settle(last.plan.slots[rows], last.plan.drafts[rows] - np.asarray(verdict.accepted_R))

    def _move_accepted(self, plan: Plan, verdict: Verdict, trees: DraftTrees) -> None:
        """Brings what the cache has of accepted drafts of trees to their positions."""
        indices, numbers_S = verdict.indices, verdict.drafts.offsets_S
        rows_S = indices.sample_rows
        depths_S = indices.sample_positions - plan.positions[rows_S] - 1
        is_moved = verdict.is_kept_S() & trees.are_trees_R[rows_S] & (numbers_S != depths_S)
        if is_moved.any():
            self._move_path(plan, rows_S[is_moved], numbers_S[is_moved], depths_S[is_moved])

    def _move_path(self, plan: Plan, rows: I64, numbers: I64, depths: I64) -> None:
        """Copies what the cache has of these tokens of rows to where tokens are at these depths, in this order."""
        places = plan.positions[rows] + np.stack((numbers, depths))
        pages = self.slots.pages[:, plan.slots[rows], places // BLOCK_SIZE]
        sources, targets = (pages * BLOCK_SIZE + places % BLOCK_SIZE).swapaxes(0, 1)
        if self.native is not None:
            self.native.move(sources, targets)
        else:
            self.cache.move(list(sources), list(targets))

    def _forward(self, step: Any) -> Array:
        """This stage's layers, between the stage before and the next one."""
        pipeline = self.group.pipeline
        if pipeline is None:
            return self.model.forward(step, self.layer_caches)
        given_TE = None
        if not self.group.is_first_stage:
            given_TE = pipeline.receive(self.arrays.states(len(step.ids_T), self.stage_width, is_fp32=False))
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
            self.last_sampled[self.arrays.of(slots)] = sampled_S

    def _prompt_logprobs(self, plan: Plan, indices: LogitsIndices, hidden_TE: Array) -> PromptAnswers | None:
        targets_T = np.where(plan.prompt_targets == NO_TARGET, 0, plan.prompt_targets).astype(np.int64)
        tokens_T = self.arrays.of(indices.prompt_tokens)
        rows = np.flatnonzero(plan.flags & PROMPT_LOGPROBS)
        top_counts = np.repeat(self.sampler.top_counts[plan.slots[rows]], plan.counts[rows])
        most = int(top_counts.max(initial=0))
        parts = []
        for begin in range(0, len(targets_T), PROMPT_LOGITS_AT_ONCE):
            some = slice(begin, begin + PROMPT_LOGITS_AT_ONCE)
            chosen_TE = hidden_TE[tokens_T[some]]
            logits_TV = self.model.logits(chosen_TE, self._logits_SV[: len(chosen_TE)])
            if self.group.is_output_rank:
                parts.append(self.sampler.tell(logits_TV, targets_T[some], most))
        if not parts:
            return None
        logprobs, tokens, others = (
            None if column[0] is None else self.arrays.join(column) for column in zip(*parts, strict=True)
        )
        return PromptAnswers(logprobs, top_counts, tokens, others)


def first_of_each(table_RN: Array, counts: I64, dtype: str) -> bytes:
    """The first `counts` (R,) of each row of a table on the host, one after the other, as a column of `dtype`."""
    table = np.asarray(table_RN)
    return table[np.arange(table.shape[1]) < counts[:, None]].astype(dtype).tobytes()
