"""An OpenTelemetry collector in small: takes spans by OTLP over HTTP and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace: int
    span: int
    parent: int
    """0: none."""
    start: int
    end: int
    """Unix nanoseconds."""
    facts: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    url: str = ""
    raw: list[bytes] = field(default_factory=list)
    """Bodies, as they came."""

    @property
    def spans(self) -> list[Span]:
        return [span for body in list(self.raw) for span in _spans(body)]


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            found.raw.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        try:
            yield found
        finally:
            server.shutdown()
            serving.join()


def _spans(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        service = _facts(resource.resource.attributes)["service.name"]
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Span(
                service,
                span.name,
                int.from_bytes(span.trace_id),
                int.from_bytes(span.span_id),
                int.from_bytes(span.parent_span_id),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                _facts(span.attributes),
                span.status.code == 2,  # STATUS_CODE_ERROR
            )


def _facts(attributes: Any) -> dict[str, Any]:
    return {found.key: getattr(found.value, found.value.WhichOneof("value")) for found in attributes}
