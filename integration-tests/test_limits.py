"""What is refused: each with the right status, in the error shape of its route family, naming field and limit,
while another stream runs on undisturbed."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import wire
from conftest import Launch, assert_no_stack_trace
from launched import Launched
from load import Answer, ask, complete, generate
from processes import wait_for
from prompts import ADD, as_text, user

PAYLOAD = 20_000
MAX_INPUT = 200
MAX_TOTAL = 300


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    arguments = ("--payload-limit", str(PAYLOAD), "--max-input-tokens", str(MAX_INPUT))
    more = ("--max-total-tokens", str(MAX_TOTAL), "--max-concurrent-requests", "4")
    with Launched(tmp_path_factory.mktemp("limited"), *arguments, *more, null_worker=True) as launched:
        yield launched.wait_ready()
        assert_no_stack_trace(launched.log())


BYSTANDER = complete("Somebody else's stream", 250, seed=5, temperature=1.0)


class Bystander(threading.Thread):
    """Another client, which streams the same text again and again beside every bad request."""

    def __init__(self, address: wire.Address) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.undisturbed = ask(address, BYSTANDER)
        self.rounds = 0
        self.failure: object = None
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set() and self.failure is None:
            try:
                answer = ask(self.address, BYSTANDER)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test reports it
                self.failure = error
            else:
                self.rounds += 1
                if not answer.same_as(self.undisturbed):
                    self.failure = answer


@pytest.fixture(scope="module")
def bystander(limited: Launched) -> Iterator[Bystander]:
    client = Bystander(limited.address)
    client.start()
    yield client
    client.ending.set()
    client.join(60)
    assert client.rounds > 0 and client.failure is None


@pytest.fixture(autouse=True)
def nobody_else_is_disturbed(bystander: Bystander) -> Iterator[None]:
    yield
    assert bystander.failure is None, f"another request was disturbed: {bystander.failure}"


ERROR_TYPES = {
    400: ("validation",),
    401: ("authentication",),
    404: ("not_found",),
    405: ("method_not_allowed",),
    408: ("timeout",),
    413: ("validation",),
    415: ("validation",),
    422: ("validation", "template_error"),
    424: ("generation",),
    429: ("overloaded",),
    500: ("internal", "incomplete_generation_stream"),
    503: (None, "healthcheck"),
    504: ("deadline_exceeded",),
}


def assert_tgi_error(reply: wire.Reply, status: int, *mentions: str) -> None:
    assert reply.status == status, reply
    assert reply.headers["content-type"].startswith("application/json"), reply
    body = reply.json()
    assert set(body) == {"error", "error_type"} and isinstance(body["error"], str), body
    assert body["error_type"] in ERROR_TYPES[status], body
    check_message(body["error"], mentions)


def assert_openai_error(reply: wire.Reply, status: int, *mentions: str) -> None:
    assert reply.status == status, reply
    assert reply.headers["content-type"].startswith("application/json"), reply
    error = reply.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error), error
    assert isinstance(error["message"], str) and isinstance(error["type"], str)
    check_message(error["message"], mentions)


def check_message(message: str, mentions: tuple[str, ...]) -> None:
    for mention in mentions:
        assert mention in message, f"{mention!r} is not named: {message}"
    for leak in ("/root/", "/work/", ".rs:", "serde", "panicked", "127.0.0.1", "unix:"):
        assert leak not in message, f"internals leak: {message}"


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


def assert_anthropic_error(reply: wire.Reply, status: int, *mentions: str) -> None:
    """Its clients know 400 for what others call 422."""
    status = 400 if status == 422 else status
    assert reply.status == status, reply
    assert reply.headers["content-type"].startswith("application/json"), reply
    body = reply.json()
    assert body["type"] == "error" and body["error"]["type"] == ANTHROPIC_TYPES[status], body
    check_message(body["error"]["message"], mentions)


def assert_error(path: str, reply: wire.Reply, status: int, *mentions: str) -> None:
    check = assert_openai_error if path.startswith("/v1/") else assert_tgi_error
    if path.startswith("/v1/messages"):
        check = assert_anthropic_error
    check(reply, status, *mentions)


ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": "x"},
    "/generate_stream": {"inputs": "x"},
    "/": {"inputs": "x"},
    "/v1/chat/completions": {"messages": user("x")},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": user("x"), "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": user("x")},
    "/tokenize": {"inputs": "x"},
}
EVERY_ROUTE = pytest.mark.parametrize("path", ROUTES)


# The body as such.


@EVERY_ROUTE
@pytest.mark.parametrize("body", ['{"inputs": ', "", "not json", '{"inputs": "x"} trailing', "\ufeff{}"])
def test_malformed_json_is_a_400(limited: Launched, path: str, body: str) -> None:
    assert_error(path, wire.post(limited.address, path, body.encode()), 400, "JSON")


@EVERY_ROUTE
def test_invalid_utf_8_is_a_400(limited: Launched, path: str) -> None:
    assert_error(path, wire.post(limited.address, path, b'{"inputs": "\xff\xfe"}'), 400)


@EVERY_ROUTE
def test_nesting_without_end_is_refused(limited: Launched, path: str) -> None:
    reply = wire.post(limited.address, path, b'{"inputs": ' + b"[" * 9000)
    assert_error(path, reply, 400)


@EVERY_ROUTE
@pytest.mark.parametrize("body", ["[]", '"text"', "3", "null", "{}"])
def test_another_shape_is_a_422_that_names_what_is_missing(limited: Launched, path: str, body: str) -> None:
    assert_error(path, wire.post(limited.address, path, body.encode()), 422)


@EVERY_ROUTE
def test_a_key_given_twice_is_a_422(limited: Launched, path: str) -> None:
    once = json.dumps(ROUTES[path])[1:-1]
    field = next(iter(ROUTES[path]))
    assert_error(path, wire.post(limited.address, path, f"{{{once}, {once}}}".encode()), 422, field)


@EVERY_ROUTE
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_another_content_type_is_a_415(limited: Launched, path: str, kind: str) -> None:
    reply = wire.post(limited.address, path, ROUTES[path], headers={"Content-Type": kind})
    assert_error(path, reply, 415, "application/json")


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/vnd.api+json"]
)
def test_json_content_types_are_accepted(limited: Launched, kind: str) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    assert wire.post(limited.address, "/generate", body, headers={"Content-Type": kind}).status == 200


@EVERY_ROUTE
def test_a_body_over_the_limit_is_a_413_that_names_it(limited: Launched, path: str) -> None:
    field = next(iter(ROUTES[path]))
    reply = wire.post(limited.address, path, {field: "x" * PAYLOAD})
    assert_error(path, reply, 413, str(PAYLOAD))


def test_a_body_over_the_limit_is_refused_before_it_is_sent(limited: Launched) -> None:
    connection = wire.exchange(limited.address, wire.raw_post("/generate", b"{", length=10 * PAYLOAD))
    with connection:
        assert connection.recv(64).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_over_the_limit_is_refused_too(limited: Launched) -> None:
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with wire.exchange(limited.address, head + chunk * (PAYLOAD // 0x1000 + 1) + b"0\r\n\r\n") as connection:
        assert connection.recv(64).startswith(b"HTTP/1.1 413")


# Routes and methods.


@pytest.mark.parametrize("path", ["/nothing", "/generate/", "/v2", "/../etc/passwd"])
def test_an_unknown_route_is_a_404(limited: Launched, path: str) -> None:
    assert_tgi_error(wire.get(limited.address, path), 404)
    assert_tgi_error(wire.post(limited.address, path, {}), 404)


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/v1/chat", "/v1/embeddings", "/v1/rerank", "/embed", "/rerank"]
)
def test_an_unknown_route_is_a_404_in_its_familys_shape(limited: Launched, path: str) -> None:
    others = ("embeddings and ranks are for other servers",) if "rank" in path or "embed" in path else ()
    assert_error(path, wire.post(limited.address, path, {}), 404, path, *others)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/generate", "POST"),
        ("GET", "/generate_stream", "POST"),
        ("DELETE", "/generate", "POST"),
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("GET", "/v1/responses", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("DELETE", "/v1/messages/count_tokens", "POST"),
        ("POST", "/info", "GET"),
        ("POST", "/metrics", "GET"),
        ("DELETE", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_a_405_with_allow(limited: Launched, method: str, path: str, allowed: str) -> None:
    reply = wire.call(limited.address, method, path)
    assert_error(path, reply, 405)
    assert allowed in reply.headers["allow"]


# Fields.

TGI_PARAMETERS: list[tuple[str, Any]] = [
    ("temperature", 0),
    ("temperature", -1.0),
    ("temperature", 1e39),
    ("temperature", "hot"),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("frequency_penalty", 2.5),
    ("frequency_penalty", -2.1),
    ("top_k", 0),
    ("top_k", -3),
    ("top_k", 1.5),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_p", "0.9"),
    ("typical_p", 0),
    ("typical_p", 2),
    ("max_new_tokens", 0),
    ("max_new_tokens", -1),
    ("max_new_tokens", 2.5),
    ("max_new_tokens", 10**30),
    ("max_new_tokens", MAX_TOTAL),
    ("max_new_tokens", True),
    ("stop", ["a", "b", "c", "d", "e"]),
    ("stop", [1]),
    ("stop", {}),
    ("truncate", 0),
    ("truncate", MAX_INPUT + 1),
    ("truncate", "many"),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 0.5),
    ("top_n_tokens", 21),
    ("top_n_tokens", -1),
    ("details", "yes"),
    ("do_sample", 1),
    ("return_full_text", "no"),
    ("decoder_input_details", []),
    ("adapter_id", "no-such-adapter"),
]


@pytest.mark.parametrize(("field", "value"), TGI_PARAMETERS, ids=str)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_wrong_parameter_is_a_422_that_names_it(
    limited: Launched, path: str, field: str, value: Any
) -> None:
    body = {"inputs": "x", "parameters": {field: value}}
    assert_tgi_error(wire.post(limited.address, path, body), 422, field)


OPENAI_FIELDS: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", "cold"),
    ("top_p", 0),
    ("top_p", 1.5),
    ("frequency_penalty", 3),
    ("presence_penalty", -3),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", MAX_TOTAL),
    ("max_completion_tokens", MAX_TOTAL),
    ("n", 0),
    ("n", 1000),
    ("seed", "x"),
    ("stop", ["a", "b", "c", "d", "e"]),
    ("stream", "yes"),
    ("stream_options", 3),
    ("logit_bias", {"0": 500}),
    ("logit_bias", {"word": 1}),
    ("logit_bias", {"99999999": 1}),
    ("min_p", 2),
    ("top_k", -2),
]


@pytest.mark.parametrize(("field", "value"), OPENAI_FIELDS, ids=str)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_wrong_openai_field_is_a_422_that_names_it(
    limited: Launched, path: str, field: str, value: Any
) -> None:
    reply = wire.post(limited.address, path, {**ROUTES[path], field: value})
    assert_openai_error(reply, 422, field)
    assert reply.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "body", "mention"),
    [
        (
            "/v1/chat/completions",
            {"messages": user("x"), "top_logprobs": 21, "logprobs": True},
            "top_logprobs",
        ),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": "hello"}, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "role"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}, "content"),
        (
            "/v1/chat/completions",
            {"messages": user("x"), "max_tokens": 2, "max_completion_tokens": 3},
            "max_",
        ),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [10**7]}, "prompt"),
        ("/v1/completions", {"prompt": [-1]}, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b", "c", "d", "e"]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "logprobs": 100}, "logprobs"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
    ],
    ids=str,
)
def test_other_refusals_of_openai_routes(limited: Launched, path: str, body: object, mention: str) -> None:
    assert_openai_error(wire.post(limited.address, path, body), 422, mention)


def test_not_a_number_is_refused_wherever_it_can_be_written(limited: Launched) -> None:
    for literal in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999"):
        body = f'{{"inputs": "x", "parameters": {{"temperature": {literal}}}}}'.encode()
        assert_tgi_error(wire.post(limited.address, "/generate", body), 422, "temperature")
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], "top_p": {literal}}}'.encode()
        assert_openai_error(wire.post(limited.address, "/v1/chat/completions", body), 422, "top_p")


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_an_empty_prompt_is_a_422(limited: Launched, path: str) -> None:
    assert_tgi_error(wire.post(limited.address, path, {"inputs": ""}), 422, "inputs")


def test_an_empty_completion_prompt_is_a_422(limited: Launched) -> None:
    prompts: list[Any] = ["", [""], [[]]]
    for prompt in prompts:
        assert_openai_error(wire.post(limited.address, "/v1/completions", {"prompt": prompt}), 422, "prompt")


# Lengths.

LONG = "a b c d " * 200
SLIGHTLY_LONG = "a b c d " * 30  # with a token of output, above the one limit and below the other


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_a_prompt_over_the_limit_names_both_numbers(limited: Launched, path: str) -> None:
    for prompt, limit in ((SLIGHTLY_LONG, MAX_INPUT), (LONG, MAX_TOTAL)):
        tokens = len(wire.post(limited.address, "/tokenize", {"inputs": prompt}).json())
        body = {"inputs": prompt, "parameters": {"max_new_tokens": 1}}
        assert_tgi_error(wire.post(limited.address, path, body), 422, "inputs", str(tokens), str(limit))


def test_a_chat_over_the_limit_names_it(limited: Launched) -> None:
    body = {"messages": user(SLIGHTLY_LONG), "max_tokens": 1}
    reply = wire.post(limited.address, "/v1/chat/completions", body)
    assert_openai_error(reply, 422, "messages", str(MAX_INPUT))


def test_prompt_and_output_together_over_the_limit_name_it(limited: Launched) -> None:
    body = {"inputs": "a b c d e f", "parameters": {"max_new_tokens": MAX_TOTAL - 2}}
    assert_tgi_error(wire.post(limited.address, "/generate", body), 422, "max_new_tokens", str(MAX_TOTAL))


def test_without_max_new_tokens_the_output_fills_what_is_left(limited: Launched) -> None:
    body = {"prompt": "a b c d", "temperature": 0, "ignore_eos": True, "max_tokens": None}
    usage = wire.post(limited.address, "/v1/completions", body).json()["usage"]
    assert usage["total_tokens"] == MAX_TOTAL


def test_truncate_makes_a_long_prompt_fit(limited: Launched) -> None:
    body = {"inputs": LONG, "parameters": {"max_new_tokens": 1, "truncate": MAX_INPUT}}
    reply = wire.post(limited.address, "/generate", body)
    assert reply.status == 200 and reply.headers["x-prompt-tokens"] == str(MAX_INPUT)


# What is accepted although TGI refuses it.


@pytest.mark.parametrize(
    "parameters",
    [
        {"top_p": 1},
        {"top_p": 1.0, "typical_p": 1},
        {"stop": "x"},
        {"stop": None, "seed": None, "temperature": None, "details": None, "do_sample": None},
        {"unknown_field": {"a": 1}},
        {"top_n_tokens": 20, "details": True},
        {"seed": 2**64 - 1, "do_sample": True},
    ],
    ids=str,
)
def test_what_clients_send_by_habit_is_accepted(limited: Launched, parameters: dict[str, Any]) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1, **parameters}}
    reply = wire.post(limited.address, "/generate", body)
    assert reply.status == 200, reply


@pytest.mark.parametrize("absent", [{}, {"parameters": None}, {"parameters": {}}])
def test_missing_parameters_mean_greedy(address: wire.Address, absent: dict[str, Any]) -> None:
    texts = {wire.post(address, "/generate", {"inputs": as_text(ADD), **absent}).text for _ in range(2)}
    assert len(texts) == 1


# The queue.


def test_a_full_server_is_a_429_with_retry_after(launch_null: Launch) -> None:
    """Held full by a worker that is frozen, so that nothing depends on how fast it is."""
    full = launch_null("--max-concurrent-requests", "4", "--step-timeout", "120").wait_ready()
    assert ask(full.address, generate("x", 1)).finish == "length"  # so the stream of plans is open
    answers: list[Answer] = []
    clients = [
        threading.Thread(target=lambda: answers.append(ask(full.address, generate("x", 8))), daemon=True)
        for _ in range(4)
    ]
    worker = full.worker()
    worker.signal(signal.SIGSTOP)
    try:
        for client in clients:
            client.start()
        wait_for(lambda: in_flight(full) == 4, "four requests to be taken")
        for path, body in ROUTES.items():
            reply = wire.post(full.address, path, body, timeout=10)
            assert_error(path, reply, 429)
            assert int(reply.headers["retry-after"]) >= 1
        assert wire.get(full.address, "/health").status == 200, "busy is not unhealthy"
        assert full.metrics().value("tgi_request_failure", err="overloaded") == len(ROUTES) - 2, (
            "nothing that only counts tokens is a request"
        )
    finally:
        worker.signal(signal.SIGCONT)
    for client in clients:
        client.join(60)
    assert len(answers) == 4 and all(answer.error is None and answer.finish for answer in answers)
    assert ask(full.address, generate("x", 1)).finish == "length", "there is room again"


def in_flight(launched: Launched) -> float:
    now = launched.metrics()
    return now.value("tgi_queue_size") + now.value("tgi_batch_current_size")
