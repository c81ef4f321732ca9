"""Sampling against the logits processors of transformers, many of them at once, in the order that its `generate` gives
them. OpenAI's penalties, which it lacks, and our watermark, which has another hash, are put where it has such.
"""

import math
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

import penstock_kernels as ops
from client import mask_of
from penstock.engine import native_sampling
from penstock.engine.sampling import most_likely
from penstock.engine.slot_sampling import Masks
from test_sampling import VOCABULARY, sampler

POSITION = 40


class OpenAiPenalties(LogitsProcessor):
    """Frequency and presence penalties over the output."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        history = row.get("history", [])
        self.output = history[len(history) - row.get("outputs", 0) :]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        for token in set(self.output):
            count = self.output.count(token)
            scores[0, token] -= count * self.row.get("frequency", 0) + self.row.get("presence", 0)
        return scores


class Green(LogitsProcessor):
    """Our green tokens."""

    def __init__(self, delta: float, greens: int) -> None:
        self.delta, self.greens = delta, greens

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        green_SV = ops.green_tokens(input_ids[:, -1], scores.shape[1], self.greens)
        return scores + green_SV * self.delta


class GreenConfig:
    """Stands where `generate` looks for a watermark."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row

    def construct_processor(self, vocab_size: int, device: str) -> Green:
        return Green(self.row["delta"], self.row["greens"])


@pytest.fixture(scope="module")
def model() -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


def processors(model: Any, row: dict[str, Any]) -> Any:
    """What `generate` makes of these parameters."""
    drawn = row["temperature"] > 0
    make: Any = GenerationConfig
    config = make(
        do_sample=drawn,
        num_beams=1,
        repetition_penalty=row["repetition"],
        sequence_bias={(token,): bias for token, bias in row["bias"].items()} or None,
        min_new_tokens=row["first_end"] - len(row["history"]) + row["outputs"],
        eos_token_id=row["ends"],
        **(
            {name: row[name] for name in ("temperature", "top_p", "top_k", "min_p", "typical_p")}
            if drawn
            else {}
        ),
    )
    model._prepare_special_tokens(config, device="cpu")
    config.watermarking_config = GreenConfig(row) if row["delta"] else None
    prompt = len(row["history"]) - row["outputs"]
    return model._get_logits_processor(
        config,
        input_ids_seq_length=prompt,
        prefix_allowed_tokens_fn=(lambda *_: row["mask"]) if row["mask"] else None,
        logits_processor=LogitsProcessorList([OpenAiPenalties(row)]),
        device="cpu",
    )


