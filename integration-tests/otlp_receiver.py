"""An OpenTelemetry collector for tests, a process of its own: `python otlp_receiver.py PORT FILE [SECONDS]`.

Takes spans by OTLP over gRPC on the loopback PORT and appends each to FILE, one JSON object on a line. With
SECONDS it takes so long for each call. `Collector` starts one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from launched import free_port
from processes import wait_for


class Collector:
    """A running receiver."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self.file = folder / "spans.jsonl"
        self.port = free_port()
        command = [sys.executable, __file__, str(self.port), str(self.file), str(seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        wait_for(self.file.exists, "the collector to listen")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(20)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spans(self, trace: str | None = None) -> list[dict[str, Any]]:
        """What came so far, of one trace or of all."""
        whole, _, _ = self.file.read_text().rpartition("\n")  # the receiver may be writing the next
        found = [json.loads(line) for line in whole.splitlines()]
        return [span for span in found if trace is None or span["trace"] == trace]


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""

    def value(held: AnyValue) -> Any:
        kind = held.WhichOneof("value")
        if kind == "array_value":
            return [value(one) for one in held.array_value.values]
        return None if kind is None else getattr(held, kind)

    return {entry.key: value(entry.value) for entry in attributes}


def as_json(span: Span, resource: dict[str, Any]) -> dict[str, Any]:
    """A span with its ids in hexadecimal and its times in seconds."""
    return {
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind),
        "trace": span.trace_id.hex(),
        "span": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "begin": span.start_time_unix_nano / 1e9,
        "end": span.end_time_unix_nano / 1e9,
        "attributes": plain(span.attributes),
        "links": [[link.trace_id.hex(), link.span_id.hex()] for link in span.links],
        "error": span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None,
        "resource": resource,
    }


class Receiver(TraceServiceServicer):
    """OTLP's trace service."""

    def __init__(self, file: Path, seconds: float) -> None:
        self._file = file.open("a")
        self._seconds = seconds

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        """Takes a batch of spans."""
        time.sleep(self._seconds)
        for of_resource in request.resource_spans:
            resource = plain(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self._file.write(json.dumps(as_json(span, resource)) + "\n")
        self._file.flush()
        return ExportTraceServiceResponse()


def main() -> None:
    """Serves until it is ended."""
    port, file, seconds = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Receiver(file, seconds), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
