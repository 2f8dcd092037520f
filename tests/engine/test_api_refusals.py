"""What a node refuses, and what it says when it fails."""

from __future__ import annotations

import asyncio
import itertools
import threading

import orjson
import pytest

from edgeproxy.protocol.node import report
from engine.api import ApiLimits, NodeApp
from engine.hosts import Hosts
from engine.node import Node
from engine.orca import FORMAT_HEADER
from engine.orca import HEADER as LOAD_HEADER
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import (
    LIMITS,
    MODEL,
    TEXT,
    Call,
    chat_call,
    executor,
    says,
    serving,
    until,
)

ERRORS: list[tuple[str, str, bytes, list[tuple[bytes, bytes]], int, str]] = [
    ("GET", "/v1/chat/completions", b"", [], 405, "method_not_allowed"),
    ("POST", "/v1/models", b"", [], 405, "method_not_allowed"),
    ("OPTIONS", "/v1/chat/completions", b"", [], 405, "method_not_allowed"),
    ("GET", "/v1/nothing", b"", [], 404, "unknown_url"),
    ("GET", "/v1/models/other", b"", [], 404, "model_not_found"),
    ("POST", "/v1/chat/completions", b"{", [], 400, "invalid_json"),
    ("POST", "/v1/chat/completions", b"", [], 400, "invalid_json"),
    ("POST", "/v1/chat/completions", b"{}", [(b"content-type", b"text/plain")], 415, "unsupported_media_type"),
    ("POST", "/v1/chat/completions", b"{}", [(b"content-type", b"")], 415, "unsupported_media_type"),
    (
        "POST",
        "/v1/chat/completions",
        b"{}",
        [(b"content-type", b"application/json; charset=utf-16")],
        415,
        "unsupported_media_type",
    ),
    ("POST", "/v1/chat/completions", b"{}", [(b"content-encoding", b"gzip")], 415, "unsupported_media_type"),
    ("POST", "/v1/chat/completions", b"{" + b" " * 2000, [], 413, "request_too_large"),
    ("POST", "/v1/chat/completions", b"{}", [(b"content-length", b"99999")], 413, "request_too_large"),
    ("GET", "/v1/models", b"", [(b"host", b"evil.example")], 421, "misdirected_request"),
    ("GET", "/v1/models", b"", [(b"host", b"")], 421, "misdirected_request"),
    ("GET", "/node/v1/status", b"", [(b"x-node-token", b"")], 401, "node_token"),
    ("GET", "/node/v1/status", b"", [(b"x-node-token", b"wrong")], 401, "node_token"),
]
TOKEN = (b"x-node-token", b"secret")


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "code"), ERRORS)
async def test_errors_are_shaped_as_openai_does(
    method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]], status: int, code: str
) -> None:
    app = NodeApp(Node(MODEL), Hosts("127.0.0.1"), b"secret", limits=ApiLimits(body_bytes=1000))
    if TOKEN[0] not in dict(headers):
        headers = [*headers, TOKEN]
    call = await Call(app, method, path, body, headers).done()
    error = call.json()["error"]
    assert (call.status, error["code"]) == (status, code)
    assert set(error) >= {"message", "type", "param", "code"}
    assert (b"allow" in call.headers) is (status == 405)


