"""Who may ask, and by what a request is known: API keys, request ids, and the log line of a request."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, UnknownError
from openai import AuthenticationError, OpenAI

import wire
from conftest import Launch
from launched import Launched
from processes import wait_for
from programs import needs
from prompts import ADD, as_text, user

KEY, OTHER, FILED = "sesame-Open-1", "second-key", "key-of-the-file"
OPEN = ("/", "/health", "/ping", "/livez", "/readyz", "/metrics")
BODIES = {
    "/": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/generate": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/generate_stream": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/invocations": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/vertex": {"instances": [{"inputs": "x", "parameters": {"max_new_tokens": 1}}]},
    "/tokenize": {"inputs": "x"},
    "/chat_tokenize": {"messages": user("x")},
    "/v1/chat/completions": {"messages": user("x"), "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/messages": {"messages": user("x"), "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": user("x")},
}
GETS = ("/info", "/v1/models", "/v1/models/x", "/no/such/route")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    keys.write_text(f"# of the team\n\n{FILED}\n")
    flags = ("--api-key", KEY, "--api-key", OTHER, "--api-key-file", str(keys), "--json-output")
    with Launched(folder, *flags, null_worker=True) as launched:
        yield launched.wait_ready()


@pytest.mark.parametrize("path", BODIES)
def test_what_works_needs_a_key(guarded: Launched, path: str) -> None:
    for headers in ({}, bearer("wrong"), bearer(KEY.lower()), bearer(KEY + "x"), {"Authorization": KEY}):
        reply = wire.post(guarded.address, path, BODIES[path], headers=headers)
        assert reply.status == 401, f"{headers}: {reply}"
        assert reply.headers["www-authenticate"] == "Bearer"
        error = reply.json()["error"]
        if path.startswith("/v1/messages"):
            assert error["type"] == "authentication_error" and "API key" in error["message"]
        elif path.startswith("/v1/"):
            assert error["code"] == "invalid_api_key" and "API key" in error["message"]
        else:
            assert "API key" in error and reply.json()["error_type"] == "authentication"
    for key in (KEY, OTHER, FILED):
        assert wire.post(guarded.address, path, BODIES[path], headers=bearer(key)).status == 200


@pytest.mark.parametrize("path", GETS)
def test_what_is_told_needs_a_key_too(guarded: Launched, path: str) -> None:
    assert wire.get(guarded.address, path).status == 401
    assert wire.get(guarded.address, path, headers=bearer(KEY)).status in (200, 404)


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_metrics_need_none(guarded: Launched, path: str) -> None:
    assert wire.get(guarded.address, path).status == 200
    assert wire.get(guarded.address, path, headers=bearer("wrong")).status == 200
    assert wire.post(guarded.address, path, {}).status == 401, "only reading is open"


TRICKS = (
    "//info", "/info/", "/./info", "/health/../info", "/health%2f..%2finfo", "/%69nfo", "/info?x=/health",
    "/info#/health", "/INFO", "/health/info", "/metrics/../v1/models", "/v1/models/../../health", "/info;/health",
    "http://127.0.0.1/info", "http://127.0.0.1/health/../info", "/%2e%2e/info", "*",
)  # fmt: skip


@pytest.mark.parametrize("target", TRICKS)
def test_no_spelling_of_a_path_gets_around_the_key(guarded: Launched, target: str) -> None:
    with socket.create_connection((guarded.address.host, guarded.address.port), timeout=20) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert int(answer.split()[1]) in (400, 401), answer[:300]
    assert b"model_id" not in answer and b"max_total_tokens" not in answer


@needs("curl")
def test_http_2_needs_the_key_as_well(guarded: Launched) -> None:
    def status(path: str, *options: str) -> str:
        command = [
            "curl",
            "-sS",
            "--http2-prior-knowledge",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{http_code}",
        ]
        return subprocess.run(
            [*command, *options, guarded.url + path], capture_output=True, check=True, text=True
        ).stdout

    assert status("/info") == "2 401"
    assert status("/info", "-H", f"Authorization: Bearer {KEY}") == "2 200"
    assert status("/health") == "2 200"


def test_two_keys_in_one_request_are_none(guarded: Launched) -> None:
    with socket.create_connection((guarded.address.host, guarded.address.port), timeout=20) as connection:
        lines = f"Authorization: Bearer {KEY}\r\nAuthorization: Bearer wrong\r\n"
        connection.sendall(f"GET /info HTTP/1.1\r\nHost: x\r\n{lines}Connection: close\r\n\r\n".encode())
        assert connection.recv(100).split()[1] == b"401"


def test_a_key_may_come_as_anthropics_clients_send_it(guarded: Launched) -> None:
    def status(headers: dict[str, str]) -> int:
        return wire.get(guarded.address, "/info", headers=headers).status

    assert status({"x-api-key": KEY}) == 200
    assert status({"x-api-key": "wrong"}) == 401
    assert status({"x-api-key": KEY, "Authorization": "Bearer wrong"}) == 401, (
        "there is one key, the other header's"
    )


def test_a_browser_may_ask_what_it_may_ask(guarded: Launched) -> None:
    asked = {
        "Origin": "http://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-request-id",
    }
    reply = wire.call(guarded.address, "OPTIONS", "/v1/chat/completions", headers=asked)
    assert reply.status == 200
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert {"authorization", "content-type", "x-request-id"} <= set(allowed.replace(" ", "").split(","))
    refused = wire.post(
        guarded.address, "/generate", {"inputs": "x"}, headers={"Origin": "http://page.example"}
    )
    assert refused.status == 401 and refused.headers["access-control-allow-origin"] == "*"


def test_clients_send_their_key(guarded: Launched) -> None:
    hub = InferenceClient(guarded.url, token=KEY)
    assert hub.text_generation(as_text(ADD), max_new_tokens=4)
    with OpenAI(base_url=f"{guarded.url}/v1", api_key=OTHER, max_retries=0) as openai:
        assert openai.chat.completions.create(model="tgi", messages=user(ADD), max_tokens=4).choices
        assert openai.models.retrieve(openai.models.list().data[0].id).object == "model"


def test_clients_learn_that_their_key_is_wrong(guarded: Launched) -> None:
    client = InferenceClient(guarded.url, token="wrong")
    with pytest.raises(HfHubHTTPError, match="API key provided: it is not valid") as refused:
        client.chat_completion(user("x"))
    assert refused.value.response.status_code == 401
    # The client has no class for the type `authentication` of TGI's routes; the message stays.
    with pytest.raises(UnknownError, match="API key provided: it is not valid"):
        client.text_generation("x")
    wrong = OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0)
    with wrong as openai, pytest.raises(AuthenticationError):
        openai.models.list()


def test_no_key_is_in_the_log(guarded: Launched) -> None:
    wire.get(guarded.address, "/info", headers=bearer(KEY))
    for secret in (KEY, OTHER, FILED):
        assert secret not in guarded.log()


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), ("# none\n", "it holds no key"), ("two words\n", "line 1")]
)
def test_a_file_without_a_key_stops_the_launcher(
    launch_null: Launch, tmp_path: Path, content: str | None, says: str
) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_text(content)
    launched = launch_null("--api-key-file", str(keys))
    assert launched.wait_ended(20) == 1
    assert "--api-key-file" in launched.stderr() and says in launched.stderr(), launched.stderr()


# Request ids and the log.


def told(launched: Launched, request_id: str) -> dict[str, object]:
    """The log's line about a request."""

    def find() -> dict[str, object] | None:
        for line in launched.stdout().splitlines():
            event: dict[str, object] = json.loads(line)
            event |= dict(event.get("fields") or {})  # type: ignore[call-overload]
            if event.get("request_id") == request_id:
                return event
        return None

    return wait_for(find, f"a line about {request_id}")


