"""Unbounded growth by request fields, and work that grows with them: names that are echoed in every event, stop
strings, lists, answers larger than their requests, bodies whose reading keeps everybody waiting.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wire
from checkpoints import random_llama
from conftest import Launch
from launched import Launched, forget_the_peak, memory
from probe import probed
from processes import wait_for
from prompts import user

BODY = 1_900_000  # just under --payload-limit
MB = 1 << 20


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("attacked"), "--kserve", null_worker=True) as launched:
        yield launched.wait_ready()


LONG = "x" * BODY
CHAT = {"messages": user("x"), "max_tokens": 2}
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}


def tools(count: int, name: str = "f") -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"{name}{place}"}} for place in range(count)]


LONG_FIELDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    # What, the route, its body, and the field and the limit that the error names.
    "model": ("/v1/chat/completions", {**CHAT, "model": LONG}, "`model`", "256"),
    "model, streamed": ("/v1/completions", {"prompt": "x", "stream": True, "model": LONG}, "`model`", "256"),
    "user": ("/v1/chat/completions", {**CHAT, "user": LONG}, "`user`", "256"),
    "adapter": ("/generate", {"inputs": "x", "parameters": {"adapter_id": LONG}}, "`adapter_id`", "256"),
    "openai's adapter": ("/v1/completions", {"prompt": "x", "adapter_id": LONG}, "`adapter_id`", "256"),
    "stop": ("/generate", {"inputs": "x", "parameters": {"stop": [LONG]}}, "`stop`", "1024"),
    "openai's stop": ("/v1/completions", {"prompt": "x", "stop": LONG}, "`stop`", "1024"),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": tools(30_000)}, "`tools`", "1024"),
    "a tool": ("/v1/chat/completions", {**CHAT, "tools": tools(1, LONG)}, "`tools[0].function.name`", "256"),
    "tool choice": ("/v1/chat/completions", {**CHAT, "tool_choice": LONG}, "`tool_choice`", "256"),
    "chosen function": (
        "/v1/chat/completions",
        {**CHAT, "tool_choice": {"type": "function", "function": {"name": LONG}}},
        "`tool_choice`",
        "256",
    ),
    "messages": ("/v1/chat/completions", {"messages": user("x") * 30_000}, "`messages`", "4096"),
    "stop tokens": (
        "/v1/completions",
        {"prompt": "x", "stop_token_ids": [1] * 600_000},
        "`stop_token_ids`",
        "256",
    ),
    "biases": (
        "/v1/completions",
        {"prompt": "x", "logit_bias": {str(token): 1 for token in range(100_000)}},
        "`logit_bias`",
        "300",
    ),
    "instances": ("/vertex", {"instances": [{}] * 400_000}, "`instances`", "--max-concurrent-requests"),
    "an id": ("/v2/models/m/infer", {"id": LONG, "inputs": [TENSOR]}, "`id`", "256"),
    "a tensor": ("/v2/models/m/infer", {"inputs": [{**TENSOR, "name": LONG}]}, "`inputs[0].name`", "256"),
    "an output": (
        "/v2/models/m/infer",
        {"inputs": [TENSOR], "outputs": [{"name": LONG}]},
        "`outputs[0].name`",
        "256",
    ),
    "a model in a path": (f"/v2/models/{'m' * 30_000}/infer", {"inputs": [TENSOR]}, "`name`", "256"),
}


@pytest.mark.parametrize("what", LONG_FIELDS)
def test_a_field_has_a_limit_that_its_error_names(attacked: Launched, what: str) -> None:
    """Each field that is echoed, logged or kept, as long as a body may be: refused with field and limit."""
    path, body, field, limit = LONG_FIELDS[what]
    reply = wire.post(attacked.address, path, body)
    assert reply.status == 422, reply
    error = reply.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert field in message and limit in message, message
    assert len(reply.body) < 2_000, "the error repeats the field"


def test_an_answer_is_not_a_multiple_of_its_request(attacked: Launched) -> None:
    """`model` at its longest, echoed in each of 200 events: what is sent stays in proportion to the tokens."""
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True, "model": "m" * 256}
    reply = wire.post(attacked.address, "/v1/completions", body)
    assert reply.status == 200 and len(reply.body) < 201 * 1_000


def test_twenty_longest_bodies_take_little_memory(attacked: Launched) -> None:
    """Twenty requests at once whose stop strings and names fill their bodies; 690 MB before they had lengths."""
    before = forget_the_peak(attacked)
    stop = ["s" * (BODY // 4)] * 4
    body = json.dumps({"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stop": stop})
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: wire.post(attacked.address, "/v1/completions", body), range(20)))
    assert {reply.status for reply in replies} == {422}
    grown = memory(attacked, "VmHWM") - before
    print(f"20 requests with stop strings of {BODY} bytes: {grown / MB:.0f} MB at the peak")
    assert grown < 250 * MB


# Tokens that are told.


def words(size: int) -> str:
    return ("the quick brown fox jumps over the lazy dog " * (size // 44 + 1))[:size]


def test_the_tokens_of_a_long_text_take_bounded_memory(attacked: Launched) -> None:
    """A body of 1.9 MB whose every byte is a token: 97 MB of answer and 600 MB of memory without a limit."""
    before = forget_the_peak(attacked)
    for path, body in (
        ("/tokenize", {"inputs": "\U0001f600" * (BODY // 12)}),
        ("/tokenize", {"inputs": "~" * BODY}),
        ("/chat_tokenize", {"messages": user("~" * BODY)}),
        # Of words of one letter the number of bytes says little: 1.1 GB when they were all tokenized to be counted.
        ("/tokenize", {"inputs": "a b c d " * (BODY // 8)}),
        ("/v1/messages/count_tokens", {"model": "any", "messages": user("a b c d " * (BODY // 8))}),
    ):
        reply = wire.post(attacked.address, path, json.dumps(body, ensure_ascii=False))
        grown = memory(attacked, "VmHWM") - before
        print(f"{path}: {reply.status}, {len(reply.body)} bytes, {grown / MB:.0f} MB at the peak")
        if reply.status in (400, 422):
            assert "262144 tokens" in str(reply.json()["error"]), reply
        assert reply.status in (200, 400, 422) and len(reply.body) < 32 * MB, reply.status
        assert grown < 250 * MB


def test_prompts_of_short_words_take_bounded_memory(attacked: Launched) -> None:
    """Twenty at once that are much too long, and twenty of which the last tokens are wanted."""
    before = forget_the_peak(attacked)
    for parameters, status in (({}, 422), ({"truncate": 100}, 200)):
        body = {"inputs": "a b c d " * (BODY // 8), "parameters": {"max_new_tokens": 1, **parameters}}
        with ThreadPoolExecutor(20) as pool:
            replies = list(
                pool.map(lambda _, body=body: wire.post(attacked.address, "/generate", body), range(20))
            )
        assert {reply.status for reply in replies} == {status}, replies[0]
        grown = memory(attacked, "VmHWM") - before
        print(f"20 prompts of {BODY} bytes, {parameters}: {grown / MB:.0f} MB at the peak")
        assert grown < 250 * MB


def test_clients_that_do_not_read_hold_little(launch_null: Launch) -> None:
    """14 clients that ask for the tokens of a long text and read nothing; 2.2 GB when answers were held whole. The
    text is as long as is still answered."""
    held = launch_null("--write-timeout", "60").wait_ready()
    text = words(500_000)
    answered = wire.post(held.address, "/tokenize", {"inputs": text})
    assert answered.status == 200 and len(answered.json()) > 100_000
    before = forget_the_peak(held)
    clients = [wire.exchange(held.address, wire.raw_post("/tokenize", {"inputs": text})) for _ in range(14)]
    try:
        # Each has the beginning of its answer.
        for client in clients:
            assert client.recv(16)
        # What was freed goes back to the system soon.
        wait_for(lambda: memory(held) - before < 150 * MB, "the memory to be given back")
        peak, grown = memory(held, "VmHWM") - before, memory(held) - before
        print(f"14 clients that do not read: {grown / MB:.0f} MB, {peak / MB:.0f} MB at the peak")
    finally:
        for client in clients:
            client.close()


ALTERNATIVES = 20


def test_the_log_probabilities_of_a_long_prompt_take_little_memory_and_nobodys_time(
    launch_null: Launch, tmp_path: Path
) -> None:
    """120,000 tokens with 20 alternatives each, whole and streamed: 2.4 million texts, all at once, when they were made before they
    were written.
    """
    length = 120_000
    flags = ("--max-top-n-tokens", str(ALTERNATIVES), "--max-total-tokens", "131072")
    long = launch_null(
        "--model-id", str(random_llama(tmp_path / "long", positions=1 << 17)), *flags
    ).wait_ready()
    body = {"prompt": [400 + at % 16 for at in range(length)], "max_tokens": 1, "echo": True}
    body |= {"logprobs": ALTERNATIVES, "temperature": 0}
    for more in ({}, {"stream": True}):

        def ask(_: int, more: dict[str, Any] = more) -> tuple[wire.Reply, int]:
            before = forget_the_peak(long)
            # It is read as it is made; what the test makes of it is not timed.
            reply = wire.post(long.address, "/v1/completions", {**body, **more})
            return reply, memory(long, "VmHWM") - before

        (reply, grown), probe = probed(long.address, 1.5, ask)
        assert reply.status == 200, reply.text[:1000]
        print(
            f"{len(reply.body) / MB:.0f} MB, {grown / MB:.0f} MB at the peak, {probe.slowest:.2f} s for others"
        )
        assert grown < 150 * MB
        assert probe.slowest < 1.5
        chunks = [json.loads(event[6:]) for event in reply.text.split("\n\n") if event.startswith("data: {")]
        told = [chunk["choices"][0]["logprobs"] for chunk in chunks or [reply.json()] if chunk["choices"]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            entries = [entry for lists in told if lists is not None for entry in lists[name]]
            assert len(entries) == length + 1, name
            if name == "text_offset":
                assert entries[0] == 0 and sorted(entries) == entries and entries[-1] > length


def test_telling_tokens_counts_like_a_request(launch_null: Launch) -> None:
    """Answers that nobody reads hold their places: beyond `--max-concurrent-requests` it is 429 at once."""
    full = launch_null("--max-concurrent-requests", "4").wait_ready()
    text = words(500_000)
    clients = [wire.exchange(full.address, wire.raw_post("/tokenize", {"inputs": text})) for _ in range(4)]
    try:
        for client in clients:
            assert client.recv(16)
        for path, body in (
            ("/tokenize", {"inputs": "x"}),
            ("/chat_tokenize", {"messages": user("x")}),
            ("/generate", {"inputs": "x"}),
        ):
            reply = wire.post(full.address, path, body)
            assert reply.status == 429 and int(reply.headers["retry-after"]) >= 1, (path, reply)
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: wire.post(full.address, "/tokenize", {"inputs": "x"}).status == 200, "free places")


@pytest.mark.alone
def test_a_prompt_does_not_wait_for_tokens_that_are_told(attacked: Launched) -> None:
    """A prompt of 17 KB beside 12 clients that have the longest texts tokenized: 26 s when they shared threads."""
    prompt = {"inputs": words(17_000), "parameters": {"max_new_tokens": 1, "truncate": 50}}

    def ask() -> float:
        began = time.monotonic()
        assert wire.post(attacked.address, "/generate", prompt).status == 200
        return time.monotonic() - began

    alone = min(ask() for _ in range(3))
    # What is refused for its length, and what is told.
    bodies = [json.dumps({"inputs": words(size)}) for size in (BODY, 500_000)]
    ending, told = threading.Event(), threading.Semaphore(0)

    def keep_asking(body: str) -> None:
        while not ending.is_set():
            wire.post(attacked.address, "/tokenize", body)
            told.release()

    clients = [
        threading.Thread(target=keep_asking, args=(bodies[number % 2],), daemon=True) for number in range(12)
    ]
    for client in clients:
        client.start()
    try:
        assert told.acquire(timeout=60)
        times = [ask() for _ in range(5)]
    finally:
        ending.set()
        for client in clients:
            client.join(120)
    print(f"a prompt of 17 KB: {alone:.2f} s alone, {max(times):.2f} s at most beside 12 others")
    assert max(times) < 5


# Work that grows with a body.


ONE = {"max_new_tokens": 1}
HEAVY: dict[str, Callable[[], tuple[str, str]]] = {
    "tools": lambda: ("/v1/chat/completions", json.dumps({**CHAT, "tools": tools(30_000)})),
    "small objects": lambda: (
        "/v1/chat/completions",
        json.dumps({**CHAT, "response_format": {"type": "text", "x": [{}] * 450_000}}, separators=(",", ":")),
    ),
    "names": lambda: (
        "/generate",
        json.dumps(
            {"inputs": "x", "parameters": ONE, **{f"n{place}": 0 for place in range(150_000)}},
            separators=(",", ":"),
        ),
    ),
    "numbers": lambda: ("/v1/completions", json.dumps({"prompt": [1] * 600_000}, separators=(",", ":"))),
    "instances": lambda: ("/vertex", json.dumps({"instances": [{"inputs": "x" * 400_000}] * 4})),
    "dialect": lambda: (
        "/invocations",
        '{"inputs": "x", "parameters": {"max_new_tokens": 1}, "other": [' + "1," * 900_000 + "1]}",
    ),
}


@pytest.mark.alone
@pytest.mark.parametrize("what", HEAVY)
def test_reading_a_body_keeps_nobody_waiting(attacked: Launched, what: str) -> None:
    """Bodies that take long to read, three clients at once: /livez took 3.8 s beside 39,000 tools, while names were
    compared with each other on the threads that serve everybody."""
    path, body = HEAVY[what]()
    assert len(body) <= 2_000_000

    def ask(_: int) -> int:
        return wire.post(attacked.address, path, body).status

    def ask_nine(_: int) -> tuple[set[int], float]:
        with ThreadPoolExecutor(3) as pool:
            began = time.monotonic()
            return set(pool.map(ask, range(9))), time.monotonic() - began

    (statuses, took), probe = probed(attacked.address, 1.5, ask_nine)
    print(f"{what}: 9 requests in {took:.1f} s, /livez at most {probe.slowest:.2f} s of {probe.count}")
    assert statuses <= {200, 422}, statuses
    assert probe.slowest < 1.5
