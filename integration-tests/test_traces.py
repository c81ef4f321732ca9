"""Traces, as a collector of its own process receives them from router and worker."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import wire
from conftest import Launch
from launched import Launched, free_port
from load import begin, complete
from otlp_receiver import Collector
from processes import wait_for

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RESPONSE = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])")
# Clocks of two processes of one machine, read one after the other.
SLACK = 0.005


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with Collector(tmp_path_factory.mktemp("collector")) as running:
        yield running


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    flags = ("--otlp-endpoint", collector.endpoint, "--otlp-service-name", "tested", "--json-output")
    with Launched(tmp_path_factory.mktemp("traced"), *flags) as launched:
        yield launched.wait_ready()


def generate(
    launched: Launched, tokens: int, parent: str | None = None, inputs: str = "a b c", **headers: str
) -> wire.Reply:
    sent = {"traceparent": parent, **headers} if parent else headers
    body = {"prompt": inputs, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return wire.post(launched.address, "/v1/completions", body, headers=sent)


def answered(reply: wire.Reply) -> tuple[str, str, str]:
    """Trace, span and flags that an answer names."""
    match = RESPONSE.fullmatch(reply.headers["traceresponse"])
    assert match, reply.headers["traceresponse"]
    return match[1], match[2], match[3]


def named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == name]


def complete_trace(collector: Collector, trace: str, steps: int) -> list[dict[str, Any]]:
    """The trace once the request's span and so many steps of it are there."""

    def find() -> list[dict[str, Any]] | None:
        spans = collector.spans(trace)
        ended = any(span["name"].startswith("POST") for span in spans)
        return spans if ended and len(named(spans, "step")) >= steps else None

    return wait_for(find, f"the trace {trace}", 20, 0.05)


def test_a_request_is_one_trace_under_its_callers_span(traced: Launched, collector: Collector) -> None:
    reply = generate(traced, 6, f"00-{TRACE}-{CALLER}-01", **{"x-request-id": "traced-1"})
    assert reply.status == 200
    trace, span, flags = answered(reply)
    assert (trace, flags) == (TRACE, "01")

    spans = complete_trace(collector, TRACE, 6)
    (root,) = named(spans, "POST /v1/completions")
    assert (root["span"], root["parent"], root["kind"]) == (span, CALLER, "SPAN_KIND_SERVER")
    assert root["error"] is None
    attributes = root["attributes"]
    assert attributes["http.route"] == "/v1/completions"
    assert attributes["http.response.status_code"] == 200
    assert attributes["gen_ai.usage.output_tokens"] == 6
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes["gen_ai.usage.input_tokens"] == int(reply.headers["x-prompt-tokens"])
    assert attributes["penstock.request_id"] == "traced-1"

    phases = [named(spans, name) for name in ("queue", "prefill", "decode")]
    assert [len(phase) for phase in phases] == [1, 1, 1]
    (queue,), (prefill,), (decode,) = phases
    assert {phase["parent"] for (phase,) in phases} == {span}
    assert root["begin"] <= queue["begin"] + SLACK
    assert queue["end"] == pytest.approx(prefill["begin"], abs=1e-6)
    assert prefill["end"] == pytest.approx(decode["begin"], abs=1e-6)
    assert decode["end"] <= root["end"] + SLACK
    assert decode["attributes"]["penstock.generated_tokens"] == 6

    # Each token is a step of the worker; the step after the last is a wasted one at most.
    steps = named(spans, "step")
    assert 6 <= len(steps) <= 7
    for step in steps:
        assert step["parent"] == span and step["links"] == [[TRACE, span]]
        assert queue["begin"] - SLACK <= step["begin"] <= step["end"] <= root["end"] + 1
        assert step["attributes"]["penstock.rows"] == 1
        measured = sum(step["attributes"][f"penstock.{part}_ns"] for part in ("prepare", "forward", "sample"))
        assert 0 < measured / 1e9 <= step["end"] - step["begin"] + SLACK
    components = {span["resource"]["penstock.component"] for span in spans}
    assert components == {"router", "worker"}
    assert {span["resource"]["service.name"] for span in spans} == {"tested"}

    (line,) = (
        entry
        for entry in map(json.loads, traced.stdout().splitlines())
        if entry.get("request_id") == "traced-1"
    )
    assert line["trace_id"] == TRACE


def test_a_step_of_several_requests_links_to_each(traced: Launched, collector: Collector) -> None:
    before = {span["trace"] for span in collector.spans()}
    with traced.slow_worker(), ExitStack() as streams:
        for number in range(3):
            ask = complete(f"{number} hats", 1_900)
            next(iter(streams.enter_context(begin(traced.address, ask))))
        # All three have had a token and none is near its end: the next steps have all of them.

    def joint() -> dict[str, Any] | None:
        new = (step for step in named(collector.spans(), "step") if step["trace"] not in before)
        return next((step for step in new if len({trace for trace, _ in step["links"]}) == 3), None)

    step = wait_for(joint, "a step of all three", 20, 0.05)
    assert step["attributes"]["penstock.rows"] == 3
    assert step["trace"] in {trace for trace, _ in step["links"]}


