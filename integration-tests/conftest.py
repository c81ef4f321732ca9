"""Fixtures: the installed `penstock` with the shipped model, shared by the tests that only read from it.

Tests that break, drain or limit a server start their own through `launch`. Nothing here talks to anything
but loopback.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wire
from launched import BINARY, EXACT, PACKED_CACHE_DIR, Launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from browser import Chat, Open

Launch = Callable[..., Launched]

collect_ignore = ["clients"]  # run in environments of their own: test_clients.py


def pytest_configure(config: pytest.Config) -> None:
    """What tests load is packed into a folder of the session's, for all its processes, and not into the home of who runs them."""
    if PACKED_CACHE_DIR not in os.environ:
        folder = tempfile.mkdtemp(prefix="penstock-packed-")
        os.environ[PACKED_CACHE_DIR] = folder
        config.add_cleanup(partial(shutil.rmtree, folder))


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    if not BINARY.exists():
        pytest.exit(
            f"{BINARY} is missing: these tests run the installed server; `make install` puts it there", 2
        )


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The shipped model with the defaults, as the first command of the README starts it."""
    with Launched(tmp_path_factory.mktemp("server")) as launched:
        yield launched.wait_ready()


@pytest.fixture(scope="session")
def address(server: Launched) -> wire.Address:
    return server.address


@pytest.fixture(scope="session")
def exact_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Where equal means equal (`launched.EXACT`)."""
    with Launched(tmp_path_factory.mktemp("exact"), *EXACT) as launched:
        yield launched.wait_ready()


@pytest.fixture
def exact(exact_server: Launched) -> wire.Address:
    return exact_server.address


@pytest.fixture
def launch_null(launch: Launch) -> Launch:
    """The same with workers that compute nothing: for what router and launcher do whatever the texts are."""
    return partial(launch, null_worker=True)


@pytest.fixture
def launch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launch]:
    """Starts servers of this test's own, and ends those that the test has left running."""
    started: list[Launched] = []

    def start(*arguments: str, **options: object) -> Launched:
        launched = Launched(tmp_path / f"run-{len(started)}", *arguments, **options)  # type: ignore[arg-type]
        started.append(launched)
        return launched

    yield start
    failed = bool(getattr(request.node, "failed_in_call", False))
    for launched in started:
        if failed:
            print(f"--- the server's log, {launched.folder}:\n{launched.log()[-8000:]}")
            launched.end_everything()
        elif launched.process.poll() is None:
            launched.stop()
        else:
            launched.assert_no_orphan()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For the files that test the chat page; what drives it is loaded for nothing else."""
    from browser import chromium

    with chromium() as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens the page of a server in a tab of its own; all are closed, and looked through for faults, at the end."""
    from browser import Chat

    with ExitStack() as tabs:
        yield lambda url, **options: tabs.enter_context(Chat(browser, url, **options)).open()


@pytest.fixture
def chat(open_page: Open, server: Launched) -> Chat:
    return open_page(server.url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    report = yield
    if report.when == "call":  # type: ignore[attr-defined]
        item.failed_in_call = report.failed  # type: ignore[attr-defined]
    return report


STACK_TRACE = re.compile(
    r"Traceback \(most recent call last\)|panicked at|stack backtrace:|^\s+\d+: .*::", re.MULTILINE
)


def assert_no_stack_trace(text: str) -> None:
    match = STACK_TRACE.search(text)
    assert match is None, (
        f"a stack trace in the log: ...{text[max(0, match.start() - 300) : match.start() + 2000]}"
    )


def fails(launched: Launched, code: int, *mentions: str, seconds: float = 60) -> str:
    """It ends by itself with this code; the last line of stderr is one error that names these things."""
    assert launched.wait_ended(seconds) == code, launched.log()[-4000:]
    launched.assert_no_orphan(5)
    text = launched.log()
    assert_no_stack_trace(text)
    errors = [line for line in launched.stderr().splitlines() if line.strip()]
    assert errors, f"nothing on stderr:\n{text}"
    for mention in mentions:
        assert mention in errors[-1], f"{mention!r} is not named in the last line:\n{text[-4000:]}"
    return errors[-1]
