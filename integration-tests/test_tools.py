"""Calls of tools over HTTP with the shipped model, which writes them as Hermes' models do: chosen by the model, made to,
streamed and whole, in a conversation, and with what a client may get wrong. Formats of other models are tested in
`router/output`, and each from request to answer in `router/tests/http/tool_calls.rs`; here a template makes the shipped model's text mean theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wire
from checkpoints import SHIPPED, random_llama
from conftest import Launch
from launched import EXACT, Launched

CHAT = "/v1/chat/completions"


def tool(name: str, description: str, **kinds: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(kinds),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = tool("get_weather", "Get the weather in a city", city="string")
ADD = tool("add", "Add two numbers", a="integer", b="integer")
TOOLS = [WEATHER, ADD]
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
ASKS_NOTHING = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("tools"), "--max-best-of", "4") as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def address(server: Launched) -> wire.Address:
    return server.address


def body(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 100, **more}


def ask(address: wire.Address, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    reply = wire.post(address, CHAT, body(messages, **more))
    assert reply.status == 200, reply
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def chunks_of(address: wire.Address, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with wire.Events(address, CHAT, {**asked, "stream": True}) as events:
        assert events.status == 200, events.read()
        for data in events:
            if data != "[DONE]":
                yield from json.loads(data)["choices"]


def streamed(address: wire.Address, messages: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    return list(chunks_of(address, body(messages, **more)))


def put_together(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the chunks of one choice are, as OpenAI's clients make it, and why it ended."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        delta = chunk["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or []:
            if call["index"] == len(message["tool_calls"]):
                assert call["id"] and call["function"]["name"]
                message["tool_calls"].append(
                    {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                )
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return {**message, "finish_reason": chunks[-1]["finish_reason"]}


def called(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_the_model_chooses_to_call(address: wire.Address) -> None:
    choice = ask(address, ASKS_WEATHER)
    assert called(choice) == [("get_weather", {"city": "Paris"})]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["index"] == 0 and call["id"].startswith("call_")


def test_or_it_answers(address: wire.Address) -> None:
    choice = ask(address, ASKS_NOTHING)
    assert choice["message"]["content"] and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    without = wire.post(address, CHAT, {"messages": ASKS_WEATHER, "temperature": 0, "max_tokens": 20}).json()
    assert without["choices"][0]["message"]["content"]


def test_a_stream_is_the_same(address: wire.Address) -> None:
    for messages in (ASKS_WEATHER, ASKS_NOTHING):
        whole, chunks = ask(address, messages), streamed(address, messages)
        message = put_together(chunks)
        assert message["finish_reason"] == whole["finish_reason"]
        assert message["content"] == (whole["message"]["content"] or "")
        calls = [(call["name"], json.loads(call["arguments"])) for call in message["tool_calls"]]
        assert calls == called(whole)
        assert chunks[0]["delta"] == {"role": "assistant", "content": ""}
    parts = [
        call for chunk in streamed(address, ASKS_WEATHER) for call in chunk["delta"].get("tool_calls", [])
    ]
    assert len(parts) > 2, "arguments come as they are written"
    assert [("id" in part, "name" in part["function"]) for part in parts] == [
        (True, True),
        *[(False, False)] * (len(parts) - 1),
    ]


def test_a_round_of_call_result_and_answer(address: wire.Address) -> None:
    choice = ask(address, ASKS_WEATHER)
    message = choice["message"]
    result = json.dumps({"temperature": 21, "condition": "sunny"})
    conversation = [
        *ASKS_WEATHER,
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": result},
    ]
    answer = ask(address, conversation)
    assert "21" in answer["message"]["content"] and answer["finish_reason"] == "stop"


@pytest.mark.parametrize("messages", [ASKS_WEATHER, ASKS_NOTHING])
@pytest.mark.parametrize("choice", ["required", "add", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_has_to_be(address: wire.Address, messages: list[dict[str, Any]], choice: Any) -> None:
    answer = ask(address, messages, tool_choice=choice)
    ((name, arguments), *_) = called(answer)
    assert answer["finish_reason"] == "tool_calls"
    if choice != "required":
        assert name == "add" and len(called(answer)) == 1
    if name == "add":
        assert isinstance(arguments["a"], int) and isinstance(arguments["b"], int)
    chunks = put_together(streamed(address, messages, tool_choice=choice))
    assert [(call["name"], json.loads(call["arguments"])) for call in chunks["tool_calls"]] == called(answer)


def test_random_texts_call_rightly_too(address: wire.Address) -> None:
    """At a temperature where this model writes nonsense, what is called fits its schema."""
    schemas = {tool["function"]["name"]: set(tool["function"]["parameters"]["required"]) for tool in TOOLS}
    seen = set()
    for seed in range(12):
        for choice in ("required", "auto"):
            # Enough tokens that nothing is cut.
            answer = ask(
                address, ASKS_WEATHER, tool_choice=choice, temperature=1.6, seed=seed, max_tokens=400
            )
            if answer["finish_reason"] == "length":
                continue
            for name, arguments in called(answer):
                assert set(arguments) == schemas[name], (seed, choice, answer)
                seen.add(choice)
            assert choice == "auto" or called(answer)
    assert seen == {"required", "auto"}


def test_allowed_tools_and_none(address: wire.Address) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}
    choice = ask(address, ASKS_WEATHER, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert {name for name, _ in called(choice)} == {"add"}
    assert not called(ask(address, ASKS_WEATHER, tool_choice="none"))


def test_one_call_at_a_time(address: wire.Address) -> None:
    several = ask(address, ASKS_NOTHING, tool_choice="required", temperature=1.2, seed=5, max_tokens=300)
    assert called(several)
    single = ask(
        address,
        ASKS_NOTHING,
        tool_choice="required",
        temperature=1.2,
        seed=5,
        max_tokens=300,
        parallel_tool_calls=False,
    )
    assert len(called(single)) == 1


def test_a_call_that_is_cut_off_ends_for_length(address: wire.Address) -> None:
    whole = ask(address, ASKS_WEATHER)["message"]["tool_calls"][0]["function"]["arguments"]
    for tokens in range(8, 30):
        choice = ask(address, ASKS_WEATHER, max_tokens=tokens)
        calls = choice["message"].get("tool_calls", [])
        if choice["finish_reason"] != "length":
            break
        if calls:
            arguments = calls[0]["function"]["arguments"]
            assert whole.startswith(arguments) or arguments.startswith(whole)
    else:
        pytest.fail("it never ended by itself")


def test_several_answers_and_log_probabilities(address: wire.Address) -> None:
    reply = wire.post(address, CHAT, body(ASKS_WEATHER, n=2, temperature=0.5, seed=3, logprobs=True)).json()
    ids = [call["id"] for choice in reply["choices"] for call in choice["message"].get("tool_calls", [])]
    assert len(ids) == len(set(ids)) >= 1
    for choice in reply["choices"]:
        assert len(choice["logprobs"]["content"]) > 5
    whole = ask(address, ASKS_WEATHER, logprobs=True)["logprobs"]["content"]
    chunks = streamed(address, ASKS_WEATHER, logprobs=True)
    entries = [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]]
    assert entries == whole, "of every token once, also where its text is held back"


def test_text_beside_tools_may_have_a_format(address: wire.Address) -> None:
    schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = ask(address, ASKS_NOTHING, response_format=format)
    if called(choice):
        assert choice["finish_reason"] == "tool_calls"
    else:
        assert json.loads(choice["message"]["content"])["mood"] in ("good", "bad")
    assert called(ask(address, ASKS_WEATHER, response_format=format)) == [("get_weather", {"city": "Paris"})]


def test_tgis_shapes(address: wire.Address) -> None:
    """`arguments` for the schema, a function's name as `tool_choice`, `tool_prompt`."""
    schema = WEATHER["function"]["parameters"]
    tools = [
        {
            "type": "function",
            "function": {"name": "get_weather", "description": "Weather", "arguments": schema},
        }
    ]
    choice = ask(address, ASKS_WEATHER, tools=tools, tool_choice="get_weather", tool_prompt="Call it.")
    assert called(choice)[0][0] == "get_weather" and set(called(choice)[0][1]) == {"city"}


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", '`tools[0].type` must be "function"'),
        ({"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar":
            {"syntax": "lark", "definition": "start: nothing"}}}}]}, "tools", "/0/custom/format/grammar/definition 1:8"),
        ({"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar":
            {"syntax": "ebnf", "definition": "x"}}}}]}, "tools", "`tools[0].custom.format.grammar.syntax` must be lark or regex"),
        ({"tools": [tool("a b", "")]}, "tools", "letters, digits"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "same as another"),
        ({"tools": [tool(f"f{n}", "") for n in range(1025)]}, "tools", "at most 1024"),
        ({"tool_choice": "fly"}, "tool_choice", "not in `tools`: fly"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "must be"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/nowhere"}}}],
             "tool_choice": "f"},
            "tools",
            "/0/function/parameters",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages", "`messages[0].tool_calls[0].function.name`"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages", "`messages[0].tool_calls` must be a list"),
        ({"response_format": {"type": "lark", "value": 'start: "x"'}}, "response_format", "beside `tools`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(address: wire.Address, more: dict[str, Any], param: str, says: str) -> None:
    reply = wire.post(address, CHAT, {**body(ASKS_WEATHER), **more})
    assert reply.status == 422, reply
    error = reply.json()["error"]
    assert error["param"] == param and says in error["message"], error


def test_one_seed_has_one_text_whatever_else_is_served(exact: wire.Address) -> None:
    """At this temperature every other text has what may begin a marker."""
    asks = [{"role": "user", "content": "Tell me of <b>rivers</b>, and the weather in Paris."}]

    def answer(seed: int) -> tuple[str | None, list[Any]]:
        message = ask(exact, asks, temperature=3.0, seed=seed, max_tokens=80)["message"]
        return message["content"], [call["function"] for call in message.get("tool_calls") or []]

    alone = [answer(seed) for seed in range(6)]
    with ThreadPoolExecutor(max_workers=6) as pool:
        for _ in range(3):
            assert list(pool.map(answer, range(6))) == alone


SUM = """start: NUMBER ((PLUS | LINE) NUMBER) ~ 1..2
NUMBER: /[1-9][0-9]{0,1}/
PLUS: " + "
LINE: "\\n\\"+\\" "
"""
IS_SUM = re.compile(r'[1-9][0-9]?(( \+ |\n"\+" )[1-9][0-9]?){1,2}')


@pytest.mark.parametrize("temperature", [0, 2])
def test_a_custom_tool_takes_a_text_of_its_grammar(address: wire.Address, temperature: float) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": SUM}}
    custom = {"type": "custom", "custom": {"name": "sum", "description": "Adds", "format": form}}
    more = {
        "tools": [custom, WEATHER],
        "tool_choice": {"type": "custom", "custom": {"name": "sum"}},
        "seed": 5,
    }
    for seed in range(3):
        asked = {**more, "temperature": temperature, "seed": seed}
        choice = ask(address, ASKS_NOTHING, **asked)
        (call,) = choice["message"]["tool_calls"]
        assert call["type"] == "custom" and call["custom"]["name"] == "sum" and "function" not in call
        assert IS_SUM.fullmatch(call["custom"]["input"]), call
        assert choice["finish_reason"] == "tool_calls"
        deltas = [chunk["delta"] for chunk in streamed(address, ASKS_NOTHING, **asked)]
        (told,) = [call for delta in deltas for call in delta.get("tool_calls") or []]
        assert told["custom"] == call["custom"] and told["type"] == "custom" and told["id"]
    messages: list[dict[str, Any]] = [
        *ASKS_NOTHING,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "5"},
    ]
    assert ask(address, messages, **{**more, "tool_choice": "none"})["message"]["content"]


