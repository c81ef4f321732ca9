"""docs/metrics.md, deploy/prometheus and deploy/grafana against a server that has seen everything: load,
refusals, a client that left, a restart. Rules and queries run in a real Prometheus (Debian's package
`prometheus`, with `promtool`).
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wire
from exposition import IN_FLIGHT, RESTARTS, Exposition
from launched import Launched, free_port
from load import ask_all, complete
from processes import wait_for
from programs import installed

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
RULES = ROOT / "deploy/prometheus/penstock.rules.yml"
DASHBOARD = ROOT / "deploy/grafana/penstock.json"
PAGE = ROOT / "docs/metrics.md"

KEY = "sesame-of-a"
NAMED = re.compile(r"\b(?:tgi|penstock)_[a-z_]+\b")
# What a panel is for. The others may show nothing when nothing of the kind happened.
QUIET = {"Refused as overloaded", "Requests that failed by no fault of theirs"}


@pytest.fixture(scope="module")
def seasoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A server in whose life everything has happened that there is a metric for."""
    folder = tmp_path_factory.mktemp("seasoned")
    keys = folder / "keys"
    keys.write_text(f"team-a: {KEY}\n")
    # Nobody takes its traces, which is counted.
    flags = ("--api-key-file", str(keys), "--otlp-endpoint", f"http://127.0.0.1:{free_port()}")
    with Launched(folder, *flags) as launched:
        load(launched.wait_ready())
        launched.worker().signal(signal.SIGKILL)
        wait_for(lambda: launched.metrics().value(RESTARTS) == 1, "the worker to be replaced", 60)
        load(launched.wait_ready())
        yield launched


def load(launched: Launched) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    asks = [complete(f"{number} apples and", 30) for number in range(4)]
    for request in asks:
        request.headers.update(headers)
    assert all(answer.error is None for answer in ask_all(launched.address, asks + asks[:1]))
    assert wire.post(launched.address, "/generate", {"inputs": ""}, headers=headers).status == 422
    assert wire.get(launched.address, "/info").status == 401
    grammar = {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "[0-9]{3}"}}}
    assert wire.post(launched.address, "/generate", grammar, headers=headers).status == 200
    gone = {"prompt": "and so on", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with wire.Events(launched.address, "/v1/completions", gone, headers=headers) as events:
        next(iter(events))
    wait_for(lambda: launched.metrics().value(IN_FLIGHT) == 0, "every request to end")


# The page.


def documented() -> dict[str, tuple[str, set[str]]]:
    """Of each metric on the page, its type and its labels."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    assert rows, "the page has no table"
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names)), "a metric stands on the page twice"
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def exposed(now: Exposition) -> dict[str, tuple[str, set[str]]]:
    labels: dict[str, set[str]] = {name: set() for name in now.types}
    for sample in now.samples:
        name = next(n for n in (sample.name, re.sub(r"_(bucket|sum|count)$", "", sample.name)) if n in labels)
        labels[name] |= set(sample.labels) - {"le", "quantile"}
    return {name: (kind, labels[name]) for name, kind in now.types.items()}


def test_the_page_tells_of_every_metric_and_of_no_other(seasoned: Launched) -> None:
    counted = "penstock_trace_spans"
    wait_for(lambda: seasoned.metrics().value(counted) > 0, "spans to be lost", 30)
    there, told = exposed(seasoned.metrics()), documented()
    assert not (there.keys() - told.keys()), "exposed and not on the page"
    assert not (told.keys() - there.keys()), "on the page and not exposed"
    assert there == told


def test_every_metric_has_its_help(seasoned: Launched) -> None:
    text = wire.get(seasoned.address, "/metrics").text
    helped = set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    assert helped >= seasoned.metrics().names()


# Rules and dashboard.


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Title and expression of every query, as Grafana would send it for a short time range."""
    found = []
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$__range", "1m")
            found.append((panel["title"], query.replace("$instance", ".*")))
    return found


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))
    for panel in panels():
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    boxes = [panel["gridPos"] for panel in panels()]
    taken = {
        (x, y) for b in boxes for x in range(b["x"], b["x"] + b["w"]) for y in range(b["y"], b["y"] + b["h"])
    }
    assert len(taken) == sum(b["w"] * b["h"] for b in boxes), "no panel lies on another"


def test_what_tells_of_refusals_tells_of_both_reasons() -> None:
    """`overloaded` is a full queue, and one that is too long for a request's own deadline."""
    overloaded = 'err="overloaded"'
    (alert,) = [rule for rule in RULES.read_text().split("- alert: ") if overloaded in rule]
    shown = [panel for panel in panels() if any(overloaded in target["expr"] for target in panel["targets"])]
    assert shown
    for text in (alert, *(panel["description"] for panel in shown)):
        assert "--max-concurrent-requests" in text and "deadline" in text, text


def test_every_metric_that_rules_and_dashboard_name_exists(seasoned: Launched) -> None:
    there = seasoned.metrics().types
    sources = {
        "rules": " ".join(re.findall(r"expr:(.*?)(?=\n\s+(?:for|labels):)", RULES.read_text(), re.DOTALL))
    }
    sources["dashboard"] = " ".join(query for _, query in queries())
    for source, text in sources.items():
        names = set(NAMED.findall(text))
        assert len(names) > 5
        for name in names:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            histogram = there.get(base) == "histogram"
            assert name in there or (histogram and name != base), f"{source} names {name}"


def test_rules_and_configuration_are_right_for_promtool() -> None:
    for check, path in (("config", CONFIG), ("rules", RULES)):
        subprocess.run(
            [installed("promtool", package="prometheus"), "check", check, str(path)],
            check=True,
            capture_output=True,
        )


