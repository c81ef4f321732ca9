"""The chat page at `/`, in Chromium: what a user does and sees, and what the server's metrics say of it.

Most tests use the shipped model. Those that need an answer which does not end by itself, or which is the same to
the last bit each time, use a checkpoint made for it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

import wire
from browser import CHAT, Chat, Open, body_of, pieces, told
from checkpoints import random_llama
from conftest import Launch
from exposition import CANCELLED, KV_USED, RUNNING, STEPS
from launched import EXACT, Launched
from processes import wait_for
from prompts import ADD, MODEL, REPEAT, user

KEY = "sesame-Open-1"
HTML = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}

# Everything that a shell, Python, JSON or HTML could stumble over.
NASTY = 'It\'s "quoted": $HOME `date` \\n %s {x} <b>&amp;</b>\nsecond line\té 日本 🙂 \'\'\'""" \\'


def endless(folder: Path) -> Path:
    return random_llama(folder, hidden=256, layers=6, heads=8, kv_heads=4, positions=8192)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Its answers have thousands of tokens, and it takes two requests at a time."""
    folder = endless(tmp_path_factory.mktemp("slow") / "model")
    arguments = ("--model-id", str(folder), "--max-concurrent-requests", "2")
    with Launched(tmp_path_factory.mktemp("slow-server"), *arguments) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("guarded"), "--api-key", KEY) as launched:
        yield launched.wait_ready()


def wait_idle(launched: Launched) -> None:
    def idle() -> bool:
        now = launched.metrics()
        return now.value(KV_USED) == 0 and now.value(RUNNING) == 0

    wait_for(idle, "no block in use and nothing running", 60)


# --- What is served ---------------------------------------------------------------------------------


def test_only_who_names_html_gets_the_page(server: Launched) -> None:
    page = wire.get(server.address, "/", headers=HTML)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert page.text.startswith("<!doctype html>") and page.headers["vary"].lower().startswith("accept")
    health = wire.get(server.address, "/health")
    same = {name: value for name, value in health.headers.items() if name not in ("date", "x-request-id")}
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}, {"Accept": "text/html;q=0"}):
        reply = wire.get(server.address, "/", headers=headers)
        assert (reply.status, reply.body) == (200, b""), f"{headers}: {reply}"
        now = {name: value for name, value in reply.headers.items() if name not in ("date", "x-request-id")}
        assert now == same, "the answer of health, header by header"


def test_files_are_sent_once_and_strictly(server: Launched) -> None:
    index = wire.get(server.address, "/", headers=HTML)
    names = ["/", *(f"/page/{name}" for name in re.findall(r'"page/([^"]+)"', index.text))]
    for name in names:
        for module in re.findall(r'from "\./([^"]+)"', wire.get(server.address, name, headers=HTML).text):
            names += [f"/page/{module}"] * (f"/page/{module}" not in names)
    assert len(names) >= 10, names
    for name in names:
        first = wire.get(server.address, name, headers=HTML)
        assert first.status == 200, name
        policy = first.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert first.headers["x-content-type-options"] == "nosniff"
        assert first.headers["cache-control"] == "no-cache", "asked for anew each time, with the tag"
        tag = first.headers["etag"]
        again = wire.get(server.address, name, headers={**HTML, "If-None-Match": tag})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    for bad in ("/page/", "/page/none.js", "/page/../info", "/page/%2e%2e/info", "/page/mod.rs"):
        assert wire.get(server.address, bad).status == 404, bad


# --- A conversation ---------------------------------------------------------------------------------


def test_a_conversation(chat: Chat, server: Launched) -> None:
    expect(chat.state).to_have_text("Ready")
    expect(chat.text).to_be_focused()
    chat.set("Temperature", 0)
    chat.set("System prompt", "Be brief.")
    said = [{"role": "system", "content": "Be brief."}]
    for question in (ADD, MODEL):
        with chat.page.expect_request(CHAT) as request:
            chat.ask(question)
        sent = body_of(request.value)
        said += user(question)
        assert sent["messages"] == said and sent["temperature"] == 0 and sent["stream"] is True
        answer = chat.copied("Copy")
        whole = wire.post(server.address, "/v1/chat/completions", {"messages": said, "temperature": 0}).json()
        assert answer == whole["choices"][0]["message"]["content"]
        tokens = whole["usage"]["completion_tokens"]
        expect(chat.answer.locator(".summary")).to_contain_text(f"{tokens} tokens")
        said.append({"role": "assistant", "content": answer})
    expect(chat.text).to_have_value("")
    chat.page.reload()
    expect(chat.page.locator(".turn")).to_have_count(2)
    expect(chat.words).to_contain_text("--model-id")
    chat.button("New conversation").click()
    expect(chat.page.locator(".turn")).to_have_count(0)
    with chat.page.expect_request(CHAT) as request:
        chat.ask(ADD)
    assert body_of(request.value)["messages"] == [said[0], *user(ADD)], "nothing of the old one is left"


def test_an_answer_says_how_many_of_its_tokens_were_guessed(chat: Chat) -> None:
    for guessed, says in (({"accepted_drafts": 17}, "40 tokens (17 guessed)"), ({}, "40 tokens")):
        usage = {"prompt_tokens": 3, "completion_tokens": 40}
        told(chat, [*pieces("Hello"), {"choices": [], "usage": usage, **guessed}])
        chat.ask("x")
        expect(chat.answer.locator(".summary")).to_contain_text(says)
        chat.page.unroute(CHAT)


def test_the_last_message_is_edited_and_tried_again(chat: Chat) -> None:
    chat.set("Temperature", 0)
    chat.ask(REPEAT)
    chat.ask(ADD)
    chat.text.fill("a draft")
    chat.act("Edit").click()
    expect(chat.text).to_have_value(ADD)
    chat.button("Keep it as it was").click()
    expect(chat.text).to_have_value("a draft")
    chat.act("Edit").click()
    chat.text.fill(MODEL)
    with chat.page.expect_request(CHAT) as request:
        chat.text.press("Enter")
    chat.wait("done")
    assert [one["content"] for one in body_of(request.value)["messages"]][::2] == [REPEAT, MODEL]
    expect(chat.text).to_have_value("a draft")
    expect(chat.page.locator(".turn")).to_have_count(2)
    before = body_of(request.value)
    with chat.page.expect_request(CHAT) as request:
        chat.act("Try again").click()
    chat.wait("done")
    assert body_of(request.value) == before
    expect(chat.page.locator(".turn")).to_have_count(2)


def test_stopping_cancels_the_request(open_page: Open, slow: Launched) -> None:
    wait_idle(slow)
    before = slow.metrics().value(CANCELLED)
    chat = open_page(slow.url)
    for number, way in enumerate(("Stop", "Escape"), 1):
        chat.ask("Go on for ever", until="writing")
        assert slow.metrics().value(RUNNING) == 1
        if way == "Stop":
            chat.button("Stop").click()
        else:
            chat.page.keyboard.press("Escape")
        chat.wait("stopped")
        expect(chat.answer.locator(".summary")).to_contain_text("stopped")
        wait_for(lambda: slow.metrics().value(CANCELLED) == before + number, "the cancellation")  # noqa: B023
        wait_idle(slow)
        expect(chat.words).not_to_be_empty()


def test_a_page_that_is_left_while_an_answer_is_written_keeps_both(open_page: Open, slow: Launched) -> None:
    wait_idle(slow)
    chat = open_page(slow.url)
    kept = "JSON.parse(sessionStorage.getItem('penstock-page')).turns.map(({ said }) => said)"
    for question in ("Go on", "Go on and on"):
        if question != "Go on":
            chat.act("Edit").click()
        chat.ask(question, until="writing")
        assert chat.page.evaluate(kept) == [question], "from when it was sent"
        chat.page.reload()
        chat.wait("stopped")
        expect(chat.page.locator(".turn")).to_have_count(1)
        expect(chat.page.locator(".said")).to_have_text(question)
        expect(chat.words).not_to_be_empty()
        expect(chat.text).to_have_value("")
    chat.act("Try again").click()
    chat.wait("writing")
    expect(chat.words).not_to_be_empty()
    show(chat.page, "hidden")
    remembered = chat.page.evaluate("JSON.parse(sessionStorage.getItem('penstock-page')).turns[0]")
    assert remembered["text"] and remembered["state"] == "writing", "a phone may end it now without a word"
    show(chat.page, "visible")
    chat.page.keyboard.press("Escape")
    chat.wait("stopped")
    wait_idle(slow)


def test_enter_beside_a_running_answer_says_what_it_waits_for(open_page: Open, slow: Launched) -> None:
    chat = open_page(slow.url)
    chat.ask("go on", until="writing")
    busy = chat.page.get_by_text("The answer before is still being written")
    expect(busy.first).to_be_hidden()
    chat.send("and another")
    expect(chat.page.locator("#busy")).to_be_visible()
    expect(chat.text).to_have_value("and another")
    chat.page.keyboard.press("Escape")
    chat.wait("stopped")
    expect(chat.page.locator("#busy")).to_be_hidden()


# --- What goes wrong --------------------------------------------------------------------------------


def test_a_refusal_names_the_field_and_loses_nothing(chat: Chat) -> None:
    chat.set("Temperature", "warm")
    expect(chat.page.locator("#set-temperature-wrong")).to_have_text("Not a number")
    chat.ask(ADD, until="failed")
    expect(chat.error).to_contain_text("`temperature` must be")
    expect(chat.error).to_contain_text("warm")
    expect(chat.page.locator(".said").last).to_have_text(ADD)
    expect(chat.page.locator("#set-temperature-wrong")).to_contain_text("`temperature` must be")
    chat.button("Go to Temperature").click()
    field = chat.page.get_by_label("Temperature", exact=True)
    expect(field).to_be_focused()
    field.fill("-1")
    expect(chat.page.locator("#set-temperature-wrong")).to_have_text("Must be 0 or more")
    field.fill("0")
    expect(field).not_to_have_attribute("aria-invalid", "true")
    chat.act("Try again").click()
    chat.wait("done")
    expect(chat.words).not_to_be_empty()
    expect(chat.error).to_be_hidden()


def test_a_refusal_stays_beside_its_field_when_the_bounds_arrive_later(chat: Chat) -> None:
    held: list[Route] = []
    chat.page.route("**/api-doc/openapi.json", lambda route: held.append(route))
    chat.page.reload()
    wrong = chat.page.locator("#set-temperature-wrong")
    chat.set("Temperature", "warm")
    chat.ask(ADD, until="failed")
    expect(wrong).to_contain_text("`temperature` must be")
    bounds = chat.page.locator("#set-temperature-bounds")
    expect(bounds).to_be_empty()
    for route in held:
        route.continue_()
    expect(bounds).to_have_text("0 or more")
    assert "`temperature` must be" in wrong.inner_text()
    chat.set("Temperature", "-1")
    expect(wrong).to_have_text("Must be 0 or more")


def test_what_failed_is_no_part_of_the_conversation(chat: Chat) -> None:
    chat.set("Max tokens", 100_000)
    chat.ask(ADD, until="failed")
    expect(chat.error).to_contain_text("max_tokens")
    chat.set("Max tokens", 20)
    with chat.page.expect_request(CHAT) as request:
        chat.ask(MODEL)
    assert body_of(request.value)["messages"] == user(MODEL)


def test_the_bounds_are_the_servers(chat: Chat, server: Launched) -> None:
    info = wire.get(server.address, "/info").json()
    expect(chat.page.locator("#set-max_tokens-bounds")).to_have_text(f"1 to {info['max_total_tokens'] - 1}")
    expect(chat.page.locator("#set-top_logprobs-bounds")).to_contain_text(f"0 to {info['max_top_n_tokens']}")
    chat.set("Stop at", "\n".join("abcdefgh"))
    expect(chat.page.locator("#set-stop-wrong")).to_have_text(f"At most {info['max_stop_sequences']}")
    chat.ask(ADD, until="failed")
    expect(chat.error).to_contain_text("`stop` must")


@pytest.mark.parametrize("most", [2, 0])
def test_a_fresh_page_asks_for_no_more_probabilities_than_the_server_gives(
    open_page: Open, launch_null: Launch, most: int
) -> None:
    chat = open_page(launch_null("--max-top-n-tokens", str(most)).wait_ready().url)
    expect(chat.page.locator("#set-top_logprobs-bounds")).to_contain_text(f"0 to {most}")
    field = chat.page.get_by_label("Token probabilities", exact=True)
    expect(field).to_have_value(str(most or ""))
    chat.set("Max tokens", 5)
    chat.ask(ADD)
    chat.button("Reset").click()
    expect(field).to_have_value(str(most or ""))


def test_a_full_server_says_when_to_come_back(open_page: Open, slow: Launched) -> None:
    wait_idle(slow)
    body = {"prompt": "For ever", "max_tokens": 8000, "stream": True}
    streams = [wire.Events(slow.address, "/v1/completions", body) for _ in range(2)]
    chat = open_page(slow.url)
    chat.ask("Is there room?", until="failed")
    expect(chat.error).to_contain_text("too much to do")
    expect(chat.error).to_contain_text(re.compile(r"Try again in \d+ s"))
    for stream in streams:
        stream.close()
    wait_idle(slow)
    chat.set("Max tokens", 5)
    chat.act("Try again").click()
    chat.wait("done")


def test_an_answer_outlives_its_worker(open_page: Open, launch: Launch, tmp_path: Path) -> None:
    flags = EXACT or ("--dtype", "bfloat16")
    model = ("--model-id", str(endless(tmp_path / "model")))
    launched = launch(*model, *flags, hold=tmp_path / "hold").wait_ready()
    chat, other = open_page(launched.url), open_page(launched.url)
    chat.set("Seed", 7)
    # On torch a token takes ten times as long.
    chat.set("Max tokens", 200 if EXACT else 2000)
    chat.ask("Go on")
    undisturbed = chat.copied("Copy")
    chat.button("New conversation").click()
    steps = launched.metrics().value(STEPS)
    with ExitStack() as until_checked:
        with launched.slow_worker():
            chat.send("Go on")
            wait_for(lambda: launched.metrics().value(STEPS) > steps + 10, "some tokens", 120, every=0.005)
            until_checked.enter_context(launched.without_worker())
        expect(chat.answer.get_by_role("status")).to_contain_text("replacing a worker that it has lost")
        expect(chat.state).to_have_text("Recovering")
        assert chat.answer.get_attribute("data-state") == "writing"
        other.ask("Are you there?", until="failed")
        expect(other.error).to_contain_text("takes no requests now")
        expect(other.error).to_contain_text("worker")
        page, health = wire.get(launched.address, "/", headers=HTML), wire.get(launched.address, "/")
        assert page.status == 200, "the page is there to say why nothing else is"
        assert health.status == 503
    chat.wait("done")
    expect(chat.answer.get_by_role("status")).to_be_hidden()
    assert chat.copied("Copy") == undisturbed
    expect(chat.state).to_have_text("Ready")
    expect(chat.page.locator("#restarts")).to_have_text("1")
    other.set("Max tokens", 5)
    other.act("Try again").click()
    other.wait("done")


def test_a_lost_connection_loses_no_text(open_page: Open, launch: Launch, tmp_path: Path) -> None:
    model = ("--model-id", str(endless(tmp_path / "model")))
    launched = launch(*model).wait_ready()
    chat = open_page(launched.url)
    chat.set("Max tokens", 6000)
    chat.ask("Go on", until="writing")
    chat.text.fill("meanwhile")
    launched.end_everything()
    chat.wait("failed")
    expect(chat.error).to_contain_text("The connection")
    expect(chat.error).to_contain_text("kept")
    expect(chat.words).not_to_be_empty()
    expect(chat.text).to_have_value("meanwhile")
    expect(chat.state).to_have_text("No connection")
    chat.text.press("Enter")
    chat.wait("failed")
    expect(chat.error).to_contain_text("cannot be reached")
    expect(chat.page.locator(".said").last).to_have_text("meanwhile")
    launch(*model, port=launched.address.port).wait_ready()
    expect(chat.state).to_have_text("Ready")
    chat.set("Max tokens", 5)
    chat.act("Try again").click()
    chat.wait("done")


# --- The key ----------------------------------------------------------------------------------------


def test_the_key_is_asked_for_and_kept_in_this_tab_only(open_page: Open, guarded: Launched) -> None:
    chat = open_page(guarded.url)
    dialog = chat.page.get_by_role("dialog")
    expect(dialog).to_contain_text("asks for an API key")
    chat.button("Not now").click()
    chat.ask(ADD, until="failed")
    expect(chat.error).to_contain_text("API key is required")
    field = chat.page.get_by_label("API key", exact=True)
    field.fill("wrong")
    field.press("Enter")
    expect(dialog).to_contain_text("The key is not valid")
    field.fill(KEY)
    field.press("Enter")
    expect(dialog).to_be_hidden()
    chat.wait("done")  # What was asked before there was a key is asked again.
    expect(chat.page.locator("#model")).not_to_be_empty()
    expect(chat.page.locator("#running")).to_have_text("0")
    for name in ("Copy as curl", "Copy as Python"):
        text = chat.copied(name)
        assert KEY not in text and "PENSTOCK_API_KEY" in text
        assert run(name, text, {"PENSTOCK_API_KEY": KEY})
    kept = chat.page.evaluate("[localStorage.length, document.cookie, JSON.stringify(sessionStorage)]")
    assert kept[:2] == [0, ""] and kept[2].count(KEY) == 1
    assert KEY not in chat.page.content()
    chat.page.reload()
    chat.ask(MODEL)
    expect(dialog).to_be_hidden()
    chat.button("Change or forget it").click()
    field.fill("")
    field.press("Enter")
    assert KEY not in chat.page.evaluate("JSON.stringify(sessionStorage)")
    expect(dialog).to_be_visible()  # The server's numbers need it, too.
    chat.button("Not now").click()


def test_a_key_with_a_character_that_no_key_has_is_not_taken(open_page: Open, guarded: Launched) -> None:
    chat = open_page(guarded.url)
    dialog = chat.page.get_by_role("dialog")
    field = chat.page.get_by_label("API key", exact=True)
    field.fill(f"{KEY[:4]}\u200b{KEY[4:]}")
    field.press("Enter")
    expect(dialog).to_contain_text("a character that no key has")
    field.fill(f" {KEY} ")
    field.press("Enter")
    expect(dialog).to_be_hidden()
    chat.ask(ADD)


# --- Probabilities, and requests to take away -------------------------------------------------------


def percent(logprob: float) -> float:
    return 100 * math.exp(logprob)


def test_the_probabilities_of_a_token_are_shown_on_hover(open_page: Open, slow: Launched) -> None:
    chat = open_page(slow.url)
    chat.set("Seed", 1)
    chat.set("Max tokens", 24)
    chat.set("Token probabilities", 3)
    with chat.page.expect_request(CHAT) as request:
        chat.ask(MODEL)
    # The same request again, read without the page: what each piece of text was made of.
    made: list[tuple[str, list[dict[str, Any]]]] = []
    pending: list[dict[str, Any]] = []
    with wire.Events(slow.address, "/v1/chat/completions", body_of(request.value)) as events:
        for choice in (
            choice for data in events if data != "[DONE]" for choice in json.loads(data)["choices"]
        ):
            pending += (choice.get("logprobs") or {}).get("content", [])
            if choice["delta"].get("content"):
                made.append((choice["delta"]["content"], pending))
                pending = []
    assert "".join(text for text, _ in made) == chat.copied("Copy")
    words = [(place, entries) for place, (text, entries) in enumerate(made) if re.search("[A-Za-z]{2}", text)]
    assert len(words) >= 3
    for place, entries in (words[0], words[1], words[-1]):
        expect(chat.popover).to_be_hidden()
        chat.words.locator(f'[data-token="{place}"]').first.hover()
        shown: list[Any] = []
        for row in chat.popover.get_by_role("listitem").all():
            spelled = row.locator(".spelling").text_content() or ""
            for sign, meant in (("␣", " "), ("⏎", "\n"), ("⇥", "\t"), ("␍", "\r")):
                spelled = spelled.replace(sign, meant)
            chance = float(re.sub(r"[^0-9.]", "", row.locator(".chance").text_content() or ""))
            shown.append(
                (spelled, pytest.approx(chance, abs=0.06), "chosen" in (row.get_attribute("class") or ""))
            )
        wanted: list[Any] = []
        for entry in entries:
            top = [(one["token"], percent(one["logprob"])) for one in entry["top_logprobs"]]
            own = (entry["token"], percent(entry["logprob"]))
            wanted += [(*one, one == own) for one in [*top, *([] if own in top else [own])]]
        assert wanted == shown and len(wanted) >= 3
        chat.page.mouse.move(5, 5)
    chat.set("Token probabilities", "")
    with chat.page.expect_request(CHAT) as request:
        chat.act("Try again").click()
    chat.wait("done")
    assert "logprobs" not in body_of(request.value)
    expect(chat.words.locator(".token")).to_have_count(0)


def run(name: str, text: str, env: dict[str, str]) -> str:
    """Runs a copied text as it is, and gives what the model wrote."""
    command = ["bash", "-c", text] if "curl" in name else [sys.executable, "-c", text]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONIOENCODING": "utf-8", **env}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode()
    if "Python" in name:
        return out.removesuffix("\n")
    events = [line[6:] for line in out.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", out
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_copied_request_is_what_was_sent_and_runs(open_page: Open, slow: Launched) -> None:
    chat = open_page(slow.url)
    settings = {
        "System prompt": NASTY[::-1],
        "Temperature": "1.1",
        "Top-p": ".9",
        "Max tokens": "24",
        "Seed": str(2**64 - 1),
        "Stop at": '\\n\\n\nit\'s "so"',
        "Top-k": "50",
        "Min-p": "0.001",
        "Repetition penalty": "1.05",
    }
    for label, value in settings.items():
        chat.set(label, value)
    with chat.page.expect_request(CHAT) as request:
        chat.ask(NASTY)
    sent = body_of(request.value)
    assert sent["messages"][-1]["content"] == NASTY
    assert sent["seed"] == 2**64 - 1 and sent["stop"] == ["\n\n", 'it\'s "so"'] and sent["top_p"] == 0.9
    answer = chat.copied("Copy")
    curl = chat.copied("Copy as curl")
    assert json.loads(shlex.split(curl)[-1]) == sent
    assert run("Copy as curl", curl, {}) == answer
    assert run("Copy as Python", chat.copied("Copy as Python"), {}) == answer


# --- The server's state -----------------------------------------------------------------------------


def test_the_servers_state_is_shown_as_it_is(open_page: Open, slow: Launched) -> None:
    wait_idle(slow)
    chat = open_page(slow.url)
    running, rate, kv = (chat.page.locator(f"#{name}") for name in ("running", "rate", "kv"))
    expect(running).to_have_text("0")
    body = {"prompt": "For ever", "max_tokens": 8000, "stream": True}
    with wire.Events(slow.address, "/v1/completions", body) as stream:
        next(iter(stream))
        expect(running).to_have_text("1")
        expect(rate).to_have_text(re.compile(r"[1-9]"))
        expect(kv).to_have_text(re.compile(r"[1-9]"))
    expect(running).to_have_text("0")
    expect(kv).to_have_text("0.0 %")

    def counted() -> tuple[int, int]:
        told = wire.get(slow.address, "/info").json()["generated_tokens"]
        return told, int(slow.metrics().value("penstock_computed_decode_tokens"))

    # Of a client that stayed: what was under way when the other one left is nobody's.
    generated, decoded = counted()
    assert generated > 0 and decoded > 0
    wire.post(slow.address, "/v1/completions", {**body, "max_tokens": 5, "ignore_eos": True, "stream": False})
    # The first one is no decode's.
    wait_for(lambda: counted() == (generated + 5, decoded + 4), "its tokens to be counted")


def show(page: Page, state: str) -> None:
    page.evaluate(
        """state => {
            Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        state,
    )