def test_a_caller_that_does_not_record_is_not_recorded(traced: Launched, collector: Collector) -> None:
    unseen = "1" * 32
    trace, _, flags = answered(generate(traced, 3, f"00-{unseen}-{CALLER}-00"))
    assert (trace, flags) == (unseen, "00")
    seen, _, _ = answered(generate(traced, 3))
    complete_trace(collector, seen, 3)
    assert collector.spans(unseen) == []


@pytest.mark.parametrize("parent", ["", "rubbish", f"00-{'0' * 32}-{CALLER}-01", f"ff-{TRACE}-{CALLER}-01"])
def test_a_parent_that_is_none_begins_a_new_trace(traced: Launched, parent: str) -> None:
    trace, _, flags = answered(generate(traced, 1, parent))
    assert trace not in (TRACE, "0" * 32) and flags == "01"


def test_failures_and_departures_are_told(traced: Launched, collector: Collector) -> None:
    reply = generate(traced, 10**6)
    assert reply.status == 422
    trace, span, _ = answered(reply)
    (root,) = complete_trace(collector, trace, 0)
    assert root["span"] == span and root["error"] is None, "the client's own is no error of the server"
    assert root["attributes"]["error.type"] == "validation"
    assert "gen_ai.response.finish_reasons" not in root["attributes"]

    body = {"prompt": "and on", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with traced.slow_worker(), wire.Events(traced.address, "/v1/completions", body) as events:
        next(iter(events))
        match = RESPONSE.fullmatch(events.headers["traceresponse"])
        assert match
    spans = complete_trace(collector, match[1], 1)
    (root,) = named(spans, "POST /v1/completions")
    assert root["attributes"]["error.type"] == "dropped" and root["error"] == "the client left"
    assert len(named(spans, "decode")) == 1


def test_looking_makes_no_trace(traced: Launched) -> None:
    for path in ("/health", "/metrics", "/info"):
        assert "traceresponse" not in wire.get(traced.address, path).headers


def test_without_the_flag_nothing_is_told(server: Launched) -> None:
    reply = generate(server, 1, f"00-{TRACE}-{CALLER}-01")
    assert reply.status == 200 and "traceresponse" not in reply.headers
    assert "otlp" not in server.worker().command


def test_the_share_is_the_servers_unless_the_caller_decides(launch: Launch, collector: Collector) -> None:
    launched = launch("--otlp-endpoint", collector.endpoint, "--otlp-sample-ratio", "0").wait_ready()
    unseen, _, flags = answered(generate(launched, 3))
    assert flags == "00"
    wanted = "2" * 32
    assert answered(generate(launched, 3, f"00-{wanted}-{CALLER}-01"))[2] == "01"
    spans = complete_trace(collector, wanted, 3)
    assert {span["resource"]["service.name"] for span in spans} == {"text-generation-inference.router"}
    assert collector.spans(unseen) == []


def test_spans_have_what_the_environment_says_of_the_process(launch: Launch, collector: Collector) -> None:
    flags = ("--otlp-endpoint", collector.endpoint, "--otlp-service-name", "named")
    env = {"OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=penstock-0,service.name=another"}
    launched = launch(*flags, env=env).wait_ready()
    trace, _, _ = answered(generate(launched, 2))
    resources = [span["resource"] for span in complete_trace(collector, trace, 2)]
    names = ("penstock.component", "k8s.pod.name", "service.name")
    found = {tuple(resource.get(name) for name in names) for resource in resources}
    assert found == {("router", "penstock-0", "named"), ("worker", "penstock-0", "named")}


def said(launched: Launched) -> list[str]:
    return [line for line in launched.log().splitlines() if " lost" in line or "OpenTelemetry" in line]


def test_a_collector_that_is_down_costs_one_warning_each(launch: Launch) -> None:
    launched = launch("--otlp-endpoint", f"http://127.0.0.1:{free_port()}").wait_ready()
    assert all(generate(launched, 2).status == 200 for _ in range(3))
    wait_for(lambda: any("traces are lost" in line for line in said(launched)), "the router's warning", 30)
    wait_for(lambda: any("steps are lost" in line for line in said(launched)), "the worker's warning", 60)
    assert all(generate(launched, 2).status == 200 for _ in range(3))
    lost = "penstock_trace_spans"
    first = launched.metrics().value(lost, result="lost")
    generate(launched, 2)
    wait_for(lambda: launched.metrics().value(lost, result="lost") > first, "more lost spans", 30)
    assert len(said(launched)) == 2, said(launched)
    began = time.monotonic()
    assert launched.stop() == 0
    assert time.monotonic() - began < 10


def test_a_slow_collector_delays_no_answer(launch: Launch, tmp_path: Any) -> None:
    with Collector(tmp_path, seconds=600) as slow:
        launched = launch("--otlp-endpoint", slow.endpoint).wait_ready()
        generate(launched, 2)
        times: list[float] = []

        def measure() -> None:
            began = time.monotonic()
            assert generate(launched, 2).status == 200
            times.append(time.monotonic() - began)

        # A busy machine stands still now and then; what waits for the collector does so each time.
        for _ in range(3):
            times.clear()
            # Longer than one sending may take, so that one is under way all the time.
            deadline = time.monotonic() + 7
            while time.monotonic() < deadline:
                thread = threading.Thread(target=measure)
                thread.start()
                thread.join(30)
            if max(times) < 3:
                break
        assert len(times) > 5 and max(times) < 3, times
        assert launched.stop() == 0
        slow.process.kill()
