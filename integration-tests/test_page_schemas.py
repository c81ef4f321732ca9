"""Schemas and tools on the chat page, in Chromium: answers that are checked against one, and calls whose results are typed in."""

from __future__ import annotations

import json
import shlex
from typing import Any

from playwright.sync_api import expect

from browser import CHAT, Chat, Open, body_of, pieces, told
from launched import Launched
from prompts import ADD

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city", "parameters": PLACE}


def test_an_answer_is_checked_against_its_schema(chat: Chat) -> None:
    chat.set("Schema of the answer", "{")
    expect(chat.page.locator("#set-response_format-wrong")).to_contain_text("Not JSON")
    chat.set("Schema of the answer", json.dumps(PLACE))
    expect(chat.page.locator("#set-response_format-wrong")).to_have_text("")
    with chat.page.expect_request(CHAT) as request:
        chat.ask("Name a city.")
    assert body_of(request.value)["response_format"]["json_schema"]["schema"] == PLACE
    expect(chat.answer.locator(".checked")).to_contain_text("It is what the schema says.")
    lines = chat.answer.locator(".checked details")
    expect(lines.locator("pre")).to_be_hidden()
    lines.locator("summary").focus()
    chat.page.keyboard.press("Enter")
    assert json.loads(lines.locator("pre").inner_text()) == json.loads(chat.words.inner_text())
    chat.page.reload()
    expect(chat.answer.locator(".checked")).to_contain_text("It is what the schema says.")


def test_what_a_schema_does_not_allow_is_told_with_its_place(chat: Chat) -> None:
    chat.set("Schema of the answer", json.dumps(PLACE))
    for answer, why in [
        ('{"city": "Paris", "days": 12}', "/days is too large"),
        ('{"days": 1}', 'the whole lacks "city"'),
        ('{"city": 5}', "/city is not string"),
        ('{"city": "Paris", "where": 1}', "/where must not be there"),
        ('{"city": "Pa', "This is not whole JSON"),
    ]:
        told(chat, pieces(answer))
        chat.ask("Name a city.")
        expect(chat.answer.locator(".checked")).to_contain_text(why)


# A schema, an answer to it, and what is wrong with that.
CHECKED: list[tuple[Any, Any, str]] = [
    ({"patternProperties": {"^x[0-9]$": {"type": "integer"}}, "additionalProperties": False}, {"x1": 5}, ""),
    (
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        {"x1": "5"},
        "/x1 is not integer",
    ),
    ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"y": 5}, "/y must not be there"),
    (
        {"properties": {"x": {"minimum": 2}}, "patternProperties": {"x": {"maximum": 3}}},
        {"x": 5},
        "/x is too large",
    ),
    ({"maximum": 10, "exclusiveMaximum": True}, 5, ""),
    ({"maximum": 10, "exclusiveMaximum": True}, 10, "the whole is too large"),
    ({"minimum": 2, "exclusiveMinimum": False}, 2, ""),
    ({"minimum": 2, "exclusiveMinimum": True}, 2, "the whole is too small"),
    ({"exclusiveMinimum": 0}, 0, "the whole is too small"),
    ({"properties": {"a": {"$ref": "#addr"}}, "$defs": {"addr": {"$anchor": "addr"}}}, {"a": "x"}, ""),
    ({"properties": {"a": {"$ref": "#"}}, "type": "object"}, {"a": 5}, "/a is not object"),
    ({"enum": [{"a": 1, "b": [{"c": 2, "d": 3}]}]}, {"b": [{"d": 3, "c": 2}], "a": 1}, ""),
    ({"const": {"a": 1}}, {"a": 2}, "the whole is not `const`"),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], "the whole has an item twice"),
    ({"$ref": "#/$defs/100%", "$defs": {"100%": {"type": "string"}}}, "a", ""),
    ({"$ref": "#/$defs/100%", "$defs": {"100%": {"type": "string"}}}, 5, "the whole is not string"),
    ({"items": [{"type": "string"}], "additionalItems": False}, ["a"], ""),
    ({"items": [{"type": "string"}], "additionalItems": False}, ["a", 1], "/1 must not be there"),
]


