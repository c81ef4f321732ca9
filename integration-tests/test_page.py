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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

import wire
from browser import Chat, chromium
from checkpoints import random_llama
from conftest import Launch
from exposition import CANCELLED, KV_USED, RUNNING, STEPS
from launched import EXACT, Launched
from processes import wait_for
from prompts import ADD, MODEL, REPEAT, user

KEY = "sesame-Open-1"
HTML = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
CHAT = "**/v1/chat/completions"

# Everything that a shell, Python, JSON or HTML could stumble over.
NASTY = 'It\'s "quoted": $HOME `date` \\n %s {x} <b>&amp;</b>\nsecond line\té 日本 🙂 \'\'\'""" \\'

Open = Callable[..., Chat]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens the page of a server in a tab of its own; all are closed, and looked through for faults, at the end."""
    with ExitStack() as tabs:
        yield lambda url, **options: tabs.enter_context(Chat(browser, url, **options)).open()


@pytest.fixture
def chat(open_page: Open, server: Launched) -> Chat:
    return open_page(server.url)


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


def told(chat: Chat, chunks: list[dict[str, Any]]) -> None:
    """From now on every chat is answered with these chunks, as if a model had written them."""
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body="".join(events))

    chat.page.route(CHAT, answer)


def body_of(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request.post_data or "")
    return body


def pieces(*texts: str) -> list[dict[str, Any]]:
    return [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]


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
    launched = launch("--model-id", str(endless(tmp_path / "model")), *flags).wait_ready()
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
    info = wire.get(slow.address, "/info").json()
    generated = slow.metrics().value("penstock_computed_decode_tokens")
    # The tokens of two steps that were under way when the client left are nobody's, and the first one is no decode's.
    assert info["generated_tokens"] + 1 >= generated > 0


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


# --- What it looks like -----------------------------------------------------------------------------

MARKDOWN = """# Title

Some **bold**, *slanted* and `code **as it is**`; 2*3*4, snake_case_name, \\*not slanted\\*.
A second line.

1. one
2. two
   - inner `x`
   - more

7) seven

```python
if a < b:
    print("**no bold**")
```

The **end"""


def test_markdown_is_drawn(chat: Chat) -> None:
    told(chat, pieces(*MARKDOWN))  # one character at a time: half a mark must not stay as it was
    words = chat.ask("x")
    expect(words.locator("h3")).to_have_text("Title")
    expect(words.locator("p strong")).to_have_text(["bold"])
    expect(words.locator("p em")).to_have_text(["slanted"])
    expect(words.locator("p code")).to_have_text(["code **as it is**"])
    expect(words.locator("p").first).to_contain_text("2*3*4, snake_case_name, *not slanted*.\nA second line.")
    expect(words.locator("ol > li")).to_have_count(3)
    expect(words.locator("ol > li > ul > li")).to_have_text(["inner x", "more"])
    assert words.locator("ol > li").last.evaluate("item => item.value") == 7
    expect(words.locator("pre code")).to_have_text('if a < b:\n    print("**no bold**")')
    expect(words.locator("p").last).to_have_text("The **end")
    drawn = words.inner_html()
    told(chat, pieces(MARKDOWN))
    assert chat.ask("x").inner_html() == drawn, "drawn in pieces or at once, it is the same"


STEPS_WITH_CODE = """1. First:

    ```python
    def f():
        return 1

    ```

2. Then
   - so:

     ~~~ sh run.sh
     make
   all
     ~~~
\t- and
\t\t```
\t\t\tx
\t\t```
3. Done"""


def test_code_within_an_item_of_a_list_is_code_as_it_was_written(chat: Chat) -> None:
    told(chat, pieces(*STEPS_WITH_CODE))
    words = chat.ask("x")
    code = words.locator("pre code").evaluate_all("all => all.map((code) => code.textContent)")
    assert code == ["def f():\n    return 1\n", "make\nall", "\tx"]
    assert words.locator("pre").evaluate_all("all => all.map((pre) => pre.dataset.language)") == [
        "python",
        "sh",
        None,
    ]
    assert words.locator("ol > li").evaluate_all("all => all.map((item) => item.value)") == [1, 2, 3]
    expect(words).not_to_contain_text("```")
    drawn = words.inner_html()
    told(chat, pieces(STEPS_WITH_CODE))
    assert chat.ask("x").inner_html() == drawn, "drawn in pieces or at once, it is the same"


THOUGHT = """<think>
Is it **so**?

</think>

Before | it