@pytest.mark.parametrize(
    ("up", "ready", "at", "fires"),
    [
        (1, "_x40", "90s", False),
        (1, "_x40", "5m", True),  # It loads its model, and exposes nothing until then.
        (1, "_x4 1x36", "5m", False),
        (1, "1x8 0x32", "5m", True),
        (0, "_x40", "5m", False),  # That is PenstockDown's.
    ],
)
def test_a_server_that_is_long_not_ready_is_told_of(
    up: int, ready: str, at: str, fires: bool, tmp_path: Path
) -> None:
    series = {"up": f"{up}x40", "penstock_ready": ready}
    query = 'max by (severity) (ALERTS{alertname="PenstockNotReady", alertstate="firing"})'
    told = [{"labels": '{severity="critical"}', "value": 1}] if fires else []
    evaluate(tmp_path, series, {"promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": told}]})


@pytest.mark.parametrize("interval", ["14s", "16s", "59s"])  # Out of step with the evaluation, as in life.
@pytest.mark.parametrize(("restarts", "fires"), [(2, False), (3, True)])
def test_more_than_two_restarts_are_told_of_with_their_number(
    restarts: int, fires: bool, interval: str, tmp_path: Path
) -> None:
    steps = " ".join(f"{done}x2" for done in range(restarts))
    series = {"penstock_worker_restarts": f"{steps} {restarts}x120"}
    told = {
        "exp_labels": {"severity": "warning", "job": "penstock", "instance": "a"},
        "exp_annotations": {
            "summary": "a replaced its workers 3 times in 15 minutes",
            "description": "Running streams pause at each. The log says how the workers ended.",
        },
    }
    at = [f"{minute}m" for minute in range(12, 15)]
    tests = [
        {"eval_time": time, "alertname": "PenstockWorkersRestart", "exp_alerts": [told] if fires else []}
        for time in at
    ]
    evaluate(tmp_path, series, {"alert_rule_test": tests}, interval)


@pytest.mark.parametrize(("for_priority", "fires"), [("0x60", True), ("0+3x60", False)])
def test_a_short_cache_is_told_of_where_few_sequences_fill_it(
    for_priority: str, fires: bool, tmp_path: Path
) -> None:
    """Each preemption frees a fifth of the blocks, until somebody has taken them."""
    series = {
        "penstock_preemptions": "0+3x60",
        "penstock_priority_preemptions": for_priority,
        "penstock_kv_blocks_used": "80 100 100 " * 20,
        "penstock_kv_blocks_cached": "20 0 0 " * 20,
        "penstock_kv_blocks_free": "0x60",
    }
    query = 'max by (severity) (ALERTS{alertname="PenstockKvCacheIsShort", alertstate="firing"})'
    told = [{"labels": '{severity="warning"}', "value": 1}] if fires else []
    evaluate(
        tmp_path, series, {"promql_expr_test": [{"expr": query, "eval_time": "13m", "exp_samples": told}]}
    )


def evaluate(
    folder: Path, series: dict[str, str], tests: dict[str, list[dict[str, Any]]], interval: str = "15s"
) -> None:
    """Has promtool try the rules with the metrics of one server."""
    inputs = [
        {"series": f'{name}{{job="penstock", instance="a"}}', "values": values}
        for name, values in series.items()
    ]
    test = {"interval": interval, "input_series": inputs, **tests}
    file = folder / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    command = [installed("promtool", package="prometheus"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(seasoned: Launched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[wire.Address]:
    """A Prometheus with our configuration, but for the server's address and the pace."""
    program, folder = installed("prometheus", package="prometheus"), tmp_path_factory.mktemp("prometheus")
    text = CONFIG.read_text()
    assert text.count("localhost:3000") == 1 and text.count(" 15s") == 2
    here = f"{seasoned.address.host}:{seasoned.address.port}"
    (folder / CONFIG.name).write_text(text.replace("localhost:3000", here).replace(" 15s", " 1s"))
    shutil.copy(RULES, folder)
    address = wire.Address("127.0.0.1", free_port())
    command = [
        program,
        f"--config.file={folder / CONFIG.name}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{address.port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(lambda: scraped(address) >= 2, "Prometheus to scrape the server twice", 60, 0.2)
        load(seasoned)
        seen = scraped(address)
        wait_for(lambda: scraped(address) >= seen + 3, "three more scrapes", 60, 0.2)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def asked(address: wire.Address, path: str, **query: str) -> Any:
    reply = wire.get(address, f"{path}?{urllib.parse.urlencode(query)}")
    body = reply.json()
    assert reply.status == 200 and body["status"] == "success", f"{query}: {body}"
    return body["data"]


def scraped(address: wire.Address) -> float:
    """How often Prometheus has seen the server."""
    try:
        result = asked(address, "/api/v1/query", query='count_over_time(up{job="penstock"}[10m]) and up == 1')
    except (OSError, ValueError, AssertionError):
        return 0
    return float(result["result"][0]["value"][1]) if result["result"] else 0


def test_every_query_of_the_dashboard_gives_data(prometheus: wire.Address) -> None:
    empty = []
    now = time.time()
    for title, query in queries():
        answer = asked(
            prometheus, "/api/v1/query_range", query=query, start=str(now - 10), end=str(now), step="1"
        )
        values = [value for series in answer["result"] for _, value in series["values"] if value != "NaN"]
        if not values and title not in QUIET:
            empty.append((title, query))
    assert not empty


def test_every_rule_evaluates(prometheus: wire.Address) -> None:
    def evaluated() -> list[Any] | None:
        groups = asked(prometheus, "/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_for(evaluated, "every rule to be evaluated", 30, 0.2)
    assert len(rules) >= 8
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} == set(), "this server is well"