def test_an_id_comes_back_and_stands_in_the_log(guarded: Launched) -> None:
    body = {"inputs": as_text("a secret of the client"), "parameters": {"max_new_tokens": 5}}
    headers = bearer(KEY) | {"x-request-id": "test-42"}
    reply = wire.post(guarded.address, "/generate", body, headers=headers)
    assert reply.headers["x-request-id"] == "test-42"
    line = told(guarded, "test-42")
    assert (line["route"], line["outcome"]) == ("/generate", "success")
    assert line["generated_tokens"] == int(reply.headers["x-generated-tokens"])
    assert line["prompt_tokens"] == int(reply.headers["x-prompt-tokens"])
    assert isinstance(line["first_token_s"], float) and line["first_token_s"] <= line["total_s"]  # type: ignore[operator]
    assert "a secret of the client" not in guarded.log()


def test_errors_have_an_id_too(guarded: Launched) -> None:
    wrong = {"inputs": "x", "parameters": {"top_p": 7}}
    headers = bearer(KEY) | {"x-request-id": "wrong-1"}
    assert (
        wire.post(guarded.address, "/generate", wrong, headers=headers).headers["x-request-id"] == "wrong-1"
    )
    line = told(guarded, "wrong-1")
    assert line["outcome"] == "validation" and "top_p" in str(line["error"])
    for path in ("/no/such/route", "/info"):
        assert len(wire.get(guarded.address, path).headers["x-request-id"]) == 32


