"""A request is a span of the client's trace, its terms are spans below it, and the node is told to be one too."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from edgeproxy.observe.trace import Delivery, TraceError, Tracer, tracer
from edgeproxy.protocol.trace_context import FIELD, RESPONSE, TraceContext, decode
from tests import fake_behaviours
from tests.collector import collector
from tests.fake_exchange import Exchange as Answering
from tests.gateway.drive import Edge, Lines, ask, chat, edge
from tests.observe.records import record

PARENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
SECRET = "prompt-that-must-not-be-logged"
Behaviour = Callable[[Answering], Awaitable[None]]


class Sent(InMemorySpanExporter):
    lines: Lines

    def get_finished_spans(self) -> tuple[ReadableSpan, ...]:
        self.lines.log.flush()  # spans are made with the log's lines
        return super().get_finished_spans()


@asynccontextmanager
async def traced(folder: Path) -> AsyncIterator[tuple[Edge, InMemorySpanExporter]]:
    exporter = Sent()
    async with edge(folder, tracer=Tracer(SimpleSpanProcessor(exporter), "1", Random(1))) as e:
        exporter.lines = e.lines
        yield e, exporter


def told(e: Edge) -> TraceContext:
    """What the node was told."""
    found = decode(dict(e.near.chats[-1].headers)[FIELD])
    assert found is not None
    return found


def root(spans: tuple[ReadableSpan, ...]) -> ReadableSpan:
    (found,) = [span for span in spans if span.name.startswith("chat ")]
    return found


async def test_the_clients_trace_goes_on_to_the_node(tmp_path: Path) -> None:
    async with traced(tmp_path) as (e, exporter):
        await ask(e.app, chat("ok", stream=True), headers={"traceparent": PARENT.encode().decode()})
        spans = exporter.get_finished_spans()
        assert e.lines.requests[-1]["trace_id"] == f"{PARENT.trace:032x}", "the way from the log to the trace"
        span = root(spans)
        assert span.parent is not None and span.context is not None
        assert (span.context.trace_id, span.parent.span_id) == (PARENT.trace, PARENT.span)
        assert told(e) == TraceContext(PARENT.trace, span.context.span_id)
        assert span.attributes is not None
        assert span.attributes["gen_ai.request.model"] == "ok"
        assert span.attributes["edgeproxy.region"] == "near"


async def test_terms_follow_one_another_below_the_request(tmp_path: Path) -> None:
    async with traced(tmp_path) as (e, exporter):
        await ask(e.app, chat("ok", stream=True))
        spans = exporter.get_finished_spans()
        whole = root(spans)
        terms = [span for span in spans if span is not whole]
        assert whole.context is not None
        assert {"edge", "queue", "prefill", "first"} <= {span.name for span in terms}
        assert all(span.parent and span.parent.span_id == whole.context.span_id for span in terms)
        assert [span.end_time for span in terms[:-1]] == [span.start_time for span in terms[1:]]
        assert terms[0].start_time == whole.start_time


@pytest.mark.parametrize(
    ("behaviour", "told_here"),
    [(fake_behaviours.tells_spans, set()), (fake_behaviours.tells_other_spans, {"queue", "prefill", "first"})],
)
async def test_what_a_node_tells_of_itself_in_this_trace_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, told_here: set[str]
) -> None:
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", behaviour)
    async with traced(tmp_path) as (e, exporter):
        reply = await ask(e.app, chat("ok"))
        assert reply.status == 200
        assert reply.header(RESPONSE) is None
        names = {span.name for span in exporter.get_finished_spans()}
        assert names & {"queue", "prefill", "first"} == told_here
        assert "edge" in names


async def test_of_a_node_that_failed_nothing_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", fake_behaviours.tells_spans)
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "well", fake_behaviours.ok)
    async with traced(tmp_path) as (e, exporter):
        e.near.overrides["ok"] = "cut-json"
        e.far.overrides["ok"] = "well"
        await ask(e.app, chat("ok"))
        names = {span.name for span in exporter.get_finished_spans()}
        assert {"failover", "queue", "prefill", "first"} <= names


async def test_a_trace_that_is_not_sampled_is_not_sent_and_goes_on_all_the_same(tmp_path: Path) -> None:
    async with traced(tmp_path) as (e, exporter):
        quiet = PARENT._replace(sampled=False)
        await ask(e.app, chat("ok"), headers={"traceparent": quiet.encode().decode()})
        assert exporter.get_finished_spans() == ()
        assert told(e)._replace(span=PARENT.span) == quiet


async def test_a_failed_request_is_an_error_and_no_span_holds_a_prompt(tmp_path: Path) -> None:
    async with traced(tmp_path) as (e, exporter):
        assert (await ask(e.app, chat("500"))).status >= 500
        span = root(exporter.get_finished_spans())
        assert not span.status.is_ok
        assert SECRET not in span.to_json()


async def test_without_a_collector_the_field_passes_untouched(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("ok"), headers={"traceparent": PARENT.encode().decode()})
        assert told(e) == PARENT


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TraceError, match=r"edgeproxy\[otel\]"):
        tracer("http://127.0.0.1:4318/v1/traces", "1", Random(1))


def test_spans_reach_a_collector() -> None:
    with collector() as received:
        found = tracer(received.url, "1", Random(1))
        found.end(found.begin(None), record(model="a-model", prefill_s=0.04))
        found.close()
        spans = {span.name: span for span in received.spans}
    assert spans["prefill"].parent == spans["chat a-model"].span
    assert spans["prefill"].end - spans["prefill"].start == 40_000_000
    assert found.spans == {"made": 2, "sent": 2, "lost": 0}


class _Gone(InMemorySpanExporter):
    """A collector that is there at times only."""

    result = SpanExportResult.FAILURE

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.result


async def test_spans_that_no_collector_takes_are_counted_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = _Gone()
    delivery = Delivery(exporter, "http://collector/v1/traces")
    traces = Tracer(SimpleSpanProcessor(delivery), "1", Random(1), delivery)  # type: ignore[arg-type]
    async with edge(tmp_path, tracer=traces) as e:
        for _ in range(3):
            await ask(e.app, chat("500"))
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert 'edgeproxy_trace_spans_total{outcome="made"} 3.0' in text
        assert 'edgeproxy_trace_spans_total{outcome="lost"} 3.0' in text
        assert "edgeproxy_log_lines_dropped_total 0.0" in text
        exporter.result = SpanExportResult.SUCCESS
        await ask(e.app, chat("500"))
        await ask(e.admin, method="GET", path="/metrics")
        assert traces.spans == {"made": 4, "sent": 1, "lost": 3}
    told = [record.getMessage() for record in caplog.records if record.name == "edgeproxy.traces"]
    assert len(told) == 2 and "takes no spans" in told[0] and "takes spans again" in told[1]
