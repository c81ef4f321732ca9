"""Random schemas, and texts that the served model draws under them at temperature 2: Python's `jsonschema`, which knows
nothing of our grammars, has to find every text valid. `make test-all` draws 2,400, of which at most every tenth
is cut off; `-k some` draws 100.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import wire

CHAT = "/v1/chat/completions"
MAX_TOKENS = 300
NAMES = ("id", "name", "größe", "a b", "x-y", "$ref_", "tags", "0", 'quo"te', "back\\slash")
WORDS = ("red", "a b", "é", 'say "x"', "back\\slash", "new\nline", "", "7", "null")
PATTERNS = ("^[a-z]{1,6}$", "^(ab|c)*d?$", "[0-9]", r"^\d{3}-\d{2}$", "^[^<>]{0,5}$", "x|y$")
FORMATS = ("date", "time", "uuid", "ipv4", "date-time", "email")


class Generator:
    """Schemas of small values, so that a model that draws wildly comes to their end."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.definitions: dict[str, Any] = {}

    def schema(self) -> dict[str, Any]:
        schema = self.value(0)
        return {**schema, "$defs": self.definitions} if self.definitions else schema

    def value(self, depth: int) -> dict[str, Any]:
        random = self.random
        kinds: list[Callable[[int], dict[str, Any]]] = [
            self.integer,
            self.number,
            self.string,
            self.listed,
            self.plain,
        ]
        if depth < 3:
            kinds += [self.array, self.object, self.object, self.either, self.defined]
        schema = random.choice(kinds)(depth)
        if random.random() < 0.2:
            schema["description"] = "What it is, in } words"
        return schema

    def plain(self, _: int) -> dict[str, Any]:
        return {"type": self.random.choice(["boolean", "null", ["boolean", "null"]])}

    def integer(self, _: int) -> dict[str, Any]:
        low = self.random.randint(-1000, 1000)
        high = low + self.random.choice([0, 1, 9, 500])
        schema = {"type": "integer", "minimum": low, "maximum": high}
        if self.random.random() < 0.2 and high - low > 20:
            schema["multipleOf"] = self.random.choice([2, 3, 7])
        return schema

    def number(self, _: int) -> dict[str, Any]:
        low = self.random.randint(-50, 50) / 4
        bounds = self.random.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
        return {"type": "number", bounds[0]: low, bounds[1]: low + self.random.choice([0.5, 3, 100])}

    def string(self, _: int) -> dict[str, Any]:
        kind = self.random.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self.random.choice(PATTERNS), "maxLength": 12}
        if kind == 1:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        least = self.random.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + self.random.randint(0, 8)}

    def listed(self, _: int) -> dict[str, Any]:
        values: list[Any] = [*WORDS, 1, -2.5, None, True, [1, "x"], {"a": {}}]
        chosen = self.random.sample(values, self.random.randint(1, 4))
        return {"const": chosen[0]} if len(chosen) == 1 else {"enum": chosen}

    def array(self, depth: int) -> dict[str, Any]:
        least = self.random.randint(0, 2)
        schema: dict[str, Any] = {"type": "array", "items": self.value(depth + 1)}
        schema |= {"minItems": least, "maxItems": least + self.random.randint(0, 2)}
        if self.random.random() < 0.2:
            schema["prefixItems"] = [self.value(depth + 2)]
        return schema

    def object(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randint(0, 4))
        required = [name for name in names if self.random.random() < 0.6]
        properties = {name: self.value(depth + 1) for name in names}
        schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        return {**schema, "additionalProperties": False}

    def either(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.value(depth + 1) for _ in range(self.random.randint(2, 3))]}

    def defined(self, depth: int) -> dict[str, Any]:
        name = f"d{len(self.definitions)}"
        self.definitions[name] = {}
        self.definitions[name] = self.value(depth + 1)
        return {"$ref": f"#/$defs/{name}"}


def draw(address: wire.Address, seed: int) -> str | None:
    """What is wrong with the pair of this seed; `None`: nothing. "cut" where the text did not come to its end."""
    schema = Generator(seed).schema()
    Draft202012Validator.check_schema(schema)
    body = {
        "messages": [{"role": "user", "content": f"Write a value, {seed}."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "value", "schema": schema}},
        "temperature": 2,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
    }
    reply = wire.post(address, CHAT, body, timeout=120)
    if reply.status != 200:
        return f"{seed}: {reply.status} {reply.text} for {json.dumps(schema)}"
    choice = reply.json()["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut"
    text = choice["message"]["content"]
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return f"{seed}: {error}: {text!r} for {json.dumps(schema)}"
    checker = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    wrong = next(iter(checker.iter_errors(value)), None)
    return wrong and f"{seed}: {wrong.message}: {text!r} for {json.dumps(schema)}"


@pytest.mark.tail
@pytest.mark.parametrize("seeds", [range(100), range(100, 2400)], ids=["some", "all"])
def test_what_is_drawn_at_temperature_two_is_valid(address: wire.Address, seeds: range) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda seed: draw(address, seed), seeds))
    wrong = [one for one in found if one not in (None, "cut")]
    assert not wrong, "\n".join(str(one) for one in wrong[:5])
    cut = found.count("cut")
    assert cut <= len(seeds) // 10, f"{cut} of {len(seeds)} texts did not end within {MAX_TOKENS} tokens"
