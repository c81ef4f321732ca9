"""A model of every family served over HTTP by the real `penstock`: its greedy text is that of transformers, also where the
worker is killed in the middle of it; and so on the CPU engine, where it is that of one that was not killed.
"""

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, with_text
from models import NEED_IMAGES, kind_of, make
from page import runs

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from launched import EXACT, Launched
from load import ask, ask_all_through, generate, once

PROMPT = "A penstock is a pipe that feeds water to a turbine, and its gate decides how much flows."
TOKENS = 24


LIMITS = ("--max-total-tokens", "128", "--max-input-tokens", "64")


def folder_of(folder: Path, config: dict[str, Any]) -> Path:
    made = make(folder, config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, made / name)
    return made


@pytest.mark.tail
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_served(family: str, tmp_path: Path) -> None:
    config = with_text(FAMILIES[family], vocab_size=4096)
    folder = folder_of(tmp_path / "model", config)
    with Launched(tmp_path / "run", "--model-id", str(folder), "--dtype", "float32", *LIMITS) as launched:
        launched.wait_ready()
        parameters = {"max_new_tokens": TOKENS, "details": True, "decoder_input_details": True}
        reply = wire.post(launched.address, "/generate", {"inputs": PROMPT, "parameters": parameters})
        assert reply.status == 200, reply.text
        details = reply.json()["details"]
        ours = [token["id"] for token in details["tokens"]]
        worker = launched.worker()
        kill = once(lambda: worker.signal(signal.SIGKILL), at=TOKENS // 3)
        killed = ask(launched.address, generate(PROMPT, TOKENS), kill)
        assert killed.error is None and killed.pieces == ours
        assert launched.wait_ready().worker().pid != worker.pid

    model = kind_of(config).from_pretrained(folder, dtype=torch.float32)
    if config["model_type"] in NEED_IMAGES:
        model = model.language_model
    ids = torch.tensor([[token["id"] for token in details["prefill"]]])
    theirs = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours == theirs[0, ids.shape[1] :].tolist()


@pytest.mark.tail
@pytest.mark.skipif(EXACT != (), reason="there is no CPU engine")
@pytest.mark.parametrize("family", [name for name in FAMILIES if runs(name) == "engine"])
def test_a_family_on_the_cpu_engine_goes_on_when_its_worker_is_killed(family: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", with_text(FAMILIES[family], vocab_size=4096))
    # Long enough that the kill comes in the middle.
    limits = ("--max-total-tokens", "256", "--max-input-tokens", "64")
    flags = ("--model-id", str(folder), "--dtype", "bfloat16", *limits)
    requests = [generate(f"{number} {PROMPT}", 8 * TOKENS) for number in range(3)]
    with Launched(tmp_path / "run", *flags) as launched:
        address = launched.wait_ready().address
        assert "the CPU engine runs the model" in launched.log()
        alone = [ask(address, request) for request in requests]
        for kill in launched.interruptions():
            killed = ask_all_through(launched, requests, kill, at=TOKENS)
            for one, other in zip(alone, killed, strict=True):
                assert other.error is None and one.same_as(other)
