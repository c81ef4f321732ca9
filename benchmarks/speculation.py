"""What `--speculate` gains and costs: tokens per second with it against without, in turns in one run.

    .venv/bin/python benchmarks/speculation.py [--kinds "random" "chat"] [--corpus-tokens 100000] [--rounds 5] [--starts 1] [--seconds 0] [--control]
        [--tokens 192] [--speculate 8] [--dtype bfloat16] [--model-id FOLDER [--counting] | --family "Qwen 3.5" | --family "Flan-T5 base"]

Two servers of the shipped model, or of --model-id, asked in turn, over HTTP, greedy: answers that repeat a part of their prompt, texts that go round
(the best case) or nearly do, records of the prompt under a JSON schema, what the model says by itself, and the worst case: random tokens, of which
nothing can be guessed.

A difference of a few hundredths needs more: with --control a third server, again without drafts, is asked in turn, and what it has over the first is what
this comparison says where nothing differs; with --starts the servers are started anew so many times, each time another first, since a server measures
once what it goes by; with --seconds a round lasts at least as long. Behind each median stands where 95 of 100 such medians would be (from the order of
the rounds' ratios, whatever their distribution), with six rounds and more.

With --counting the model keeps its layers and says token after token by number, so that prompts can be made that hold so much of the answer as those of
some tasks do: a "summary" takes three of four runs of 16 tokens from its prompt, a "code edit" all but each 24th token, "JSON from a text" six of ten
tokens. What these shares are is said here and not measured; what is measured is what they are worth. With --ceiling no server is asked: it prints how
many tokens a step has at best where each step waits for the one before it and drafts are what followed the longest match, of at least one or two tokens.

With --family the model has random weights in that family's shape of `architectures.py` and the shipped tokenizer. What its layers add is small, so that what
comes next is mostly the last token's choice: its texts go round or surprise, and "repeats its prompt" and "chat" mean nothing. An encoder-decoder of
`encoder_decoders.py` is made to say token after token by number, so that it "says what it reads", or, where its input is other tokens, nothing that can
be guessed ("reads something else"): these two kinds are its own, and "goes round".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from running_server import Server, penstock, processor, spread

WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "lamp",
    "chair",
    "table",
    "bread",
    "pear",
    "cherry",
    "house",
    "garden",
    "window",
    "bridge",
    "forest",
    "candle",
]
# Of `encoder_decoders.py`. Its head is no copy of its embeddings, so that it can be made to say what it is wanted to.
COUNTING = "Flan-T5 base"
# Embeddings of --family are so many times what the small models of tests have.
LARGE = 1000
# An encoder-decoder of --family says one token after the other from here on, and reads so many.
COUNTED_FROM, READ = 10, 500
# So many of the short answers are asked for one after the other.
SHORT = 8


def repeating(number: int) -> dict[str, Any]:
    """What the model is asked to repeat stands in its prompt; the answer ends by itself."""
    words = " ".join(random.Random(number).sample(WORDS, 8))
    turn = f"<|im_start|>user\nRepeat: {words}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": f"{turn}{words}<|im_end|>\n{turn}", "temperature": 0, "ignore_eos": False}


def going_round(number: int) -> dict[str, Any]:
    """The best case: a text that repeats itself from soon on."""
    few = {str(400 + (number * 7 + at) % 900): 100 for at in range(16)}
    return {"prompt": f"number {number}", "temperature": 0, "logit_bias": few}


def wavering(number: int) -> dict[str, Any]:
    """Behind each of a few tokens come one or another: what is guessed is often wrong."""
    few = {str(400 + (number * 7 + at) % 900): 100 for at in range(6)}
    return {"prompt": f"number {number}", "temperature": 2.0, "seed": number, "logit_bias": few}


def surprising(number: int) -> dict[str, Any]:
    """One of many tokens each time, as good as at random."""
    rng = random.Random(number)
    words = " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(40))
    return {
        "prompt": words,
        "temperature": 2.0,
        "seed": number,
        "logit_bias": {str(t): 100 for t in range(400, 700)},
    }


def chatting(number: int) -> dict[str, Any]:
    """What the model says by itself."""
    return {
        "prompt": f"<|im_start|>user\nTell me story {number}.<|im_end|>\n<|im_start|>assistant\n",
        "temperature": 0,
    }


def asked_before(number: int) -> dict[str, Any]:
    """What others have asked lately: the best case of --speculate-corpus-tokens."""
    return {
        "prompt": f"<|im_start|>user\nTell me story {number % 4} of them.<|im_end|>\n<|im_start|>assistant\n",
        "temperature": 0,
    }


def saying_what_it_reads(number: int) -> dict[str, Any]:
    """What a decoder will say stands in its encoder's input, and comes once."""
    return {"prompt": list(range(COUNTED_FROM, COUNTED_FROM + READ)), "temperature": 0, "seed": number}


