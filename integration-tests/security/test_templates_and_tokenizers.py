"""Template and tokenizer bombs: model folders whose chat template or tokenizer takes all time or memory, and requests
that make an honest template do so.

Every hostile template is one branch of one template, chosen by a variable of the request, so that one server meets them
all and has to serve honest requests beside them and after them. The router alone renders and tokenizes: its process is
the one whose memory is looked at.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wire
from checkpoints import SHIPPED, random_llama
from conftest import Launch
from launched import BINARY, Launched, forget_the_peak, memory

CHATS = "/v1/chat/completions"
MEGABYTE = 1 << 20


def nested(tie: str, times: int = 1_000_000) -> str:
    """Something within itself, `times` deep. A range has 100,000 numbers at most."""
    inner = f"{{% for j in range({times // 10}) %}}{{% set n.x = {tie} %}}{{% endfor %}}"
    return f"{{% set n = namespace(x=[1]) %}}{{% for i in range(10) %}}{inner}{{% endfor %}}{{{{ n.x | length }}}}"


def shared(use_of_it: str, levels: int = 60) -> str:
    """Two values that hold 2**60 elements if they are visited one by one, and what is done with them."""
    tie = "{%% set %s = namespace(x=[1]) %%}{%% for i in range(%d) %%}{%% set %s.x = [%s.x, %s.x] %%}{%% endfor %%}"
    return "".join(tie % (name, levels, name, name, name) for name in "ab") + use_of_it


BOMBS = {
    "lists a million deep, dropped": nested("[n.x]"),
    "tuples a million deep, dropped": nested("(n.x,)"),
    "dicts a million deep, dropped": nested("{'k': n.x}"),
    "methods of lists a million deep": nested("[n.x].copy"),
    "generators a million deep": nested("[n.x] | map('list')"),
    "comparing shared lists": shared("{{ a.x == b.x }}"),
    "searching shared lists": shared("{{ a.x in [b.x] }}"),
    "sorting shared lists": shared("{{ [a.x, b.x] | sort }}"),
    "printing a shared list": shared("{{ a.x }}"),
    "shared list as JSON": shared("{{ a.x | tojson(indent=4) }}"),
    "formatting a shared list": shared("{{ '%s' % (a.x,) }}"),
    "shared tuples as keys": shared("{{ {a.x: 1} }}")
    .replace("[1]", "(1,)")
    .replace("= [a.x, a.x]", "= (a.x, a.x)"),
    "first of a long tuple, often": "{% set l = (1,) * 1000000 %}{% for i in range(100000) %}{% for j in range(100000) %}"
    "{% set y = l | first %}{% endfor %}{% endfor %}",
    "searching a long list, often": "{% set l = range(100000) | list %}{% for i in range(100000) %}"
    "{% set y = 'a' in l %}{% endfor %}",
    "indexing a long text, often": "{% set t = 'é' * 9000000 %}{% for i in range(100000) %}{% set y = t[-1] %}{% endfor %}",
    "padding": "{{ '%1000000000s' % 'x' }}",
    "padding by a filter": "{{ 'x' | center(1000000000) }}",
    "many paddings": "{{ ('{0:30000000}' * 1000).format(1) }}",
    "repeating": "{{ 'x' * 1000000000000 }}",
    "repeating a list": "{{ [0] * 1000000000000 }}",
    "a long range": "{{ range(1000000000000) | list }}",
    "joining": "{{ range(100000) | join('x' * 1000000) }}",
    "replacing": "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}",
    "tabs": "{{ ('\\t' * 10000000).expandtabs(1000) }}",
    "indenting": "{{ ('\\n' * 1000000) | indent(1000000, blank=true) }}",
    "indenting JSON": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "splitting": "{{ ('x ' * 15000000).split() }}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "macros without end": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "loops within loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that hold long lists": "{% set l = [1] * 1000000 %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
    "filters that apply filters": "{{ 'a' | map(*(['map'] * 100000)) | list }}",
    "numbers beyond 127 bits": "{{ -(-170141183460469231731687303715884105727 - 1) }}",
    "large powers": "{{ 9 ** 99999999999 }}",
}

HONEST = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def branches() -> str:
    """One template with all bombs, and an honest one with a macro that is tied to itself."""
    bombs = "".join(f"{{% elif bomb == {name!r} %}}{source}" for name, source in BOMBS.items())
    knot = "{% set n = namespace(x=x) %}{% set n.self = n %}{% macro f(a) %}{{ n.f }}{% endmacro %}{% set n.f = f %}"
    return f"{{% if not bomb %}}{knot}{HONEST}{bombs}{{% endif %}}"


def chat(text: str = "hi", /, **variables: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return {**body, "chat_template_kwargs": variables} if variables else body


def router_memory(server: Launched) -> int:
    """Bytes of the router's process in memory now."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    model = random_llama(tmp_path_factory.mktemp("hostile") / "model", hidden=64, layers=1)
    (model / "chat_template.jinja").write_text(branches())
    with Launched(tmp_path_factory.mktemp("server"), "--model-id", str(model), null_worker=True) as launched:
        yield launched.wait_ready()


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_bomb_is_a_422_and_the_server_goes_on(hostile: Launched, name: str) -> None:
    """Tried: the template that `BOMBS` has under this name, in a model's own folder.

    Before: lists a million deep aborted the process when they were dropped; shared lists of 60 levels never came to an
    end, also after their client had left; a shared list made 2 GB of text. Each is refused with 422 in bounded time and
    memory, and the next honest chat is answered by the same process.
    """
    before = router_memory(hostile)
    began = time.monotonic()
    refused = wire.post(hostile.address, CHATS, chat(bomb=name))
    took = time.monotonic() - began
    assert refused.status == 422, (refused.status, refused.body[:200])
    assert "chat template" in refused.text
    assert took < 60
    assert router_memory(hostile) - before < 1024 * MEGABYTE
    assert wire.post(hostile.address, CHATS, chat()).status == 200
    assert hostile.process.poll() is None


