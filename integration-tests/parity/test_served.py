"""A model of every family served over HTTP by the real `penstock`: its greedy text is that of transformers, also where the
worker is killed in the middle of it.
"""

import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES, with_text
from models import kind_of, make

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire
from checkpoints import SHIPPED
from launched import Launched
from load import ask, generate, once

PROMPT = "A penstock is a pipe that feeds water to a turbine, and its gate decides how much flows."
TOKENS = 24


@pytest.mark.tail
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_served(family: str, tmp_path: Path) -> None:
    config = with_text(FAMILIES[family], vocab_size=4096)
    folder = make(tmp_path / "model", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, folder / name)
    limits = ("--max-total-tokens", "128", "--max-input-tokens", "64")
    with Launched(tmp_path / "run", "--model-id", str(folder), "--dtype", "float32", *limits) as launched:
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
    ids = torch.tensor([[token["id"] for token in details["prefill"]]])
    theirs = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours == theirs[0, ids.shape[1] :].tolist()
