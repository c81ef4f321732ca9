"""Fields one by one, on each route that has them: what they do, what is refused, and what is named in `warnings`
because it does nothing (`--strict-requests`: refused)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import wire
from launched import Launched
from prompts import ADD, REPEAT, as_text, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
END = "<|im_end|>"


def asked(path: str, **more: Any) -> dict[str, Any]:
    """A request that any server takes without a warning."""
    if path == CHAT or path == "/chat_tokenize":
        return {"messages": user(ADD), "max_tokens": 80, "temperature": 0, **more}
    if path == COMPLETIONS:
        return {"prompt": as_text(ADD), "max_tokens": 80, "temperature": 0, **more}
    parameters = {"max_new_tokens": 20, **more.pop("parameters", {})}
    return {"inputs": as_text(ADD), "parameters": parameters, **more}


def good(address: wire.Address, path: str, **more: Any) -> Any:
    reply = wire.post(address, path, asked(path, **more))
    assert reply.status == 200, reply
    return reply.json()


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("strict"), env={"STRICT_REQUESTS": "true"}) as launched:
        yield launched.wait_ready()


# min_tokens


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_min_tokens_holds_back_every_end(address: wire.Address, path: str) -> None:
    free = good(address, path)
    assert free["choices"][0]["finish_reason"] == "stop" and free["usage"]["completion_tokens"] < 50
    held = good(address, path, min_tokens=60)
    assert 60 < held["usage"]["completion_tokens"] <= 80
    assert text_of(held["choices"][0]).startswith(text_of(free["choices"][0]))
    # A stop string, a stop token: all that would have ended it within the minimum.
    (word,) = text_of(free["choices"][0]).split()[:1]
    first = wire.post(address, "/tokenize", {"inputs": word}).json()[0]["id"]
    for stop in ({"stop": word}, {"stop_token_ids": [first]}):
        assert good(address, path, **stop)["usage"]["completion_tokens"] < 5
        held = good(address, path, min_tokens=6, ignore_eos=True, **stop)
        assert held["usage"]["completion_tokens"] > 6, stop


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_of_one_token_meets_what_forbids_it(address: wire.Address, path: str, stream: bool) -> None:
    """A bias forbids nothing where nothing else is left; a stop token within `min_tokens` is forbidden."""
    (token,) = wire.post(address, "/tokenize", {"inputs": "a"}).json()
    form = {"response_format": {"type": "choice", "value": ["a"]}}
    assert text_of(good(address, path, **form, logit_bias={str(token["id"]): -100})["choices"][0]) == "a"
    held = {"stop_token_ids": [token["id"]], "min_tokens": 5, "stream": stream}
    refused = wire.post(address, path, asked(path, **form, **held))
    assert refused.status == 424 and refused.json()["error"]["code"] == "generation", refused
    assert "together forbid every token" in refused.json()["error"]["message"], refused


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_min_tokens_streams_the_same(address: wire.Address, path: str) -> None:
    whole = good(address, path, min_tokens=60)["choices"][0]
    with wire.Events(address, path, asked(path, min_tokens=60, stream=True)) as events:
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
    pieces = [choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices(chunks)]
    assert "".join(pieces) == text_of(whole)


def choices(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"]]


def test_what_is_held_back_keeps_its_log_probability(address: wire.Address) -> None:
    free = good(address, CHAT, logprobs=True, top_logprobs=2)
    end = len(free["choices"][0]["logprobs"]["content"]) - 1
    assert free["choices"][0]["logprobs"]["content"][end]["token"] == END
    held = good(address, CHAT, logprobs=True, top_logprobs=2, min_tokens=end + 5)
    entry = held["choices"][0]["logprobs"]["content"][end]
    assert entry["token"] != END
    assert entry["top_logprobs"][0]["token"] == END, "the model's own distribution still has it first"
    assert entry["logprob"] < entry["top_logprobs"][0]["logprob"]


def test_a_minimum_above_the_maximum_is_refused(address: wire.Address) -> None:
    for path in (CHAT, COMPLETIONS):
        for body in (asked(path, min_tokens=81), asked(path, min_tokens=5000, max_tokens=None)):
            reply = wire.post(address, path, body)
            assert reply.status == 422 and reply.json()["error"]["param"] == "min_tokens", reply
        reply = wire.post(address, path, asked(path, min_tokens=-1))
        assert reply.status == 422 and "`min_tokens`" in reply.json()["error"]["message"]


# What has no effect

OPENAI_WARNINGS: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"store": True}, "store"),
    ({"top_p": 0.5}, "top_p"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"logit_bias": [0.0, 1.0]}, "logit_bias"),
    ({"ignore_eos": True, "guided_regex": "a{3}"}, "ignore_eos"),
    ({"max_new_tokens": 4}, "max_new_tokens"),
    ({"no_such_field": 0}, "no_such_field"),
]
WARNINGS: list[tuple[str, dict[str, Any], str]] = [
    *[(path, more, name) for path in (CHAT, COMPLETIONS) for more, name in OPENAI_WARNINGS],
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"echo": True}, "echo"),
    (CHAT, {"tool_prompt": "Call it."}, "tool_prompt"),
    (CHAT, {"parallel_tool_calls": False}, "parallel_tool_calls"),
    (COMPLETIONS, {"messages": []}, "messages"),
    ("/chat_tokenize", {"no_such_field": 0}, "no_such_field"),
    ("/generate", {"model": "x"}, "model"),
    ("/generate", {"stream": True}, "stream"),
    ("/generate", {"parameters": {"max_tokens": 5}}, "parameters.max_tokens"),
    ("/generate", {"parameters": {"top_n_tokens": 2}}, "top_n_tokens"),
    ("/generate_stream", {"stream": False}, "stream"),
    ("/", {"parameters": {"no_such_field": 1}}, "parameters.no_such_field"),
    ("/tokenize", {"no_such_field": 1}, "no_such_field"),
    ("/invocations", {"no_such_field": 1}, "no_such_field"),
]


def warnings_of(reply: wire.Reply) -> list[str]:
    """Wherever the route has them."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        first, *others = [json.loads(line[5:]) for line in reply.text.split("\n\n") if "{" in line]
        assert not any("warnings" in other for other in others), "they are said once"
        return list(first.get("warnings", []))
    body = reply.json()
    if "x-warning" in reply.headers:
        return [reply.headers["x-warning"]]
    body = body[0] if isinstance(body, list) else body
    return list(body.get("warnings", []))


@pytest.mark.parametrize(("path", "more", "name"), WARNINGS)
def test_what_has_no_effect_is_named_or_refused(
    address: wire.Address, strict: Launched, path: str, more: dict[str, Any], name: str
) -> None:
    reply = wire.post(address, path, asked(path, **more))
    assert reply.status == 200, reply
    (line,) = warnings_of(reply)
    assert line.startswith(f"`{name}`") and "no effect" in line, line
    refused = wire.post(strict.address, path, asked(path, **more))
    assert refused.status == 422, refused
    assert f"`{name}`" in refused.text and "--strict-requests" in refused.text


@pytest.mark.parametrize(
    "path", [CHAT, COMPLETIONS, "/generate", "/generate_stream", "/", "/tokenize", "/chat_tokenize"]
)
def test_an_ordinary_request_has_no_warning(address: wire.Address, strict: Launched, path: str) -> None:
    nothing = {name: None for name in ("no_such_field", "stream", "seed")}
    for server in (address, strict.address):
        reply = wire.post(server, path, asked(path, **nothing))
        assert reply.status == 200, reply
        assert warnings_of(reply) == []


def test_warnings_of_vertex_name_the_instance(address: wire.Address, strict: Launched) -> None:
    instances = [
        asked("/generate"),
        asked("/generate", parameters={"details": True}),
        asked(CHAT, stream=True),
    ]
    reply = wire.post(address, "/vertex", {"instances": instances})
    assert reply.status == 200 and len(reply.json()["predictions"]) == 3, reply
    lines = reply.json()["warnings"]
    assert [line.split("`")[0] + line.split("`")[1] for line in lines] == [
        "instances[1]: details",
        "instances[2]: stream",
    ]
    assert wire.post(strict.address, "/vertex", {"instances": instances}).status == 422


def test_vertex_honours_what_changes_the_text(address: wire.Address) -> None:
    """TGI ignores all but two parameters there."""
    parameters = {"max_new_tokens": 30, "return_full_text": True, "stop": [" "]}
    instances = [asked("/generate", parameters=parameters)]
    (text,) = wire.post(address, "/vertex", {"instances": instances}).json()["predictions"]
    direct = good(address, "/generate", parameters=parameters)["generated_text"]
    assert text == direct and text.startswith(as_text(ADD))


# What is refused, and how

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OPENAI_REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"adapter_id": "mine"}, "adapter_id", "none is loaded, --lora-adapters loads some. Given: mine"),
    ({"suffix": "x"}, "suffix", "not supported"),
    ({"functions": [SCHEMA]}, "functions", "not supported yet"),
    (
        {"response_format": {"type": "json_object"}, "guided_json": SCHEMA},
        "guided_json",
        "`guided_json` and `response_format` must not both be given",
    ),
    (
        {"response_format": {"type": "yaml"}},
        "response_format",
        "`response_format.type` must be one of",
    ),
    ({"response_format": {"type": "json"}}, "response_format", "`response_format.value` is required"),
    ({"guided_json": 5}, "guided_json", "`guided_json` must be a JSON schema"),
    ({"logit_bias": {"5000": 1}}, "logit_bias", "token ids < 4096"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "<= 100"),
    ({"logit_bias": ["a"]}, "logit_bias", "must be an object"),
    ({"stop": [""]}, "stop", "empty string"),
    ({"stop": 5}, "stop", "a string or a list"),
    ({"stop_token_ids": [4096]}, "stop_token_ids", "< 4096"),
    ({"n": 1000}, "n", "--max-concurrent-requests"),
    ({"min_p": 1.5}, "min_p", "<= 1"),
    ({"ignore_eos": "yes"}, "ignore_eos", "true or false"),
    ({"max_completion_tokens": 9}, "max_completion_tokens", "must agree"),
]
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    *[(path, more, name, says) for path in (CHAT, COMPLETIONS) for more, name, says in OPENAI_REFUSED],
    (CHAT, {"tools": [TOOL], "tool_choice": "g"}, "tool_choice", "not in `tools`"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools", "`tools[0].function.name`"),
    (CHAT, {"tool_choice": "required"}, "tool_choice", "needs `tools`"),
    (CHAT, {"best_of": 2}, "best_of", "`n` is"),
    (CHAT, {"logprobs": 3}, "logprobs", "true or false"),
    (CHAT, {"chat_template_kwargs": []}, "chat_template_kwargs", "must be an object"),
    (CHAT, {"add_generation_prompt": 1}, "add_generation_prompt", "true or false"),
    (COMPLETIONS, {"prompt": [4096]}, "prompt", "< 4096"),
    (COMPLETIONS, {"prompt": [[5], []]}, "prompt", "cannot be empty"),
    (COMPLETIONS, {"logprobs": True}, "logprobs", "a whole number"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens", "unless `echo`"),
]


@pytest.mark.parametrize(("path", "more", "name", "says"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(
    address: wire.Address, path: str, more: dict[str, Any], name: str, says: str
) -> None:
    reply = wire.post(address, path, asked(path, **more))
    assert reply.status == 422, reply
    error = reply.json()["error"]
    assert error["param"] == name and says in error["message"], error


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"adapter_id": "mine"}, "`adapter_id` names no loaded adapter: none is loaded"),
        ({"grammar": {"type": "regex"}}, "`grammar.value` must be a string"),
        ({"grammar": {"type": "text"}}, "`grammar.type` must be one of"),
        ({"watermark": "yes"}, "`watermark` must be true or false"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_tgis_routes_refuse_the_same_way(
    address: wire.Address, path: str, parameters: dict[str, Any], says: str
) -> None:
    reply = wire.post(address, path, asked(path, parameters=parameters))
    assert reply.status == 422 and says in reply.json()["error"], reply


# What works on every route


def test_no_adapter_asked_for_is_no_error(address: wire.Address) -> None:
    good(address, "/generate", parameters={"adapter_id": None})
    good(address, CHAT, adapter_id=None, model="any-name")


def test_tools_that_may_not_be_used_are_no_hindrance(address: wire.Address) -> None:
    unused: list[dict[str, Any]] = [
        {"tools": []},
        {"tools": [TOOL], "tool_choice": "none"},
        {"response_format": {"type": "text"}},
    ]
    for more in unused:
        assert text_of(good(address, CHAT, **more)["choices"][0])


def test_stop_is_a_string_or_a_list(address: wire.Address) -> None:
    for path in (CHAT, COMPLETIONS):
        text = text_of(good(address, path)["choices"][0])
        word = text.split()[1]
        for stop in (word, [word], ["@@@", word]):
            choice = good(address, path, stop=stop)["choices"][0]
            assert text_of(choice) == text[: text.index(word)] and choice["finish_reason"] == "stop"


def test_a_bias_of_100_decides(address: wire.Address) -> None:
    token = wire.post(address, "/tokenize", {"inputs": "stone"}).json()[0]
    for path in (CHAT, COMPLETIONS):
        answer = good(address, path, logit_bias={str(token["id"]): 100}, max_tokens=3, presence_penalty=None)
        assert text_of(answer["choices"][0]).replace(" ", "") == token["text"].strip() * 3


def test_the_last_message_is_continued_unless_a_new_turn_is_asked_for(address: wire.Address) -> None:
    messages = [*user(REPEAT), {"role": "assistant", "content": "apple river"}]

    def templated(**more: Any) -> str:
        reply = wire.post(address, "/chat_tokenize", {"messages": messages, **more})
        assert reply.status == 200, reply
        return str(reply.json()["templated_text"])

    assert templated().endswith("apple river") and templated(continue_final_message=True).endswith(
        "apple river"
    )
    for more in ({"continue_final_message": False}, {"add_generation_prompt": True}):
        assert templated(**more).rstrip().endswith("<|im_start|>assistant"), more
    assert templated(continue_final_message=False, add_generation_prompt=False).rstrip().endswith(END)


def test_echo_with_alternatives_scores_prompt_and_text(exact: wire.Address) -> None:
    body = {
        "prompt": "apple river",
        "max_tokens": 2,
        "ignore_eos": True,
        "echo": True,
        "logprobs": 2,
        "temperature": 0,
    }
    choice = wire.post(exact, COMPLETIONS, body).json()["choices"][0]
    told = choice["logprobs"]
    assert len({len(told[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    assert "".join(told["tokens"]).startswith("apple river") and choice["text"].startswith("apple river")
    assert told["token_logprobs"][0] is None and all(value <= 0 for value in told["token_logprobs"][1:])
    assert told["top_logprobs"][0] is None
    entries = list(zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True))
    for token, logprob, top in entries[1:]:
        # As evaluation harnesses read it: greedy where the token is the most likely of its alternatives.
        assert top[token] == logprob <= max(top.values())
        assert len(top) == 2 or (len(top) == 3 and logprob == min(top.values()))
    for token, logprob, top in entries[-2:]:
        assert top[token] == logprob == max(top.values())

    only = wire.post(exact, COMPLETIONS, {**body, "max_tokens": 0}).json()["choices"][0]
    assert only["text"] == "apple river"
    assert only["logprobs"] == {name: values[:-2] for name, values in told.items()}

    with wire.Events(exact, COMPLETIONS, {**body, "stream": True}) as events:
        pieces = [json.loads(event)["choices"] for event in events if event != "[DONE]"]
    streamed = [choice["logprobs"] for (choice,) in pieces if choice["logprobs"]]
    assert {name: [entry for each in streamed for entry in each[name]] for name in told} == told


def test_several_prompts_as_text_and_as_tokens(address: wire.Address) -> None:
    texts = [as_text(ADD), as_text(REPEAT)]
    ids = [
        [token["id"] for token in wire.post(address, "/tokenize", {"inputs": text}).json()] for text in texts
    ]
    by_text = good(address, COMPLETIONS, prompt=texts)
    by_ids = good(address, COMPLETIONS, prompt=ids)
    assert [text_of(c) for c in by_text["choices"]] == [text_of(c) for c in by_ids["choices"]]
    assert by_text["usage"]["total_tokens"] == by_ids["usage"]["total_tokens"]