@pytest.mark.alone
def test_large_variables_are_given_back(hostile: Launched) -> None:
    """Tried: `chat_template_kwargs` of 1.8 MB (600,000 empty objects) where the template has a macro.

    Before: a macro held the scope that held it, and each such request left 92 MB for ever. Memory settles in the first
    requests (the allocator keeps some) and does not grow with the later ones.
    """
    body = json.dumps(chat(x=[{}] * 600_000), separators=(",", ":")).encode()

    def ask(times: int) -> int:
        for _ in range(times):
            assert wire.post(hostile.address, CHATS, body).status == 200
        return router_memory(hostile)

    settled = ask(4)
    assert ask(12) - settled < 200 * MEGABYTE


@pytest.mark.alone
def test_a_rendering_ends_with_its_client(hostile: Launched) -> None:
    """Tried: 16 clients that start the most expensive renderings and leave at once.

    Before: what was not counted went on after the client had left, on a thread that honest chats wait for. The server
    answers an honest chat as soon as the renderings have noticed, and uses no more processor time afterwards.
    """

    def leave() -> None:
        body = json.dumps(chat(bomb="comparing shared lists")).encode()
        head = f"POST {CHATS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((hostile.address.host, hostile.address.port), timeout=10) as client:
            client.sendall(head.encode() + body)
            time.sleep(0.05)

    clients = [threading.Thread(target=leave) for _ in range(16)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert wire.post(hostile.address, CHATS, chat()).status == 200

    def busy() -> float:
        fields = Path(f"/proc/{hostile.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    deadline = time.monotonic() + 60
    while True:
        began = busy()
        time.sleep(1.0)
        if busy() - began < 0.5:
            break
        assert time.monotonic() < deadline, "the router is still busy"


def test_many_variables_do_not_make_an_honest_template_slow(hostile: Launched) -> None:
    """Tried: 100,000 variables beside a chat of 4000 messages: every name of the template was looked for among them.

    Before: a look-up read them one by one. Names are hashed, and the chat is rendered in a moment.
    """
    body = chat(**{f"v{number}": 0 for number in range(50_000)})
    body["messages"] = [{"role": "user", "content": "a"}] * 4000
    began = time.monotonic()
    answer = wire.post(hostile.address, CHATS, body)
    # More tokens than the model takes, which is said after the rendering.
    assert answer.status == 422 and "tokens" in answer.text, answer.text[:200]
    assert time.monotonic() - began < 20


def tokenizer_with(folder: Path, **parts: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


TOKENIZER_BOMBS: dict[str, dict[str, Any]] = {
    "normalizer, one long replacement": {"normalizer": replacing({"String": "a"}, "x" * 1_000_000)},
    "normalizer, a replacement of nothing": {"normalizer": replacing({"Regex": ""}, "x" * 1_000_000)},
    "normalizer, a long beginning": {"normalizer": {"type": "Prepend", "prepend": "x" * 1_000_000}},
    "normalizer, thirty doublings": {
        "normalizer": {"type": "Sequence", "normalizers": [replacing({"String": "a"}, "aa")] * 30}
    },
    "pre_tokenizer, thirty times two letters for a byte": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
            ]
            * 30,
        }
    },
    "decoder, thirty doublings": {
        "decoder": {"type": "Sequence", "decoders": [replacing({"String": "a"}, "aa")] * 30}
    },
    "post_processor, a million tokens": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "a", "type_id": 0}}] * 1000,
            "pair": [],
            "special_tokens": {"a": {"id": "a", "ids": [1] * 1000, "tokens": ["a"] * 1000}},
        }
    },
}


