"""Steps as a GPU computes them, with the kernel of paged attention and with recorded decodes: what they give is what steps without them
give. Where there is no GPU, in Triton's interpreter, and a recorded step is computed again where a GPU would replay it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
from adapted import adapter
from client import DEVICE, row
from driver import Driver
from penstock.engine import device_pages, step_graphs
from penstock.engine.decoder_steps import DecoderSteps
from penstock.engine.plan import Plan
from penstock.engine.state_metadata import make_state_metadata
from penstock.engine.state_places import StatePlaces
from penstock.engine.step_graphs import Compute, StepGraphs, mixed_sizes, sizes
from penstock.engine.warm_up import warm_up
from penstock_kernels import convolution, delta_rule, experts, scan
from test_draft_model import SHAPES, draft_of, tokenizer, with_own
from test_recurrent import write as recurrent_model
from test_verify import one_by_one


def computed_again(compute: Compute, device: torch.device, pool: object) -> tuple[Callable[[], None], Any]:
    """In place of `step_graphs.capture`. A graph that no step asks for is not computed, which costs the interpreter more than most steps."""
    results: list[Tensor] = []

    def replay() -> None:
        again = compute()
        if not results:
            results.extend(again)
        for result, one in zip(results, again, strict=True):
            result.copy_(one)

    return replay, results


def computed_at_once(compute: Compute, device: torch.device, pool: object) -> tuple[Callable[[], None], Any]:
    """The same of a graph that is computed when it is recorded, as on a GPU, for rows that nobody has."""
    replay, results = computed_again(compute, device, pool)
    replay()
    return replay, results


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    """Makes drivers whose steps are those of a GPU, with graphs."""

    def make(folder: Path, capture: Any = None, **options: Any) -> Driver:
        with monkeypatch.context() as patch:
            patch.setattr(device_pages, "has_kernels", lambda device: True)
            if capture is not None or DEVICE == "cpu":
                patch.setattr(step_graphs, "capture", capture or computed_again)
            if DEVICE == "cpu":
                from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

                from penstock_kernels.gpu import attention

                patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
                # Programs run one after another here, each operation with what numpy takes: graphs have room for what these tests ask for.
                # Whether integers overflow is looked at by the tests of each kernel.
                patch.setattr(step_graphs, "MIXED_TOKENS", (96,))
                monkeypatch.setattr(step_graphs, "MIXED_PIECES", 4)
                monkeypatch.setattr(attention, "PROGRAMS", 8)
                monkeypatch.setattr(
                    interpreter_builder, "options", InterpreterOptions(sanitize_overflow=False)
                )
            driver = Driver(folder, **options)
            engine = driver.engine
            assert isinstance(engine.step_maker, DecoderSteps) and engine.step_maker.pages is not None
            if DEVICE == "cpu":
                place = 0 if engine.states is None else engine.states.spare_place
                with engine.arrays.computing():
                    engine.graphs = StepGraphs(
                        engine.model,
                        engine.layer_caches,
                        engine.step_maker,
                        engine.step_maker.pages,
                        engine.last_sampled,
                        engine._logits_SV,
                        place,
                    )
            assert engine.graphs is not None
            # What a graph reads is still there when it runs, and not what has taken its memory since.
            taken = [torch.full((size,), 1 << 20, dtype=torch.int32, device=DEVICE) for size in range(1, 200)]
            del taken
        return driver

    yield make


def without(monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> Driver:
    """A driver whose steps are those of plain torch."""
    with monkeypatch.context() as patch:
        patch.setattr(device_pages, "has_kernels", lambda device: False)
        return Driver(folder, **options)


MODELS: dict[str, dict[str, Any]] = {
    "plain": {"num_hidden_layers": 2},
    "window": {"num_hidden_layers": 2, "sliding_window": 20},
}
OPTIONS: dict[str, Any] = {
    "max_slots": 6,
    "blocks": 64,
    "max_step_tokens": 600,
    "max_sequence_tokens": 600,
    "max_step_drafts": 12,
}


def compare(ours: Driver, plain: Driver, rows: list[dict[str, Any]], **more: Any) -> bytes:
    """One step of both; what was accepted of drafts."""
    result, expected = ours.step(rows, **more), plain.step(rows, **more)
    assert result.sampled == expected.sampled
    assert result.accepted == expected.accepted
    assert not result.errors
    for name in ("logprobs", "prompt_logprobs"):
        got, wanted = (np.frombuffer(getattr(one, name), "<f4") for one in (result, expected))
        assert np.allclose(got, wanted, atol=1e-4, equal_nan=True), name
    return expected.accepted


class Counter:
    """Counts what graphs run."""

    def __init__(self, driver: Driver) -> None:
        self.decodes = self.mixed = self.greedy = self.drawn = 0
        graphs = driver.engine.graphs
        assert graphs is not None
        for name in ("decodes", "mixed", "greedy", "drawn"):
            for captured in getattr(graphs, name).values():
                captured.replay = partial(self.count, name, captured.replay)

    def count(self, name: str, replay: Callable[[], None]) -> None:
        """One more."""
        setattr(self, name, getattr(self, name) + 1)
        replay()


def prompt(rng: np.random.Generator, tokens: int) -> list[int]:
    """Of ids that all these models have."""
    return [int(token) for token in rng.integers(3, 99, tokens)]


@pytest.mark.parametrize("name", ["plain", pytest.param("window", marks=pytest.mark.tail)])
def test_steps_give_what_they_give_without_a_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(**MODELS[name]))
    capture = computed_at_once if DEVICE == "cpu" else None
    ours, plain = as_on_gpu(folder, capture, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    rng = np.random.default_rng(0)
    counter = Counter(ours)
    at = {0: 37, 1: 5, 2: 1}
    starts = {
        s: row(s, prompt(rng, n), 0, [5 * s + i for i in range(5)], start={"temperatures": 0.7 * s})
        for s, n in at.items()
    }
    compare(ours, plain, list(starts.values()))
    for _ in range(6):
        compare(ours, plain, [row(s, None, p) for s, p in at.items()])
        at = {s: p + 1 for s, p in at.items()}
    assert counter.decodes == 6 and counter.mixed == 1
    # A prompt beside decodes, in two pieces; then all of them.
    long = prompt(rng, 90)
    rows = [row(s, None, p) for s, p in at.items()]
    compare(ours, plain, [*rows, row(3, long[:50], 0, [20, 21, 22, 23, 24, 25], start={}, sample=False)])
    at = {s: p + 1 for s, p in at.items()}
    rows = [row(s, None, p) for s, p in at.items()]
    compare(ours, plain, [*rows, row(3, long[50:], 50)])
    assert counter.mixed == 3
    at = {s: p + 1 for s, p in at.items()} | {3: 90}
    # A block that a slot gets on the way, in an order of rows that is another each time.
    for step in range(8):
        order = list(at)[step % 4 :] + list(at)[: step % 4]
        rows = [row(s, None, at[s], [40 + s] if s == 3 and at[s] == 96 else []) for s in order]
        compare(ours, plain, rows)
        at = {s: p + 1 for s, p in at.items()}
    # Fewer rows, one of them with another sequence in the same slot, whose prompt's log probabilities are wanted.
    four = prompt(rng, 4)
    compare(ours, plain, [row(1, four, 0, [50], start={}, targets=[*four[1:], 7])], released=[0, 1, 2])
    compare(ours, plain, [row(1, None, 4), row(3, None, at[3])])
    compare(ours, plain, [row(3, None, at[3] + 1)], released=[1])
    assert counter.decodes == 16 and counter.mixed == 4
    # A prompt that no graph has room for.
    long = prompt(rng, 560 if DEVICE == "cuda" else 130)
    compare(ours, plain, [row(0, long, 0, list(range(36)), start={})], released=[3])
    compare(ours, plain, [row(0, None, len(long))])
    assert counter.decodes == 17 and counter.mixed == 4


def test_a_step_with_an_adapter_is_launched_and_others_are_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = checkpoints.write(tmp_path / "model", checkpoints.config(**MODELS["plain"]))
    mine, _ = adapter(tmp_path / "mine", folder, rank=4, seed=0)
    options = {**OPTIONS, "adapters": [("mine", str(mine))]}
    ours, plain = as_on_gpu(folder, **options), without(monkeypatch, folder, **options)
    counter = Counter(ours)
    text = prompt(np.random.default_rng(5), 9)
    compare(ours, plain, [row(s, text, 0, [2 * s, 2 * s + 1], start={"adapter": s}) for s in (0, 1)])
    for position in (9, 10):
        compare(ours, plain, [row(0, None, position), row(1, None, position)])
    assert counter.decodes == counter.mixed == 0
    compare(ours, plain, [row(0, None, 11)])
    compare(ours, plain, [row(1, None, 11)])
    compare(ours, plain, [row(0, None, 12)], released=[1])
    assert counter.decodes == 2 and counter.mixed == 0


def test_tokens_of_decodes_are_chosen_in_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    """Greedy ones and drawn ones; what a graph has no part for is sampled behind it."""
    folder = checkpoints.write(tmp_path, checkpoints.config(**MODELS["plain"]))
    ours, plain = as_on_gpu(folder, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    rng = np.random.default_rng(3)
    drawn: dict[str, Any] = {"temperatures": 1.5}
    asked: list[dict[str, Any]] = [
        {},
        drawn,
        {**drawn, "top_ks": 7},
        {**drawn, "top_ps": 0.6, "seeds": 9},
        {**drawn, "min_ps": 0.2, "top_ks": 30},
        {"repetition_penalties": 1.3},
    ]

    def start(slot: int) -> dict[str, Any]:
        text, start = prompt(rng, 4), dict(asked[slot])
        if "repetition_penalties" in start:
            start |= {"history": text, "history_outputs": 0}
        return row(slot, text, 0, [3 * slot, 3 * slot + 1], start=start)

    compare(ours, plain, [start(slot) for slot in range(6)])
    counter = Counter(ours)
    at = dict.fromkeys(range(6), 4)

    def decode(*slots: int) -> None:
        compare(ours, plain, [row(slot, None, at[slot]) for slot in slots])
        for slot in slots:
            at[slot] += 1

    for _ in range(3):
        decode(0)
    assert (counter.greedy, counter.drawn) == (3, 0)
    for _ in range(4):
        decode(4, 1, 0, 3, 2)
    decode(1)
    assert (counter.greedy, counter.drawn) == (3, 5)
    decode(0, 5)
    decode(0, 1, 2, 3, 4, 5)
    decode(0)
    assert (counter.greedy, counter.drawn, counter.decodes) == (4, 5, 11)


def test_drafts_are_verified_in_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(**MODELS["plain"]))
    ours, plain = as_on_gpu(folder, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    alone = without(monkeypatch, folder, **OPTIONS)
    rng = np.random.default_rng(1)
    text = prompt(rng, 20)
    first = alone.step([row(0, text, 0, [0, 1, 2, 3], start={})]).sampled
    known = [int(np.frombuffer(first, "<u4")[0])]
    for step in range(6):
        known.append(int(np.frombuffer(alone.step([row(0, None, 20 + step)]).sampled, "<u4")[0]))
    counter = Counter(ours)
    starts = [row(0, text, 0, [0, 1, 2, 3], start={}), row(1, text[:9], 0, [5, 6], start={})]
    compare(ours, plain, starts)
    right, wrong = [*known[1:3], 3], prompt(rng, 2)
    accepted = compare(ours, plain, [row(0, None, 20, drafts=right), row(1, None, 9, drafts=wrong)])
    assert np.frombuffer(accepted, "<u4")[0] >= 2
    assert counter.mixed == 2 and counter.decodes == 0


def mixture(folder: Path) -> Path:
    """A small Mixtral."""
    config = checkpoints.config(
        architectures=["MixtralForCausalLM"],
        model_type="mixtral",
        num_hidden_layers=2,
        num_local_experts=5,
        num_experts_per_tok=2,
    )
    weights = checkpoints.tensors(config)
    generator = torch.Generator().manual_seed(9)
    width, forward = config["hidden_size"], config["intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name in ("gate_proj", "up_proj", "down_proj"):
            del weights[f"{at}mlp.{name}.weight"]
        weights[f"{at}block_sparse_moe.gate.weight"] = torch.randn(5, width, generator=generator)
        for expert in range(5):
            for name, shape in (("w1", (forward, width)), ("w3", (forward, width)), ("w2", (width, forward))):
                made = torch.randn(shape, generator=generator) * shape[1] ** -0.5
                weights[f"{at}block_sparse_moe.experts.{expert}.{name}.weight"] = made
    return checkpoints.write(folder, config, weights)


def test_experts_are_mixed_in_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = mixture(tmp_path)
    ours, plain = as_on_gpu(folder, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    counter = Counter(ours)
    for driver, usable in ((ours, True), (plain, False)):

        def step(*arguments: Any, step: Any = driver.step, usable: bool = usable, **more: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(experts, "usable", lambda tensor: usable)
                return step(*arguments, **more)

        monkeypatch.setattr(driver, "step", step)
    rng = np.random.default_rng(3)
    at = {0: 37, 1: 5, 2: 1}
    starts = [row(s, prompt(rng, n), 0, [5 * s + i for i in range(5)], start={}) for s, n in at.items()]
    compare(ours, plain, starts)
    for _ in range(3):
        compare(ours, plain, [row(s, None, p) for s, p in at.items()])
        at = {s: p + 1 for s, p in at.items()}
    assert counter.decodes == 3 and counter.mixed == 1


def test_states_are_advanced_in_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = recurrent_model(tmp_path)
    ours, plain = as_on_gpu(folder, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    counter = Counter(ours)
    rng = np.random.default_rng(2)
    at = {0: 37, 1: 5, 2: 1}
    compare(
        ours,
        plain,
        [row(s, prompt(rng, n), 0, [5 * s + i for i in range(5)], start={}) for s, n in at.items()],
    )
    for step in range(8):
        order = list(at)[step % 3 :] + list(at)[: step % 3]
        compare(ours, plain, [row(s, None, at[s]) for s in (order if step < 6 else order[:2])])
        at = {s: p + int(step < 6 or s in order[:2]) for s, p in at.items()}
    assert counter.decodes == 8 and counter.mixed == 0


@pytest.mark.tail
def test_a_draft_model_drafts_for_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    target = tokenizer(checkpoints.write(tmp_path / "target", checkpoints.config(**MODELS["plain"])))
    ours = as_on_gpu(target, draft=draft_of(tmp_path / "draft", SHAPES["one layer"]), max_step_drafts=12)
    counter = Counter(ours)
    found = with_own(ours, {}, 24, is_known=True)
    assert found.tokens[:24] == one_by_one(without(monkeypatch, target), {}).tokens[:24]
    assert counter.mixed > 2 and counter.decodes > 0


def test_garbage_is_kept_while_graphs_are_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    """On a GPU a graph that is freed meanwhile spoils the one that is captured."""
    captured, was_collecting = step_graphs.capture, []

    def told(*given: Any) -> Any:
        was_collecting.append(gc.isenabled())
        return (captured if DEVICE == "cuda" else computed_again)(*given)

    folder = checkpoints.write(tmp_path, checkpoints.config(**MODELS["plain"]))
    old = as_on_gpu(folder, **OPTIONS)
    freed = weakref.ref(old.engine.graphs)
    del old
    as_on_gpu(folder, capture=told, **OPTIONS)
    assert was_collecting and not any(was_collecting) and gc.isenabled() and freed() is None


@pytest.mark.parametrize("is_recurrent", [False, True])
def test_what_is_asked_for_at_first_leaves_nothing_behind(
    is_recurrent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = (
        recurrent_model(tmp_path)
        if is_recurrent
        else checkpoints.write(tmp_path, checkpoints.config(**MODELS["plain"]))
    )
    ours, plain = as_on_gpu(folder, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    counter = Counter(ours)
    warm_up(ours.engine)
    assert counter.decodes >= 4
    ours.begin()
    text = prompt(np.random.default_rng(3), 20)
    compare(ours, plain, [row(0, text, 0, [0, 1], start={"repetition_penalties": 1.3})])
    compare(ours, plain, [row(0, None, 20)])


class FakeCuda:
    """In place of torch's streams and captures, of which one fails at its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: str, recovers: bool) -> None:
        self.stream, self.fails_at, self.recovers = "own", fails_at, recovers
        self.ended: list[tuple[Any, ...]] = []
        aside = SimpleNamespace(wait_stream=lambda stream: None)
        monkeypatch.setattr(step_graphs, "_aside", lambda device: aside)
        for name, fake in {
            "current_stream": lambda device: SimpleNamespace(
                name=self.stream, wait_stream=lambda stream: None
            ),
            "set_stream": lambda stream: setattr(self, "stream", stream.name),
            "stream": lambda stream: nullcontext(),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
            "graph": self.graph,
            "current_device": lambda: 0,
            "empty_cache": self.empty_cache,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(
            torch._C, "_cuda_endAllocateToPool", lambda *given: self.ended.append(given), raising=False
        )

    @contextmanager
    def graph(self, graph: object, pool: object, capture_error_mode: str) -> Iterator[None]:
        """A capture; at its end versions of torch before 2.15 leave its stream current where that fails."""
        self.stream = "capture"
        try:
            yield
        except RuntimeError:
            if self.fails_at == "compute":
                raise
            raise RuntimeError("operation failed due to a previous error during capture") from None
        if self.fails_at == "end":
            raise RuntimeError("CUDA error: out of memory")
        self.stream = "own"

    def empty_cache(self) -> None:
        """As torch's allocator asserts."""
        if not self.recovers:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


@pytest.mark.parametrize("fails_at", ["compute", "both", "end"])
@pytest.mark.parametrize("recovers", [True, False])
def test_a_capture_that_fails_leaves_no_stream_and_no_capture_behind(
    fails_at: str, recovers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was "served without graphs" had an allocator that believed in a capture, and ran out of memory some requests later."""
    computed = []

    def compute() -> tuple[Tensor, ...]:
        computed.append(1)
        if len(computed) > 1 and fails_at != "end":
            raise RuntimeError("operation not permitted when stream is capturing")
        return (torch.zeros(1),)

    cuda = FakeCuda(monkeypatch, fails_at, recovers)
    # Torch ends a capture by itself where what is computed has failed and its end has not.
    is_ended = fails_at == "compute"
    error = RuntimeError if recovers or is_ended else step_graphs.CaptureGoesOn
    with pytest.raises(error) as caught:
        step_graphs.capture(compute, torch.device("cuda"), (0, 1))
    assert type(caught.value) is error
    assert cuda.stream == "own"
    assert cuda.ended == ([] if is_ended else [(0, (0, 1))])
    assert ("PENSTOCK_GPU_GRAPHS=none" in str(caught.value)) == (error is not RuntimeError)


@pytest.mark.skipif(DEVICE != "cuda", reason="records graphs")
def test_a_step_that_cannot_be_recorded_leaves_torch_as_it_was() -> None:
    device = torch.device("cuda", torch.cuda.current_device())

    def compute() -> tuple[Tensor, ...]:
        made = torch.zeros(1 << 20, device=device)
        return (made * made.sum().item(),)

    with pytest.raises(RuntimeError):
        step_graphs.capture(compute, device, torch.cuda.graph_pool_handle())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()
    step_graphs.capture(lambda: (torch.zeros(9, device=device),), device, torch.cuda.graph_pool_handle())


def test_what_states_a_step_advances_is_sent_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch waits for all that a GPU was given before where a copy does not say otherwise."""
    move, sent = Tensor.to, []

    def watched(tensor: Tensor, *given: Any, **options: Any) -> Tensor:
        assert options.get("non_blocking"), "the host waits"
        sent.append(tensor)
        return move(tensor, *given, **options)

    monkeypatch.setattr(Tensor, "to", watched)
    none = np.zeros(0, np.uint32)
    states = StatePlaces(4, 2, 4)
    for drafts in ([0, 0, 0], [1, 0, 0]):
        counts = np.array([1 + drafts[0], 1, 5])
        slots = np.arange(3)
        plan = Plan(1, none, slots, np.zeros(3, np.uint8), slots, counts, none, slots, none, none, None)
        plan.saves = np.array([(1, 1, 0), (2, 3, 1)])
        if any(drafts):
            plan.drafts = np.array(drafts)
            states.take(slots[:1], plan.drafts[:1])
        rows = np.repeat(slots, [counts[0], 1, 1])
        make_state_metadata(plan, rows, len(rows) - 1, states, False, torch.device("meta"))
    assert len(sent) > 6


# By the operation that advances their states: small models, and what else than states they have.
RECURRENT: dict[str, dict[str, Any]] = {
    # Qwen 3.5, with a layer that attends.
    "gated_delta_rule": {
        "model_type": "qwen3_5_text",
        "intermediate_size": 48,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "selective_scan": {"model_type": "mamba", "state_size": 8, "time_step_rank": 4},
    # RecurrentGemma, with a layer that attends through a window.
    "linear_recurrence": {
        "model_type": "recurrent_gemma",
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "lru_width": 32,
        "attention_window_size": 24,
    },
    "weighted_key_values": {"model_type": "rwkv", "context_length": 1024, "intermediate_size": 48},
}


def recurrent(folder: Path, operation: str) -> Path:
    """One of these, with random weights."""
    import transformers

    torch.manual_seed(0)
    shared = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(**{**shared, **RECURRENT[operation]})
    classes: Any = transformers.AutoModelForCausalLM
    model = classes.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_().mul_(weight[0].numel() ** -0.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.few(2)
@pytest.mark.parametrize("operation", RECURRENT)
def test_recurrences_are_advanced_in_graphs(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    """Single tokens and prompts by kernels, rows with drafts as well."""
    from penstock_kernels.gpu import delta_rule as delta_kernels
    from penstock_kernels.gpu import scan as scan_kernels

    is_delta = operation == "gated_delta_rule"
    kernels, name = (delta_kernels, "delta_rule") if is_delta else (scan_kernels, operation)
    counted: set[int] = set()
    kernel = getattr(kernels, name)

    def told(*given: Any) -> Tensor:
        counted.add(len(given[0]))
        made: Tensor = kernel(*given)
        return made

    monkeypatch.setattr(kernels, name, told)
    folder = recurrent(tmp_path, operation)
    ours, plain = as_on_gpu(folder, **OPTIONS), without(monkeypatch, folder, **OPTIONS)
    for driver, usable in ((ours, True), (plain, False)):

        def step(*arguments: Any, step: Any = driver.step, usable: bool = usable, **more: Any) -> Any:
            with monkeypatch.context() as patch:
                for module in (convolution, delta_rule, scan):
                    patch.setattr(module, "usable", lambda tensor: usable)
                return step(*arguments, **more)

        monkeypatch.setattr(driver, "step", step)
    counter = Counter(ours)
    rng = np.random.default_rng(2)
    at = {0: 37, 1: 5, 2: 1}
    compare(
        ours,
        plain,
        [row(s, prompt(rng, n), 0, [5 * s + i for i in range(5)], start={}) for s, n in at.items()],
    )
    for step_number in range(4):
        order = list(at)[step_number % 3 :] + list(at)[: step_number % 3]
        compare(ours, plain, [row(s, None, at[s]) for s in order])
        at = {s: p + 1 for s, p in at.items()}
    assert counter.decodes == 4
    compare(ours, plain, [row(0, None, at[0], drafts=[3, 4]), row(1, None, at[1])])
    # What is looked at first, the prompts, single tokens in a graph's room for four, and rows of three and one. Where there is a GPU
    # every graph was recorded with them.
    assert counted >= {78, 43, 4} if DEVICE == "cuda" else counted == {78, 43, 4}


def test_graphs_are_of_few_sizes_that_fit_closely() -> None:
    assert sizes(1) == [1] and sizes(3) == [1, 2, 3]
    found = sizes(300)
    assert found[-1] == 256 and len(found) < 32
    assert all(b <= 2 * a and (a < 8 or b <= 1.5 * a) for a, b in pairwise(found))
    mixed = mixed_sizes(128, 8192, has_drafts=False)
    assert all(single <= 128 and many for single, many in mixed) and (128, 1024) in mixed and len(mixed) == 12
    assert mixed_sizes(1, 100, has_drafts=False) == []
    assert mixed_sizes(4, 100, has_drafts=True) == [(4, 0)]