def test_many_tools(address: wire.Address) -> None:
    tools = [tool(f"tool_{n}", "") for n in range(40)] + [WEATHER]
    assert called(ask(address, ASKS_WEATHER, tools=tools, tool_choice="get_weather"))[0][0] == "get_weather"


def test_a_thousand_tools(launch: Launch, tmp_path: Path) -> None:
    """They are within the limit of their number, and a prompt that they make too long is refused as such."""
    folder = random_llama(tmp_path / "model", hidden=32, layers=1, heads=2, kv_heads=1, positions=1 << 16)
    address = launch("--model-id", str(folder)).wait_ready().address
    thousand: dict[str, Any] = {"tools": [tool(f"tool_{n}", "", a="boolean") for n in range(1000)]}
    forced = ask(address, ASKS_WEATHER, **thousand, tool_choice="tool_999", max_tokens=200)
    assert [(name, set(arguments)) for name, arguments in called(forced)] == [("tool_999", {"a"})]
    # One call of any is ended by whoever writes the first: this model writes one after the other.
    several = ask(
        address, ASKS_WEATHER, **thousand, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    ((name, _),) = called(several)
    assert re.fullmatch("tool_[0-9]{1,3}", name)


def test_tools_count_as_part_of_the_prompt(address: wire.Address) -> None:
    tools = [tool(f"tool_{n}", "", a="boolean") for n in range(1000)]
    reply = wire.post(address, CHAT, body(ASKS_WEATHER, tools=tools))
    assert reply.status == 422 and reply.json()["error"]["param"] == "messages", reply
    assert "tokens. Given: more than" in reply.json()["error"]["message"], reply


def test_arguments_of_earlier_calls_may_be_no_json(address: wire.Address) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{not json"}}
    messages: list[dict[str, Any]] = [*ASKS_WEATHER, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "sunny"}]  # fmt: skip
    assert ask(address, messages)["finish_reason"] in ("stop", "length", "tool_calls")


def test_a_schema_that_cannot_be_compiled_binds_only_where_it_must(address: wire.Address) -> None:
    odd = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "unevaluatedProperties": {"not": {"$ref": "#/x"}},
    }
    tools = [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": odd}}
    ]
    assert ask(address, ASKS_WEATHER, tools=tools)["message"]
    strict = json.loads(json.dumps(tools))
    strict[0]["function"]["strict"] = True
    reply = wire.post(address, CHAT, body(ASKS_WEATHER, tools=strict))
    assert reply.status == 422 and reply.json()["error"]["param"] == "tools", reply


