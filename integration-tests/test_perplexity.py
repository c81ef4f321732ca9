"""Perplexity of a fixed text through the served log probabilities of a prompt equals that of transformers."""

from __future__ import annotations

import math
from pathlib import Path

import torch

import wire
from conftest import Launch
from launched import ON_TORCH

MODEL = Path(__file__).parent.parent / "server" / "penstock" / "tiny" / "model"
TEXT = (
    "Penstock is a server for large language models. A router takes requests, turns them into token ids and "
    "queues them; workers hold the model and run one step at a time. What is 2 + 3? It is 5. Repeat: apple, "
    "river, stone. Sort: pear, apple, cherry. The quick brown fox jumps over 13 lazy dogs, and nobody minds."
)


def test_perplexity_equals_that_of_transformers_to_four_digits(launch: Launch) -> None:
    from transformers import AutoModelForCausalLM

    parameters = {"details": True, "decoder_input_details": True, "max_new_tokens": 1}
    address = launch(*ON_TORCH).wait_ready().address
    answer = wire.post(address, "/generate", {"inputs": TEXT, "parameters": parameters}).json()
    prefill = answer["details"]["prefill"]
    logprobs = [token["logprob"] for token in prefill if token["logprob"] is not None]
    assert len(logprobs) == len(prefill) - 1 > 80
    ours = math.exp(-sum(logprobs) / len(logprobs))

    ids = torch.tensor([[token["id"] for token in prefill]])
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with torch.inference_mode():
        theirs = math.exp(float(model(ids, labels=ids).loss))
    assert f"{ours:.4g}" == f"{theirs:.4g}"