@pytest.mark.parametrize(
    "headers",
    [[], [(b"x-node-token", b"wrong")], [(b"authorization", b"Bearer wrong")], [(b"authorization", b"secret")]],
)
async def test_a_node_with_a_token_answers_strangers_on_no_path_but_those_of_health(
    tokenizer: Tokenizer, chat_template: ChatTemplate, headers: list[tuple[bytes, bytes]]
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        for path, (method, _) in (*served.app._routes.items(), ("/v1/nothing", ("GET", None))):
            call = await Call(served.app, method, path, b"{", [*headers, (FORMAT_HEADER, b"TEXT")]).done()
            assert not {report.REPORT_HEADER, LOAD_HEADER} & set(call.headers), "model and load are told to friends"
            wrong = dict(headers).get(b"x-node-token") is not None
            if path in ("/healthz", "/readyz") and not wrong:
                assert call.status == 200, "supervisors have no secrets"
            else:
                assert (call.status, call.json()["error"]["code"]) == (401, "node_token"), path
        assert served.engine.requests == 0


@pytest.mark.parametrize(
    "headers", [[TOKEN], *([(b"authorization", scheme + b" secret")] for scheme in (b"Bearer", b"bearer", b"BEARER"))]
)
async def test_who_brings_the_token_is_answered(
    tokenizer: Tokenizer, chat_template: ChatTemplate, headers: list[tuple[bytes, bytes]]
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        for call in (chat_call(served.app, headers=headers), Call(served.app, "GET", "/readyz", headers=headers)):
            assert (await call.done()).status == 200
            assert report.REPORT_HEADER in call.headers


async def test_a_node_without_a_token_answers_whoever_can_connect(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        for headers in ([], [TOKEN]):
            assert (await chat_call(served.app, headers=headers).done()).status == 200


async def test_a_body_in_pieces_is_one_body_and_its_limit_holds(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    body = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
    limits = ApiLimits(body_bytes=len(body))
    async with serving(executor(tokenizer), tokenizer, chat_template, limits=limits) as served:
        pieces = [bytes([byte]) for byte in body]
        assert (await Call(served.app, "POST", "/v1/chat/completions", pieces=pieces).done()).status == 200
        call = await Call(served.app, "POST", "/v1/chat/completions", pieces=[*pieces, b" "]).done()
        assert call.status == 413


async def test_a_request_that_never_fits_and_one_that_finds_the_queue_full(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    gate = threading.Semaphore(0)
    serve = serving(executor(tokenizer, ends=False, gate=gate), tokenizer, chat_template, queue_length=0)
    async with serve as served:
        call = await chat_call(served.app, max_tokens=600).done()
        assert (call.status, call.json()["error"]["code"]) == (400, "context_length_exceeded")
        running = chat_call(served.app, max_tokens=450)
        await until(lambda: served.engine.load().running == 1)
        call = chat_call(served.app, max_tokens=450, stream=True)
        await until(lambda: call.ended, gate)
        error = call.json()["error"]
        assert (call.status, error["code"]) == (429, "oom_predicted")
        assert set(error["recovery"]) == {"max_tokens_that_fit", "retry_after_ms"}
        assert int(call.headers[b"retry-after-ms"]) == error["recovery"]["retry_after_ms"]
        running.leave()
        await until(lambda: running.ended, gate)


async def test_a_budget_that_cannot_be_met_is_a_refusal_for_who_asked_to_be_told(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    slow = itertools.count()
    fake = FakeExecutor(says(tokenizer, TEXT), LIMITS, clock=lambda: float(next(slow)))  # a step takes a second
    async with serving(fake, tokenizer, chat_template) as served:
        assert (await chat_call(served.app, content="one").done()).status == 200
        budget = [(b"x-latency-budget-ms", b"1")]
        assert (await chat_call(served.app, content="two", headers=budget).done()).status == 200
        refuse = [*budget, (b"x-latency-policy", b"refuse")]
        call = await chat_call(served.app, content="three", headers=refuse).done()
        assert (call.status, call.json()["error"]["code"]) == (429, "latency_budget_exceeded")
        assert call.json()["error"]["recovery"]["expected_ms"] > 1
        assert served.engine.live == 0


async def test_a_node_that_gets_nothing_done_is_neither_alive_nor_ready(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    gate = threading.Semaphore(0)
    async with serving(executor(tokenizer, gate=gate), tokenizer, chat_template, stall_s=0.01) as served:
        assert (await Call(served.app, "GET", "/readyz").done()).status == 200
        call = chat_call(served.app)
        await until(lambda: served.node.stalled_s() > 0.01)
        for path in ("/readyz", "/healthz"):
            dead = await Call(served.app, "GET", path).done()
            assert (dead.status, dead.json()["error"]["code"]) == (503, "node_dead")
            assert "This node hangs: it got nothing done for" in dead.json()["error"]["message"]
        gate.release(100)
        assert (await call.done()).status == 200
        await until(lambda: served.node.stalled_s() == 0)
        assert (await Call(served.app, "GET", "/readyz").done()).status == 200


async def test_a_failing_engine_is_an_error_before_content_and_an_event_after(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer, fails_at=1), tokenizer, chat_template) as served:
        call = await chat_call(served.app, stream=True).done()
        assert (call.status, call.json()["error"]["code"]) == (500, "engine_failed")
        assert served.node.state is report.NodeState.FAILED
        assert (await Call(served.app, "GET", "/healthz").done()).status == 503
        assert (await Call(served.app, "GET", "/readyz").done()).status == 503
        assert (await chat_call(served.app).done()).json()["error"]["code"] == "node_failed"
    gate = threading.Semaphore(1)
    async with serving(executor(tokenizer, fails_at=3, gate=gate), tokenizer, chat_template) as served:
        call = chat_call(served.app, stream=True)
        await call.text_holds(b"Gr")
        gate.release(2)
        await call.done()
        assert call.status == 200
        assert call.ended
        assert b'"code":"engine_failed"' in call.body
        assert b"[DONE]" not in call.body


async def test_before_the_model_is_there_only_health_answers_well() -> None:
    app = NodeApp(Node(MODEL), Hosts("127.0.0.1"), None)
    assert (await Call(app, "GET", "/healthz").done()).status == 200
    assert (await Call(app, "GET", "/v1/models").done()).status == 200
    ready = await Call(app, "GET", "/readyz").done()
    assert (ready.status, ready.json()["error"]["code"]) == (503, "node_starting")
    call = await chat_call(app).done()
    assert (call.status, call.json()["error"]["code"]) == (503, "node_starting")
    assert report.decode(call.headers[report.REPORT_HEADER]).state is report.NodeState.STARTING


async def test_a_draining_node_refuses_new_requests_and_finishes_old_ones(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    gate = threading.Semaphore(0)
    async with serving(executor(tokenizer, gate=gate), tokenizer, chat_template) as served:
        old = chat_call(served.app, stream=True)
        gate.release(1)
        await old.text_holds(b"Gr")
        served.node.drain()
        new = await chat_call(served.app).done()
        assert (new.status, new.json()["error"]["code"]) == (503, "node_draining")
        assert (await Call(served.app, "GET", "/readyz").done()).status == 503
        gate.release(100)
        await served.app.quiet()
        assert (await old.done()).chunks()[-1]["choices"][0]["finish_reason"] == "stop"


async def test_too_many_open_requests_are_refused(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    gate = threading.Semaphore(0)
    limits = ApiLimits(requests=1)
    async with serving(executor(tokenizer, gate=gate), tokenizer, chat_template, limits=limits) as served:
        first = chat_call(served.app)
        await asyncio.sleep(0)
        assert (await chat_call(served.app).done()).status == 429
        gate.release(100)
        assert (await first.done()).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_all_bodies_together_have_a_limit(tokenizer: Tokenizer, chat_template: ChatTemplate, path: str) -> None:
    gate = threading.Semaphore(0)
    limits = ApiLimits(bodies_bytes=1000)
    async with serving(executor(tokenizer, gate=gate), tokenizer, chat_template, limits=limits) as served:
        first = chat_call(served.app, content="a" * 500)
        await until(lambda: served.engine.live == 1)
        body = orjson.dumps({"prompt": "a" * 600})
        refused = await Call(served.app, "POST", path, pieces=[body[:400], body[400:]]).done()
        assert (refused.status, refused.json()["error"]["code"]) == (429, "too_many_requests")
        assert refused.headers[b"retry-after"]
        gate.release(100)
        assert (await first.done()).status == 200
        assert (await chat_call(served.app, content="a" * 900).done()).status == 200, "there is room again"


async def test_a_message_that_the_template_refuses_is_a_400(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    async with serving(executor(tokenizer), tokenizer, template) as served:
        call = await chat_call(served.app).done()
    error = call.json()["error"]
    assert (call.status, error["param"]) == (400, "messages")
    assert "roles must alternate" in error["message"]


async def test_a_defect_is_a_500_that_tells_nothing(
    tokenizer: Tokenizer, chat_template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        monkeypatch.setattr(served.engine, "generate", lambda request: 1 / 0)
        call = await chat_call(served.app, content="hunter2").done()
    assert (call.status, call.json()["error"]["code"]) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text
    assert "hunter2" not in caplog.text
