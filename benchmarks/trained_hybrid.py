"""Perplexity of a small hybrid that was trained, as it is served and as transformers computes it.

    python benchmarks/trained_hybrid.py --work FOLDER --minutes 10 [--seconds 90] [--threads 1]

Trains a model of Qwen 3.5's kind (three gated delta rules to a layer that attends, 4 layers of 128, a vocabulary of 4,096) with the tiny
model's own script: its text, its tokenizer, its optimizers (`penstock.tiny.train`). With `--seconds` a call trains for so long and goes
on where the last one ended; the call that reaches `--minutes` of training measures, and so does one after it, which trains no
further. Weights or a loss that are not finite end it, and are not saved. Held-out text: conversations of the same tasks
from another seed, 12 alone and 4 of 1,500 tokens one after another.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from running_server import penstock

sys.path.insert(0, str(Path(__file__).parents[1] / "integration-tests" / "parity"))

from recurrent_families import RECURRENT

from penstock.tiny.corpus import training_stream
from penstock.tiny.network import TinyLlama
from penstock.tiny.train import Training, encode
from penstock.tiny.words import know_pieces

SHIPPED = Path(__file__).parents[1] / "server" / "penstock" / "tiny" / "model"
STEPS = 600  # of the learning rate: most of it is flat
SHAPE: dict[str, Any] = {
    **RECURRENT["Qwen 3.5"],
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 384,
    "head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


class Hybrid(nn.Module):
    """Transformers' model, with the methods of `TinyLlama`."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        super().__init__()
        self.model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))

    def forward(self, ids: Tensor) -> Tensor:
        """Hidden states."""
        return cast("Tensor", self.model.model(input_ids=ids, use_cache=False).last_hidden_state)

    def logits(self, states: Tensor) -> Tensor:
        """Of them."""
        return cast("Tensor", self.model.lm_head(states))


def held_out(tokenizer: Tokenizer) -> list[list[int]]:
    """Sequences of tokens that no step was trained on."""
    rows = [ids for ids, _ in encode(tokenizer, list(islice(training_stream(987_654_321), 400)))]
    joined = [token for row in rows[12:] for token in row]
    return rows[:12] + [joined[at : at + 1500] for at in range(0, 6000, 1500)]


def by_transformers(folder: Path, sequences: list[list[int]], dtype: torch.dtype) -> list[float]:
    """Log probabilities of all tokens but the first of each."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    found: list[float] = []
    with torch.inference_mode():
        for ids in sequences:
            logprobs_TV = model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
            found += logprobs_TV.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1).tolist()
    return found


def served(folder: Path, sequences: list[list[int]], dtype: str) -> list[float]:
    """The same, as `/v1/completions` reports them."""
    found: list[float] = []
    with penstock("--model-id", str(folder), "--dtype", dtype) as server:
        for ids in sequences:
            body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
            found += server.post("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"][1:]
    return found


def perplexity(logprobs: list[float]) -> float:
    return math.exp(-sum(logprobs) / len(logprobs))


def compared(who: str, found: list[float], exact: list[float]) -> str:
    """A line: the perplexity, by how much it is another one than that of `exact`, and so for single tokens."""
    if not all(map(math.isfinite, found)):
        sys.exit(f"{who}: a log probability is not finite")
    apart = [abs(one - other) for one, other in zip(found, exact, strict=True)]
    value, wanted = perplexity(found), perplexity(exact)
    return (
        f"{who}: {value:.6f} ({value - wanted:+.1e}, {(value - wanted) / wanted:+.4%}); log probabilities of tokens by "
        f"{statistics.mean(apart):.1e} in the mean, {max(apart):.1e} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder: Path = arguments.work / "model"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(SHIPPED / name, folder / name)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    know_pieces(list(tokenizer.get_vocab()))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    training = Training(1, arguments.threads, cast("TinyLlama", Hybrid(folder)))
    checkpoint, progress_file = arguments.work / "checkpoint.pt", arguments.work / "progress.json"
    # `loss` is that of the last step, in whichever call it was.
    spent, loss = 0.0, math.nan
    if checkpoint.exists():
        training.load(checkpoint)
        progress = json.loads(progress_file.read_text())
        spent, loss = progress["seconds"], progress["loss"]
    before, began = training.step, time.monotonic()
    while spent + (now := time.monotonic() - began) < 60 * arguments.minutes and now < arguments.seconds:
        loss, _ = training.run_step(tokenizer, STEPS)
    if training.step > before:
        spent += time.monotonic() - began
        training.save(checkpoint)
        progress_file.write_text(json.dumps({"seconds": spent, "loss": loss}))
    print(
        f"{training.step} steps in {spent:.0f} s of training, {training.step - before} in this call; "
        f"loss of the last {loss:.3f}",
        flush=True,
    )
    if spent < 60 * arguments.minutes:
        return
    training.check()
    network: Any = training.network
    network.model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    sequences = held_out(tokenizer)
    exact = by_transformers(folder, sequences, torch.float32)
    print(f"{len(exact)} held-out tokens; of transformers' in fp32 differ")
    print(f"transformers float32: {perplexity(exact):.6f}")
    print(compared("transformers bfloat16", by_transformers(folder, sequences, torch.bfloat16), exact))
    for dtype in ("float32", "bfloat16"):
        print(compared(f"served {dtype}", served(folder, sequences, dtype), exact), flush=True)


if __name__ == "__main__":
    main()