def test_a_hidden_page_asks_nothing(chat: Chat) -> None:
    asked: list[str] = []
    chat.page.on("request", lambda request: asked.append(request.url))
    chat.page.clock.install()
    chat.page.reload()
    expect(chat.state).to_have_text("Ready")

    def looks(seconds: int) -> int:
        """How often the server was asked while the page's clock went on."""
        asked.clear()
        for _ in range(seconds):
            chat.page.clock.run_for(1000)
            chat.page.wait_for_load_state("networkidle")
        return sum(url.endswith("/readyz") for url in asked)

    assert looks(10) >= 2
    show(chat.page, "hidden")
    looks(1)  # What was under way.
    assert looks(30) == 0
    asked.clear()
    show(chat.page, "visible")
    wait_for(lambda: chat.page.evaluate("1") and any("readyz" in url for url in asked), "a look at once", 20)


# --- The keyboard alone -----------------------------------------------------------------------------


def go_back_to(page: Page, place: Locator) -> None:
    """Shift+Tab until `place` has the focus, which must be seen."""
    for _ in range(30):
        page.keyboard.press("Shift+Tab")
        if place.evaluate("element => element === document.activeElement"):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"not to be reached with the keyboard: {place}")


def test_the_keyboard_is_enough(open_page: Open, slow: Launched) -> None:
    chat = open_page(slow.url)
    page, keyboard = chat.page, chat.page.keyboard
    expect(chat.text).to_be_focused()
    keyboard.type("one")
    keyboard.press("Shift+Enter")
    keyboard.type("two")
    keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text("one\ntwo")
    chat.wait("writing")
    keyboard.type("next")  # One may write on while the answer comes; sending has to wait.
    keyboard.press("Enter")
    expect(page.locator(".said")).to_have_count(1)
    expect(chat.text).to_have_value("next")
    expect(chat.words.locator(".token").nth(20)).to_be_attached()
    keyboard.press("Escape")
    chat.wait("stopped")
    go_back_to(page, chat.words)
    for press, place in (("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("ArrowLeft", -2), ("Home", 0)):
        keyboard.press(press)
        token = chat.words.locator(".token").nth(place)
        expect(token).to_be_focused()
        expect(token).to_have_attribute("aria-describedby", "popover")
        expect(chat.popover).to_be_visible()
    keyboard.press("Escape")
    expect(chat.popover).to_be_hidden()
    expect(chat.words).to_be_focused()
    go_back_to(page, chat.act("Edit"))
    keyboard.press("Enter")
    expect(chat.text).to_be_focused()
    expect(chat.text).to_have_value("one\ntwo")
    keyboard.press("Escape")
    expect(chat.text).to_have_value("next")
    go_back_to(page, chat.act("Try again"))
    keyboard.press("Enter")
    chat.wait("writing")
    keyboard.press("Escape")
    chat.wait("stopped")
    go_back_to(page, chat.button("New conversation"))
    keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(0)
    expect(chat.text).to_be_focused()


def test_the_key_that_confirms_a_candidate_sends_nothing(chat: Chat) -> None:
    pressed = """(box, also) => !box.dispatchEvent(
        new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true, ...also}))"""
    chat.text.fill("にほん")
    for also in ({"isComposing": True}, {"keyCode": 229}):  # The second as Safari has it.
        assert chat.text.evaluate(pressed, also) is False, also
    expect(chat.page.locator(".turn")).to_have_count(0)
    expect(chat.text).to_have_value("にほん")


def test_what_happens_is_said_and_every_field_has_a_name(chat: Chat) -> None:
    said = chat.page.locator("#said")
    answer = chat.ask(ADD)
    expect(said).to_contain_text("The answer is complete")
    expect(said).to_contain_text((answer.text_content() or "")[:20])
    nameless = chat.page.evaluate("""() => [...document.querySelectorAll('input, textarea, button, [role]')]
        .filter((element) => element.checkVisibility() && !['status', 'tooltip', 'alert'].includes(element.role))
        .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim()))
        .map((element) => element.outerHTML)""")
    assert nameless == []
    assert chat.page.locator("h1").count() == 1
    expect(chat.page.get_by_role("log")).to_have_attribute("aria-label", "Conversation")
