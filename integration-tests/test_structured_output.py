"""Texts that have to be something: JSON of a schema, a regular expression's, one of a choice, a Lark grammar's; on every
route that generates, streamed or not, and across what happens to a request.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import wire
from conftest import Launch
from launched import ON_TORCH, Launched

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
LARK = 'start: "x" digits\ndigits: /[0-9]{3}/'


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def streamed(address: wire.Address, path: str, body: dict[str, Any]) -> Iterator[Any]:
    """The events of a stream as they come."""
    with wire.Events(address, path, body) as events:
        for data in events:
            if data != "[DONE]":
                yield json.loads(data)


def is_person(text: str) -> None:
    jsonschema.validate(json.loads(text), PERSON)


def is_object(text: str) -> None:
    assert isinstance(json.loads(text), dict)


def is_date(text: str) -> None:
    assert re.fullmatch(DATE, text), text


def is_choice(text: str) -> None:
    assert text in ("Oslo", "Bergen", "Ås"), text


def is_lark(text: str) -> None:
    assert re.fullmatch("x[0-9]{3}", text), text


SCHEMA_SHAPES: dict[str, dict[str, Any]] = {
    "json": {"type": "json", "value": PERSON},
    "a string": {"type": "json", "value": json.dumps(PERSON)},
    "json_object": {"type": "json_object", "value": PERSON},
    "TGI's json_schema": {"type": "json_schema", "value": {"name": "person", "schema": PERSON}},
    "OpenAI's json_schema": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
}
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    **{name: (shape, is_person) for name, shape in SCHEMA_SHAPES.items()},
    "regex": ({"type": "regex", "value": DATE}, is_date),
    "choice": ({"type": "choice", "value": ["Oslo", "Bergen", "Ås"]}, is_choice),
    "lark": ({"type": "lark", "value": LARK}, is_lark),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_the_text_is_what_was_asked_for_on_every_route(
    address: wire.Address, kind: str, sampled: bool
) -> None:
    form, check = KINDS[kind]
    options: dict[str, Any] = {"temperature": 1.6, "seed": 7} if sampled else {}
    parameters = {"grammar": form, "max_new_tokens": 200, "details": True, **options}
    reply = wire.post(address, "/generate", {"inputs": "A person:", "parameters": parameters})
    assert reply.status == 200, reply
    check(reply.json()["generated_text"])
    assert reply.json()["details"]["finish_reason"] == "eos_token"
    openai = {"max_tokens": 200, "response_format": form, "temperature": 0, **options}
    for path, prompt in ((CHAT, {"messages": user("A person?")}), (COMPLETIONS, {"prompt": "A person:"})):
        whole = wire.post(address, path, {**prompt, **openai})
        assert whole.status == 200, whole
        choice = whole.json()["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        check(text)
        assert choice["finish_reason"] == "stop"
        events = streamed(address, path, {**prompt, **openai, "stream": True})
        chunks = [event["choices"][0] for event in events if event["choices"]]
        pieces = [c["delta"].get("content") or "" if path == CHAT else c["text"] for c in chunks]
        assert "".join(pieces) == text
        assert chunks[-1]["finish_reason"] == "stop"


def test_a_stream_of_tgi_ends_with_the_token_that_completes_the_grammar(address: wire.Address) -> None:
    body = {
        "inputs": "When?",
        "parameters": {"grammar": {"type": "regex", "value": DATE}, "max_new_tokens": 50},
    }
    tokens = list(streamed(address, "/generate_stream", body))
    is_date("".join(event["token"]["text"] for event in tokens))
    assert tokens[-1]["generated_text"] is not None and not tokens[-1]["token"]["special"]


def test_any_object_and_vllms_names(address: wire.Address) -> None:
    for more, check in (
        ({"response_format": {"type": "json_object"}, "max_tokens": 300}, None),
        ({"guided_json": PERSON}, is_person),
        ({"guided_regex": DATE}, is_date),
        ({"guided_choice": ["Oslo", "Bergen"]}, is_choice),
        ({"guided_grammar": LARK}, is_lark),
        ({"structured_outputs": {"regex": DATE}}, is_date),
    ):
        reply = wire.post(
            address, CHAT, {"messages": user("Oslo?"), "max_tokens": 200, "temperature": 0, **more}
        )
        assert reply.status == 200, reply
        choice = reply.json()["choices"][0]
        text = choice["message"]["content"]
        if check is not None:
            check(text)
        elif choice["finish_reason"] == "stop":
            is_object(text)
        assert text.startswith("{") or check is not None


def test_several_answers_have_a_grammar_each(address: wire.Address) -> None:
    body = {"messages": user("When?"), "n": 2, "temperature": 1.5, "seed": 3}
    reply = wire.post(address, CHAT, {**body, "response_format": {"type": "regex", "value": DATE}})
    texts = [choice["message"]["content"] for choice in reply.json()["choices"]]
    assert len(texts) == 2
    for text in texts:
        is_date(text)
    parameters = {"best_of": 2, "temperature": 1.5, "grammar": {"type": "regex", "value": DATE}}
    best = wire.post(address, "/generate", {"inputs": "When?", "parameters": parameters})
    is_date(best.json()["generated_text"])


def test_cut_off_by_length_it_is_the_beginning_of_one(address: wire.Address) -> None:
    body = {"prompt": "When?", "max_tokens": 2, "temperature": 0}
    reply = wire.post(
        address, COMPLETIONS, {**body, "response_format": {"type": "regex", "value": "a{200}b"}}
    )
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "length" and set(choice["text"]) == {"a"}


def test_log_probabilities_are_the_models_own(exact: wire.Address) -> None:
    """A token's log probability is the same with and without a grammar that allows it."""
    prompt = {"inputs": "The capital of Norway is", "parameters": {"max_new_tokens": 8, "details": True}}
    free = wire.post(exact, "/generate", prompt).json()
    text = free["generated_text"]
    grammar = {"type": "choice", "value": [text, "another text, which is less likely"]}
    parameters = {"max_new_tokens": 40, "details": True, "grammar": grammar}
    held = wire.post(exact, "/generate", {"inputs": prompt["inputs"], "parameters": parameters}).json()
    pairs = [(t["id"], round(t["logprob"], 4)) for t in free["details"]["tokens"]]
    got = [(t["id"], round(t["logprob"], 4)) for t in held["details"]["tokens"]]
    assert got[: len(pairs) - 1] == pairs[: len(got[: len(pairs) - 1])]


