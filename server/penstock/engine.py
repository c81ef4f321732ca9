"""One step: plan -> tensors -> forward -> sample -> result.

Called by the service, by one thread at a time. Has no queue and decides nothing: what runs is in the
plan. A step is launched and finished apart, so that on an accelerator the next one can be launched
before the host has seen this one's result; what a slot sampled last stays on the device.
"""

import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnusableModel
from penstock.kv_cache import KvCache
from penstock.layers.linear import set_tile
from penstock.layers.rope import RopeTable
from penstock.layout import Geometry, Layout, continued, is_steady, make_layout, to_device
from penstock.models import choice
from penstock.models.config import DecoderConfig
from penstock.models.decoder import Decoder, Step
from penstock.models.encoder_decoder import EncoderDecoder
from penstock.models.encoder_decoder_layout import TwoSidedLayout, TwoSidedSteps
from penstock.models.fallback import Fallback, FallbackConfig
from penstock.parallel import ALONE, TensorGroup
from penstock.plan import CONTINUE, I64, NO_TARGET, PROMPT_LOGPROBS, START, Plan
from penstock.proto import penstock_pb2 as pb
from penstock.sampling import Sampled, Sampler, most_likely
from penstock.slots import Limits, SlotTable
from penstock.tables import BLOCK_SIZE, Tables, divide

if TYPE_CHECKING:  # imports what sends spans, which few servers do
    from penstock.spans import StepSpans

# Prompt positions whose logits exist at once, when their log probabilities are wanted.
PROMPT_LOGITS_AT_ONCE = 64

# Rows of every product where results may not depend on how many there are: enough to be worth a call for a
# prompt, and few enough that a lone decode does not pay for many.
TILE = 16

NOT_NUMBERS = "the model produced logits that are not numbers"
NOTHING_LEFT = "logit bias and min_tokens forbid every token"


@dataclass(slots=True)
class PromptAnswers:
    """Of the P entries of a plan's `prompt_targets`."""

    logprobs_P: Tensor
    top_counts: I64  # (P,) on the host: alternatives wanted of each
    top_tokens_PN: Tensor | None  # N: the most that one wants; None when none does
    top_logprobs_PN: Tensor | None


