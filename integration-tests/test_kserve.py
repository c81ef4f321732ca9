"""KServe's protocol, which `--kserve` switches on, and the routes that Vertex AI names in the environment: both
behind the same key as all else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import Launched, free_port
from processes import wait_for
from prompts import ADD, REPEAT, as_text

KEY = {"Authorization": "Bearer sesame"}
PREDICT, HEALTH = "/v1/endpoints/1/deployedModels/2:predict", "/alive-and-well"
VERSIONED = "/v2/models/any/versions/3"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    env = {"AIP_PREDICT_ROUTE": PREDICT, "AIP_HEALTH_ROUTE": HEALTH, "API_KEY": "sesame", "KSERVE": "true"}
    folder = tmp_path_factory.mktemp("platform")
    with Launched(folder, env=env, null_worker=True, hold=folder / "hold") as launched:
        yield launched.wait_ready()


def tensor(name: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": data}


def infer(platform: Launched, body: object, path: str = VERSIONED) -> wire.Reply:
    return wire.post(platform.address, f"{path}/infer", body, headers=KEY)


def test_without_the_flag_there_is_no_such_route(address: wire.Address) -> None:
    for path in ("/v2", "/v2/health/live", VERSIONED):
        assert wire.get(address, path).status == 404
    paths = wire.get(address, "/api-doc/openapi.json").json()["paths"]
    assert not [path for path in paths if path.startswith("/v2")]


def test_it_tells_about_itself(platform: Launched) -> None:
    def get(path: str) -> Any:
        reply = wire.get(platform.address, path, headers=KEY)
        assert reply.status == 200, reply
        return reply.json()

    assert get("/v2") == {
        "name": "penstock",
        "version": get("/info")["version"],
        "extensions": ["health", "models", "metrics"],
    }
    assert get("/v2/health/live") == {"live": True}
    assert get("/v2/health/ready") == get(f"{VERSIONED}/ready") == {"live": True, "ready": True}
    assert get(VERSIONED) == {"name": "any", "version": "3", "extensions": ["infer", "ready"]}
    assert get("/v2/models/any")["version"] == "1"


def test_texts_go_in_and_out_as_bytes_or_strings(platform: Launched) -> None:
    prompts = [as_text(ADD), as_text(REPEAT)]
    parameters = {"max_new_tokens": 40}

    def direct(prompt: str) -> str:
        body = {"inputs": prompt, "parameters": parameters}
        return str(wire.post(platform.address, "/generate", body, headers=KEY).json()["generated_text"])

    texts = [direct(prompt) for prompt in prompts]
    as_bytes = tensor("one", list(prompts[0].encode()))
    body = {"id": "42", "parameters": parameters, "inputs": [as_bytes, tensor("two", [prompts[1]])]}
    reply = infer(platform, {**body, "outputs": [{"name": "a"}, {"name": "b"}]})
    assert reply.status == 200, reply
    answer = reply.json()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("42", "any", "3")
    first, second = answer["outputs"]
    assert first == {
        "name": "a",
        "shape": [1, len(texts[0].encode())],
        "datatype": "BYTES",
        "data": list(texts[0].encode()),
    }
    assert second == {"name": "b", "shape": [1], "datatype": "BYTES", "data": [texts[1]]}
    unversioned = infer(platform, {**body, "no_such_field": 1}, "/v2/models/any").json()
    assert [output["name"] for output in unversioned["outputs"]] == ["one", "two"]
    assert unversioned["warnings"] == ["`no_such_field` is not a field of this route and has no effect"]


def test_texts_follow_a_grammar(launch: Launch) -> None:
    grammar = {"type": "regex", "value": "[0-9]{3}"}
    inputs = [tensor("one", ["x"]), tensor("two", ["y"])]
    answer = infer(launch("--kserve").wait_ready(), {"inputs": inputs, "parameters": {"grammar": grammar}})
    for output in answer.json()["outputs"]:
        assert re.fullmatch("[0-9]{3}", *output["data"]), output


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "`inputs` is required"),
        (
            {"inputs": [tensor("x", ["a"])], "parameters": {"grammar": {"type": "regex", "value": "["}}},
            "`grammar`",
        ),
        ({"inputs": [tensor("x", [200, 200])]}, "`inputs[0].data` is not valid UTF-8"),
        ({"inputs": [tensor("x", ["a"])], "outputs": []}, "`outputs` must have one entry for each"),
        ({"inputs": [tensor("x", ["a"])] * 5}, "--max-client-batch-size"),
        ({"inputs": [tensor("x", ["a"])], "parameters": {"top_p": 7}}, "inputs[0]: `top_p` must be"),
        ({"inputs": [tensor("x", ["a"])], "parameters": {"max_new_tokens": 99999}}, "`max_new_tokens`"),
    ],
)
def test_what_is_wrong_keeps_its_status_and_its_reason(platform: Launched, body: object, says: str) -> None:
    """TGI answers all of these with a 500 that says "Incomplete generation"."""
    reply = infer(platform, body)
    assert reply.status == 422 and says in reply.json()["error"], reply


def test_only_the_probes_are_open(platform: Launched) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", HEALTH):
        assert wire.get(platform.address, path).status == 200, path
    for path in ("/v2", VERSIONED, f"{VERSIONED}/ready", "/vertex", HEALTH + "/", PREDICT):
        assert wire.get(platform.address, path).status == 401, path
    for path in (f"{VERSIONED}/infer", PREDICT, HEALTH):
        assert wire.post(platform.address, path, {}).status == 401, path


def test_vertex_asks_by_the_paths_it_chose(platform: Launched) -> None:
    body = {"instances": [{"inputs": as_text(ADD), "parameters": {"max_new_tokens": 30}}]}
    chosen, own = (wire.post(platform.address, path, body, headers=KEY) for path in (PREDICT, "/vertex"))
    assert (chosen.status, own.status) == (200, 200)
    assert chosen.json() == own.json() and len(own.json()["predictions"]) == 1
    wrong = wire.post(platform.address, PREDICT, {"instances": []}, headers=KEY)
    assert wrong.status == 422 and "`instances`" in wrong.json()["error"]


def test_the_port_that_vertex_chose_wins_over_the_images(launch_null: Launch) -> None:
    port = free_port()
    # The fixture gives --port, which would win: so an environment alone, by way of env(1).
    started = launch_null("--help", prefix=["env", f"AIP_HTTP_PORT={port}", "PORT=1"])
    assert started.wait_ended() == 0
    assert f"[env: AIP_HTTP_PORT={port}]" in started.stdout().replace("\n", " ")


def test_ready_is_truthful_while_live_goes_on(platform: Launched) -> None:
    def ready() -> int:
        assert wire.get(platform.address, "/v2/health/live").status == 200
        return wire.get(platform.address, "/v2/health/ready").status

    with platform.without_worker():
        wait_for(lambda: ready() == 503, "readiness to end", 30)
    wait_for(lambda: ready() == 200, "readiness to return", 60)
