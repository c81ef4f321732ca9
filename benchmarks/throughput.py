"""Figure 5: the shipped model over HTTP at 1, 8 and 32 clients, against `transformers` `generate` with the
same batch, prompts and number of tokens, in turns in the same run.

    .venv/bin/python benchmarks/throughput.py [--model DIR] [--rounds 5] [--new-tokens 128]

Penstock's side includes HTTP, streaming, JSON and this client, which share the machine's cores;
transformers' side is a library call without any of it, which flatters transformers. Both in the model's
own dtype. Tokens per second = batch x new tokens / time for the whole, prompts included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from running_server import Server, penstock, processor, spread

PROMPT_TOKENS = 32
SHIPPED = Path(__file__).parent.parent / "server" / "penstock" / "tiny" / "model"

# The peer, in a process of its own that idles between its turns.
PEER = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
torch.set_num_threads(int(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    prompts, new_tokens = json.loads(line)
    ids = torch.tensor(prompts)
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
                             min_new_tokens=new_tokens, max_new_tokens=new_tokens)
    seconds = time.perf_counter() - began
    assert out.shape[1] == ids.shape[1] + new_tokens
    print(seconds, flush=True)
"""


class Transformers:
    """`generate` of transformers in its own process, all cores."""

    def __init__(self, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(model), str(len(os.sched_getaffinity(0)))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert self.process.stdout and self.process.stdout.readline().strip() == "ready"

    def seconds(self, prompts: list[list[int]], new_tokens: int) -> float:
        assert self.process.stdin and self.process.stdout
        print(json.dumps([prompts, new_tokens]), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


def client(server: Server, prompt: list[int], new_tokens: int, counts: list[int]) -> None:
    body = {
        "prompt": prompt,
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens = 0
    for event in server.events("/v1/completions", body):
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    counts.append(tokens)


def seconds_over_http(server: Server, prompts: list[list[int]], new_tokens: int) -> float:
    counts: list[int] = []
    threads = [threading.Thread(target=client, args=(server, p, new_tokens, counts)) for p in prompts]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if counts != [new_tokens] * len(prompts):
        raise SystemExit(f"not every client had {new_tokens} tokens: {counts}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    arguments = parser.parse_args()
    print(f"processor: {processor()}; model: {arguments.model}")
    peer = Transformers(arguments.model)
    with penstock("--model-id", str(arguments.model)) as server:
        fresh = iter(range(10**6))

        def prompts(batch: int) -> list[list[int]]:
            """New prompts every time, so that no prefix cache helps."""
            return [
                [300 + (next(fresh) * 977 + 13 * i) % 3000 for i in range(PROMPT_TOKENS)]
                for _ in range(batch)
            ]

        for batch in arguments.clients:
            ours, theirs = [], []
            seconds_over_http(server, prompts(batch), 16), peer.seconds(prompts(batch), 16)
            for _ in range(arguments.rounds):
                ours.append(
                    batch
                    * arguments.new_tokens
                    / seconds_over_http(server, prompts(batch), arguments.new_tokens)
                )
                theirs.append(
                    batch * arguments.new_tokens / peer.seconds(prompts(batch), arguments.new_tokens)
                )
            ratio = [a / b for a, b in zip(ours, theirs, strict=True)]
            print(
                f"{batch} clients: penstock {spread(ours)} tok/s; transformers {spread(theirs)} tok/s; ratio {spread(ratio)}"
            )
    peer.close()


if __name__ == "__main__":
    main()