def any_row(rng: random.Random) -> dict[str, Any]:
    """Parameters of which each is on in every second row."""

    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    history = [rng.randrange(VOCABULARY) for _ in range(POSITION)]
    tokens = rng.sample(range(VOCABULARY), 6)
    return {
        "temperature": rng.choice([0.0, 0.3, 1.0, 1.0, 1.7, 2.5]),
        "top_k": maybe(rng.randrange(1, VOCABULARY), 0),
        "top_p": maybe(rng.uniform(0.2, 0.99), 1.0),
        "min_p": maybe(rng.uniform(0.001, 0.2), 0.0),
        "typical_p": maybe(rng.uniform(0.3, 0.95), 1.0),
        "repetition": maybe(rng.uniform(0.6, 2.0), 1.0),
        "frequency": maybe(rng.uniform(-1, 1), 0.0),
        "presence": maybe(rng.uniform(-1, 1), 0.0),
        "bias": maybe({token: rng.uniform(-5, 5) for token in tokens} | {tokens[0]: -math.inf}, {}),
        "ends": tokens[3:],
        "first_end": maybe(POSITION + 1, POSITION),
        "delta": maybe(rng.uniform(0.5, 4), 0.0),
        "greens": rng.randrange(1, VOCABULARY),
        "history": history,
        "outputs": rng.randrange(1, POSITION),
        "mask": maybe(rng.sample(range(VOCABULARY), VOCABULARY * 2 // 3), None),
    }


def masks_of(rows: list[dict[str, Any]]) -> Masks:
    """Of the rows that have some."""
    masked = [place for place, row in enumerate(rows) if row["mask"]]
    words = b"".join(mask_of(rows[place]["mask"], VOCABULARY) for place in masked)
    return Masks(np.array(masked), np.frombuffer(words, "<i4").reshape(len(masked), -1))


@pytest.mark.parametrize("seed", range(8))
def test_processors_are_applied_in_the_order_of_transformers(seed: int, model: Any) -> None:
    rng = random.Random(seed)
    rows = [any_row(rng) for _ in range(40)]
    logits_SV = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    previous_S = torch.tensor([row["history"][-1] for row in rows])
    scores_SV, possible_S = sampler(*rows).process(
        logits_SV.clone(), np.arange(len(rows)), np.full(len(rows), POSITION), previous_S, masks_of(rows)
    )
    assert possible_S is None or bool(possible_S.all())
    for place, row in enumerate(rows):
        ids = torch.tensor([row["history"]])
        wanted_V = processors(model, row)(ids, logits_SV[place : place + 1].clone())[0]
        if row["temperature"] == 0:
            torch.testing.assert_close(scores_SV[place], wanted_V, atol=1e-5, rtol=1e-5)
        else:
            torch.testing.assert_close(
                scores_SV[place].softmax(-1), wanted_V.softmax(-1), atol=1e-6, rtol=1e-4, msg=f"{row}"
            )


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e-8, 1e-3, 1.0, 1e30])
def test_alternatives_a_bit_apart_come_in_order_and_ties_by_id(scale: float) -> None:
    value = np.float32(scale)
    above, below = np.nextafter(value, np.float32(np.inf)), np.nextafter(value, np.float32(-np.inf))
    row = np.full(4000, -value, np.float32)
    row[[17, 3000, 3999]] = below, value, above
    row[[18, 2500]] = value, below
    for sign, wanted in ((1, [3999, 18, 3000, 17, 2500]), (-1, [0, 1, 2, 3, 4])):
        assert most_likely(torch.from_numpy(sign * row)[None], 5).tolist() == [wanted]
        assert native_sampling.most_likely((sign * row)[None], 5).tolist() == [wanted]
    # The negative ones from the bottom up: the largest of them is the one closest to zero.
    assert most_likely(torch.from_numpy(-row[[17, 3000, 3999, 18, 2500]])[None], 5).tolist() == [
        [0, 4, 1, 3, 2]
    ]


def test_both_zeros_are_one_logit() -> None:
    logits = torch.tensor([[-0.0, 0.0, -1.0, -0.0, 1.0, -math.inf]])
    assert most_likely(logits, 6).tolist() == [[4, 0, 1, 3, 2, 5]]
    assert native_sampling.most_likely(logits.numpy(), 6).tolist() == [[4, 0, 1, 3, 2, 5]]


def by_sorting(logits_SV: np.ndarray, count: int) -> list[list[int]]:
    return [sorted(range(len(row)), key=lambda token: (-row[token], token))[:count] for row in logits_SV]


@pytest.mark.parametrize("vocabulary", [2049, 4096, 6007])
def test_the_most_likely_of_many_tokens_are_those_of_a_sort(vocabulary: int) -> None:
    random_ = np.random.default_rng(vocabulary)
    smooth = random_.normal(size=(8, vocabulary)).astype(np.float32)
    rows = {
        "smooth": smooth,
        "few values": np.round(smooth),
        "all alike": np.zeros_like(smooth),
        "ascending": np.sort(smooth, axis=1),
        "descending": -np.sort(smooth, axis=1),
        "few possible": np.where(random_.random(smooth.shape) < 0.002, smooth, -np.inf).astype(np.float32),
        "behind the blocks": np.where(np.arange(vocabulary) < vocabulary - 3, smooth - 99, smooth),
        "in one block": np.where(np.arange(vocabulary) % (vocabulary // 64) == 5, smooth + 99, smooth),
    }
    for name, logits_SV in rows.items():
        for count in (1, 5, 20):
            assert native_sampling.most_likely(logits_SV, count).tolist() == by_sorting(logits_SV, count), (
                name
            )
    # Logits lie in memory with room behind each row.
    padded = np.zeros((8, vocabulary + 11), np.float32)
    padded[:, :vocabulary] = smooth
    assert native_sampling.most_likely(padded[:, :vocabulary], 20).tolist() == by_sorting(smooth, 20)


def test_the_most_likely_are_found_without_an_integer_for_each_token() -> None:
    logits_SV = np.random.default_rng(1).normal(size=(64, 49_152)).astype(np.float32)
    tracemalloc.start()
    native_sampling.most_likely(logits_SV, 20)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < logits_SV.nbytes, f"{most:,} bytes beside logits of {logits_SV.nbytes:,}"
