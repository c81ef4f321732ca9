"""`--speculate` for encoder-decoders: what the encoder reads and what the decoder has said is guessed from, and no answer changes, whatever becomes
of the worker. On torch in fp32, and on the CPU engine in bf16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import wire
from conftest import Launch
from launched import Launched
from load import Ask, ask_all, ask_all_through, complete, generate
from test_encoder_decoders import TEXTS, WIDTH, flan_t5
from test_speculation import DRAFTS, answer

TOKENS = 150
# Of its vocabulary, without what is special.
FIRST, LAST = 10, 480
# Whose text goes round, or wavers.
FEW: dict[str, Any] = {"logit_bias": {str(token): 100 for token in range(40, 56)}}


def counting(folder: Path) -> Path:
    """Behind each token it mostly says the one with the next number, whatever it reads; behind its start the first."""
    folder.mkdir()
    model = flan_t5(folder)
    with torch.no_grad():
        table = model.shared.weight.normal_()
        head = table.roll(1, 0)
        head[FIRST], head[1] = table[0], table[FIRST - 1]  # what is special is left out
        model.lm_head.weight = torch.nn.Parameter(head * (10 / WIDTH))
        table.mul_(1000)  # what layers add is little
    model.save_pretrained(folder)
    return folder


@dataclass
class Served:
    flags: tuple[str, ...]
    plain: Launched
    speculating: Launched


# Torch drafts to the last bit in server/tests/test_encoder_decoder.py.
@pytest.fixture(scope="module", params=[pytest.param("float32", marks=pytest.mark.tail), "bfloat16"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("counting")
    model = ("--model-id", str(counting(root / "model")), "--dtype", request.param)
    flags = (*model, "--max-input-tokens", "512", "--max-total-tokens", "1000", "--max-batch-size", "12")
    with (
        Launched(root / "plain", *flags) as plain,
        Launched(root / "speculating", *flags, "--speculate", str(DRAFTS)) as speculating,
    ):
        yield Served(flags, plain.wait_ready(), speculating.wait_ready())


def counted(begin: int, end: int, **options: Any) -> dict[str, Any]:
    """Its encoder reads a part of what its decoder will say."""
    asked = {"prompt": list(range(begin, end)), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return {**asked, "logprobs": 2, **options}


def said(text: str, **parameters: Any) -> dict[str, Any]:
    return {"inputs": text, "parameters": {"max_new_tokens": TOKENS, "details": True, **parameters}}


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "says what it reads": ("/v1/completions", counted(FIRST, LAST)),
    "says a part of it": ("/v1/completions", counted(FIRST + 40, FIRST + 90)),
    "says something else": ("/v1/completions", counted(300, LAST)),
    "sampled": ("/v1/completions", counted(FIRST, LAST, temperature=0.8, seed=7, top_p=0.95)),
    "goes round": ("/generate", said(TEXTS[0], **FEW)),
    "wavers": ("/generate", said(TEXTS[1], do_sample=True, temperature=0.9, seed=11, top_k=40, **FEW)),
    "penalties": ("/generate", said(TEXTS[2], repetition_penalty=1.05, frequency_penalty=0.1, **FEW)),
    "alternatives": ("/generate", said(TEXTS[0], top_n_tokens=3, decoder_input_details=True)),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", BODIES)
def test_an_answer_is_the_same_with_drafts_and_without(name: str, served: Served) -> None:
    path, body = BODIES[name]
    found = answer(served.speculating.address, path, body)
    assert found == answer(served.plain.address, path, body)


def test_what_the_encoder_reads_is_guessed_from(served: Served) -> None:
    """A text that never comes to the same token twice, but is in the input; and one that is not."""
    for (begin, end), least, most in (((FIRST, LAST), TOKENS - 30, TOKENS), ((300, LAST), 0, 0)):
        names = ("penstock_accepted_drafts", "penstock_steps", "penstock_drafts")
        before = [served.speculating.metrics().value(name) for name in names]
        told = wire.post(served.speculating.address, "/v1/completions", counted(begin, end)).json()
        assert told["usage"]["completion_tokens"] == TOKENS
        accepted, steps, drafts = (
            served.speculating.metrics().value(name) - then for name, then in zip(names, before, strict=True)
        )
        assert least <= accepted <= most and drafts >= accepted
        assert told.get("accepted_drafts", 0) == accepted
        assert steps <= TOKENS + 5 - 0.7 * accepted, f"{steps} steps with {accepted} accepted drafts"


def requests() -> list[Ask]:
    """Greedy and sampled; guessed from the input, from the output, and hardly at all."""
    asks = [generate(text, TOKENS, **FEW) for text in TEXTS]
    drawn = {"do_sample": True, "temperature": 0.9}
    asks += [generate(f"{n}: {TEXTS[0]}", TOKENS, seed=n, **drawn, **FEW) for n in range(4)]
    for number in range(5):
        read = list(range(FIRST + 20 * number, FIRST + 20 * number + 120))
        ask = complete("", TOKENS, seed=number, temperature=0.0 if number % 2 else 0.7)
        asks.append(dataclasses.replace(ask, body={**ask.body, "prompt": read}))
    return asks


@pytest.mark.few(1)
def test_killed_half_way_every_stream_goes_on_as_it_would_have(served: Served, launch: Launch) -> None:
    """In a cache that has not room for all of them at once."""
    expected = ask_all(served.plain.address, requests())
    launched = launch(*served.flags, "--max-batch-total-tokens", "1200", "--speculate", str(DRAFTS))
    launched.wait_ready()

    for kill in launched.interruptions():
        found = ask_all_through(launched, requests(), kill, at=300)
        for request, one, other in zip(requests(), found, expected, strict=True):
            assert one.error is None and one.same_as(other), f"{request}: {one} instead of {other}"
    assert launched.metrics().value("penstock_accepted_drafts") > 100


def test_a_draft_model_for_it_is_refused_by_name(served: Served, launch: Launch) -> None:
    launched = launch(*served.flags, "--speculate-model", served.flags[1])
    assert launched.process.wait(90) == 1
    assert "--speculate-model" in launched.log() and "encoder-decoder" in launched.log()