def test_a_killed_worker_costs_a_call_nothing(launch: Launch) -> None:
    server = launch(*EXACT).wait_ready()
    words = {"type": "string", "pattern": "^([a-z]{3,9} ){60}$"}
    parameters = {"type": "object", "properties": {"words": words}, "required": ["words"]}
    note = {"name": "take_note", "description": "Writes words down", "parameters": parameters}
    forced: dict[str, Any] = {
        "tools": [{"type": "function", "function": note}],
        "tool_choice": "required",
        "temperature": 1.2,
        "seed": 8,
        "max_tokens": 600,
    }
    alone = ask(server.address, ASKS_WEATHER, **forced)
    for kill in server.interruptions():
        chunks = []
        for count, chunk in enumerate(chunks_of(server.address, body(ASKS_WEATHER, **forced))):
            chunks.append(chunk)
            if count == 10:
                kill()
        calls = [(call["name"], json.loads(call["arguments"])) for call in put_together(chunks)["tool_calls"]]
        assert calls == called(alone) and len(calls[0][1]["words"].split()) == 60


def test_calls_are_counted(server: Launched, address: wire.Address) -> None:
    def counted() -> list[float]:
        seen = server.metrics()
        return [seen.value("penstock_tool_calls", outcome=outcome) for outcome in ("complete", "incomplete")]

    complete, incomplete = counted()
    ask(address, ASKS_WEATHER)
    assert counted() == [complete + 1, incomplete]
    answers = (ask(address, ASKS_WEATHER, max_tokens=tokens) for tokens in range(8, 30))
    cut = next(answer for answer in answers if "tool_calls" in answer["message"])
    assert cut["finish_reason"] == "length"
    assert counted() == [complete + 1, incomplete + 1]


