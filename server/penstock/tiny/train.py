"""Makes the model that ships with Penstock: `python -m penstock.tiny.train --out DIR`.

Tokenizer, training, evaluation, model card: all of `DIR`, from a seed and generated text alone. Step n draws
its conversations from (seed, n), so a run that is stopped goes on from its checkpoint with the same text.
"""

import argparse
import copy
import math
import os
import shutil
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from penstock.tiny.corpus import (
    EARLY_WEIGHTS,
    FINAL_WEIGHTS,
    LAST_WEIGHTS,
    LATE_WEIGHTS,
    WEIGHTS,
    Conversation,
    evaluation_items,
    training_stream,
    user_turns,
)
from penstock.tiny.evaluate import evaluate
from penstock.tiny.model_card import write_model_card
from penstock.tiny.network import Shape, TinyLlama, save_weights
from penstock.tiny.optimizer import Muon
from penstock.tiny.tokenizer import save_tokenizer, train_tokenizer
from penstock.tiny.words import know_pieces

STEPS = 3750
CONVERSATIONS_PER_STEP = 112
TOKENS_PER_FORWARD = 2048
SHORTEST_BESIDE = 0.7  # of the longest row of a batch; the rest of a row is padding
MUON_RATE = 0.02
ADAM_RATE = 4e-3
DECAY_SHARE = 0.4
IGNORED = -100


@dataclass(frozen=True)
class Phase:
    """Up to step `until`: the shares of the tasks, and a factor for the learning rates."""

    until: int
    weights: dict[str, float]
    rate: float


PHASES = (
    Phase(300, EARLY_WEIGHTS, 1.0),
    Phase(500, WEIGHTS, 1.0),
    Phase(700, LATE_WEIGHTS, 0.5),
    Phase(2400, LAST_WEIGHTS, 0.5),
    Phase(STEPS, FINAL_WEIGHTS, 0.5),
)
Batch = tuple[torch.Tensor, torch.Tensor]


class NotFinite(RuntimeError):
    """The training diverged: a loss or weights are infinite or no number. What was saved before is left as it was."""


def encode(tokenizer: Tokenizer, conversations: list[Conversation]) -> list[tuple[list[int], list[int]]]:
    """(ids, targets) per conversation: a target is the next id where the model has to write, else IGNORED."""
    pieces = [piece for conversation in conversations for piece in conversation.pieces]
    encoded = iter(tokenizer.encode_batch([text for text, _ in pieces], add_special_tokens=False))
    rows = []
    for conversation in conversations:
        ids: list[int] = []
        wanted: list[int] = []
        for _, own in conversation.pieces:
            piece = next(encoded).ids
            ids += piece
            wanted += piece if own else [IGNORED] * len(piece)
        rows.append((ids[:-1], wanted[1:]))
    return rows


