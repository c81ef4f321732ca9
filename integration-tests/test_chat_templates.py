# ruff: noqa: RUF001 (texts that only look like others are the point)
"""Chat templates, byte for byte against transformers in the same run.

chat_templates/ has templates of the shapes that the model families use, in words of our own, and
chat_expressions.txt the expressions, filters and tags one by one. Every template meets every chat. One process
of the router's renderer (router/core/examples/render_chats.rs) renders them all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerFast

HERE = Path(__file__).parent
FAST: Any = PreTrainedTokenizerFast  # has no types
ROOT = HERE.parent
TEMPLATES = {file.stem: file.read_text() for file in sorted((HERE / "chat_templates").glob("*.jinja"))}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

Message = dict[str, Any]


def said(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, identity: str = "abcdef123") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = said("system", "Be brief.\n")
USER = said("user", " What is 1+1? ")
ANSWER = said("assistant", "It is 2. ")
THOUGHT = said("assistant", "<think>\nhm, é\n</think>\n\nIt is 2.")
CALLS = said(
    "assistant",
    None,
    tool_calls=[
        call("add", {"a": 1, "b": 2.50, "é": "<ü> 'x' \"y\"", "list": [True, None, {"k": 1e-7}]}),
        call("now", {}, "abcdef124"),
    ],
)
CALL = said("assistant", "", tool_calls=[call("add", {"a": 1, "b": "two"})])
RESULT = said("tool", '{"sum": 3}', tool_call_id="abcdef123", name="add")
PARTS = said("user", [{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": " two"}])
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds numbers & more.\nTwo lines, é.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "number", "description": "the first"},
                    "b": {"type": ["integer", "null"], "default": 1.0},
                    "list": {"type": "array", "items": {"type": "string"}},
                    "items": {"type": "object", "additionalProperties": {"type": "boolean"}},
                    "mode": {"type": "string", "enum": ["x", "y"], "default": "x", "description": "how"},
                    "any": {"oneOf": [{"type": "string"}, {"type": "number", "default": 0}]},
                },
                "required": ["a"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

CHATS: dict[str, list[Message]] = {
    "plain": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, said("user", "And 2+2?"), said("assistant", "4"), USER],
    "answered": [USER, ANSWER],
    "unicode": [
        said("system", "Ünïcødé 漢字\u3000"),
        said("user", "👩‍👩‍👧‍👦 \u200bشكرا\u00a0\u2028 \x1f<|im_end|>\t{{ x }}"),
    ],
    "empty": [said("user", "")],
    "empty system": [said("system", ""), said("user", "\n\n a \n\n b\r\n\r\nc\n")],
    "thought": [USER, THOUGHT, said("user", "Why?")],
    "thought last": [SYSTEM, USER, THOUGHT],
    "reasoned": [USER, said("assistant", "2", reasoning="\n1 and 1\n"), USER],
    "call": [USER, CALL],
    "called": [SYSTEM, USER, CALL, RESULT],
    "called and answered": [USER, CALL, RESULT, ANSWER, said("user", "/no_think thanks")],
    "calls without words": [USER, CALLS, RESULT, said("tool", "noon", tool_call_id="abcdef124"), ANSWER],
    "result of parts": [USER, CALL, said("tool", [{"sum": 2.0, "é": None}], tool_call_id="abcdef123")],
    "parts": [SYSTEM, PARTS],
    "parts of the system": [said("system", [{"type": "text", "text": "Be brief."}]), PARTS, ANSWER],
    "two users": [said("user", "a"), said("user", "b")],
    "unknown role": [said("critic", "no"), said("user", "b")],
    "named": [said("user", "hi", name="Ann", extra={"z": [1, 2.5, True, None], "a": {}})],
    "no content": [{"role": "user"}],
}

# What is asked beside the chat. `tools` and `documents` are arguments, the rest are variables of the template.
OPTIONS: dict[str, dict[str, Any]] = {
    "prompt": {"add_generation_prompt": True},
    "no prompt": {"add_generation_prompt": False},
    "continued": {"continue_final_message": True},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "no thinking": {
        "add_generation_prompt": True,
        "enable_thinking": False,
        "date_string": "today",
        "bos_token": "<b>",
    },
    "documents": {
        "add_generation_prompt": True,
        "thinking": True,
        "documents": [
            {"doc_id": 1, "title": "One", "text": "The first document is long."},
            {"doc_id": 2, "text": "Ü"},
        ],
        "controls": {"citations": True, "length": None},
    },
    "tools elsewhere": {
        "tools": TOOLS[:1],
        "tools_in_user_message": False,
        "builtin_tools": ["search", "code_interpreter"],
    },
}


@dataclass(frozen=True)
class Case:
    name: str
    folder: str
    messages: list[Message]
    options: dict[str, Any]

    def for_router(self) -> dict[str, Any]:
        known = ("add_generation_prompt", "continue_final_message", "tools")
        return {
            "folder": self.folder,
            "messages": self.messages,
            # Unlike transformers, the router guesses what it is not told.
            "add_generation_prompt": self.options.get("add_generation_prompt", False),
            "continue_final_message": self.options.get("continue_final_message", False),
            "tools": self.options.get("tools"),
            "variables": {name: value for name, value in self.options.items() if name not in known},
        }

    def expected(self, tokenizer: Any) -> tuple[str | None, str]:
        """The text, or None and why there is none."""
        try:
            return str(tokenizer.apply_chat_template(self.messages, tokenize=False, **self.options)), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


def render(
    folders: dict[str, Path], cases: list[Case], configs: dict[str, Path] | None = None
) -> list[dict[str, str]]:
    """What the router makes of the cases."""
    # With the features of the whole workspace, which is how the tests of the router have built it.
    command = ["cargo", "build", "--quiet", "--locked", "--workspace", "--example", "render_chats"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    asked = {
        "folders": {name: str(folder) for name, folder in folders.items()},
        "configs": {name: str(file) for name, file in (configs or {}).items()},
        "cases": [case.for_router() for case in cases],
    }
    done = subprocess.run(
        [str(ROOT / target / "debug" / "examples" / "render_chats")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, str]] = json.loads(done.stdout)
    assert len(results) == len(cases)
    return results


def model_folder(folder: Path, files: dict[str, str]) -> Path:
    """A folder with a tokenizer of one token, and these files."""
    folder.mkdir(parents=True)
    tokenizer: Any = FAST(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), **TOKENS)
    tokenizer.save_pretrained(folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, newline="")
    return folder


def differences(
    cases: list[Case], results: list[dict[str, str]], tokenizers: dict[str, Any]
) -> Iterator[str]:
    for case, result in zip(cases, results, strict=True):
        expected, why = case.expected(tokenizers[case.folder])
        if result.get("text") != expected:
            yield f"{case.name}\n  ours:         {result}\n  transformers: {expected!r} {why}"
        # What a template raises is for the client, word for word.
        elif why.startswith("TemplateError: ") and result["error"] != why.removeprefix("TemplateError: "):
            yield f"{case.name}\n  ours:         {result}\n  transformers: {why}"


def assert_none(found: Iterator[str]) -> None:
    listed = list(found)
    assert not listed, f"{len(listed)} differences\n" + "\n".join(listed[:20])


def test_every_template_renders_every_chat_as_transformers_does(tmp_path: Path) -> None:
    assert len(TEMPLATES) >= 40
    folders = {
        name: model_folder(tmp_path / name, {"chat_template.jinja": text}) for name, text in TEMPLATES.items()
    }
    tokenizers = {name: AutoTokenizer.from_pretrained(folder) for name, folder in folders.items()}
    cases = [
        Case(f"{template}, {chat}, {options}", template, CHATS[chat], OPTIONS[options])
        for template in TEMPLATES
        for chat in CHATS
        for options in OPTIONS
    ]
    results = render(folders, cases)
    assert_none(differences(cases, results, tokenizers))
    rendered = sum("text" in result for result in results)
    assert rendered > 4000, f"only {rendered} of {len(cases)} are rendered"


VARIABLES: dict[str, Any] = {
    "s": "Hello, World",
    "u": "é😀<&>\"'\n\u200d",
    "n": None,
    "t": True,
    "f": False,
    "i": -7,
    "x": 2.5,
    "l": [3, 1, 2],
    "e": [],
    "d": {"b": 1, "a": "x", "items": 3, "C": None},
    "ll": [[1, "a"], [2, "b"]],
    "m": [
        {"role": "user", "content": "hi", "n": 2},
        {"role": "assistant", "content": "yo", "n": 1},
        {"role": "user", "content": None},
    ],
    "big": 123456789012345680.0,
    "floats": [0.1, 1e22, 1.5e-7, 123456.789, -2.0, 1e16],
    "text": "  a b  c \n d\t",
    "nested": {"a": [1, {"b": [True, None, 1.5, "q\"'"]}], "z": {}},
    "tags": "a,b,,c",
}


def expressions() -> list[str]:
    """One template a line; `\\n` and `\\r` after a `\\\\` at the beginning of a line are line ends."""
    lines = (HERE / "chat_expressions.txt").read_text().splitlines()
    return [
        line[1:].replace("⏎", "\n").replace("␍", "\r") if line.startswith("\\") else line
        for line in lines
        if line and not line.startswith("# ")
    ]


def test_every_expression_gives_what_it_gives_in_python(tmp_path: Path) -> None:
    templates = {str(number): text for number, text in enumerate(expressions())}
    assert len(templates) > 150
    # As named templates of one model, so that one folder holds them all.
    named = [{"name": "default", "template": ""}] + [
        {"name": name, "template": text} for name, text in templates.items()
    ]
    folder = model_folder(tmp_path / "model", {})
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({**json.loads((folder / "tokenizer_config.json").read_text()), "chat_template": named})
    )
    cases = [
        Case(repr(text), "model", [said("user", "hi")], {**VARIABLES, "chat_template": name})
        for name, text in templates.items()
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = {entry["name"]: entry["template"] for entry in named}
    results = render({"model": folder}, cases, {"model": config})
    assert_none(differences(cases, results, {"model": tokenizer}))


def test_files_go_before_each_other_as_in_transformers(tmp_path: Path) -> None:
    def config(template: Any) -> str:
        return json.dumps({**TOKENS, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})

    named = [{"name": name, "template": f"{name} of the list"} for name in ("default", "tool_use", "rag")]
    layouts: dict[str, dict[str, str]] = {
        "config": {"tokenizer_config.json": config("config")},
        "list": {"tokenizer_config.json": config(named)},
        "list without default": {"tokenizer_config.json": config(named[1:])},
        "file": {"tokenizer_config.json": config("config"), "chat_template.jinja": "file\n\n"},
        "file and list": {"tokenizer_config.json": config(named), "chat_template.jinja": "file"},
        "folder": {
            "tokenizer_config.json": config("config"),
            "chat_template.jinja": "file",
            "additional_chat_templates/tool_use.jinja": "tools of the folder",
            "additional_chat_templates/rag.jinja": "rag of the folder\n{{ bos_token }}",
        },
        "folder without file": {
            "tokenizer_config.json": config("config"),
            "additional_chat_templates/tool_use.jinja": "tools of the folder",
        },
        "none": {"tokenizer_config.json": json.dumps(TOKENS)},
        "broken": {"tokenizer_config.json": config("{% if %}")},
    }
    folders = {name: model_folder(tmp_path / name, files) for name, files in layouts.items()}
    tokenizers = {name: AutoTokenizer.from_pretrained(folder) for name, folder in folders.items()}
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "tools": {"tools": TOOLS},
        "no tools": {"tools": []},
        "rag": {"chat_template": "rag"},
    }
    cases = [
        Case(f"{folder}, {name}", folder, [said("user", "hi")], options)
        for folder in layouts
        for name, options in asked.items()
        # transformers takes a name that it does not know for a template.
        if name != "rag" or folder in ("list", "list without default", "file and list", "folder")
    ]
    cases = [case for case in cases if case.name != "file and list, rag"]
    assert_none(differences(cases, render(folders, cases), tokenizers))


def test_an_answer_to_a_template_that_does_not_end_is_clear(tmp_path: Path) -> None:
    # On a machine that does much else the time is over before the steps are.
    bombs = {
        "loop": (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "takes too (many steps|long)",
        ),
        "text": ("{% for a in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}", "too long"),
        "doubling": (
            "{% set n = namespace(x='xx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "too long",
        ),
        "recursion": ("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}", "too deeply"),
    }
    folders = {
        name: model_folder(tmp_path / name, {"chat_template.jinja": text})
        for name, (text, _) in bombs.items()
    }
    results = render(folders, [Case(name, name, [said("user", "hi")], {}) for name in bombs])
    for (name, (_, expected)), result in zip(bombs.items(), results, strict=True):
        assert re.search(expected, result["error"]), (name, result)


if __name__ == "__main__":
    pytest.main([__file__])