def test_the_check_reads_schemas_of_every_draft(chat: Chat) -> None:
    found = chat.page.evaluate(
        """async (all) => {
            const {check} = await import(new URL('page/schema.js', document.baseURI));
            return all.map(([schema, value]) => check(schema, value).wrong);
        }""",
        CHECKED,
    )
    for (schema, value, wrong), said in zip(CHECKED, found, strict=True):
        assert said == wrong, (schema, value)


def test_a_schema_that_cannot_be_checked_does_not_end_the_page(chat: Chat) -> None:
    told(chat, pieces("{}"))
    for schema in ({"required": 5}, {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}):
        chat.set("Schema of the answer", json.dumps(schema))
        chat.ask("x")
        expect(chat.answer.locator(".checked")).to_contain_text("It could not be checked")
    chat.set("Schema of the answer", "")
    chat.ask("x")
    expect(chat.button("Stop")).to_be_hidden()


def test_numbers_of_schemas_and_answers_stay_as_they_are(chat: Chat) -> None:
    most = 2**63 - 1
    schema = {"type": "integer", "maximum": most, "enum": [most], "default": None, "deprecated": True}
    parameters = {"type": "object", "properties": {"n": {"maximum": most}}}
    chat.set("Schema of the answer", json.dumps(schema))
    chat.set("Tools", json.dumps([{"name": "f", "parameters": parameters}]))
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": f'{{"n": {most}}}'}}
    told(chat, [*pieces(f"{most}"), {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}])
    with chat.page.expect_request(CHAT) as request:
        chat.ask("x")
    sent = body_of(request.value)
    assert sent["response_format"]["json_schema"]["schema"] == schema
    assert sent["tools"][0]["function"]["parameters"] == parameters
    assert json.loads(shlex.split(chat.copied("Copy as curl"))[-1]) == sent
    assert chat.copied("Copy as Python").count(f'"maximum": {most}') == 2
    expect(chat.answer.locator(".checked")).to_contain_text("It is what the schema says.")
    assert chat.answer.locator(".checked pre").text_content() == f"{most}"
    expect(chat.answer.locator(".call pre")).to_have_text(f'{{\n  "n": {most}\n}}')
    chat.page.reload()
    expect(chat.answer.locator(".checked")).to_contain_text("It is what the schema says.")


def test_a_tool_is_tried_with_a_typed_in_result(chat: Chat) -> None:
    chat.set("Temperature", 0)
    chat.set("Tools", json.dumps([WEATHER]))
    with chat.page.expect_request(CHAT) as request:
        chat.ask("What is the weather in Paris?")
    assert body_of(request.value)["tools"] == [{"type": "function", "function": WEATHER}]
    call = chat.answer.locator(".call")
    expect(call).to_contain_text("get_weather")
    given = json.loads(call.locator("pre").inner_text())
    assert given["city"]
    call.get_by_label("Result of get_weather").fill("Sunny, 21 degrees")
    chat.page.reload()
    expect(chat.answer.locator(".call")).to_contain_text("get_weather")
    expect(call.get_by_label("Result of get_weather")).to_have_value("Sunny, 21 degrees")
    with chat.page.expect_request(CHAT) as request:
        chat.button("Send result").click()
        chat.wait("done")
    asked = body_of(request.value)["messages"]
    assert [one["role"] for one in asked] == ["user", "assistant", "tool"]
    assert asked[2]["content"] == "Sunny, 21 degrees"
    assert asked[2]["tool_call_id"] == asked[1]["tool_calls"][0]["id"]
    assert json.loads(asked[1]["tool_calls"][0]["function"]["arguments"]) == given
    expect(chat.words).not_to_be_empty()
    # A result is not edited like a message, and the conversation goes on behind it.
    expect(chat.page.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    with chat.page.expect_request(CHAT) as request:
        chat.ask(ADD)
    assert [one["role"] for one in body_of(request.value)["messages"]][-2:] == ["assistant", "user"]


def test_schema_and_tools_fit_a_narrow_screen(open_page: Open, server: Launched) -> None:
    chat = open_page(server.url, viewport={"width": 360, "height": 640})
    chat.button("Settings").click()
    chat.page.get_by_label("Tools", exact=True).fill("[]")
    width = chat.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, f"the page is {width} wide"