# Other models' formats, by their templates


def with_template(folder: Path, template: str) -> str:
    """The file for `--tokenizer-config-path` that gives the shipped model another chat template."""
    config = json.loads((SHIPPED / "tokenizer_config.json").read_text())
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**config, "chat_template": template}))
    return str(path)


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def in_a_few_cities() -> dict[str, Any]:
    """`WEATHER`, without a text that has to find its end."""
    parameters = {**WEATHER["function"]["parameters"], "properties": {"city": {"enum": ["Paris", "Oslo"]}}}
    return {"type": "function", "function": {**WEATHER["function"], "parameters": parameters}}


def test_reasoning_is_told_apart(launch: Launch, tmp_path: Path) -> None:
    """The template opens reasoning, so that all is reasoning until a marker that this model never writes."""
    config = with_template(tmp_path, TURNS + "<think>\n{# </think> #}")
    address = launch("--tokenizer-config-path", config).wait_ready().address
    asked = {"messages": ASKS_NOTHING, "temperature": 0, "max_tokens": 20}
    message = wire.post(address, CHAT, asked).json()["choices"][0]["message"]
    assert message["content"] == "" and message["reasoning_content"] == message["reasoning"] != ""
    assert put_together(list(chunks_of(address, asked)))["reasoning_content"] == message["reasoning_content"]
    # Made to call, it ends its thoughts first: with luck, drawing from the tokens of the marker alone.
    tokens = wire.post(address, "/tokenize", {"inputs": "</think>"}).json()
    drawn = {
        "tool_choice": "get_weather",
        "tools": [in_a_few_cities()],
        "logit_bias": {str(token["id"]): 100 for token in tokens},
        "max_tokens": 800,
        "temperature": 10.0,
    }
    forced = (ask(address, ASKS_WEATHER, **drawn, seed=seed) for seed in range(5))
    ended = next(choice for choice in forced if choice["finish_reason"] != "length")
    assert set(called(ended)[0][1]) == {"city"} and ended["message"]["reasoning_content"], ended


