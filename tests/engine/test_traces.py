"""A node's own spans: a request below the caller's with its phases below it, the start apart, nothing of texts."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from edgeproxy.protocol.trace_context import FIELD, RESPONSE, TraceContext, decode
from engine.startup import StartError
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.traces import Seldom, Traces, traces
from tests.collector import collector
from tests.engine.serving import MODEL, TEXT, chat_call, executor, serving, until

PARENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
CALLED = [(FIELD, PARENT.encode())]
PHASES = ["parse", "queue", "prefill", "decode"]


class Kept(InMemorySpanExporter):
    def request(self) -> ReadableSpan:
        (found,) = [span for span in self.get_finished_spans() if span.name == f"generate {MODEL}"]
        return found

    def phases(self) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if span.name in PHASES]


@contextmanager
def kept() -> Iterator[tuple[Traces, Kept]]:
    exporter = Kept()
    yield Traces(SimpleSpanProcessor(exporter), "1", MODEL), exporter


def fact(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(name)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_below_the_callers_and_its_phases_follow_one_another_below_it(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    with kept() as (spans, found):
        async with serving(executor(tokenizer), tokenizer, chat_template, traces=spans) as served:
            call = await chat_call(served.app, stream=stream, headers=CALLED).done()
        whole, phases = found.request(), found.phases()
        assert whole.parent is not None and whole.context is not None
        assert (whole.context.trace_id, whole.parent.span_id) == (PARENT.trace, PARENT.span)
        assert [span.name for span in phases] == PHASES
        assert all(span.parent and span.parent.span_id == whole.context.span_id for span in phases)
        edges = [(span.start_time, span.end_time) for span in phases]
        assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
        assert (edges[0][0], edges[-1][1]) == (whole.start_time, whole.end_time)
        assert all(start is not None and end is not None and start <= end for start, end in edges)
        assert fact(whole, "gen_ai.usage.output_tokens") == len(tokenizer.encode(TEXT)) + 1
        assert decode(call.headers[RESPONSE]) == TraceContext(PARENT.trace, whole.context.span_id)


async def test_a_trace_that_is_not_kept_is_not_sent_and_the_caller_is_told_so(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    with kept() as (spans, found):
        async with serving(executor(tokenizer), tokenizer, chat_template, traces=spans) as served:
            quiet = [(FIELD, PARENT._replace(sampled=False).encode())]
            call = await chat_call(served.app, headers=quiet).done()
            told = decode(call.headers[RESPONSE])
        assert told is not None and not told.sampled
        assert found.get_finished_spans() == ()


async def test_without_a_callers_trace_one_begins_and_without_a_collector_nothing_is_told(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    with kept() as (spans, found):
        async with serving(executor(tokenizer), tokenizer, chat_template, traces=spans) as served:
            await chat_call(served.app, headers=[(FIELD, b"00-what-is-this")]).done()
        assert found.request().parent is None
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        assert RESPONSE not in (await chat_call(served.app, headers=CALLED).done()).headers


async def test_what_fails_says_how_before_content_and_after(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    with kept() as (spans, found):
        async with serving(executor(tokenizer, fails_at=1), tokenizer, chat_template, traces=spans) as served:
            assert (await chat_call(served.app, stream=True).done()).status == 500
        span = found.request()
        assert (span.status.is_ok, fact(span, "error.type")) == (False, "engine_failed")
        assert found.phases() == []
    gate = threading.Semaphore(1)
    with kept() as (spans, found):
        async with serving(
            executor(tokenizer, fails_at=3, gate=gate), tokenizer, chat_template, traces=spans
        ) as served:
            call = chat_call(served.app, stream=True)
            await call.text_holds(b"Gr")
            gate.release(2)
            assert (await call.done()).status == 200
        span = found.request()
        assert (span.status.is_ok, fact(span, "error.type")) == (False, "engine_failed")
        assert [span.name for span in found.phases()] == PHASES


async def test_a_caller_that_leaves_is_no_error(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    gate = threading.Semaphore(1)
    with kept() as (spans, found):
        async with serving(
            executor(tokenizer, ends=False, gate=gate), tokenizer, chat_template, traces=spans
        ) as served:
            call = chat_call(served.app, stream=True)
            await call.text_holds(b"Gr")
            call.leave()
            await until(lambda: bool(found.get_finished_spans()), gate)
            await call.done()
        span = found.request()
        assert fact(span, "error.type") == "client_gone"
        assert span.status.status_code.name == "UNSET"


async def test_a_collector_that_takes_nothing_holds_no_request_up(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    asked, released = threading.Event(), threading.Event()
    taken = list[str]()

    class Stuck(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            asked.set()
            released.wait()
            taken.extend(span.name for span in spans)
            return SpanExportResult.SUCCESS

    processor = BatchSpanProcessor(Stuck(), max_queue_size=8, max_export_batch_size=4, schedule_delay_millis=1)
    found = Traces(processor, "1", MODEL)
    try:
        async with serving(executor(tokenizer), tokenizer, chat_template, traces=found) as served:
            assert (await chat_call(served.app).done()).status == 200
            await until(asked.is_set)
            for _ in range(8):
                assert (await chat_call(served.app).done()).status == 200
            assert not released.is_set()
    finally:
        released.set()
        found.close()
    assert 0 < len(taken) <= 2 * 8, "what does not fit the queue is dropped"


async def test_spans_reach_a_collector_and_none_holds_a_text(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    with collector() as received:
        found = traces(received.url, MODEL)
        found.started(10.0, [("image", 0.25), ("rest of warm-up", 0.5)], "fp_fake")
        async with serving(executor(tokenizer), tokenizer, chat_template, traces=found) as served:
            await chat_call(served.app, content="a-secret-prompt", headers=CALLED).done()
        found.close()
        spans = {span.name: span for span in received.spans}
    load, request = spans[f"load {MODEL}"], spans[f"generate {MODEL}"]
    assert load.trace != request.trace == PARENT.trace
    assert {spans[name].parent for name in ("image", "rest of warm-up")} == {load.span}
    assert spans["rest of warm-up"].start == spans["image"].end == load.start + 250_000_000
    assert request.service == "edgeproxy-node"
    raw = b"".join(received.raw)
    assert b"a-secret-prompt" not in raw and TEXT[:5].encode() not in raw


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector/v1/traces", "http:///v1/traces"])
def test_what_is_no_collector_is_told_at_the_start(url: str) -> None:
    with pytest.raises(StartError, match="name a collector"):
        traces(url, MODEL)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartError, match=r"edgeproxy\[otel\]"):
        traces("http://127.0.0.1:4318/v1/traces", MODEL)


def test_of_a_collector_that_is_gone_a_line_is_said_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    said = logging.Logger("exporter")
    said.addHandler(caplog.handler)
    said.addFilter(Seldom(lambda: now[0]))
    for second in range(0, 150, 5):
        now[0] = second
        said.error("second %d", second)
    assert [record.getMessage() for record in caplog.records] == ["second 0", "second 60", "second 120"]


def test_the_exporter_is_heard_seldom() -> None:
    with collector() as received:
        traces(received.url, MODEL).close()
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    assert any(isinstance(found, Seldom) for found in exporter.filters)