@dataclass(slots=True)
class Launched:
    """A step whose work has been given to the device."""

    plan: Plan
    layout: Layout | TwoSidedLayout | None
    sampled: Sampled | None
    prompt: PromptAnswers | None
    done: "torch.cuda.Event | None"
    prepare_ns: int
    forward_ns: int
    sample_ns: int
    began: int = 0  # in nanoseconds since 1970, where the step's span is wanted


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
    ) -> None:
        """`deterministic`: what a token gets does not depend on what else is in the step, in any dtype."""
        self.dtype = dtype
        self.device = device
        self.group = group
        self.recipe, self.model = choice.load(config, folder, dtype, device, group, trusted, implementation)
        self.deterministic = deterministic
        if deterministic:
            if isinstance(self.model, Fallback):
                raise UnusableModel(
                    f"--deterministic: {self.model.name} runs through transformers, whose sums depend on the batch"
                )
            if group.size > 2:
                raise UnusableModel(
                    f"--deterministic: the sums of {group.size} shards depend on the batch; the most is --num-shard 2"
                )
            set_tile(self.model, TILE)
        if group.pipeline is not None and not isinstance(self.model, Decoder):
            raise UnusableModel(f"--pipeline-parallel: {self.recipe} runs in one stage only")
        self.steps = 0
        self.spans: StepSpans | None = None
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
    def has_encoder(self) -> bool:
        """Whether every sequence begins with what an encoder reads."""
        return isinstance(self.model, EncoderDecoder)

    def tables(self, longest: int) -> Tables:
        """How the cache is divided when no sequence has more than so many tokens."""
        return divide(self.model.config.layer_windows, longest)

    def allocate(self, limits: Limits) -> None:
        """Makes cache, slots and tables for these limits."""
        self.limits = limits
        rows, size = self.model.cache_shape
        layers = self.group.layers(self.model.config.layers)
        self.cache = KvCache(limits.tables, layers, (rows, size), self.dtype, self.device, limits.pages)
        self.slots = SlotTable(limits)
        self.sampler = Sampler(limits.max_slots, limits.vocab_size, self.device)
        # At most this many rows of logits exist at once; on a CPU their pages are taken when first used.
        most = max(limits.max_slots, PROMPT_LOGITS_AT_ONCE)
        self._logits_SV = torch.empty((most, limits.vocab_size), dtype=torch.float32, device=self.device)
        self._gathered = torch.empty(0, dtype=self.dtype, device=self.device)
        self.last_sampled = torch.zeros(limits.max_slots, dtype=torch.int64, device=self.device)
        # Of each step whose samples the last stage has not sent back yet, the slots that sampled. First stage only.
        self._awaited: deque[I64] = deque()
        self._steady: tuple[Layout, Plan] | None = None
        self._two_sided: TwoSidedSteps | None = None
        if isinstance(self.model, EncoderDecoder):
            self._two_sided = TwoSidedSteps(
                self.slots, self.cache.zero_row, self.dtype, self.device, self.deterministic
            )
        else:
            self._allocate_decoder(self.model.config, rows, size)
        self._prepared = True

    def _allocate_decoder(self, config: DecoderConfig | FallbackConfig, rows: int, size: int) -> None:
        assert not isinstance(self.model, EncoderDecoder)
        tables = self.limits.tables
        # A row in flight may run one token past the longest sequence.
        positions = self.slots.width * BLOCK_SIZE
        self.ropes = [
            RopeTable(rope, self.limits.max_sequence_tokens, positions, self.dtype, self.device)
            for rope in config.ropes
        ]
        self.model.serve_up_to(self.limits.max_sequence_tokens)
        self._geometry = Geometry(
            block_size=BLOCK_SIZE,
            zero_row=self.cache.zero_row,
            heads=rows,
            windows=tuple(
                window if window is None or window.size < self.limits.max_sequence_tokens else None
                for window in config.windows
            ),
            views=tuple(sorted({(window, tables.of[layer][0]) for window, layer in self.model.views()})),
            tables=tables.count,
            simple=config.simple_attention,
            exact=self.deterministic,
            head_dim=size,
            dtype=self.dtype,
            device=self.device,
            nothing=self._gathered,
        )

    def release(self) -> None:
        """Gives back what `allocate` made."""
        self.clear()
        del self.cache, self.slots, self.sampler
        self._prepared = False

    @property
    def prepared(self) -> bool:
        """Whether `allocate` has been called."""
        return self._prepared

    def clear(self) -> None:
        """Forgets all slots: a new Run begins."""
        self._receive_back(len(self._awaited))
        self._steady = None
        self.slots.clear()
        self.sampler.clear()

    def step(self, plan: Plan) -> pb.StepResult:
        """Launches and finishes."""
        return self.finish(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        """Checks the plan against the slots and gives its work to the device. Raises BadPlan."""
        traced_since = time.time_ns() if plan.traces and self.spans is not None else 0
        began = time.perf_counter_ns()
        self.slots.apply(plan)
        if len(plan.released):
            self.sampler.release(plan.released.astype(np.int64))
        if plan.starts is not None:
            self.sampler.start(plan.slots[(plan.flags & START) != 0], plan.starts)
        self.steps += 1
        if len(plan.slots) == 0:
            self._steady = None
            return Launched(plan, None, None, None, None, time.perf_counter_ns() - began, 0, 0)
        if self._awaited:
            self._receive_back(self._due(plan))
        layout, step = self._step(plan)
        prepared = time.perf_counter_ns()
        hidden_TE = self._forward(step)
        forwarded = time.perf_counter_ns()
        # Every rank of the last stage computes logits and learns what was sampled; its rank 0 samples and answers.
        sampled = prompt = None
        if self.group.is_last_stage:
            if len(layout.sample_rows):
                sampled = self._sample(plan, layout, step.ids_T, hidden_TE)
            if len(layout.prompt_tokens):
                prompt = self._prompt_logprobs(plan, layout, hidden_TE)
        elif self.group.is_first_stage and len(layout.sample_rows):
            self._awaited.append(plan.slots[layout.sample_rows])
        done = None
        if self.device.type == "cuda":
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        ended = time.perf_counter_ns()
        return Launched(
            plan,
            layout,
            sampled,
            prompt,
            done,
            prepared - began,
            forwarded - prepared,
            ended - forwarded,
            traced_since,
        )

    def is_done(self, launched: Launched) -> bool:
        """Whether `finish` would return at once."""
        return launched.done is None or bool(launched.done.query())  # type: ignore[no-untyped-call]

    def finish(self, launched: Launched) -> pb.StepResult:
        """Waits for the device and packs the result."""
        result = pb.StepResult(
            number=launched.plan.number,
            prepare_ns=launched.prepare_ns,
            forward_ns=launched.forward_ns,
            sample_ns=launched.sample_ns,
        )
        sampled, layout = launched.sampled, launched.layout
        if sampled is not None and layout is not None:
            result.sampled = sampled.tokens_S.cpu().numpy().astype("<u4").tobytes()
            result.logprobs = sampled.logprobs_S.cpu().numpy().astype("<f4", copy=False).tobytes()
            if sampled.top_tokens_SN is not None and sampled.top_logprobs_SN is not None:
                counts = sampled.top_counts[sampled.top_counts > 0]
                result.top_tokens = first_of_each(sampled.top_tokens_SN, counts, "<u4")
                result.top_logprobs = first_of_each(sampled.top_logprobs_SN, counts, "<f4")
            for good_S, message in ((sampled.sound_S, NOT_NUMBERS), (sampled.possible_S, NOTHING_LEFT)):
                good = np.True_ if good_S is None else good_S.cpu().numpy()
                if not good.all():
                    failed = {error.row for error in result.errors}
                    for row in layout.sample_rows[~good].tolist():
                        if row not in failed:
                            result.errors.add(row=row, message=message)
        prompt = launched.prompt
        if prompt is not None:
            logprobs = prompt.logprobs_P.cpu().numpy().copy()
            logprobs[launched.plan.prompt_targets == NO_TARGET] = np.nan
            result.prompt_logprobs = logprobs.astype("<f4", copy=False).tobytes()
            if prompt.top_tokens_PN is not None and prompt.top_logprobs_PN is not None:
                result.prompt_top_tokens = first_of_each(prompt.top_tokens_PN, prompt.top_counts, "<u4")
                result.prompt_top_logprobs = first_of_each(prompt.top_logprobs_PN, prompt.top_counts, "<f4")
        if launched.began and self.spans is not None:
            self.spans.record(launched.plan, result, launched.began)
        return result

    @torch.inference_mode()
    def check(self) -> None:
        """A tiny computation on the device. Raises when it gives a wrong answer.

        On a GPU it does not queue up behind a step, which may be waiting for another rank.
        """
        with nullcontext() if self._aside is None else torch.cuda.stream(self._aside):
            if int(torch.arange(4, device=self.device).sum()) != 6:
                raise RuntimeError("the device cannot add")

    def _step(self, plan: Plan) -> tuple[Layout | TwoSidedLayout, Any]:
        """What the model's forward pass reads, and which of its tokens are looked at."""
        if self._two_sided is not None:
            return self._two_sided.make(plan, self.last_sampled)
        layout = self._layout(plan)
        return layout, self._tensors(plan, layout)

    def _layout(self, plan: Plan) -> Layout:
        """The plan's layout. On a CPU, where a step is over before the next begins, made from the last one's."""
        steady = self.device.type == "cpu" and is_steady(plan)
        if steady and self._steady is not None:
            layout, last_plan = self._steady
            if continued(layout, last_plan, plan, self.slots, self._geometry):
                self._steady = layout, plan
                return layout
        layout = make_layout(plan, self.slots, self._geometry, self._gather_memory)
        self._steady = (layout, plan) if steady else None
        return layout

    def _gather_memory(self, numbers: int) -> Tensor:
        if self._gathered.numel() < numbers:
            self._gathered = torch.empty(numbers + numbers // 2, dtype=self.dtype, device=self.device)
        return self._gathered

    def _tensors(self, plan: Plan, layout: Layout) -> Step:
        given_T = to_device(plan.tokens.astype(np.int64), self.device)
        ids_T = torch.cat((given_T, self.last_sampled)).index_select(
            0, to_device(layout.sources_T, self.device)
        )
        positions_T = to_device(layout.positions_T, self.device)
        return Step(
            ids_T,
            positions_T,
            [rope.at(positions_T) for rope in self.ropes],
            [to_device(places, self.device) for places in layout.places],
            layout.attentions,
        )

    def _sample(
        self, plan: Plan, layout: Layout | TwoSidedLayout, ids_T: Tensor, hidden_TE: Tensor
    ) -> Sampled | None:
        rows = layout.sample_rows
        tokens_S = to_device(layout.sample_tokens, self.device)
        chosen_SE = hidden_TE.index_select(0, tokens_S)
        logits_SV = self.model.logits(chosen_SE, self._logits_SV[: len(rows)])
        slots = plan.slots[rows]
        sampled = None
        if self.group.rank == 0:
            positions = plan.positions[rows] + plan.counts[rows]
            sampled = self.sampler.sample(logits_SV, slots, positions, ids_T.index_select(0, tokens_S))
        chosen_S = torch.empty_like(tokens_S) if sampled is None else sampled.tokens_S
        self.last_sampled.index_copy_(0, to_device(slots, self.device), self.group.follow(chosen_S))
        if self.group.pipeline is not None:
            self.group.pipeline.send_back(chosen_S)
        return sampled

    def _forward(self, step: Any) -> Tensor:
        """This stage's layers, between the stage before and the next one."""
        pipeline = self.group.pipeline
        if pipeline is None or not isinstance(self.model, Decoder):
            return self.model.forward(step, self.cache.layers)
        given_TE = None
        if not self.group.is_first_stage:
            shape = (len(step.ids_T), self.model.config.width)
            given_TE = pipeline.receive(torch.empty(shape, dtype=self.dtype, device=self.device))
        hidden_TE = self.model.forward(step, self.cache.layers, given_TE)
        if not self.group.is_last_stage:
            pipeline.send_on(hidden_TE)
        return hidden_TE

    def _due(self, plan: Plan) -> int:
        """How many of the steps whose samples are awaited to receive now: up to the last one that this plan continues.
        No more, for the last stage may not have come to the next one; but those that it must have done.
        """
        assert self.group.pipeline is not None, "nothing is awaited without one"
        done = max(len(self._awaited) - self.group.pipeline.in_flight, 0)
        slots = plan.slots[(plan.flags & CONTINUE) != 0]
        continued = (count for count, sampled in enumerate(self._awaited, 1) if np.isin(sampled, slots).any())
        return max((done, *continued))

    def _receive_back(self, steps: int) -> None:
        """The first stage learns what the last one sampled in so many steps."""
        for _ in range(steps):
            slots = self._awaited.popleft()
            assert self.group.pipeline is not None, "nothing is awaited without one"
            sampled_S = self.group.pipeline.receive_back(len(slots)).to(self.device)
            self.last_sampled.index_copy_(0, to_device(slots, self.device), sampled_S)

    def _prompt_logprobs(
        self, plan: Plan, layout: Layout | TwoSidedLayout, hidden_TE: Tensor
    ) -> PromptAnswers | None:
        targets = np.where(plan.prompt_targets == NO_TARGET, 0, plan.prompt_targets).astype(np.int64)
        targets_T = to_device(targets, self.device)
        tokens_T = to_device(layout.prompt_tokens, self.device)
        rows = np.flatnonzero(plan.flags & PROMPT_LOGPROBS)
        top_counts = np.repeat(self.sampler.top_counts[plan.slots[rows]], plan.counts[rows])
        most = int(top_counts.max(initial=0))
        parts, tops = [], []
        for begin in range(0, len(targets), PROMPT_LOGITS_AT_ONCE):
            some = slice(begin, begin + PROMPT_LOGITS_AT_ONCE)
            chosen_TE = hidden_TE.index_select(0, tokens_T[some])
            logits_TV = self.model.logits(chosen_TE, self._logits_SV[: len(chosen_TE)])
            if self.group.rank != 0:
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
    """The first `counts` (R,) of each row, one after the other, as a column of `dtype`."""
    table = table_RN.cpu().numpy()
    return table[np.arange(table.shape[1]) < counts[:, None]].astype(dtype).tobytes()