| name | [x](https://a.example/y_(z) "t") | n |
|:--|:-:|--:|
| `a \\| b` | **b** | 1 | too much |
| only

See [the *docs*](https://b.example/q?a=b&c=*d*), https://c.example/d. or <https://e.example>; write to [me](mailto:a@b.example).
[no](javascript:alert(1)) [no](data:text/html,x) [no](//f.example) [no](vbscript:x) [no](file:///etc/passwd)"""


@pytest.mark.parametrize("names", [["reasoning_content"], ["reasoning"], ["reasoning_content", "reasoning"]])
def test_reasoning_that_the_server_tells_apart_is_folded_and_sent_back(chat: Chat, names: list[str]) -> None:
    deltas = [
        {"role": "assistant", "content": ""},
        {"content": None} | dict.fromkeys(names, "Is it "),
        {"content": None} | dict.fromkeys(names, "**so**?"),
        {"content": "It "},
        {"content": "is."},
    ]
    told(chat, [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas])
    words = chat.ask("x")
    expect(words.locator("details.think summary")).to_have_text("Thoughts")
    expect(words.locator("> p")).to_have_text("It is.")
    expect(chat.page.locator("#said")).to_have_text("The answer is complete. It is.")
    assert chat.copied("Copy") == "It is."
    with chat.page.expect_request(CHAT) as asked:
        chat.ask("y")
    said = body_of(asked.value)["messages"][1]
    assert said == {"role": "assistant", "content": "It is.", "reasoning_content": "Is it **so**?"}


def test_thoughts_are_folded_and_tables_and_links_are_drawn(chat: Chat) -> None:
    told(chat, pieces(*THOUGHT))
    words = chat.ask("x")
    thoughts = words.locator("details.think")
    expect(thoughts.locator("summary")).to_have_text("Thoughts")
    expect(thoughts.locator("strong")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("strong")).to_have_text("so")
    expect(words.locator("> p").first).to_have_text("Before | it")
    expect(words.locator("th")).to_have_text(["name", "x", "n"])
    expect(words.locator("td")).to_have_text(["a \\| b", "b", "1", "only", "", ""])
    assert words.locator("td").nth(2).evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    links = [
        "https://a.example/y_(z)",
        "https://b.example/q?a=b&c=*d*",
        "https://c.example/d",
        "https://e.example",
        "mailto:a@b.example",
    ]
    found = words.locator("a").evaluate_all(
        "all => all.map((a) => [a.getAttribute('href'), a.rel, a.target])"
    )
    assert found == [[address, "noopener noreferrer", "_blank"] for address in links]
    expect(words.locator("> p").last).to_contain_text(
        "See the docs, https://c.example/d. or https://e.example; write to me."
    )
    expect(words.locator("> p").last).to_contain_text("[no](javascript:alert(1)) [no](data:text/html,x)")
    drawn = words.inner_html()
    told(chat, pieces(THOUGHT))
    again = chat.ask("x")
    again.locator("summary").click()
    assert again.inner_html() == drawn, "drawn in pieces or at once, it is the same"


def test_links_are_drawn_where_the_browser_has_no_can_parse(chat: Chat) -> None:
    chat.page.add_init_script("delete URL.canParse")  # As Safari before 17 and Chrome before 120.
    chat.page.reload()
    assert chat.page.evaluate("URL.canParse === undefined")
    told(chat, pieces("See https://a.example/x or ", "[the docs](https://b.example). ", "And so on."))
    for count, message in enumerate(("x", "y"), 1):
        words = chat.ask(message)
        expect(chat.page.locator(".turn")).to_have_count(count)
        expect(words.locator("a")).to_have_text(["https://a.example/x", "the docs"])
        expect(words).to_contain_text("And so on.")
    chat.page.reload()
    expect(chat.page.locator(".turn")).to_have_count(2)
    expect(chat.words.locator("a")).to_have_count(2)
    chat.ask("z")
    expect(chat.page.locator(".turn")).to_have_count(3)


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_label_of_a_setting_has_one_line(open_page: Open, server: Launched, width: int) -> None:
    chat = open_page(server.url, viewport={"width": width, "height": 900})
    chat.page.get_by_text("More", exact=True).click()
    expect(chat.page.get_by_label("Token probabilities", exact=True)).to_be_visible()
    for label in chat.page.locator("#settings label").all():
        lines = label.evaluate("label => new Set([...label.getClientRects()].map((at) => at.top)).size")
        tall = label.evaluate("label => label.offsetHeight / parseFloat(getComputedStyle(label).lineHeight)")
        assert (lines, round(tall)) == (1, 1), label.text_content()


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


@pytest.mark.parametrize("height", [260, 420, 800])
def test_the_window_beside_a_token_never_covers_its_line(
    open_page: Open, server: Launched, height: int
) -> None:
    chat = open_page(server.url, viewport={"width": 1280, "height": height})
    chunks = pieces(*(f"word{n}\n" for n in range(12)))
    for number, chunk in enumerate(chunks):
        likely = [{"token": f"t{n}", "logprob": -0.5 * n - 0.1, "bytes": []} for n in range(12)]
        content = {**likely[0], "token": f"word{number}\n", "top_logprobs": likely}
        chunk["choices"][0]["logprobs"] = {"content": [content]}
    told(chat, chunks)
    words = chat.ask("x")
    for token in words.locator(".token").all():
        token.hover()
        expect(chat.popover).to_be_visible()
        at, over = token.bounding_box(), chat.popover.bounding_box()
        assert at and over
        assert over["y"] + over["height"] <= at["y"] or over["y"] >= at["y"] + 20, (at, over)
        assert over["y"] >= 0 and over["y"] + over["height"] <= height


def test_markdown_takes_any_text_in_no_time(chat: Chat) -> None:
    milliseconds = chat.page.evaluate("""async () => {
        const {parse} = await import(new URL('page/markdown.js', document.baseURI));
        const marks = [
            '*', '**', '`', '``', ' ', 'a', '\\n', '- ', '1. ', '```', '#', '\\\\', '  ',
            '|', '|-|', '[', '](', 'https://a', ')', '<think>', '</think>', '~', '~~~',
        ];
        let seed = 1;
        const next = () => (seed = (seed * 48271) % 2147483647);
        for (let round = 0; round < 2000; round++) {
            let text = '';
            for (let n = next() % 30; n > 0; n--) text += marks[next() % marks.length];
            let end = 0;
            for (const block of parse(text)) {
                if (block.start < end || block.end < block.start || block.end > text.length) throw Error(text);
                end = block.end;
            }
        }
        const began = performance.now();
        // Lines that might open a block of code, up to their last character.
        for (const [opens, goesOn] of [['~', '~'], ['~', ' ~'], ['```', 'a'], ['```', ' a'], ['~~~', '\\t'], [' ', ' ']]) {
            parse(opens + goesOn.repeat(100000 / goesOn.length) + '`');
        }
        for (const mark of [
            ' *a', '**a ', '`a', ' **a *b', '- a\\n', '    ', '``a`', '1. '.repeat(3),
            '[', '[a](', '[a](https://b', '[a](https://b(', '|', '|-', '|a\\n|-\\n', 'https://a', '<think>', '--- ',
        ]) {
            parse(mark.repeat(100000 / mark.length));
        }
        return performance.now() - began;
    }""")
    assert milliseconds < 24 * 1000, "each of twenty-four texts of 100,000 characters that are all marks"


ATTACK = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [x](javascript:hacked=1) '
    '**<svg onload="window.hacked=1">** `</code><script>window.hacked=1</script>` '
    '<a href="javascript:window.hacked=1">x</a> <iframe srcdoc="<script>parent.hacked=1</script>"></iframe>'
)


def test_what_a_model_writes_stays_text(chat: Chat, server: Launched) -> None:
    odd = {"token": ATTACK, "logprob": -1.0, "bytes": []}
    chunk = pieces(ATTACK, f'\n\n```"><script>window.hacked=1</script>\n{ATTACK}\n```\n\n- {ATTACK}')
    chunk[0]["choices"][0]["logprobs"] = {"content": [{**odd, "top_logprobs": [odd]}]}
    chunk[0]["warnings"] = [ATTACK]
    told(chat, chunk)

    def info(route: Route) -> None:
        route.fulfill(json={**wire.get(server.address, "/info").json(), "model_id": f"x{ATTACK}"})

    chat.page.route("**/info", info)
    chat.page.reload()
    words = chat.ask(ATTACK)
    words.locator(".token").first.hover()
    expect(chat.popover).to_contain_text("onerror")
    expect(words).to_contain_text('<img src=x onerror="window.hacked=1">')
    expect(chat.page.locator(".said")).to_have_text(ATTACK)
    chat.page.unroute(CHAT)
    refusal = {"error": {"message": ATTACK, "param": ATTACK, "http_status_code": 422}}
    chat.page.route(CHAT, lambda route: route.fulfill(status=422, json=refusal))
    chat.ask("again", until="failed")
    expect(chat.error).to_contain_text("onerror")
    made = chat.page.locator("main, #popover, #side, header")
    assert made.locator("script, iframe, a[href^=javascript], #log img, #log svg").count() == 0
    assert chat.page.evaluate("window.hacked") is None
    refused = chat.page.evaluate("""() => {
        try { document.body.innerHTML = '<p>'; return false; } catch (error) { return error instanceof TypeError; }
    }""")
    assert refused, "the browser itself must refuse markup made of strings"
    chat.faults.clear()  # Which it notes.


# WCAG 2's contrast of each text that can be seen to what is behind it: [how many texts, those that are too pale].
CONTRASTS = """() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => {
        const [r, g, b] = parts(color).map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const hasText = (element) =>
        element.matches("input, textarea") || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const contrast = (element) => {
        let behind = element;
        while (behind.parentElement && parts(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        const colors = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
        return (Math.max(...colors) + 0.05) / (Math.min(...colors) + 0.05);
    };
    const seen = [...document.body.querySelectorAll("*")].filter(
        (element) => hasText(element) && !element.disabled && element.checkVisibility({ visibilityProperty: true }),
    );
    const pale = seen.map((element) => [contrast(element), element.outerHTML]).filter(([ratio]) => !(ratio >= 4.5));
    return [seen.length, pale];
}"""


def test_dark_and_light_can_be_read(chat: Chat) -> None:
    grounds = set()
    expect(chat.page.locator("#set-top_p-bounds")).not_to_be_empty()
    chat.set("Temperature", "warm")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in (*schemes, *schemes):
        chat.page.emulate_media(color_scheme=scheme)
        texts, pale = chat.page.evaluate(CONTRASTS)
        assert texts > 40 and pale == [], (scheme, pale)
        grounds.add(chat.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        if scheme == "dark":
            chat.ask("What does `--port` do?", until="failed")
    assert len(grounds) == 2, "dark is another ground than light"


def test_a_narrow_screen_has_room_for_all(open_page: Open, server: Launched) -> None:
    chat = open_page(server.url, viewport={"width": 360, "height": 640}, has_touch=True)

    def width() -> int:
        """Of all there is, also of what one would have to scroll to within the conversation."""
        widths = "[document.documentElement, document.getElementById('scroll')].map((one) => one.scrollWidth)"
        return int(max(chat.page.evaluate(widths)))

    side = chat.page.get_by_label("Settings and server")
    expect(side).to_be_hidden()
    long = "x" * 300
    told(chat, pieces(f"{long}\n\n```\n{long}\n```\n\n1. {long}\n   - {long}"))
    words = chat.ask(long)
    assert width() == 360
    for part in (
        words.locator("p"),
        words.locator("pre"),
        chat.page.locator(".said"),
        chat.text,
        chat.button("Send"),
    ):
        box = part.first.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360, box
    for button in chat.page.get_by_role("button").all():
        box = button.bounding_box()
        assert not box or box["height"] >= 24, button.inner_text()
    chat.button("Settings").click()
    expect(side).to_be_visible()
    expect(chat.button("Close")).to_be_focused()
    chat.set("Temperature", 0)
    assert width() == 360
    chat.page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    expect(chat.button("Settings")).to_be_focused()
    chat.page.unroute(CHAT)
    chat.ask(ADD)
    chat.words.locator(".token").first.tap()
    expect(chat.popover).to_be_visible()
    box = chat.popover.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_other_scripts_are_laid_out_as_they_are_read(chat: Chat) -> None:
    arabic, hebrew = "مرحبا بالعالم", "שלום"
    told(chat, pieces(f"{arabic} **{arabic}**\n\nEnglish\n\n- {hebrew} `code`\n\n", "👩‍👩‍👧‍👦 naïve 日本語"))
    words = chat.ask(arabic)
    direction = "element => getComputedStyle(element).direction"
    assert chat.page.locator(".said").evaluate(direction) == "rtl"
    assert [p.evaluate(direction) for p in words.locator("p").all()] == ["rtl", "ltr", "ltr"]
    assert words.locator("li").evaluate(direction) == "rtl"
    expect(words.locator("p").last).to_have_text("👩‍👩‍👧‍👦 naïve 日本語")
    chat.text.fill(hebrew)
    assert chat.text.evaluate(direction) == "rtl"


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


# --- Schemas and tools ------------------------------------------------------------------------------

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
