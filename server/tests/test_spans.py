"""What a step's span says, without a collector: who it links to, and whose it is."""

import logging
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.engine import spans
from penstock.engine.plan import Plan
from penstock.engine.spans import StepSpans, requests_of
from penstock.proto import penstock_pb2 as pb


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of the test go."""
    memory = InMemorySpanExporter()
    monkeypatch.setattr(spans, "OTLPSpanExporter", lambda **_: memory)
    monkeypatch.setattr(spans, "BatchSpanProcessor", lambda exporter, **_: SimpleSpanProcessor(exporter))
    library = logging.getLogger("opentelemetry")
    monkeypatch.setattr(library, "handlers", [])
    monkeypatch.setattr(library, "propagate", library.propagate)
    return memory


def step_of(requests: int) -> Plan:
    """A plan of so many rows, each of another traced request."""
    ids = range(1, requests + 1)
    traces = b"".join(
        number.to_bytes(spans.TRACE_BYTES, "big") + number.to_bytes(spans.SPAN_BYTES, "big") for number in ids
    )
    counts = np.ones(requests, np.int32)
    plan = SimpleNamespace(number=7, slots=counts, counts=counts, flags=counts * 0, traces=traces)
    return cast(Plan, plan)


def test_each_traced_request_is_linked_to_once_in_the_order_of_its_rows() -> None:
    first, second = bytes(range(1, 25)), bytes(range(101, 125))
    found = requests_of(first + second + first)
    assert [format(request.trace_id, "032x") for request in found] == [first[:16].hex(), second[:16].hex()]
    assert [format(request.span_id, "016x") for request in found] == [first[16:].hex(), second[16:].hex()]
    assert all(request.is_valid and request.is_remote and request.trace_flags.sampled for request in found)


def test_a_step_links_to_every_request_of_a_full_server(recorded: InMemorySpanExporter) -> None:
    StepSpans("http://collector", "tested", 0).record(step_of(256), pb.StepResult(), 1)
    (span,) = recorded.get_finished_spans()
    linked = [link.context.span_id for link in span.links]
    assert len(linked) == len(set(linked)) == 256
    assert span.parent is not None and span.parent.span_id == linked[0], "the oldest, in whose trace it is"


def test_spans_have_what_the_environment_says_of_the_process(
    recorded: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=a,service.name=another")
    StepSpans("http://collector", "tested", 2).record(step_of(1), pb.StepResult(), 1)
    (span,) = recorded.get_finished_spans()
    own = {"service.name": "tested", "penstock.component": "worker", "penstock.rank": 2}
    assert span.resource.attributes.items() >= {"k8s.pod.name": "a", **own}.items()
