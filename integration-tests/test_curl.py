"""Real `curl` against every route: what a person at a terminal sees, headers and framing included."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass

import pytest

from launched import Launched
from programs import needs
from prompts import ADD, PORT, as_text, user

pytestmark = needs("curl")

GENERATE = {"inputs": as_text(ADD), "parameters": {"max_new_tokens": 30}}
CHAT = {"messages": user(ADD), "max_tokens": 30, "temperature": 0}
COMPLETION = {"prompt": as_text(ADD), "max_tokens": 30, "temperature": 0}


@dataclass(frozen=True)
class Answer:
    version: str
    status: int
    headers: dict[str, str]
    body: str


def curl(server: Launched, path: str, body: object = None, *options: str) -> Answer:
    data = [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    out = subprocess.run(
        ["curl", "-sS", "-N", "-i", "--max-time", "60", *data, *options, f"{server.url}{path}"],
        capture_output=True,
        check=True,
    ).stdout.decode()
    head, _, rest = out.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    match = re.match(r"HTTP/(\S+) (\d{3})", first)
    assert match, out
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(match[1], int(match[2]), headers, rest)


def events(answer: Answer) -> list[str]:
    """The data of each event; fails on anything that is not exactly the framing of the contract."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.endswith("\n\n")
    found = []
    for block in answer.body.removesuffix("\n\n").split("\n\n"):
        if block == ":":
            continue  # keep-alive
        assert re.fullmatch(r"data: \S[^\n]*", block), f"not one `data: ` line: {block!r}"
        found.append(block.removeprefix("data: "))
    return found


@pytest.mark.parametrize("path", ["/", "/health", "/ping", "/livez", "/readyz"])
def test_health_routes_answer_200(server: Launched, path: str) -> None:
    assert curl(server, path).status == 200


def test_info_tells_what_is_served(server: Launched) -> None:
    info = json.loads(curl(server, "/info").body)
    wanted = {
        "model_id",
        "model_sha",
        "revision",
        "model_pipeline_tag",
        "max_concurrent_requests",
        "max_best_of",
        "max_stop_sequences",
        "max_input_tokens",
        "max_total_tokens",
        "validation_workers",
        "max_client_batch_size",
        "router",
        "version",
        "sha",
        "docker_label",
    }
    assert wanted <= set(info), f"missing: {wanted - set(info)}"
    assert 0 < info["max_input_tokens"] < info["max_total_tokens"]
    assert info["max_concurrent_requests"] == 128
    assert info["max_stop_sequences"] == 4


def test_models(server: Launched) -> None:
    models = json.loads(curl(server, "/v1/models").body)
    assert models["object"] == "list"
    assert models["data"][0]["id"] == json.loads(curl(server, "/info").body)["model_id"]


