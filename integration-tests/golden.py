"""The requests that clients really send, as files in `golden/`: one per suite of `clients/`, made by a test run
with the client installed, and sent again by `test_golden.py` without it.

Of a request, what a server can see and what does not change by itself is kept. Of an answer, its status, its
type, and its shape: which keys there are, and which kinds of values they hold.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"

# The rest tells of the machine, the run or the exact version.
HEADERS = ("accept", "authorization", "content-type", "user-agent")

Json = Any


def request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> dict[str, Json]:
    kept = {name: headers[name] for name in HEADERS if name in headers}
    if "authorization" in kept:
        kept["authorization"] = kept["authorization"].split(" ")[0] + " KEY"
    if "user-agent" in kept:
        kept["user-agent"] = family(kept["user-agent"])
    # The server's own address: some clients send it as the model's name.
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://localhost:3000", body.decode())
    # What the server has called its items, and clients theirs.
    text = re.sub(r"\b([a-z_]+_)[0-9a-f]{24,32}\b", r"\g<1>0", text)
    return {"method": method, "path": path, "headers": kept, "body": json.loads(text) if text else None}


def family(agent: str) -> str:
    """A user agent without versions, and without what says on which system it runs."""
    words = re.sub(r"\([^)]*\)", "", agent)
    names = [re.split(r"/|;", word)[0] for word in words.split() if not word[0].isdigit()]
    return " ".join(dict.fromkeys(name for name in names if name))


def answer(status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Json]:
    """`warnings` are left out: a field that had no effect may have one tomorrow."""
    kind = headers.get("content-type", "").split(";")[0]
    if kind == "text/event-stream":
        data = [line[5:].strip() for line in body.decode().splitlines() if line.startswith("data:")]
        events = merge([shape(without_warnings(json.loads(one))) for one in data if one != "[DONE]"])
        return {"status": status, "type": kind, "events": events, "done": data[-1:] == ["[DONE]"]}
    if kind == "application/json":
        return {"status": status, "type": kind, "shape": shape(without_warnings(json.loads(body)))}
    return {"status": status, "type": kind}


def without_warnings(value: Json) -> Json:
    return {key: one for key, one in value.items() if key != "warnings"} if isinstance(value, dict) else value


def shape(value: Json) -> Json:
    """An object becomes an object of shapes, a list the list of what its elements have in common, anything
    else the name of its kind. A key that only some elements have ends in `?`."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [merge([shape(one) for one in value])] if value else []
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "string"


def merge(shapes: list[Json]) -> Json:
    objects = [one for one in shapes if isinstance(one, dict)]
    lists = [one for one in shapes if isinstance(one, list)]
    kinds = {kind for one in shapes if isinstance(one, str) for kind in one.split("|")}
    merged: list[Json] = []
    if objects:
        names = dict.fromkeys(name.removesuffix("?") for one in objects for name in one)
        together = {}
        for name in names:
            found = [one[key] for one in objects for key in (name, name + "?") if key in one]
            always = all(name in one for one in objects)
            together[name if always else name + "?"] = merge(found)
        merged.append(together)
    if lists:
        elements = [one[0] for one in lists if one]
        merged.append([merge(elements)] if elements else [])
    if not merged:
        return "|".join(sorted(kinds))
    return merged[0] if not kinds and len(merged) == 1 else {"one of": [*merged, *sorted(kinds)]}


def misses(wanted: Json, got: Json, place: str = "") -> list[str]:
    """What a client that relies on `wanted` would miss in `got`. More keys than were wanted disturb nobody."""
    if isinstance(got, dict) and "one of" in got:
        return [miss for one in got["one of"] for miss in misses(wanted, one, place)]
    if isinstance(wanted, dict) and "one of" in wanted:
        found = [misses(one, got, place) for one in wanted["one of"]]
        return [] if [] in found else min(found, key=len)
    if isinstance(wanted, dict) and isinstance(got, dict):
        missing = []
        for name, value in wanted.items():
            key = name.removesuffix("?")
            if key in got:
                missing += misses(value, got[key], f"{place}.{key}")
            elif key + "?" in got and name.endswith("?"):
                missing += misses(value, got[name], f"{place}.{key}")
            elif not name.endswith("?"):
                missing.append(f"{place}.{key} is not there")
        return missing
    if isinstance(wanted, list) and isinstance(got, list):
        if wanted and not got:
            return [f"{place} is empty"]
        return misses(wanted[0], got[0], f"{place}[]") if wanted else []
    if isinstance(wanted, str) and isinstance(got, str):
        more = set(got.split("|")) - set(wanted.split("|"))
        return [f"{place} is {got}, and was {wanted}"] if more else []
    return [f"{place} is {json.dumps(got)}, and was {json.dumps(wanted)}"]


def parts(of_it: Json, place: str = "") -> set[str]:
    """Every place of a shape, and every kind that its value has: of those that only some have as well."""
    if isinstance(of_it, dict) and "one of" in of_it:
        return {part for one in of_it["one of"] for part in parts(one, place)}
    if isinstance(of_it, dict):
        return {part for key, one in of_it.items() for part in parts(one, f"{place}.{key.removesuffix('?')}")}
    if isinstance(of_it, list):
        return {part for one in of_it for part in parts(one, f"{place}[]")}
    return {f"{place} is {kind}" for kind in of_it.split("|")}


def missed(then: Json, now: Json) -> list[str]:
    """What a client that relies on the answer `then` would miss in `now`. Of a stream each event may be without what only some
    have, but one has it."""
    changed = [
        f"{part} is {now.get(part)}, and was {then.get(part)}"
        for part in ("status", "type", "done")
        if now.get(part) != then.get(part)
    ]
    if changed:
        return changed
    if "shape" in then:
        return misses(then["shape"], now["shape"])
    if "events" not in then:
        return []
    lost = parts(then["events"]) - parts(now["events"])
    return misses(then["events"], now["events"]) + [f"{part} in no event" for part in sorted(lost)]


def read(suite: str) -> dict[str, Json]:
    document: dict[str, Json] = json.loads((FOLDER / f"{suite}.json").read_text())
    return document


def written(document: Json) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def difference(suite: str, recorded: Json) -> str:
    """How what was recorded just now differs from the file: requests to the letter, of answers what is missed."""
    path = FOLDER / f"{suite}.json"
    before: Json = json.loads(path.read_text()) if path.exists() else {}
    sent = difflib.unified_diff(
        written(without_answers(before)).splitlines(),
        written(without_answers(recorded)).splitlines(),
        f"golden/{suite}.json",
        "what was sent just now",
        lineterm="",
        n=8,
    )
    return "\n".join(sent) or "\n".join(
        f"{test}, {request['path']}: {miss}"
        for test, requests in before["requests"].items()
        for request, again in zip(requests, recorded["requests"][test], strict=True)
        for miss in missed(request["answer"], again["answer"])
    )


def without_answers(document: Json) -> Json:
    tests = document.get("requests", {})
    return {
        **document,
        "requests": {
            test: [{key: value for key, value in one.items() if key != "answer"} for one in requests]
            for test, requests in tests.items()
        },
    }