def reading_something_else(number: int) -> dict[str, Any]:
    """The worst case: what it says comes once, and not in the input."""
    begin = 10_000 + READ * number
    return {"prompt": list(range(begin, begin + READ)), "temperature": 0, "seed": number}


def counted_tokens(number: int) -> list[int]:
    """What a model that counts is to say, for each of eight requests in a part of the vocabulary of its own."""
    begin = 500 + 260 * (number % 8)
    return list(range(begin, begin + 256))


def behind_a_prompt(number: int, held: list[list[int]]) -> dict[str, Any]:
    """Asks for the counted tokens behind a prompt that holds these runs of them, apart from each other."""
    rng = random.Random(number)
    prompt: list[int] = []
    for run in held:
        prompt += [*(rng.randrange(3000, 4000) for _ in range(4)), *run]
    return {"prompt": [*prompt, 5, counted_tokens(number)[0]], "temperature": 0, "seed": number}


def summary(number: int) -> dict[str, Any]:
    """Sentences of the prompt, and each fourth in words of its own."""
    said = counted_tokens(number)
    runs = [said[at : at + 16] for at in range(0, len(said), 16)]
    return behind_a_prompt(number, [run for at, run in enumerate(runs) if at % 4 != 3])


def code_edit(number: int) -> dict[str, Any]:
    """All of the prompt, but for a token here and there."""
    rng = random.Random(number)
    edited = [
        rng.randrange(3000, 4000) if at % 24 == 23 else t for at, t in enumerate(counted_tokens(number))
    ]
    return behind_a_prompt(number, [edited])


def json_from_a_text(number: int) -> dict[str, Any]:
    """Values of the prompt, between keys and marks that are not in it."""
    said = counted_tokens(number)
    return behind_a_prompt(number, [said[at + 4 : at + 10] for at in range(0, len(said), 10)])


def json_of_a_schema(number: int) -> dict[str, Any]:
    """Records of the prompt, under the schema of a list of such records."""
    rng = random.Random(number)
    records = [
        {"name": " ".join(rng.sample(WORDS, 3)), "place": " ".join(rng.sample(WORDS, 2)), "age": 20 + at}
        for at in range(6)
    ]
    text = json.dumps(records)
    fields = {
        "name": {"type": "string", "maxLength": 40},
        "place": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    }
    record = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    schema = {"type": "array", "items": record, "minItems": 200}
    turn = f"<|im_start|>user\nRepeat: {text}<|im_end|>\n<|im_start|>assistant\n"
    return {
        "prompt": f"{turn}{text}<|im_end|>\n{turn}",
        "temperature": 0,
        "ignore_eos": True,
        "response_format": {"type": "json", "value": schema},
    }


KINDS = {
    "summary": summary,
    "code edit": code_edit,
    "JSON from a text": json_from_a_text,
    "JSON of a schema": json_of_a_schema,
    "repeats its prompt": repeating,
    "goes round": going_round,
    "wavers": wavering,
    "chat": chatting,
    "random": surprising,
    "asked before": asked_before,
    "says what it reads": saying_what_it_reads,
    "reads something else": reading_something_else,
}
OF_COUNTING = ("summary", "code edit", "JSON from a text")
OF_ENCODER_DECODERS = ("says what it reads", "reads something else", "goes round")


def processor_seconds(server: Server) -> float:
    """That the server and its workers have used so far."""
    ticks = 0
    for pid in (server.process.pid, *server.worker_pids()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rate(server: Server, kind: str, batch: int, tokens: int, seconds: float = 0) -> tuple[float, float]:
    """Tokens per second of so many requests at once, again and again for so many seconds, and tokens per second of processor time: what holds
    beside other load, too."""
    failures: list[str] = []
    given: list[int] = []

    def ask(number: int) -> None:
        body = {"max_tokens": tokens, "ignore_eos": True, **KINDS[kind](number)}
        least = 1 if body["ignore_eos"] else SHORT
        asked = 0
        while asked < least or time.perf_counter() < began + seconds:
            asked += 1
            try:
                given.append(server.post("/v1/completions", body)["usage"]["completion_tokens"])
            except RuntimeError as error:
                failures.append(str(error))
                return

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(batch)]
    used, began = processor_seconds(server), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if failures:
        raise RuntimeError(failures[0])
    used = processor_seconds(server) - used
    return sum(given) / took, sum(given) / max(used, 0.01)


