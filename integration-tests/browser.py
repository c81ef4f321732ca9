"""A real browser for the tests of the chat page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from playwright.sync_api import Browser, Locator, Page, Request, Route, expect, sync_playwright

from programs import installed

# A machine that is busy with other things needs this long for what takes a second.
PATIENCE_MS = 120_000

# Where the page asks for answers.
CHAT = "**/v1/chat/completions"

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    found = installed("chromium", "chromium-browser", "google-chrome", package="chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, timeout=2 * PATIENCE_MS)
        yield browser
        browser.close()


class Chat:
    """The chat page in a tab of its own, as a user meets it. Leaving it fails on any error of its scripts."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._console)

    def _console(self, message: Any) -> None:
        # The browser itself notes each answer of 4xx and 5xx; a test that provokes one looks at the page.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    def open(self) -> Self:
        self.page.goto(self.url)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.context.close()
        if error is None:
            assert not self.faults, self.faults

    # What is on it.

    @property
    def text(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    @property
    def answer(self) -> Locator:
        """The newest answer, with its buttons."""
        return self.page.locator(".answered").last

    @property
    def words(self) -> Locator:
        """The newest answer's text."""
        return self.answer.locator(".text")

    @property
    def error(self) -> Locator:
        return self.answer.get_by_role("alert")

    @property
    def popover(self) -> Locator:
        return self.page.get_by_role("tooltip")

    @property
    def state(self) -> Locator:
        return self.page.locator("#state-word")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def act(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True).last

    # What one does with it.

    def set(self, label: str, value: object) -> None:
        """Fills in a setting; the panel must be open, as it is where there is room."""
        field = self.page.get_by_label(label, exact=True)
        if not field.is_visible():
            self.page.get_by_text("More", exact=True).click()
        field.fill(str(value))

    def send(self, message: str) -> None:
        self.text.fill(message)
        self.text.press("Enter")

    def ask(self, message: str, until: str = "done") -> Locator:
        """Sends and waits for what comes of it: `done`, `failed` or `writing`."""
        self.send(message)
        self.wait(until)
        return self.words

    def wait(self, state: str) -> None:
        expect(self.answer).to_have_attribute("data-state", state)

    def copied(self, button: str) -> str:
        """What is in the clipboard after a button of the newest answer."""
        self.act(button).click()
        expect(self.act("Copied")).to_be_visible()
        return str(self.page.evaluate("navigator.clipboard.readText()"))


Open = Callable[..., Chat]


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
