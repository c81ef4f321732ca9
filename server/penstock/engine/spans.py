"""A span for each step that traced requests had a part in, sent to an OpenTelemetry collector.

Called by the engine, and only with `--otlp-endpoint`: what sending needs is imported only then. A step serves
many requests, so its span links to the spans of all of them.
"""

import logging
import threading
import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)

from penstock.engine.plan import START, Plan
from penstock.proto import penstock_pb2 as pb
from penstock.telemetry import log

# One entry of a plan's column `traces`: a trace id and a span id.
TRACE_BYTES, SPAN_BYTES = 16, 8
ENTRY_BYTES = TRACE_BYTES + SPAN_BYTES

# Spans that are kept for sending, how long one sending may take, and how often: no step waits for it.
KEPT = 8192
SEND_SECONDS = 5
EVERY_MILLISECONDS = 1000


class StepSpans:
    """Where the spans of steps go."""

    def __init__(self, endpoint: str, service: str, rank: int) -> None:
        # What the library says of each failure is said once, in our own line.
        library = logging.getLogger("opentelemetry")
        library.addHandler(_Once(endpoint))
        library.propagate = False
        own: dict[str, str | int] = {
            "service.name": service,
            "penstock.component": "worker",
            "penstock.rank": rank,
        }
        # With OTEL_RESOURCE_ATTRIBUTES, which says whose process this is (pod, namespace).
        resource = Resource.create(own)
        # The library keeps the last 128 links, without that to the request in whose trace the step lies.
        limits = SpanLimits(max_links=SpanLimits.UNSET)
        provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=SEND_SECONDS)
        provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=KEPT, schedule_delay_millis=EVERY_MILLISECONDS)
        )
        self._tracer = provider.get_tracer("penstock.worker")

    def record(self, plan: Plan, result: pb.StepResult, began: int) -> None:
        """A step that is over now and began then, in nanoseconds since 1970; its plan names traced requests.

        The span is a child of the oldest of them, in whose trace it is seen, and has a link to each.
        """
        ended = time.time_ns()
        requests = requests_of(plan.traces)
        span = self._tracer.start_span(
            "step",
            context=set_span_in_context(NonRecordingSpan(requests[0])),
            kind=SpanKind.SERVER,
            links=[Link(request) for request in requests],
            start_time=began,
            attributes={
                "penstock.step": plan.number,
                "penstock.rows": len(plan.slots),
                "penstock.tokens": int(plan.counts.sum()),
                "penstock.starts": int(((plan.flags & START) != 0).sum()),
                "penstock.prepare_ns": result.prepare_ns,
                "penstock.forward_ns": result.forward_ns,
                "penstock.sample_ns": result.sample_ns,
            },
        )
        span.end(end_time=ended)


def requests_of(traces: bytes) -> list[SpanContext]:
    """The spans that a plan names, each once: a request may have several rows."""
    entries = dict.fromkeys(traces[at : at + ENTRY_BYTES] for at in range(0, len(traces), ENTRY_BYTES))
    return [
        SpanContext(
            trace_id=int.from_bytes(entry[:TRACE_BYTES], "big"),
            span_id=int.from_bytes(entry[TRACE_BYTES:], "big"),
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        for entry in entries
    ]


class _Once(logging.Handler):
    """Turns whatever the library complains of into one line of the log."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Logs the first record."""
        if not self._told.is_set():
            self._told.set()
            said = " ".join(record.getMessage().split())[:300]
            log("WARN", f"spans of steps are lost: {self._endpoint} does not take them: {said}")
