"""`/block_events`: who may read it, what it tells, how it ends, and that the names of blocks are those that `docs/block-events.md`
computes, on every server. Names are the router's, so the workers compute nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import wire
from checkpoints import SHIPPED
from conftest import Launch
from launched import Launched
from processes import wait_for
from test_access import bearer

PAGE = Path(__file__).parents[1] / "docs" / "block-events.md"
KEY, OTHER = "key-of-one", "key-of-another"
KEYS = ("--api-key", KEY, "--api-key", OTHER)
# Three blocks and a bit, with what is generated.
PROMPT = "one two three four five six seven eight nine ten " * 3
NEW_TOKENS = 20


def generate(address: wire.Address, headers: dict[str, str], **parameters: Any) -> list[int]:
    """The tokens that are cached behind it: the last one is never fed."""
    told = wire.post(address, "/tokenize", {"inputs": PROMPT}, headers=headers).json()
    body = {
        "inputs": PROMPT,
        "parameters": {"max_new_tokens": NEW_TOKENS, "details": True, "ignore_eos_token": True, **parameters},
    }
    reply = wire.post(address, "/generate", body, headers=headers)
    assert reply.status == 200, reply.text
    tokens = [token["id"] for token in told + reply.json()["details"]["tokens"]]
    return tokens[:-1]


def as_documented(
    launched: Launched, tokens: list[int], key: str | None, salt: str | None = None
) -> list[str]:
    """Names of a request's blocks by the Python of the page, which runs as it stands. `key`: None for a server without keys."""
    headers = {} if key is None else bearer(key)
    info = wire.get(launched.address, "/info", headers=headers).json()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if key is None and salt is None:
        # "The second line is left out": it stands by itself, with its comment.
        code, left_out = re.subn(r"^space = namespace\(space, .*\n", "", code, flags=re.MULTILINE)
        assert left_out == 1
    names: dict[str, Any] = {
        "model_id": info["model_id"].encode(),
        "revision": (info["revision"] or "").encode(),
        "commit": (info["model_sha"] or "").encode(),
        "api_key": (key or "").encode(),
        "salt": [] if salt is None else [salt.encode()],
        "block_size": 16,
        "tokens": tokens,
    }
    exec(code, names)
    return list(names["hashes"])


def chain(changes: Sequence[dict[str, Any]]) -> list[str]:
    """The blocks that are stored, which follow each other."""
    stored = [change["stored"] for change in changes]
    assert [block["after"] for block in stored] == [None, *(block["block"] for block in stored[:-1])]
    return [block["block"] for block in stored]


def known(launched: Launched, key: str | None) -> list[dict[str, Any]]:
    with wire.Events(launched.address, "/block_events", headers=bearer(key) if key else None) as events:
        first = json.loads(next(iter(events)))
    assert first["type"] == "known" and first["block_size"] == 16
    changes: list[dict[str, Any]] = first["changes"]
    return changes


def changed(events: Iterator[str], blocks: int) -> list[dict[str, Any]]:
    """Changes until so many blocks are stored."""
    changes: list[dict[str, Any]] = []
    while len(changes) < blocks:
        event = json.loads(next(events))
        assert event["type"] == "changed" and event["changes"]
        changes += event["changes"]
    return changes


def test_a_reader_needs_a_key_and_is_told_what_is_known_and_then_what_changes(launch_null: Launch) -> None:
    launched = launch_null("--block-events", *KEYS).wait_ready()
    for headers in ({}, bearer("wrong")):
        assert wire.get(launched.address, "/block_events", headers=headers).status == 401

    with wire.Events(launched.address, "/block_events", headers=bearer(KEY)) as stream:
        assert stream.status == 200 and stream.headers["content-type"].startswith("text/event-stream")
        events = iter(stream)
        assert json.loads(next(events)) == {"type": "known", "block_size": 16, "changes": []}
        tokens = generate(launched.address, bearer(KEY))
        mine = as_documented(launched, tokens, KEY)
        assert len(mine) >= 4, "of prompt and output"
        assert chain(changed(events, len(mine))) == mine
        assert chain(known(launched, KEY)) == mine, "who comes later is told all at once"

        # Another tenant's blocks, and those of a salt, are others.
        generate(launched.address, bearer(OTHER))
        others = as_documented(launched, tokens, OTHER)
        assert chain(changed(events, len(others))) == others
        body = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "ignore_eos": True, "cache_salt": "pepper"}
        assert wire.post(launched.address, "/v1/completions", body, headers=bearer(KEY)).status == 200
        salted = as_documented(launched, tokens, KEY, "pepper")
        assert chain(changed(events, len(salted))) == salted
        assert not set(mine) & set(others) and not set(mine) & set(salted)

        # It ends with the server, and does not keep it.
        launched.stop()
        assert list(events) == []


