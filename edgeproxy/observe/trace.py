"""Traces of requests, for operators who collect them: a span a request, and below it a span a term of its budget.

Spans are made when a request has ended, from its record, so that tracing costs the hot path two random numbers and a
header. What happens on a node is drawn from what it told of its own time, unless it sends spans itself. Prompts and
answers are never in a span. Names and attributes follow OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from logging import CRITICAL, getLogger
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from edgeproxy.protocol.trace_context import TraceContext, decode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import SpanKind

EXPORT_S = 2.0
"""How long the collector may take for a batch, and so how long it can hold up the end of the proxy."""
INSTALL = ".venv/bin/pip install -c constraints.txt opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
"""In a checkout, where nothing is installed by the name of `edgeproxy[otel]`."""
_REFUSES = "takes no spans: they are lost (edgeproxy_trace_spans_total counts them); is the collector there?"
_NS = 1_000_000_000
_ON_NODE = frozenset({"parse", "queue", "prefill", "first"})
PHASES = ("edge", "hold", "failover", "rtt", "parse", "queue", "prefill", "first", "unexplained", "relay")
"""In the order in which they happen; the way to the region and back is one span, though half of it comes last."""
_FACTS = {
    "request_id": "edgeproxy.request_id",
    "region": "edgeproxy.region",
    "node": "edgeproxy.node",
    "reason": "edgeproxy.decision.reason",
    "attempts": "edgeproxy.attempts",
    "protocol": "network.protocol.name",
    "status": "http.response.status_code",
    "code": "error.type",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "edgeproxy.usage.cached_tokens",
    "first_token_s": "edgeproxy.first_token",
    "client_s": "edgeproxy.client_rtt",
    "budget_s": "edgeproxy.budget",
    "own_budget_s": "edgeproxy.client.budget",
}


class TraceError(RuntimeError):
    """Traces cannot be sent; the message names the thing, the cause and the remedy."""


class Trace(NamedTuple):
    """One request's place in its trace."""

    context: TraceContext
    """Its own span: what a node's spans are children of."""
    parent: int | None
    """The client's span."""


class Delivery:
    """An exporter, watched: how many spans the collector took, and a line where it stops taking them and begins again.
    What the library says of each batch is left out. Works in the batches' thread."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self.sent = 0
        self.lost = 0
        self._exporter = exporter
        self._endpoint = endpoint
        self._failing = False
        self._log = getLogger("edgeproxy.traces")
        getLogger("opentelemetry.exporter").setLevel(CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failing = result.name != "SUCCESS"
        if failing:
            self.lost += len(spans)
        else:
            self.sent += len(spans)
        if failing != self._failing:
            self._failing = failing
            self._log.warning("traces: %s %s", self._endpoint, _REFUSES if failing else "takes spans again")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class Tracer:
    def __init__(self, processor: SpanProcessor, version: str, rng: Random, delivery: Delivery | None = None) -> None:
        """`rng`: identities need not be secret, only different. `delivery`: what sends the processor's spans."""
        from opentelemetry.sdk.resources import Resource

        self._processor = processor
        self._delivery = delivery
        self._made = 0
        self._rng = rng
        self._resource = Resource.create({"service.name": "edgeproxy", "service.version": version})

    @property
    def spans(self) -> dict[str, int]:
        """How many were made, and of these how many the collector took, and did not take. The rest is under way, or was
        given up before it was sent, because too many waited."""
        delivery = self._delivery
        sent, lost = (0, 0) if delivery is None else (delivery.sent, delivery.lost)
        return {"made": self._made, "sent": sent, "lost": lost}

    def begin(self, traceparent: bytes | None) -> Trace:
        parent = decode(traceparent)
        span = self._identity(64)
        if parent is None:
            return Trace(TraceContext(self._identity(128), span), None)
        return Trace(parent._replace(span=span), parent.span)

    def end(self, trace: Trace, record: Mapping[str, Any], *, told: bool = False) -> None:
        """`record`: the request's line in the log. `told`: the node that answered sends spans of its own time."""
        if not trace.context.sampled:
            return
        for span in self._spans(trace, record, _ON_NODE if told else frozenset()):
            self._made += 1
            self._processor.on_end(span)

    def close(self) -> None:
        """Sends what is left. Blocks for EXPORT_S where the collector does not answer."""
        self._processor.shutdown()

    def _spans(self, trace: Trace, record: Mapping[str, Any], left_out: Set[str]) -> Iterator[ReadableSpan]:
        from opentelemetry.trace import SpanKind

        begun = round((record["time"] - record["total_s"]) * _NS)
        facts = {name: record[field] for field, name in _FACTS.items() if record[field] is not None}
        at = begun
        for phase in PHASES:
            taken = record[f"{phase}_s"]
            if not taken or record["first_token_s"] is None:
                continue
            end = at + round(taken * _NS)
            if phase not in left_out:
                where = {"edgeproxy.node": record["node"] or ""} if phase in _ON_NODE else {}
                own = trace.context._replace(span=self._identity(64))
                yield self._span(phase, SpanKind.INTERNAL, own, trace.context.span, at, end, where)
            at = end
        kind = SpanKind.SERVER
        facts["gen_ai.operation.name"] = "chat"
        ended = round(record["time"] * _NS)
        yield self._span(f"chat {record['model']}", kind, trace.context, trace.parent, begun, ended, facts)

    def _span(
        self,
        name: str,
        kind: SpanKind,
        own: TraceContext,
        parent: int | None,
        start: int,
        end: int,
        attributes: Mapping[str, Any],
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        failed = attributes.get("http.response.status_code", 200) >= 500
        return ReadableSpan(
            name,
            context=_context(own),
            parent=None if parent is None else _context(own._replace(span=parent)),
            resource=self._resource,
            attributes=attributes,
            kind=kind,
            status=Status(StatusCode.ERROR) if failed else Status(StatusCode.UNSET),
            start_time=start,
            end_time=end,
        )

    def _identity(self, bits: int) -> int:
        return self._rng.getrandbits(bits) or 1


def _context(found: TraceContext) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(found.trace, found.span, is_remote=False, trace_flags=TraceFlags(found.sampled))


def exporter() -> tuple[type[Any], type[Any]]:
    """What sends spans: OTLP over HTTP, and in batches. Raises TraceError where it is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TraceError(
            f"traces_to: traces need OpenTelemetry ({error.name} is missing); install `edgeproxy[otel]` "
            f"(in a checkout: `{INSTALL}`), or remove `traces_to:`"
        ) from None
    return OTLPSpanExporter, BatchSpanProcessor


def tracer(endpoint: str, version: str, rng: Random) -> Tracer:
    """Sends spans in batches, from a thread of its own. Raises TraceError."""
    export, batches = exporter()
    delivery = Delivery(export(endpoint=endpoint, timeout=EXPORT_S), endpoint)
    return Tracer(batches(delivery), version, rng, delivery)