def test_metrics_are_prometheus_text(server: Launched) -> None:
    curl(server, "/generate", GENERATE)  # a counter shows once it has counted
    answer = curl(server, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "# TYPE tgi_request_count counter" in answer.body


def test_tokenize_gives_ids_and_byte_offsets(server: Launched) -> None:
    text = "Grüße, 12 apples"
    tokens = json.loads(curl(server, "/tokenize", {"inputs": text}).body)
    assert all(set(token) == {"id", "text", "start", "stop"} for token in tokens)
    raw = text.encode()
    assert tokens[0]["start"] == 0 and tokens[-1]["stop"] == len(raw)
    assert "".join(raw[token["start"] : token["stop"]].decode(errors="replace") for token in tokens)
    # A character of several tokens belongs to each of them.
    covered = {byte for token in tokens for byte in range(token["start"], token["stop"])}
    assert covered == set(range(len(raw))), "nothing is left out between tokens"


def test_generate(server: Launched) -> None:
    answer = curl(server, "/generate", GENERATE)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/json")
    body = json.loads(answer.body)
    assert list(body) == ["generated_text"], "no details unless they are asked for"


TIMES = ("x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token")


@pytest.mark.parametrize(
    ("path", "body"), [("/generate", GENERATE), ("/", GENERATE), ("/v1/chat/completions", CHAT)], ids=str
)
def test_answers_carry_tgis_headers(server: Launched, path: str, body: object) -> None:
    headers = curl(server, path, body).headers
    assert "x-compute-type" in headers
    assert float(headers["x-compute-time"]) >= 0
    for name in (*TIMES, "x-compute-characters", "x-prompt-tokens", "x-generated-tokens"):
        assert headers[name].isdigit(), f"{name}: {headers.get(name)}"
    assert int(headers["x-compute-characters"]) == len(as_text(ADD))
    assert 0 < int(headers["x-generated-tokens"]) <= 30


def test_headers_count_what_was_done(server: Launched) -> None:
    body = {**GENERATE, "parameters": {"max_new_tokens": 3, "details": True, "decoder_input_details": True}}
    answer = curl(server, "/generate", body)
    details = json.loads(answer.body)["details"]
    assert int(answer.headers["x-generated-tokens"]) == 3 == len(details["tokens"])
    assert int(answer.headers["x-prompt-tokens"]) == len(details["prefill"])


def test_generate_stream_is_framed_as_tgi_does(server: Launched) -> None:
    answer = curl(server, "/generate_stream", GENERATE)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "x-compute-type" in answer.headers and "x-compute-characters" in answer.headers
    parsed = [json.loads(event) for event in events(answer)]
    for number, event in enumerate(parsed, 1):
        assert set(event) == {"index", "token", "generated_text", "details"}
        assert event["index"] == number
        assert set(event["token"]) == {"id", "text", "logprob", "special"}
    assert all(event["generated_text"] is None for event in parsed[:-1])
    assert (
        parsed[-1]["generated_text"] == json.loads(curl(server, "/generate", GENERATE).body)["generated_text"]
    )
    assert all(event["details"] is None for event in parsed), "details were not asked for"


def test_a_stream_with_details_ends_with_them(server: Launched) -> None:
    body = {**GENERATE, "parameters": {"max_new_tokens": 30, "details": True}}
    last = json.loads(events(curl(server, "/generate_stream", body))[-1])
    assert set(last["details"]) == {"finish_reason", "generated_tokens", "seed", "input_length"}


def test_root_gives_an_array_or_a_stream(server: Launched) -> None:
    plain = json.loads(curl(server, "/", GENERATE).body)
    assert isinstance(plain, list) and len(plain) == 1
    assert plain[0]["generated_text"].startswith(as_text(ADD)), "`POST /` returns the full text by default"
    streamed = events(curl(server, "/", {**GENERATE, "stream": True}))
    assert json.loads(streamed[-1])["generated_text"] == plain[0]["generated_text"]
    for absent in (False, None):
        assert json.loads(curl(server, "/", {**GENERATE, "stream": absent}).body) == plain


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)],
    ids=["chat", "completions"],
)
def test_openai_streams_end_with_done(server: Launched, path: str, body: dict[str, object]) -> None:
    answer = curl(server, path, {**body, "stream": True})
    found = events(answer)
    assert found[-1] == "[DONE]" and found.count("[DONE]") == 1
    assert answer.headers["cache-control"] == "no-cache"
    ids = {json.loads(event)["id"] for event in found[:-1]}
    assert len(ids) == 1 and ids != {""}


def test_tgi_streams_do_not_end_with_done(server: Launched) -> None:
    assert "[DONE]" not in curl(server, "/generate_stream", GENERATE).body


def test_tokens_arrive_while_the_rest_is_computed(server: Launched) -> None:
    body = {"prompt": as_text(PORT), "max_tokens": 1900, "temperature": 0, "stream": True, "ignore_eos": True}
    with subprocess.Popen(
        ["curl", "-sS", "-N", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        + [f"{server.url}/v1/completions"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        with server.slow_worker():
            assert process.stdout.readline().startswith(b"data: ")
            running = server.metrics().value("tgi_batch_current_size")
        process.stdout.read()
    assert running >= 1, "the first event came only when everything was done"


def test_http_2_without_tls_works(server: Launched) -> None:
    answer = curl(server, "/generate", GENERATE, "--http2-prior-knowledge")
    assert (answer.version, answer.status) == ("2", 200)
    streamed = curl(server, "/generate_stream", GENERATE, "--http2-prior-knowledge")
    assert streamed.version == "2"
    assert json.loads(events(streamed)[-1])["generated_text"] == json.loads(answer.body)["generated_text"]


def test_http_1_1_is_the_default_and_1_0_still_works(server: Launched) -> None:
    assert curl(server, "/generate", GENERATE).version == "1.1"
    assert curl(server, "/generate", GENERATE, "--http1.0").status == 200


def test_browsers_may_send_an_authorization_header(server: Launched) -> None:
    answer = curl(
        server,
        "/v1/chat/completions",
        None,
        *("-X", "OPTIONS"),
        *("-H", "Origin: https://example.org"),
        *("-H", "Access-Control-Request-Method: POST"),
        *("-H", "Access-Control-Request-Headers: authorization,content-type"),
    )
    assert answer.status in (200, 204)
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert answer.headers["access-control-allow-origin"] == "*"


def test_a_connection_is_kept_for_the_next_request(server: Launched) -> None:
    out = subprocess.run(
        [
            "curl",
            "-sS",
            "-v",
            "-o",
            "/dev/null",
            f"{server.url}/info",
            "-o",
            "/dev/null",
            f"{server.url}/health",
        ],
        capture_output=True,
        check=True,
    ).stderr.decode()
    assert "Re-using existing connection" in out
