"""Spans of a node's own: a request with its parse, queue, prefill and decode below it, and the start, a trace apart.

Made when a request has ended, from what it was timed by anyway. Nothing of prompts and answers is in them.
OpenTelemetry is loaded only where traces are asked for; which traces are kept is its `OTEL_TRACES_SAMPLER`'s to say: by
default, those that the caller keeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import Filter, LogRecord, getLogger
from math import inf
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.trace_context import FIELD, TraceContext, decode
from engine.http import ClientGone
from engine.startup import StartError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

    from engine.answer import Answer, Choices
    from engine.http import Exchange

EXPORT_S = 2.0
"""How long the collector may take for a batch, and so how long it can hold up the end of the node."""
_NS = 1_000_000_000


class Seldom(Filter):
    """One line, and then one a minute at most: the library has two to say of each batch that no collector takes."""

    REST_S = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._until = -inf

    def filter(self, record: LogRecord) -> bool:
        now = self._clock()
        if now < self._until:
            return False
        self._until = now + self.REST_S
        return True


class _End(NamedTuple):
    status: int
    code: str | None = None
    """Of what failed."""


_DONE = _End(200)
_GONE = _End(499, "client_gone")
_BUG = _End(500, "internal_error")


class Traces:
    """Times that come in are of `clock`, in seconds; spans are in Unix time."""

    def __init__(
        self, processor: SpanProcessor, version: str, model: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "edgeproxy-node", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("engine", version)
        self._model = model
        self._clock = clock

    @contextmanager
    def request(self, exchange: Exchange, choices: Choices) -> Iterator[None]:
        """Around the answer to a request that the engine has got. A `traceparent` that cannot be read begins a trace.

        Meanwhile `exchange.traced` tells the caller which span is told here, so that it tells none of the node itself.
        """
        zero = self._zero()
        span = self._begin(exchange, zero)
        told = span.get_span_context()
        exchange.traced = TraceContext(told.trace_id, told.span_id, told.trace_flags.sampled).encode()
        end = _BUG
        try:
            yield
            end = _DONE if exchange.failure is None else _of(exchange.failure)
        except ApiError as error:
            end = _of(error)
            raise
        except ClientGone:
            end = _GONE
            raise
        finally:
            _describe(span, choices, _GONE if exchange.gone and not choices.done else end)
            now = zero + _ns(self._clock())
            self._phases(span, exchange.arrived, choices.first, zero, now)
            span.end(now)

    def started(self, began: float, phases: Iterable[tuple[str, float]], numerics: str) -> None:
        """The node is ready. phases: what took how many seconds, one after the other from `began` on."""
        from opentelemetry.context import Context

        zero = self._zero()
        at = zero + _ns(began)
        facts = {"gen_ai.request.model": self._model, "engine.numerics": numerics}
        root = self._tracer.start_span(f"load {self._model}", Context(), attributes=facts, start_time=at)
        for name, seconds in phases:
            at = self._below(root, name, at, at + _ns(seconds))
        root.end(max(at, zero + _ns(self._clock())))

    def close(self) -> None:
        """Sends what is left. Blocks for EXPORT_S where the collector does not answer."""
        self._provider.shutdown()

    def _begin(self, exchange: Exchange, zero: int) -> Span:
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            f"generate {self._model}",
            _context(decode(exchange.header(FIELD))),
            SpanKind.SERVER,
            {"gen_ai.request.model": self._model, "edgeproxy.request_id": exchange.request_id.decode("ascii")},
            start_time=zero + _ns(exchange.arrived),
        )

    def _phases(self, span: Span, arrived: float, answer: Answer, zero: int, now: int) -> None:
        """Of the first answer; others of the same request are decoded beside it."""
        timing = answer.timing
        if timing is None:
            return
        at = self._below(span, "parse", zero + _ns(arrived), zero + _ns(answer.submitted))
        at = self._below(span, "queue", at, at + _ns(timing.queue_s))
        at = self._below(span, "prefill", at, at + _ns(timing.prefill_s))
        self._below(span, "decode", at, max(now, at))

    def _below(self, parent: Span, name: str, start: int, end: int) -> int:
        """A span from `start` to `end`, which is returned, in Unix nanoseconds."""
        from opentelemetry.trace import set_span_in_context

        self._tracer.start_span(name, set_span_in_context(parent, _root()), start_time=start).end(end)
        return end

    def _zero(self) -> int:
        """Of the clock, in Unix nanoseconds: the same for all spans of a request, that they fit together."""
        return time.time_ns() - _ns(self._clock())


def _describe(span: Span, choices: Choices, end: _End) -> None:
    from opentelemetry.trace import Status, StatusCode

    usage = choices.usage()
    span.set_attribute("http.response.status_code", end.status)
    span.set_attribute("gen_ai.usage.input_tokens", usage.prompt)
    span.set_attribute("gen_ai.usage.output_tokens", usage.completion)
    span.set_attribute("edgeproxy.usage.cached_tokens", usage.cached)
    if end.code is not None:
        span.set_attribute("error.type", end.code)
    if end.status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _of(error: ApiError) -> _End:
    return _End(error.status, error.code or str(error.status))


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


def _root() -> Context:
    """An empty one: nothing of the task's own."""
    from opentelemetry.context import Context

    return Context()


def _context(parent: TraceContext | None) -> Context:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if parent is None:
        return _root()
    found = SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=TraceFlags(parent.sampled))
    return set_span_in_context(NonRecordingSpan(found), _root())


def traces(endpoint: str, model: str) -> Traces:
    """Sends spans in batches, from a thread of its own, by OTLP over HTTP; what its bounded queue cannot take is
    dropped. Raises StartError."""
    found = urlsplit(endpoint)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise StartError(f"--traces-to {endpoint}: is no URL; name a collector: http://127.0.0.1:4318/v1/traces")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise StartError(
            f"--traces-to: traces need OpenTelemetry ({error.name} is missing); "
            "install `edgeproxy[otel]` (in a checkout: `.venv/bin/pip install -c constraints.txt opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http`), or leave the option out"
        ) from None
    from importlib import metadata

    try:
        version = metadata.version("edgeproxy")
    except metadata.PackageNotFoundError:  # run from a source tree
        version = "0+unknown"
    getLogger(OTLPSpanExporter.__module__).addFilter(Seldom())
    return Traces(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)), version, model)