@pytest.mark.parametrize("bad", ["", "two words", "x" * 129, "\xe9"])
def test_an_id_that_is_no_id_is_replaced(guarded: Launched, bad: str) -> None:
    reply = wire.get(guarded.address, "/health", headers={"x-request-id": bad})
    assert reply.status == 200 and len(reply.headers["x-request-id"]) == 32


def test_a_client_that_leaves_is_told_of_as_dropped(guarded: Launched) -> None:
    body = {"prompt": "and then", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    at = (guarded.address.host, guarded.address.port)
    with guarded.slow_worker(), socket.create_connection(at, timeout=20) as connection:
        payload = json.dumps(body)
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
            f"x-request-id: gone-1\r\n\r\n{payload}".encode()
        )
        assert connection.recv(100).split()[1] == b"200"
    assert told(guarded, "gone-1")["outcome"] == "dropped"


# HTTPS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        + ["-days", "2", "-subj", "/CN=penstock", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return certificate, key


needs_openssl = needs("openssl")


@needs_openssl
def test_https_with_both_versions_of_http(launch_null: Launch, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    launched = launch_null("--tls-cert", str(cert), "--tls-key", str(key), "--api-key", KEY)
    context = ssl.create_default_context(cafile=str(cert))

    def answer() -> int | None:
        try:
            connection = http.client.HTTPSConnection("127.0.0.1", launched.address.port, context=context)
            connection.request("GET", "/health")
            return connection.getresponse().status
        except ConnectionError:
            return None

    assert wait_for(lambda: answer() == 200, "the server to be ready", 120)
    launched.wait_told("serving on https://")
    url = f"https://127.0.0.1:{launched.address.port}"
    trusting = httpx.Client(verify=context)
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=trusting) as openai:
        stream = openai.completions.create(model="tgi", prompt=as_text(ADD), max_tokens=8, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream)
    with socket.create_connection((launched.address.host, launched.address.port), timeout=20) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in plain.recv(1000), "no plain HTTP where HTTPS is asked for"
    silent = socket.create_connection((launched.address.host, launched.address.port), timeout=20)
    assert answer() == 200, "one that says nothing holds nobody up"
    silent.close()
    if shutil.which("curl"):
        command = [
            "curl",
            "-sS",
            "--http2",
            "--cacert",
            str(cert),
            "-o",
            "/dev/null",
            "-w",
            "%{http_version}",
        ]
        assert subprocess.run([*command, f"{url}/health"], capture_output=True, check=True).stdout == b"2"


@needs_openssl
def test_wrong_files_of_https_stop_the_launcher(
    launch_null: Launch, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = map(str, certificate)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for arguments, flag in (
        (["--tls-cert", cert], "--tls-cert needs --tls-key"),
        (["--tls-key", key], "--tls-key needs --tls-cert"),
        (["--tls-cert", "/no/such/file", "--tls-key", key], "--tls-cert /no/such/file"),
        (["--tls-cert", str(empty), "--tls-key", key], "--tls-cert"),
        (["--tls-cert", cert, "--tls-key", cert], "--tls-key"),
    ):
        launched = launch_null(*arguments)
        assert launched.wait_ended(20) == 1
        assert flag in launched.stderr(), launched.stderr()