def test_a_template_without_a_place_for_tools(launch: Launch, tmp_path: Path) -> None:
    """The tools stand behind the last message, and calls are JSON."""
    address = launch("--tokenizer-config-path", with_template(tmp_path, TURNS)).wait_ready().address
    text = wire.post(address, "/chat_tokenize", {"messages": ASKS_WEATHER, "tools": TOOLS}).json()[
        "templated_text"
    ]
    assert "get_weather" in text and "JSON list of calls" in text
    forced = ask(address, ASKS_WEATHER, tool_choice="get_weather", max_tokens=300)
    assert called(forced)[0][0] == "get_weather" and not forced["message"]["content"]


# One in JSON, one in XML, one in Python.
KINDS = ("llama3_json", "qwen3_coder", "pythonic")
REST = ("mistral", "deepseek_v31", "deepseek_v32", "glm45", "kimi_k2", "gemma4")


@pytest.mark.parametrize(
    "parser", [*KINDS, *(pytest.param(parser, marks=pytest.mark.tail) for parser in REST)]
)
def test_a_call_is_right_in_every_kind_of_format(launch: Launch, parser: str) -> None:
    address = launch("--tool-call-parser", parser).wait_ready().address
    ended = 0
    for seed in range(3):
        forced = ask(address, ASKS_NOTHING, tool_choice="add", temperature=1.3, seed=seed, max_tokens=200)
        if forced["finish_reason"] != "length":
            ((name, arguments),) = called(forced)
            assert name == "add" and set(arguments) == {"a", "b"}
            ended += 1
    assert ended, "all were cut off"
    # The model has not learned most of these formats, and may not find the end of a free text in them.
    chosen = ask(address, ASKS_WEATHER, tool_choice="get_weather", tools=[in_a_few_cities()])
    (call,) = chosen["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}
    begins = {"mistral": "", "kimi_k2": "functions.get_weather:0"}.get(parser, "call_")
    assert call["id"].startswith(begins) and (parser != "mistral" or len(call["id"]) == 9)


def test_formats_by_flags(launch: Launch) -> None:
    address = launch("--tool-call-parser", "none", "--reasoning-parser", "none").wait_ready().address
    choice = ask(address, ASKS_WEATHER)
    assert choice["message"]["content"].startswith("<tool_call>") and not called(choice)
    reply = wire.post(address, CHAT, body(ASKS_WEATHER, tool_choice="required"))
    assert reply.status == 422 and "--tool-call-parser none" in reply.json()["error"]["message"]


def test_an_unknown_format_is_refused_with_those_there_are(launch: Launch) -> None:
    server = launch("--tool-call-parser", "pigeon")
    assert server.wait_ended() == 2
    assert "no such format of tool calls; known: harmony, " in server.stderr()