@pytest.mark.parametrize("name", TOKENIZER_BOMBS)
def test_a_tokenizer_bomb_is_refused_before_it_is_built(
    tmp_path: Path, launch_null: Launch, name: str
) -> None:
    """Tried: a tokenizer.json that makes gigabytes of a short text.

    Before: it was loaded, and the first request with the right letter took all memory. The start ends with a line that
    names the file and the part, and so does the doctor.
    """
    model = random_llama(tmp_path / "model", hidden=64, layers=1)
    tokenizer_with(model, **TOKENIZER_BOMBS[name])
    server = launch_null("--model-id", str(model))
    assert server.process.wait(120) == 1
    part = name.split(",")[0]
    assert f"tokenizer.json: is not valid: its {part}" in server.log()
    asked = subprocess.run(
        [str(BINARY), "doctor", "--model-id", str(model), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert asked.returncode == 1
    assert any(f"its {part}" in problem for problem in json.loads(asked.stdout)["problems"])


def test_a_template_that_indents_makes_no_text_that_takes_a_gigabyte(
    tmp_path: Path, launch_null: Launch
) -> None:
    """Tried: tools of 48 KB, lists in lists, with a template that indents them (Llama 3.1's, Granite's, GLM's) and a tokenizer that
    has a token of many spaces: 11 MB of text within 262,144 tokens.

    Before: it was tokenized whole, with 655 MB at the peak.
    """
    model = random_llama(tmp_path / "model", hidden=64, layers=1)
    spaces: dict[str, Any] = {"id": 4096, "content": " " * 64, "normalized": False, "special": False}
    spaces |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    tokenizer_with(model, added_tokens=[*added, spaces])
    (model / "chat_template.jinja").write_text("{{ tools | tojson(indent=4) }}")
    server = launch_null("--model-id", str(model)).wait_ready()

    def asked(numbers: int) -> wire.Reply:
        # Each number is in 112 lists and objects, so behind seven times 64 spaces.
        nested = "[" * 108 + ",".join("1" * numbers) + "]" * 108
        function = f'{{"name": "f", "parameters": {{"x": {nested}}}}}'
        tools = f'[{{"type": "function", "function": {function}}}]'
        messages = '[{"role": "user", "content": "x"}]'
        return wire.post(server.address, "/chat_tokenize", f'{{"messages": {messages}, "tools": {tools}}}')

    few = asked(1000)
    assert few.status == 200, few.text
    told = few.json()
    assert len(told["templated_text"]) > 20 * len(told["tokenize_response"]), "of few tokens"
    before = forget_the_peak(server)
    refused = asked(24_000)
    grown = memory(server, "VmHWM") - before
    print(f"11 MB of text from 48 KB of tools: {refused.status}, {grown / MEGABYTE:.0f} MB at the peak")
    assert refused.status == 422 and f"{4 << 20} bytes of text" in refused.text, refused.text[:500]
    assert grown < 250 * MEGABYTE


def test_a_broken_template_is_found_by_the_doctor_and_a_missing_one_is_told(
    tmp_path: Path, launch_null: Launch
) -> None:
    """Tried: a template that does not compile, and none at all.

    Before: the doctor passed the one, and the other was a 422 without a way out after a silent start.
    """
    model = random_llama(tmp_path / "model", hidden=64, layers=1)
    (model / "chat_template.jinja").write_text("one\n{% if %}")
    asked = subprocess.run(
        [str(BINARY), "doctor", "--model-id", str(model), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert asked.returncode == 1
    (problem,) = json.loads(asked.stdout)["problems"]
    assert "does not compile" in problem and "line 2: an expression is missing" in problem

    (model / "chat_template.jinja").unlink()
    configuration = json.loads((SHIPPED / "tokenizer_config.json").read_text())
    configuration.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(configuration))
    server = launch_null("--model-id", str(model)).wait_ready()
    assert "no chat template" in server.log()
    refused = wire.post(server.address, CHATS, chat())
    assert refused.status == 422
    for way_out in ("chat_template.jinja", "--tokenizer-config-path", "/v1/completions"):
        assert way_out in refused.text
