"""What a server of any make gives behind long prompts, and what the others feel of one that arrives: Penstock, llama-server, vLLM.

    python benchmarks/contexts.py --start "COMMAND" [--contexts 2048,8192] [--streams 1,8] [--tokens 64]
    python benchmarks/contexts.py --start "COMMAND" --beside 4096 [--streams 8] [--arrivals 5]

Client and server process are those of `../shared/peers/bench_http.py` (`--peers` says where it is); prompts are words of its models' tokenizer, one token
each, and share nothing. Behind prompts of each length the decode's rate counts from the last stream's first token to the first one's end, and the
prompts' from the first request to the last first token. With --beside, tokens that arrive between a long prompt's request and its first token are
set against those before it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import median
from typing import Any


def numbers(text: str) -> list[int]:
    """`1,8`."""
    return [int(number) for number in text.split(",")]


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{median(values):.4g} ({min(values):.4g}-{max(values):.4g})"


def share(values: list[float], part: float) -> float:
    """A percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def together(answers: list[Any]) -> tuple[float, float]:
    """Tokens a second while all streams decode, and seconds until all had a token."""
    begin, end = max(one.times[0] for one in answers), min(one.times[-1] for one in answers)
    tokens = sum(sum(begin < at <= end for at in one.times) * one.count() / len(one.times) for one in answers)
    if end <= begin or tokens < 16 * len(answers):
        sys.exit("a stream ended before the others had enough tokens: more --tokens")
    return tokens / (end - begin), begin - min(one.sent for one in answers)


async def behind(server: Any, options: argparse.Namespace) -> None:
    """Prints a line for each context and number of streams."""
    await server.ask(512, 4, 1)
    for context in options.contexts:
        for streams in options.streams:
            rates, seconds = [], []
            for _ in range(options.repetitions):
                rate, took = together(await server.ask(context, options.tokens, streams))
                rates.append(rate)
                seconds.append(took)
            prompts = [streams * context / took for took in seconds]
            print(
                f"  behind {context}, {streams} streams: decode {spread(rates)} tok/s, prompts {spread(prompts)} tok/s,"
                f" all have a token after {spread(seconds)} s",
                flush=True,
            )


async def beside(server: Any, options: argparse.Namespace) -> None:
    """Prints the pauses of streams without and with a long prompt on its way. The streams are left when all has been seen."""
    from bench_http import Answer, Exchange, events, parse_openai

    streams, loop = max(options.streams), asyncio.get_running_loop()
    await server.ask(512, 4, streams)
    requests = [server.request(32, options.tokens) for _ in range(streams)]
    made = await asyncio.gather(
        *(
            loop.create_connection(lambda request=request: Exchange(request), server.host, server.port)
            for request in requests
        )
    )
    await asyncio.sleep(options.settle)
    alone_from = loop.time()
    await asyncio.sleep(options.settle)
    alone_to, spans = loop.time(), []
    for _ in range(options.arrivals):
        (answer,) = await server.ask(options.beside, 1)
        spans.append((answer.sent, answer.times[0]))
        await asyncio.sleep(1.0)
    alone, during = [], []
    for transport, exchange in made:
        if exchange.closed.done():
            sys.exit("a stream had ended before the last prompt arrived: more --tokens")
        transport.abort()
        one = Answer(exchange.sent)
        parse_openai(events(exchange.reads), one)
        for earlier, later in zip(one.times, one.times[1:], strict=False):
            if alone_from < earlier and later < alone_to:
                alone.append(1e3 * (later - earlier))
            elif any(begin < later and earlier < end for begin, end in spans):
                during.append(1e3 * (later - earlier))
    for what, values in (("alone", alone), (f"while {options.beside} tokens arrive", during)):
        print(
            f"  {streams} streams {what}: p50 {share(values, 0.5):.4g} ms, p99 {share(values, 0.99):.4g},"
            f" most {max(values):.4g} (n={len(values)})",
            flush=True,
        )
    print(f"  first token of the long prompts: {spread([end - begin for begin, end in spans])} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", required=True, help="command that runs the server in the foreground")
    parser.add_argument("--url", default="http://127.0.0.1:8123")
    parser.add_argument("--served-name", default="m")
    parser.add_argument("--contexts", type=numbers, default=[2048, 8192])
    parser.add_argument("--streams", type=numbers, default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument(
        "--beside", type=int, default=0, help="tokens of prompts that arrive while the streams run"
    )
    parser.add_argument("--arrivals", type=int, default=5)
    parser.add_argument("--settle", type=float, default=2.0, help="seconds of streams alone")
    parser.add_argument(
        "--peers", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "peers"
    )
    parser.add_argument("--log", default="server.log")
    options = parser.parse_args()
    sys.path.insert(0, str(options.peers))
    from bench_http import Process, Server, cpu_name

    options.api, options.extra, options.seed = "openai", "{}", None
    server, process = Server(options), Process(options.start, options.log)

    async def run() -> None:
        try:
            start = await process.first_token(server, 300)
            print(f"{cpu_name()}; start {start:.3g} s; {options.start}", flush=True)
            await (beside if options.beside else behind)(server, options)
        finally:
            process.stop()

    asyncio.run(run())


if __name__ == "__main__":
    main()
