"""Steps as a GPU computes them, with the kernel of paged attention and with recorded decodes: what they give is what steps without them
give. Where there is no GPU, in Triton's interpreter, and a recorded step is computed again where a GPU would replay it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import checkpoints
from client import DEVICE, row
from driver import Driver
from penstock.engine import decode_graphs, decoder_steps
from penstock.engine.decode_graphs import Compute, DecodeGraphs, sizes
from penstock.engine.decoder_steps import DecoderSteps

if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"


def computed_again(
    compute: Compute, device: torch.device, pool: object
) -> tuple[Callable[[], None], Tensor, Tensor]:
    """In place of `decode_graphs.capture`."""
    ids_R, hidden_RE = compute()

    def replay() -> None:
        again = compute()
        ids_R.copy_(again[0])
        hidden_RE.copy_(again[1])

    return replay, ids_R, hidden_RE


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    """Makes drivers whose steps are those of a GPU, with graphs."""

    def make(folder: Path, **options: Any) -> Driver:
        with monkeypatch.context() as patch:
            patch.setattr(decoder_steps, "has_kernels", lambda device: True)
            if DEVICE == "cpu":
                from penstock_kernels.gpu import attention

                patch.setattr(decode_graphs, "capture", computed_again)
                patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
                # Programs run one after another here.
                monkeypatch.setattr(attention, "PROGRAMS", 8)
            driver = Driver(folder, **options)
            engine = driver.engine
            assert isinstance(engine.step_maker, DecoderSteps) and engine.step_maker.pages is not None
            if DEVICE == "cpu":
                place = 0 if engine.states is None else engine.states.spare_place
                with engine.arrays.computing():
                    engine.graphs = DecodeGraphs(
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
        patch.setattr(decoder_steps, "has_kernels", lambda device: False)
        return Driver(folder, **options)


MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 20},
}


def compare(ours: Driver, plain: Driver, rows: list[dict[str, Any]], **more: Any) -> None:
    """One step of both."""
    result, expected = ours.step(rows, **more), plain.step(rows, **more)
    assert result.sampled == expected.sampled
    assert not result.errors
    assert np.allclose(
        np.frombuffer(result.logprobs, "<f4"), np.frombuffer(expected.logprobs, "<f4"), atol=1e-4
    )


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_what_they_give_without_a_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_on_gpu: Callable[..., Driver]
) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config(**MODELS[name]))
    options = {"max_slots": 6, "blocks": 64, "max_step_tokens": 600, "max_sequence_tokens": 600}
    ours, plain = as_on_gpu(folder, **options), without(monkeypatch, folder, **options)
    rng = np.random.default_rng(0)

    def prompt(tokens: int) -> list[int]:
        return [int(token) for token in rng.integers(3, 190, tokens)]

    replays = 0
    graphs = ours.engine.graphs
    assert graphs is not None
    for captured in graphs.captured.values():
        replay = captured.replay

        def counted(replay: Callable[[], None] = replay) -> None:
            nonlocal replays
            replays += 1
            replay()

        captured.replay = counted
    at = {0: 37, 1: 5, 2: 1}
    compare(
        ours,
        plain,
        [
            row(s, prompt(n), 0, [5 * s + i for i in range(5)], start={"temperature": 0.7 * s})
            for s, n in at.items()
        ],
    )
    for _ in range(12):
        compare(ours, plain, [row(s, None, p) for s, p in at.items()])
        at = {s: p + 1 for s, p in at.items()}
    assert replays == 12
    # A prompt beside decodes, in two pieces; then all of them.
    long = prompt(90)
    rows = [row(s, None, p) for s, p in at.items()]
    compare(ours, plain, [*rows, row(3, long[:50], 0, [20, 21, 22, 23, 24, 25], start={}, sample=False)])
    at = {s: p + 1 for s, p in at.items()}
    rows = [row(s, None, p) for s, p in at.items()]
    compare(ours, plain, [*rows, row(3, long[50:], 50)])
    at = {s: p + 1 for s, p in at.items()} | {3: 90}
    # A block that a slot gets on the way, in an order of rows that is another each time.
    for step in range(8):
        order = list(at)[step % 4 :] + list(at)[: step % 4]
        rows = [row(s, None, at[s], [40 + s] if s == 3 and at[s] == 96 else []) for s in order]
        compare(ours, plain, rows)
        at = {s: p + 1 for s, p in at.items()}
    # Fewer rows, one of them with another sequence in the same slot.
    compare(ours, plain, [row(1, prompt(4), 0, [50], start={})], released=[0, 1, 2])
    compare(ours, plain, [row(1, None, 4), row(3, None, at[3])])
    compare(ours, plain, [row(3, None, at[3] + 1)], released=[1])
    assert replays == 22


def test_graphs_are_of_few_sizes_that_fit_closely() -> None:
    assert sizes(1) == [1] and sizes(3) == [1, 2, 3]
    found = sizes(300)
    assert found[-1] == 256 and len(found) < 32
    assert all(b <= 2 * a and (a < 8 or b <= 1.5 * a) for a, b in pairwise(found))
