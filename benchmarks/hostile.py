"""Clients that are broken or mean harm, for `soak.py`: each of them attacks once, in bounded time, and says what is
wrong with how the server took it. They run in a process of their own, so that they slow no honest client down.

All are tenants with a valid key unless they try to do without. They come from addresses 127.0.0.2 to 127.0.0.250.
"""

from __future__ import annotations

import collections
import json
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
# In this order: both folders have a `load` and a `prompts`, and the tests' are meant.
sys.path[:0] = [str(BENCHMARKS.parent / "integration-tests"), str(BENCHMARKS)]

import fuzz  # noqa: E402
import http2  # noqa: E402
import wire  # noqa: E402

# The longest body that is still read (`--payload-limit` is 2,000,000 bytes).
LARGEST = 1_900_000
# So long does an attacker that waits keep what it holds: longer than the server's limits in `soak.FLAGS`.
HOLD = 7.0
# How many attack at the same time.
ATTACKERS = 12
# Seconds that one waits for a server without its worker.
RETRIES = 30
# No line of the log may begin with this.
FORGED = "FORGED"


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    key: str

    @property
    def pair(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def address(self) -> wire.Address:
        return wire.Address(self.host, self.port)


@dataclass
class Findings:
    attacks: int = 0
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest: tuple[float, str] = (0.0, "")
    wrong: list[str] = field(default_factory=list)


class Attack:
    """What one attacker has: the server, numbers that nobody else has, and an address."""

    def __init__(self, target: Target, seed: str, number: int = 0) -> None:
        """`number`: of the attack in its window."""
        self.target, self.number = target, number
        self.rng = random.Random(seed)
        self.mark = f"{self.rng.getrandbits(48):012x}"
        self.source = f"127.0.0.{self.rng.randrange(2, 251)}"

    def post(self, path: str, body: object, *headers: tuple[str, str], key: bool = True) -> fuzz.Sent:
        content = wire.encode(body) or b""
        fields = [("host", "soak"), ("connection", "close"), ("content-type", "application/json")]
        fields += [("content-length", str(len(content))), *headers]
        return fuzz.Sent("POST", path, [*fields, *([self.own_key()] if key else [])], content)

    def own_key(self) -> tuple[str, str]:
        return "authorization", f"Bearer {self.target.key}"

    def answer(self, sent: fuzz.Sent) -> tuple[str, bytes]:
        """The status, and all that came. Raises where the answer is wrong, or does not come."""
        try:
            received = fuzz.exchange(self.target.pair, sent, self.source)
        except TimeoutError:
            raise Wrong(f"no answer for {fuzz.TIME_LIMIT:.0f} s: {sent.raw()[:300]!r}") from None
        status, wrong = fuzz.judge(sent, received)
        if wrong:
            raise Wrong(f"{wrong}\n    {sent.raw()[:300]!r}")
        return status, received

    def ask(self, path: str, body: object, *headers: tuple[str, str]) -> str:
        return self.answer(self.post(path, body, *headers))[0]

    def open(self, receive: int = 0) -> socket.socket:
        """A connection; `receive` is the size of its buffer, for one that does not read."""
        connection = socket.socket()
        if receive:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        connection.settimeout(fuzz.TIME_LIMIT)
        connection.bind((self.source, 0))
        connection.connect(self.target.pair)
        return connection


class Wrong(Exception):
    """The server did what it must not do."""


def user(text: str = "add 3 and 4") -> list[Any]:
    return [{"role": "user", "content": text}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": user(), "max_tokens": 4, **fields}


def generate(tokens: int = 4, text: str = "add 3 and 4", **parameters: Any) -> dict[str, Any]:
    return {"inputs": text, "parameters": {"max_new_tokens": tokens, **parameters}}


# --- Templates, tokenizers and fields ------------------------------------------------------------------


def kwargs_of_many_lists(attack: Attack) -> str:
    body = json.dumps(chat(chat_template_kwargs={"x": []}))
    return attack.ask("/v1/chat/completions", body.replace("[]", "[" + ",".join(["{}"] * 600_000) + "]"))


def kwargs_that_replace_the_templates_own(attack: Attack) -> str:
    names = ["messages", "tools", "namespace", "range", "raise_exception", "loop", "tojson", "self", "caller"]
    value: Any = attack.rng.choice([None, "{{ 7 * 7 }}", [[]] * 2000, {"__class__": {"__mro__": []}}, 10**30])
    return attack.ask(
        "/v1/chat/completions", chat(chat_template_kwargs={attack.rng.choice(names): value, attack.mark: 1})
    )


def kwargs_that_are_deep(attack: Attack) -> str:
    depth = attack.rng.choice([100, 126, 130, 100_000])
    body = json.dumps(chat(chat_template_kwargs={"x": 0}))
    return attack.ask("/v1/chat/completions", body.replace("0}", "[" * depth + "]" * depth + "}", 1))


def many_tools(attack: Attack) -> str:
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(30_000)]
    return attack.ask("/v1/chat/completions", chat(tools=tools))


def tokens_of_a_huge_text(attack: Attack) -> str:
    """Asked for, and not read."""
    with attack.open(receive=4096) as connection:
        text = "a b c d " * (LARGEST // 8)
        connection.sendall(attack.post("/tokenize", {"inputs": text}).raw())
        time.sleep(HOLD)
    return "not read"


def tokens_of_a_huge_chat(attack: Attack) -> str:
    return attack.ask("/chat_tokenize", {"messages": user(attack.mark * (LARGEST // 12))})


def long_prompt(attack: Attack) -> str:
    return attack.ask("/generate", generate(text=attack.mark * (LARGEST // 12)))


def long_model_name(attack: Attack) -> str:
    return attack.ask("/v1/chat/completions", chat(model="m" * LARGEST, stream=True, max_tokens=40))


def long_stop_strings(attack: Attack) -> str:
    return attack.ask("/generate", generate(stop=[attack.mark * (LARGEST // 60)] * 4))


def long_names(attack: Attack) -> str:
    name = attack.rng.choice(["user", "prompt_cache_key", "cache_salt", "safety_identifier", "tool_choice"])
    return attack.ask("/v1/chat/completions", chat(**{name: attack.mark * (LARGEST // 12)}))


def many_users(attack: Attack) -> str:
    outcomes = [attack.ask("/v1/chat/completions", chat(user=f"{attack.mark}-{n}")) for n in range(8)]
    return outcomes[-1]


def unknown_fields(attack: Attack) -> str:
    fields = {f"{attack.mark}-{number}": ["x"] * 3 for number in range(2000)}
    return attack.ask("/v1/chat/completions", chat(**fields))


def greedy_counts(attack: Attack) -> str:
    field, value = attack.rng.choice(
        [
            ("n", 2**31),
            ("best_of", 10**9),
            ("logprobs", 10**6),
            ("max_tokens", 2**32 - 1),
            ("stop", ["x"] * 10**5),
        ]
    )
    return attack.ask("/v1/completions", {"prompt": "a", "max_tokens": 4, field: value})


def regular_expressions(attack: Attack) -> str:
    pattern = attack.rng.choice(["((a+)+)+$", "(" * 5000 + ")" * 5000, "a{1000}{1000}{1000}", "("])
    form = {"type": "regex", "value": pattern}
    return attack.ask("/generate", generate(text="a" * 200, grammar=form))


def grammar_bombs(attack: Attack) -> str:
    """Schemas that take long to compile, or much memory, or neither end."""
    schema: dict[str, Any] = attack.rng.choice(
        [
            {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
            {"enum": [f"{number:0100}" for number in range(5000)]},
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(30)},
            },
            {"$ref": "#"},
            {"properties": {f"p{number}": {"type": "string"} for number in range(1500)}},
            {"oneOf": [{"pattern": f"a{{1,{number}}}b"} for number in range(1, 60)]},
        ]
    )
    return attack.ask("/generate", generate(text="x", grammar={"type": "json", "value": schema}))


def urls(attack: Attack) -> str:
    """Whether one is fetched is what a test looks at; here it is one more kind of message."""
    part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{attack.target.port}/health"}}
    return attack.ask("/v1/chat/completions", chat(messages=[{"role": "user", "content": [part]}]))


# --- What is no request --------------------------------------------------------------------------------


def mutations(attack: Attack) -> str:
    """Requests of `fuzz.py`, with the key in. The same in each window: their grammars are kept, and a cache that fills is no leak."""
    seed, status = attack.number, ""
    for number in range(6):
        sent = fuzz.request(number, seed, GOOD)
        if not sent.has("authorization"):
            sent.headers.append(attack.own_key())
        status, _ = attack.answer(sent)
    return status


def without_the_key(attack: Attack) -> str:
    key = attack.target.key
    tried = [
        "",
        key,
        f"bearer{key}",
        f"Bearer {key[:-1]}",
        f"Bearer {key}x",
        f"Bearer {key.upper()}-",
        "Bearer",
    ]
    tried += [f"Basic {key}", f"Bearer {attack.mark}", "Bearer " + "k" * 20_000, f"Bearer {key},{key}"]
    for value in tried:
        status, received = attack.answer(
            attack.post("/generate", generate(), ("authorization", value), key=False)
        )
        if status == "200":
            raise Wrong(f"answered without the key, to {value[:60]!r}: {received[:200]!r}")
    return "refused"


def paths_around_the_key(attack: Attack) -> str:
    for path in (
        *(
            "//generate",
            "/./generate",
            "/health/../generate",
            "/generate/..;/",
            "/%67enerate",
            "/generate%00",
        ),
        *(
            "/generate?x=/health",
            "/generate#/health",
            "/GENERATE",
            "http://soak/generate",
            "/health;/generate",
        ),
        *("/generate/", "/docs/../generate", "/%2e%2e/generate", "\\generate"),
    ):
        status, received = attack.answer(attack.post(path, generate(), key=False))
        if b"generated_text" in received:
            raise Wrong(f"answered without the key at {path}: {status}")
    return "refused"


def huge_body(attack: Attack) -> str:
    return attack.ask("/generate", b'{"inputs": "' + b"a" * 3_000_000 + b'"}')


def lines_for_the_log(attack: Attack) -> str:
    forged = (
        f"x\r\n{FORGED} 2026-01-01T00:00:00Z INFO all is well {attack.mark}\n{FORGED}\x1b[31m\u2028{FORGED}"
    )
    attack.ask("/generate", generate(adapter_id=forged))
    attack.ask("/v1/chat/completions", chat(tool_choice={"type": "function", "function": {"name": forged}}))
    attack.ask("/v1/chat/completions", chat(user=forged, model=forged, **{forged: 1}))
    attack.ask("/v1/chat/completions", json.dumps(chat())[:-1] + f', "{"a" * 9}": 1, "{"a" * 9}": 2}}')
    path = "/generate%0d%0a" + FORGED + "/\x85\x0b" + FORGED
    return attack.ask(path, generate(), ("x-request-id", f"{FORGED} {attack.mark}"), ("user-agent", "a\tb"))


# --- Slow, many and gone -------------------------------------------------------------------------------


def half_heads(attack: Attack) -> str:
    """Twenty connections whose head never ends; the server closes them."""
    held = []
    for number in range(20):
        attack.source = f"127.0.0.{attack.rng.randrange(2, 251)}"
        connection = attack.open()
        connection.sendall(f"POST /generate HTTP/1.1\r\nHost: soak\r\nX-{number}: ".encode())
        held.append(connection)
    return closed_by_the_server(held)


def every_connection(attack: Attack) -> str:
    """As many as `soak.FLAGS` allow at all, from one address; the others notice nothing."""
    held = []
    for _ in range(500):
        connection = attack.open()
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        except OSError:
            connection.close()  # refused already
        else:
            held.append(connection)
    return closed_by_the_server(held)


def half_body(attack: Attack) -> str:
    connection = attack.open()
    connection.sendall(attack.post("/generate", generate()).raw()[:-10])
    return closed_by_the_server([connection])


def closed_by_the_server(held: list[socket.socket]) -> str:
    deadline = time.monotonic() + 4 * HOLD
    for connection in held:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            raise Wrong(f"a connection without a whole request was kept for {4 * HOLD:.0f} s") from None
        except OSError:
            pass
        finally:
            connection.close()
    return "closed"


def unread_stream(attack: Attack) -> str:
    with attack.open(receive=4096) as connection:
        connection.sendall(attack.post("/generate_stream", generate(400, details=True, top_n_tokens=5)).raw())
        time.sleep(HOLD)
    return "not read"


def window_of_zero(attack: Attack) -> str:
    """Streams over HTTP/2 that may not send a byte, on a connection that answers pings; the server gives them up."""
    with http2.Connection(attack.target.address, 0, attack.source, timeout=1) as connection:
        key = dict([attack.own_key()])
        waiting = {connection.post("/generate_stream", generate(200), key) for _ in range(4)}
        until = time.monotonic() + 4 * HOLD
        while waiting:
            if time.monotonic() > until:
                raise Wrong(f"{len(waiting)} streams with a window of 0 were kept for {4 * HOLD:.0f} s")
            try:
                frame = connection.read()
            except TimeoutError:
                continue
            except (EOFError, OSError):
                break
            waiting = {stream for stream in waiting if not frame.is_last_of(stream)}
    return "given up"


def requests_taken_back(attack: Attack) -> str:
    """HTTP/2 requests that are reset as soon as they are sent."""
    with http2.Connection(attack.target.address, source=attack.source, timeout=5) as connection:
        try:
            for _ in range(20):
                stream = connection.post("/generate", generate(60), dict([attack.own_key()]))
                connection.socket.sendall(http2.frame(http2.RST_STREAM, 0, stream, struct.pack("!I", 8)))
        except OSError:
            return "closed"
    return "reset"


def clients_that_leave(attack: Attack) -> str:
    """Before the first byte, after it, and in the middle of the stream."""
    raw = attack.post("/generate_stream", generate(300, do_sample=True)).raw()
    for wanted in (0, 1, attack.rng.randrange(2000, 8000)):
        with attack.open() as connection:
            connection.sendall(raw)
            while wanted > 0 and (part := connection.recv(min(wanted, 4096))):
                wanted -= len(part)
            # With a reset, as a client that is killed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "left"


def deadlines(attack: Attack) -> str:
    attack.ask("/generate", generate(200, max_time=0.05))
    return attack.ask("/generate", generate(200), ("x-request-deadline-ms", attack.rng.choice(["1", "40"])))


def scrapes(attack: Attack) -> str:
    for path in ("/metrics", "/docs", "/api-doc/openapi.json", "/info", "/v1/models", "/favicon.ico", "/"):
        headers = [("host", "soak"), ("connection", "close"), attack.own_key()]
        attack.answer(fuzz.Sent("GET", path, headers, b""))
    return "read"


# Each as often as it stands here; those of the first list cost the server or the wire much.
HEAVY: list[Callable[[Attack], str]] = [
    *(kwargs_of_many_lists, many_tools, tokens_of_a_huge_text, tokens_of_a_huge_chat, long_prompt),
    *(long_model_name, long_stop_strings, long_names, huge_body, every_connection),
]
LIGHT: list[Callable[[Attack], str]] = [
    *(kwargs_that_replace_the_templates_own, kwargs_that_are_deep, many_users, unknown_fields, greedy_counts),
    *(
        regular_expressions,
        grammar_bombs,
        urls,
        mutations,
        without_the_key,
        paths_around_the_key,
        lines_for_the_log,
    ),
    *(half_heads, half_body, unread_stream, window_of_zero, requests_taken_back, clients_that_leave),
    *(mutations, deadlines, scrapes, clients_that_leave),
]
GOOD = fuzz.corpus()


def script(window: int, seconds: float) -> list[tuple[int, Callable[[Attack], str]]]:
    """The attacks of a window, numbered alike in each: every heavy one once, light ones twice a second. Their order differs, so that not always the
    same meet a server without its worker.
    """
    light = [LIGHT[number % len(LIGHT)] for number in range(max(len(LIGHT), int(2 * seconds)))]
    attacks = list(enumerate([*HEAVY, *light]))
    random.Random(window).shuffle(attacks)
    return attacks


def carry_out(target: Target, window: int, seconds: float) -> Findings:
    """One window's attacks, spread evenly over it. Only returns when each has ended."""
    findings, attacks = Findings(), script(window, seconds)
    began = time.monotonic()
    with ThreadPoolExecutor(ATTACKERS) as pool:
        running: list[tuple[str, Future[tuple[str, float]]]] = []
        for place, (number, attack) in enumerate(attacks):
            pause = began + place * seconds / len(attacks) - time.monotonic()
            time.sleep(max(0.0, pause))
            one = Attack(target, f"{window}/{number}", number)
            running.append((attack.__name__, pool.submit(timed, attack, one)))
        for name, future in running:
            findings.attacks += 1
            try:
                outcome, took = future.result()
            except Wrong as wrong:
                findings.outcomes[f"{name}: WRONG"] += 1
                findings.wrong.append(f"{name}: {wrong}")
            except OSError as error:
                # Refused at the door, or reset: a server may do that to an attacker.
                findings.outcomes[f"{name}: {type(error).__name__}"] += 1
            else:
                findings.outcomes[f"{name}: {outcome}"] += 1
                findings.slowest = max(findings.slowest, (took, name))
    return findings


def timed(attack: Callable[[Attack], str], one: Attack) -> tuple[str, float]:
    """The outcome of one attack, and how long it took. Who is told to come again, while there is no worker, does so."""
    for _ in range(RETRIES):
        began = time.monotonic()
        outcome = attack(one)
        if outcome != "503":
            break
        time.sleep(1)
    return outcome, time.monotonic() - began