def test_readers_are_few_and_no_key_has_them_all(launch_null: Launch) -> None:
    """Each may have the scheduler walk over all that is cached."""
    launched = launch_null("--block-events", *KEYS).wait_ready()

    def read(key: str) -> wire.Events:
        return stack.enter_context(wire.Events(launched.address, "/block_events", headers=bearer(key)))

    with contextlib.ExitStack() as stack:
        assert [read(KEY).status for _ in range(14)] == [200] * 14
        refused = read(KEY)
        assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1
        assert "16 readers" in refused.read().json()["error"]
        assert [read(OTHER).status for _ in range(2)] == [200] * 2
        assert read(OTHER).status == 429
    with contextlib.ExitStack() as stack:
        wait_for(lambda: read(KEY).status == 200, "a reader's share to be free")


def test_much_that_is_cached_is_told_in_several_events(launch_null: Launch) -> None:
    launched = launch_null("--block-events").wait_ready()
    for number in range(6):
        body = {"prompt": f"{number} {PROMPT * 18}", "max_tokens": 1}
        assert wire.post(launched.address, "/v1/completions", body).status == 200
    cached = wire.get(launched.address, "/info").json()["kv_blocks_cached"]
    assert cached > 2 * 128
    kinds: list[str] = []
    told: set[str] = set()
    with wire.Events(launched.address, "/block_events") as stream:
        events = iter(stream)
        while len(told) < cached:
            event = json.loads(next(events))
            kinds.append(event["type"])
            assert 0 < len(event["changes"]) <= 128
            for change in event["changes"]:
                assert change["stored"]["after"] in {None, *told}
                told.add(change["stored"]["block"])
    assert kinds[0] == "known" and set(kinds[1:]) == {"changed"}, kinds


def test_names_are_the_same_on_two_servers_and_after_a_restart(launch_null: Launch) -> None:
    def started() -> Launched:
        return launch_null("--block-events").wait_ready()

    one, other = started(), started()
    tokens = generate(one.address, {})
    generate(other.address, {})
    names = chain(known(one, None))
    assert names == as_documented(one, tokens, None)
    assert chain(known(other, None)) == names
    one.stop()
    again = started()
    assert known(again, None) == [], "nothing is cached at first"
    generate(again.address, {})
    assert chain(known(again, None)) == names


def test_what_is_evicted_is_told(launch_null: Launch) -> None:
    """Whoever follows the changes knows what is cached."""
    room = ("--max-total-tokens", "128", "--max-batch-total-tokens", "128")
    launched = launch_null("--block-events", *room).wait_ready()
    cached: set[str] = set()
    evicted = 0
    with wire.Events(launched.address, "/block_events") as stream:
        events = iter(stream)
        assert json.loads(next(events))["changes"] == []
        for number in range(4):
            body = {"prompt": f"{number} {PROMPT}", "max_tokens": NEW_TOKENS, "ignore_eos": True}
            assert wire.post(launched.address, "/v1/completions", body).status == 200
            now = {change["stored"]["block"] for change in known(launched, None)}
            while cached != now:
                for change in json.loads(next(events))["changes"]:
                    if "stored" in change:
                        assert change["stored"]["after"] in {None, *cached}
                        cached.add(change["stored"]["block"])
                    else:
                        cached.remove(change["evicted"]["block"])
                        evicted += 1
    assert evicted > 4


def test_a_lost_worker_clears_what_was_known(launch_null: Launch) -> None:
    launched = launch_null("--block-events").wait_ready()
    with wire.Events(launched.address, "/block_events") as stream:
        events = iter(stream)
        assert json.loads(next(events))["changes"] == []
        names = as_documented(launched, generate(launched.address, {}), None)
        assert chain(changed(events, len(names))) == names
        launched.worker().signal(signal.SIGKILL)
        wait_for(lambda: launched.metrics().value("penstock_worker_restarts") == 1, "the loss to be noticed")
        launched.wait_ready()
        generate(launched.address, {})
        cleared, *stored = changed(events, 1 + len(names))
        assert cleared == {"cleared": {}} and chain(stored) == names


def test_names_are_those_of_a_model(launch_null: Launch, tmp_path: Path) -> None:
    """The same files under another name are another model's."""
    shipped = launch_null("--block-events").wait_ready()
    copy = tmp_path / "another"
    copy.symlink_to(SHIPPED, target_is_directory=True)
    other = launch_null("--block-events", "--model-id", str(copy)).wait_ready()
    tokens = generate(shipped.address, {})
    assert generate(other.address, {}) == tokens
    assert chain(known(other, None)) == as_documented(other, tokens, None)
    assert not set(chain(known(other, None))) & set(chain(known(shipped, None)))


def test_a_server_that_is_not_asked_to_tell_has_no_such_route(launch_null: Launch) -> None:
    assert wire.get(launch_null().wait_ready().address, "/block_events").status == 404
