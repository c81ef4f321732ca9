"""A server on a GPU over HTTP: streams of 1, 8, 32 and 128 clients.

    python benchmarks/gpu_http.py --binary PENSTOCK [--shape llama-8b | --model FOLDER] [--streams 1,8,32,128]
        [--prompt-tokens 512] [--new-tokens 256] [--repeats 64] [-- FLAGS OF PENSTOCK]

`--shape` is one of `gpu.py`, made on the spot with random weights and a tokenizer whose words are their numbers. Clients are processes that
count events as they arrive. Decode speed is what all streams receive in a second between the last one's first token and the first one's
end; beside it stand the times to the first token and between tokens (medians and 99th percentiles) over all streams. With `--repeats N`
the model writes the same N tokens again and again: the most that `--speculate` can gain, where other random weights show what it costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

PROCESSES = 8
START_SECONDS = 180


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Bytes, and words that no text contains: of a token that was drawn, and is no byte, the number is its text."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = alphabet + [f"Ġ{number}" for number in range(len(alphabet), vocabulary)]
    tokenizer = Tokenizer(BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


async def stream(port: int, prompt: str, tokens: int, parameters: dict[str, Any]) -> list[float]:
    """When each token's event arrived, after when the request was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {
            "inputs": prompt,
            "parameters": {"max_new_tokens": tokens, "ignore_eos_token": True, **parameters},
            "stream": True,
        }
    )
    head = f"POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    times = [time.perf_counter()]
    writer.write(f"{head}connection: close\r\n\r\n{body}".encode())
    answer = bytearray()
    while chunk := await reader.read(1 << 16):
        answer += chunk
        now = time.perf_counter()
        times += [now] * chunk.count(b"data:")
    writer.close()
    if len(times) != tokens + 1:
        raise RuntimeError(f"{len(times) - 1} events, {tokens} were asked for: {bytes(answer[:500])!r}")
    return times


def client(port: int, prompts: list[str], tokens: int, parameters: dict[str, Any], results: Any) -> None:
    """One process with some of the streams."""

    async def all_streams() -> list[list[float]]:
        return await asyncio.gather(*(stream(port, prompt, tokens, parameters) for prompt in prompts))

    results.put(asyncio.run(all_streams()))


def measure(
    port: int, streams: int, prompt_tokens: int, tokens: int, parameters: dict[str, Any], kill: int = 0
) -> str:
    """Runs so many streams at once. `kill`: a process that is killed on the way."""
    prompts = ["".join(random.choices("abcdefghij", k=prompt_tokens)) for _ in range(streams)]
    results: Any = multiprocessing.Queue()
    parts = [part for part in (prompts[i::PROCESSES] for i in range(PROCESSES)) if part]
    clients = [
        multiprocessing.Process(target=client, args=(port, part, tokens, parameters, results))
        for part in parts
    ]
    for process in clients:
        process.start()
    if kill:
        time.sleep(1.0)
        os.kill(kill, signal.SIGKILL)
    times = [one for _ in clients for one in results.get(timeout=300)]
    for process in clients:
        process.join()
    begin, end = max(one[1] for one in times), min(one[-1] for one in times)
    arrived = sum(begin < moment <= end for one in times for moment in one[1:])
    whole = max(one[-1] for one in times) - min(one[0] for one in times)
    firsts = sorted(one[1] - one[0] for one in times)
    between = sorted(b - a for one in times for a, b in pairwise(one[1:]))
    return (
        f"{streams:4} streams: {arrived / max(end - begin, 1e-9):8.1f} tok/s decoding, {streams * tokens / whole:8.1f} with prompts;"
        f" first token {_ms(firsts, 50)} / {_ms(firsts, 99)} ms, between tokens {_ms(between, 50)} / {_ms(between, 99)} ms,"
        f" at most {1e3 * between[-1]:.0f}"
    )


def _ms(sorted_seconds: list[float], percentile: int) -> str:
    if len(sorted_seconds) < 2:
        return f"{1e3 * sorted_seconds[0]:.1f}"
    return f"{1e3 * statistics.quantiles(sorted_seconds, n=100, method='inclusive')[percentile - 1]:.1f}"


def worker_of(launcher: int) -> int:
    """The process of the first worker that a launcher has started."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            if b"penstock.worker" in (process / "cmdline").read_bytes() and _started(process, launcher):
                return int(process.name)
        except OSError:
            continue
    raise RuntimeError("no worker is running")


def _started(process: Path, launcher: int) -> bool:
    """Whether one process has started the other, or what started it."""
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return parent == launcher or (parent > 1 and _started(Path("/proc") / str(parent), launcher))


def main() -> None:
    """Starts the server, runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", default="1,8,32,128")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--parameters", default="{}", help="of the requests, as JSON")
    parser.add_argument(
        "--repeats", type=int, default=0, help="of --shape: text begins again after so many tokens"
    )
    parser.add_argument("--kill", action="store_true", help="then kill the worker while 8 streams run")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/penstock-gpu"))
    parser.add_argument("--log", type=Path, default=Path("/tmp/gpu_http.log"))
    parser.add_argument("flags", nargs="*", help="of penstock, behind --")
    arguments = parser.parse_args()
    folder = arguments.model
    if folder is None:
        from gpu import SHAPES, make

        name = f"{arguments.shape}-repeats-{arguments.repeats}" if arguments.repeats else arguments.shape
        folder = arguments.folder / name
        if not (folder / "config.json").exists():
            make(SHAPES[arguments.shape], folder, repeats=arguments.repeats)
        if not (folder / "tokenizer.json").exists():
            write_tokenizer(folder, SHAPES[arguments.shape]["vocab_size"])
    serve(arguments, folder)


def serve(arguments: Any, folder: Path) -> None:
    """All measurements of one server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [arguments.binary, "--model-id", folder, "--port", str(port), "--python", sys.executable]
    began = time.perf_counter()
    with arguments.log.open("wb") as log:
        server = subprocess.Popen([*map(str, command), *arguments.flags], stdout=log, stderr=log)
    try:
        while True:
            if server.poll() is not None or time.perf_counter() - began > START_SECONDS:
                sys.exit(f"the server did not start: {arguments.log.read_text()[-2000:]}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        print(f"ready after {time.perf_counter() - began:.1f} s", flush=True)
        sizes, parameters = (arguments.prompt_tokens, arguments.new_tokens), json.loads(arguments.parameters)
        measure(port, 2, arguments.prompt_tokens, 8, parameters)
        for streams in map(int, arguments.streams.split(",")):
            print(measure(port, streams, *sizes, parameters), flush=True)
        if arguments.kill:
            print(
                "a worker is killed:", measure(port, 8, *sizes, parameters, worker_of(server.pid)), flush=True
            )
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