def test_constrained_and_free_requests_run_beside_each_other(exact: wire.Address) -> None:
    def ask(body: dict[str, Any]) -> str:
        reply = wire.post(exact, COMPLETIONS, {"prompt": "Once", "max_tokens": 60, "temperature": 0, **body})
        assert reply.status == 200, reply
        return str(reply.json()["choices"][0]["text"])

    schema = {"response_format": {"type": "json", "value": PERSON}}
    alone = [ask({}), ask(schema)]
    texts: list[tuple[bool, str]] = []

    def one(held: bool) -> None:
        texts.append((held, ask(schema if held else {})))

    threads = [threading.Thread(target=one, args=(number % 2 == 0,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 12
    for held, text in texts:
        assert text == alone[held]


def test_a_killed_worker_costs_a_constrained_text_nothing(launch: Launch) -> None:
    server: Launched = launch(*ON_TORCH).wait_ready()
    parameters = {"grammar": {"type": "regex", "value": "([a-z]{3,9} ){60}"}, "max_new_tokens": 400}
    body = {"inputs": "Words:", "parameters": {**parameters, "temperature": 1.1, "seed": 5}}
    alone = wire.post(server.address, "/generate", body).json()["generated_text"]
    assert re.fullmatch("([a-z]{3,9} ){60}", alone)
    for kill in server.interruptions():
        got = []
        for count, event in enumerate(streamed(server.address, "/generate_stream", body)):
            got.append(event)
            if count == 10:
                kill()
        assert "".join(event["token"]["text"] for event in got) == alone


def test_what_a_grammar_forces_takes_few_steps_and_is_told_token_by_token(launch: Launch) -> None:
    server: Launched = launch(*ON_TORCH).wait_ready()
    line = "(The name of the city is [A-Z][a-z]{2,6}, and its number of inhabitants is [1-9]{2}; ){8}"
    parameters = {"grammar": {"type": "regex", "value": line}, "max_new_tokens": 600, "details": True}
    body = {"inputs": "Cities:", "parameters": {**parameters, "temperature": 1.1, "seed": 5}}
    whole = wire.post(server.address, "/generate", body).json()
    assert re.fullmatch(line, whole["generated_text"])
    tokens = [(token["id"], token["text"], token["logprob"]) for token in whole["details"]["tokens"]]
    seen = server.metrics()
    forced, steps = seen.value("penstock_forced_tokens"), seen.value("penstock_steps", method="decode")
    assert forced > 100 and steps < len(tokens) - 50, (forced, steps, len(tokens))
    # Across a lost worker as well.
    for kill in server.interruptions():
        got = []
        for count, event in enumerate(streamed(server.address, "/generate_stream", body)):
            got.append((event["token"]["id"], event["token"]["text"], event["token"]["logprob"]))
            if count == 30:
                kill()
        assert [token[:2] for token in got] == [token[:2] for token in tokens]
        assert [token[2] for token in got] == pytest.approx([token[2] for token in tokens], abs=1e-3)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "regex", "value": "("}, "grammar"),
        ({"type": "lark", "value": "start: nothing"}, "nothing"),
        ({"type": "json", "value": {"$ref": "https://localhost/x.json"}}, "$ref"),
        ({"type": "json", "value": {"type": "strange"}}, "type"),
        ({"type": "choice", "value": ["a", "a"]}, "choice"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    address: wire.Address, form: dict[str, Any], says: str
) -> None:
    reply = wire.post(address, "/generate", {"inputs": "x", "parameters": {"grammar": form}})
    assert reply.status == 422 and says in reply.text, reply
    exposed = wire.get(address, "/metrics").text
    assert 'penstock_grammar_compile_duration_count{outcome="refused"}' in exposed
    openai = wire.post(address, CHAT, {"messages": user("x"), "response_format": form})
    assert openai.status == 422 and openai.json()["error"]["param"] == "response_format", openai


BOMBS: dict[str, dict[str, Any]] = {
    "minItems": {
        "type": "json",
        "value": {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
    },
    "nested anyOf": {
        "type": "json",
        "value": {
            "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(30)}
            | {"$ref": "#/$defs/d0"}
        },
    },
    "exponential": {"type": "regex", "value": "(a|a)*" * 200 + "b"},
    "repetition": {"type": "regex", "value": "((a{1,1000}){1,1000}){1,1000}"},
    "alternatives": {"type": "choice", "value": [f"{n:050}" for n in range(30_000)]},
    "a megabyte": {"type": "json", "value": {"enum": [f"{n:0100}" for n in range(10_000)]}},
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_grammar_bomb_is_refused_in_time_and_nobody_waits(address: wire.Address, bomb: str) -> None:
    began = time.monotonic()
    parameters = {"grammar": BOMBS[bomb], "max_new_tokens": 5}
    reply = wire.post(address, "/generate", {"inputs": "x", "parameters": parameters})
    took = time.monotonic() - began
    assert reply.status in (200, 422), reply
    assert took < 10, took
    assert wire.post(address, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 2}}).status == 200


def test_a_server_can_be_told_to_refuse_grammars(launch: Launch) -> None:
    server = launch("--disable-grammar-support").wait_ready()
    parameters = {"grammar": {"type": "regex", "value": "a"}}
    reply = wire.post(server.address, "/generate", {"inputs": "x", "parameters": parameters})
    assert reply.status == 422 and "--disable-grammar-support" in reply.text, reply


def test_sharded_models_follow_grammars(launch: Launch) -> None:
    server = launch("--num-shard", "2").wait_ready()
    body = {"messages": user("When?"), "response_format": {"type": "regex", "value": DATE}, "temperature": 0}
    reply = wire.post(server.address, CHAT, body)
    is_date(reply.json()["choices"][0]["message"]["content"])