def counted(server: Server) -> tuple[float, float]:
    """Drafts so far, and those that were accepted."""
    metrics = server.metrics()
    return metrics["penstock_drafts"], metrics["penstock_accepted_drafts"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each start")
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="that a round lasts at least")
    parser.add_argument("--control", action="store_true", help="a second server without drafts")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--speculate", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model-id")
    parser.add_argument("--counting", action="store_true", help="of --model-id, or of the shipped model")
    parser.add_argument("--ceiling", action="store_true", help="of the texts of --counting, without servers")
    parser.add_argument("--family", help="one of architectures.py, or Flan-T5 base")
    parser.add_argument(
        "--corpus-tokens", type=int, default=0, help="--speculate-corpus-tokens of the server with drafts"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    if arguments.kinds is None:
        others = {*OF_ENCODER_DECODERS, *OF_COUNTING} - {"goes round"}
        arguments.kinds = [kind for kind in KINDS if kind not in others]
        if arguments.family == COUNTING:
            arguments.kinds = OF_ENCODER_DECODERS
        if arguments.counting:
            arguments.kinds = OF_COUNTING
    if arguments.ceiling:
        print_ceilings(arguments.tokens)
        return
    print(
        f"{processor()}; {arguments.dtype}, --speculate {arguments.speculate}, --speculate-corpus-tokens "
        f"{arguments.corpus_tokens}, {arguments.tokens} tokens each"
    )
    is_made = arguments.family or arguments.counting
    made = tempfile.TemporaryDirectory() if is_made else contextlib.nullcontext(arguments.model_id)
    with made as folder:
        if arguments.counting:
            make_counting_decoder(Path(folder), Path(arguments.model_id or SHIPPED))
        if arguments.family == COUNTING:
            make_counting(Path(folder))
        elif arguments.family:
            make_family(Path(folder), arguments.family)
        compare(arguments, folder)


def longest_match(text: list[int], least: int) -> int | None:
    """Where the longest run of last tokens that occurred before went on; of equals the latest."""
    best, length = None, least - 1
    for end in range(len(text) - 1, 0, -1):
        matching = 0
        while matching < end and text[end - 1 - matching] == text[-1 - matching]:
            matching += 1
        if matching > length:
            best, length = end, matching
    return best


def print_ceilings(tokens: int) -> None:
    """Of each text, for matches from one or two tokens on and up to 8 or 16 drafts."""
    for kind in OF_COUNTING:
        for least in (2, 1):
            for most in (8, 16):
                steps = drafts = 0
                for number in range(8):
                    text = list(KINDS[kind](number)["prompt"])
                    end = len(text) + tokens
                    while len(text) < end:
                        found = longest_match(text, least)
                        guess = [] if found is None else text[found : found + min(most, end - len(text) - 1)]
                        steps, drafts = steps + 1, drafts + len(guess)
                        for token in [*guess, None]:
                            text.append(text[-1] + 1)
                            if token != text[-1]:
                                break
                print(
                    f"{kind:>18}, matches from {least} on, up to {most:>2} drafts: {8 * tokens / steps:.2f} tokens a step, "
                    f"{drafts / 8:.0f} drafts an answer"
                )


SHIPPED = Path(__file__).parents[1] / "server" / "penstock" / "tiny" / "model"


def copy_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (SHIPPED / name).exists():
            shutil.copy(SHIPPED / name, folder / name)


def make_counting(folder: Path) -> None:
    """Writes an encoder-decoder that says, behind each token, the one with the next number, whatever it reads."""
    from safetensors.torch import load_file, save_file

    from encoder_decoders import make

    make(folder, COUNTING)
    copy_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    table = tensors["shared.weight"]
    head = table.roll(1, 0)
    # Behind what the decoder begins with; what is special is left out.
    head[COUNTED_FROM], head[1] = table[0], table[COUNTED_FROM - 1]
    # A bias of 100 has to be more.
    tensors["lm_head.weight"] = (head * 0.05).contiguous()
    for name in [name for name in tensors if name == "shared.weight" or "embed_tokens" in name]:
        tensors[name] = (table * LARGE).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make_counting_decoder(folder: Path, model: Path) -> None:
    """Writes the model with a vocabulary that makes it say, behind each token, the one with the next number."""
    import torch
    from safetensors.torch import load_file, save_file

    for file in model.glob("*.json*"):
        shutil.copy(file, folder / file.name)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    tensors = load_file(model / "model.safetensors")
    name = "model.embed_tokens.weight"
    # Random, since rows of trained ones are not apart; the layers' part is small beside it.
    table = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(7))
    kind = tensors[name].dtype
    tensors[name] = (table * LARGE).to(kind)
    tensors["lm_head.weight"] = (table.roll(1, 0) * 0.05).to(kind)
    tensors["model.norm.weight"] = torch.ones_like(tensors["model.norm.weight"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make_family(folder: Path, family: str) -> None:
    """Writes a model of the family's shape whose layers add little."""
    import torch
    from safetensors.torch import load_file, save_file

    from architectures import FAMILIES, SHAPES, make

    tokens = json.loads((SHIPPED / "config.json").read_text())["vocab_size"]
    make(folder, FAMILIES[family] | SHAPES[family] | {"vocab_size": tokens})
    copy_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "embed" in name:
            tensor.mul_(LARGE)
        tensors[name] = tensor.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def interval(values: list[float]) -> str:
    """Where 95 of 100 medians of so many values would be: the smallest interval of order statistics that is as sure."""
    count = len(values)
    ordered = sorted(values)
    left_out = 0.0
    for at in range(count // 2):
        left_out += 2 * math.comb(count, at) / 2**count
        if left_out > 0.05:
            return f" ({ordered[at - 1]:.2f}-{ordered[count - at]:.2f})" if at > 0 else ""
    return ""


def told(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f}{interval(ratios)}, {min(ratios):.2f}-{max(ratios):.2f}"


@dataclass
class Cell:
    """What was seen of one kind with one number of requests: of each round tokens per second of each server, and of its processor time."""

    rounds: list[dict[str, tuple[float, float]]] = field(default_factory=list)
    drafts: float = 0
    accepted: float = 0

    def over_off(self, name: str, what: int) -> list[float]:
        return [found[name][what] / found["off"][what] for found in self.rounds]

    def print(self, kind: str, batch: int) -> None:
        rates = ", ".join(
            f"{name} {spread([found[name][0] for found in self.rounds], ' tok/s')}" for name in self.rounds[0]
        )
        print(
            f"batch {batch:>2}, {kind:>18}: {rates}; ratio {told(self.over_off('on', 0))}, of tokens per processor time "
            f"{told(self.over_off('on', 1))}; {self.drafts:.0f} drafts, {self.accepted:.0f} accepted",
            flush=True,
        )
        if "control" in self.rounds[0]:
            print(
                f"{'control':>30}: ratio {told(self.over_off('control', 0))}, {told(self.over_off('control', 1))}"
            )


def compare(arguments: argparse.Namespace, folder: str | None) -> None:
    """Asks the servers in turn, and prints."""
    flags = ("--dtype", arguments.dtype, *(("--model-id", folder) if folder else ()))
    drafting = (
        "--speculate",
        str(arguments.speculate),
        "--speculate-corpus-tokens",
        str(arguments.corpus_tokens),
    )
    started = {"off": flags, "on": (*flags, *drafting)} | ({"control": flags} if arguments.control else {})
    cells = {(kind, batch): Cell() for kind in arguments.kinds for batch in arguments.batches}
    for start in range(arguments.starts):
        with contextlib.ExitStack() as stack:
            # Another is the first to start each time.
            names = list(started)[start % len(started) :] + list(started)[: start % len(started)]
            servers = {name: stack.enter_context(penstock(*started[name])) for name in names}
            for (kind, batch), cell in cells.items():
                look_at(servers, cell, kind, batch, arguments)
                if start == arguments.starts - 1:
                    cell.print(kind, batch)


def look_at(
    servers: dict[str, Server], cell: Cell, kind: str, batch: int, arguments: argparse.Namespace
) -> None:
    """The rounds of one start."""
    names = list(servers)
    for server in servers.values():
        rate(server, kind, batch, arguments.tokens)
    before = counted(servers["on"])
    for turn in range(arguments.rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        cell.rounds.append(
            {name: rate(servers[name], kind, batch, arguments.tokens, arguments.seconds) for name in order}
        )
    drafts, accepted = (now - then for now, then in zip(counted(servers["on"]), before, strict=True))
    cell.drafts, cell.accepted = cell.drafts + drafts, cell.accepted + accepted


if __name__ == "__main__":
    main()