def forwards(rows: list[tuple[list[int], list[int]]]) -> list[Batch]:
    """Rows of like length together, padded at the end, up to TOKENS_PER_FORWARD a batch: (ids, targets)."""
    batches = []
    rows = sorted(rows, key=lambda row: len(row[0]))
    while rows:
        longest = -(-len(rows[-1][0]) // 8) * 8
        size = max(1, TOKENS_PER_FORWARD // longest)
        group = [row for row in rows[-size:] if len(row[0]) >= SHORTEST_BESIDE * longest] or rows[-1:]
        rows = rows[: -len(group)]
        ids = torch.zeros(len(group), longest, dtype=torch.int64)
        wanted = torch.full((len(group), longest), IGNORED)
        for index, (row_ids, row_wanted) in enumerate(group):
            ids[index, : len(row_ids)] = torch.tensor(row_ids)
            wanted[index, : len(row_wanted)] = torch.tensor(row_wanted)
        batches.append((ids, wanted))
    return batches


def rate_factor(step: int, steps: int) -> float:
    """Warm-up over 100 steps, flat, then linearly to zero over the last DECAY_SHARE."""
    warm_up = min(1.0, (step + 1) / 100)
    return warm_up * min(1.0, (steps - step) / (steps * DECAY_SHARE))


def backward(network: TinyLlama, waiting: deque[Batch], count: int) -> float:
    """Takes batches until none is waiting and adds their gradients, on one core; returns their share of the
    mean loss over `count` targets."""
    torch.set_num_threads(1)
    total = 0.0
    while waiting:
        try:
            ids, wanted = waiting.popleft()
        except IndexError:  # the other thread was faster
            break
        with torch.autocast("cpu", torch.bfloat16):
            states = network(ids)
            chosen = wanted != IGNORED
            logits = network.logits(states[chosen])
        loss = F.cross_entropy(logits.float(), wanted[chosen], reduction="sum") / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


class Training:
    """Network, optimizers and step number: what a checkpoint holds.

    A step is split over threads that share the weights and have gradients of their own. An operation runs on
    one core: on a busy machine, threads that wait for each other inside every operation come to a standstill.
    Which thread takes which batch is chance, so two runs differ by the order of sums and no more.
    """

    def __init__(self, seed: int, threads: int, network: TinyLlama | None = None) -> None:
        """`network`: another one than ships, with the methods of `TinyLlama`."""
        torch.manual_seed(seed)
        self.seed = seed
        self.step = 0
        self.network = TinyLlama(Shape()) if network is None else network
        self.replicas = [self.network]
        for _ in range(threads - 1):
            replica = copy.deepcopy(self.network)
            for own, shared in zip(replica.parameters(), self.network.parameters(), strict=True):
                own.data = shared.data
            self.replicas.append(replica)
        self.pool = ThreadPoolExecutor(threads)
        matrices: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for name, parameter in self.network.named_parameters():
            (matrices if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        self.forbidden = user_turns(evaluation_items())

    def run_step(self, tokenizer: Tokenizer, steps: int) -> tuple[float, int]:
        """One update; the mean loss per written token, and how many tokens were read. Raises NotFinite."""
        phase = next((phase for phase in PHASES if self.step < phase.until), PHASES[-1])
        stream = training_stream(self.seed * 1_000_003 + self.step, self.forbidden, phase.weights)
        rows = encode(tokenizer, list(islice(stream, CONVERSATIONS_PER_STEP)))
        batches = forwards(rows)
        count = sum(int((wanted != IGNORED).sum()) for _, wanted in batches)
        waiting = deque(sorted(batches, key=lambda batch: -batch[0].numel()))
        total = sum(self.pool.map(backward, self.replicas, repeat(waiting), repeat(count)))
        if not math.isfinite(total):
            raise NotFinite(f"step {self.step}: the loss is {total}")
        for replica in self.replicas[1:]:
            for parameter, other in zip(self.network.parameters(), replica.parameters(), strict=True):
                if parameter.grad is None or other.grad is None:  # one thread took every batch
                    parameter.grad = other.grad if parameter.grad is None else parameter.grad
                else:
                    parameter.grad += other.grad
                other.grad = None
        factor = rate_factor(self.step, steps) * phase.rate
        self.muon.step(MUON_RATE * factor)
        for group in self.adam.param_groups:
            group["lr"] = ADAM_RATE * factor
        torch.nn.utils.clip_grad_norm_(self.adam.param_groups[0]["params"], 1.0)
        self.adam.step()
        self.adam.zero_grad()
        self.step += 1
        return total, sum(len(ids) for ids, _ in rows)

    def check(self) -> None:
        """Raises NotFinite, naming the first parameter with a number that is none."""
        for name, parameter in self.network.named_parameters():
            broken = int((~parameter.isfinite()).sum())
            if broken:
                raise NotFinite(
                    f"after {self.step} steps {broken} of {parameter.numel()} numbers of {name} are not finite"
                )

    def save(self, path: Path) -> None:
        """Replaces what an earlier call has saved. Raises NotFinite."""
        self.check()
        state = {
            "step": self.step,
            "network": self.network.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
        }
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def export(
    training: Training, tokenizer: Tokenizer, out: Path, scores: dict[str, tuple[int, int]] | None
) -> None:
    """Writes the served folder beside `out` and puts it in its place in one move. Raises NotFinite."""
    training.check()
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_weights(training.network, fresh)
    save_tokenizer(tokenizer, fresh, training.network.shape.max_position_embeddings)
    write_model_card(fresh, training.step, scores)
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(fresh, out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model", help="folder to make")
    parser.add_argument("--work", type=Path, default=Path(".cache/tiny-model"), help="folder for checkpoints")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--look-every", type=int, default=1000, help="steps between short evaluations")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the parallel part is `backward`
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)

    vocabulary = work / "tokenizer.json"
    if not vocabulary.exists():
        train_tokenizer(arguments.seed).save(str(vocabulary))
    tokenizer = Tokenizer.from_file(str(vocabulary))
    know_pieces(list(tokenizer.get_vocab()))
    training = Training(arguments.seed, arguments.threads)
    checkpoint = work / "checkpoint.pt"
    if checkpoint.exists():
        training.load(checkpoint)
    parameters = sum(p.numel() for p in training.network.parameters())
    print(f"{parameters:,} parameters, step {training.step} of {arguments.steps}", flush=True)

    began, read, losses = time.monotonic(), 0, 0.0
    while training.step < arguments.steps:
        loss, tokens = training.run_step(tokenizer, arguments.steps)
        read, losses = read + tokens, losses + loss
        if training.step % 25 == 0:
            speed = read / (time.monotonic() - began)
            print(f"step {training.step} loss {losses / 25:.4f} {speed:.0f} tokens/s", flush=True)
            losses = 0.0
        if training.step % 50 == 0:
            training.save(checkpoint)
            export(training, tokenizer, arguments.out, None)
        if training.step % arguments.look_every == 0:
            export(training, tokenizer, arguments.out, None)
            scores = evaluate(arguments.out, evaluation_items(per_task=10))
            print(f"look at step {training.step}: {scores}", flush=True)
    export(training, tokenizer, arguments.out, None)
    scores = evaluate(arguments.out, evaluation_items())
    export(training, tokenizer, arguments.out, scores)
    for task, (right, asked) in scores.items():
        print(f"{task:12} {right:4} of {asked:4}  {right / asked:.0%}", flush=True)


if __name__ == "__main__":
    main()
