from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

from edgeproxy.protocol.node import report
from edgeproxy.protocol.node.blocks import HeldBlocks, decode, decode_prefix
from edgeproxy.protocol.openai.sse import SseParser
from engine.api import ApiLimits, NodeApp
from engine.feed import READERS
from engine.hosts import Hosts
from engine.node import Node
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, MODEL, PATIENCE_S, Call, Served, chat_call, says, serving

TEXT = "Grüße 💡 and more."


def executor(tokenizer: Tokenizer, text: str = TEXT, **options: Any) -> FakeExecutor:
    ends = options.pop("ends", True)
    return FakeExecutor(script=says(tokenizer, text, ends=ends), built_for=LIMITS, **options)


async def until(condition: Callable[[], bool], gate: threading.Semaphore | None = None) -> None:
    """Waits for another thread; each look at it lets one more step end, where there is a gate."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            if gate is not None:
                gate.release()
            await asyncio.sleep(0.001)


async def until_free(served: Served) -> None:
    await until(lambda: served.engine.load().blocks_spare == LIMITS.blocks)


async def test_a_whole_answer(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        call = await chat_call(served.app).done()
    assert call.status == 200
    value = call.json()
    assert value["choices"][0]["message"]["content"] == TEXT
    assert value["choices"][0]["finish_reason"] == "stop"
    assert value["system_fingerprint"] == "fp_fake"
    prompt = len(tokenizer.encode(chat_template.render([{"role": "user", "content": "hi"}])))
    completion = len(tokenizer.encode(TEXT)) + 1
    assert value["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert int(call.headers[b"content-length"]) == len(call.body)


async def test_a_stream_says_the_same_in_pieces(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        call = await chat_call(served.app, stream=True, stream_options={"include_usage": True}).done()
        whole = (await chat_call(served.app).done()).json()
    assert call.status == 200
    assert call.headers[b"content-type"] == b"text/event-stream"
    assert b"content-length" not in call.headers
    *chunks, usage = call.chunks()
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
    assert usage["choices"] == []
    assert usage["usage"] | {"prompt_tokens_details": None} == whole["usage"] | {"prompt_tokens_details": None}
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_is_streamed_only_where_asked_for(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        chunks = (await chat_call(served.app, stream=True).done()).chunks()
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_ends_with_length(tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool) -> None:
    async with serving(executor(tokenizer, ends=False), tokenizer, chat_template) as served:
        call = await chat_call(served.app, stream=stream, max_tokens=3).done()
    last = call.chunks()[-1] if stream else call.json()
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "before", "needed"),
    [
        ("and", "Grüße 💡 ", "Grüße 💡 and"),
        ("e 💡", "Grüß", "Grüße 💡"),
        ([" more", "and mo"], "Grüße 💡 ", "Grüße 💡 and more"),
        ("zzz", TEXT, TEXT),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_text_before_it_and_what_came_after_is_not_counted(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stop: str | list[str], before: str, needed: str, stream: bool
) -> None:
    async with serving(executor(tokenizer, ends=before == TEXT), tokenizer, chat_template) as served:
        options = {"include_usage": True} if stream else None
        call = await chat_call(served.app, stream=stream, stop=stop, stream_options=options).done()
        await until_free(served)
        assert served.engine.gauges.abort_steps_max <= 2
    if stream:
        *chunks, last = call.chunks()
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        finish = chunks[-1]["choices"][0]["finish_reason"]
    else:
        last = call.json()
        text, finish = last["choices"][0]["message"]["content"], last["choices"][0]["finish_reason"]
    assert (text, finish) == (before, "stop")
    assert last["usage"]["completion_tokens"] <= len(tokenizer.encode(needed)) + 1


async def test_the_headers_wait_for_content(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    gate = threading.Semaphore(0)
    async with serving(executor(tokenizer, gate=gate), tokenizer, chat_template) as served:
        call = chat_call(served.app, stream=True)
        await until(lambda: served.engine.load().running == 1)
        assert call.status == 0
        gate.release()
        await call.text_holds(b"Gr")
        assert call.status == 200
        gate.release(100)
        await call.done()


async def test_each_answer_carries_the_report_and_an_id(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        calls = [
            await chat_call(served.app, headers=[(b"x-request-id", b"abc-123")]).done(),
            await chat_call(served.app, headers=[(b"x-request-id", b"bad id\x80")], n=3).done(),
            await Call(served.app, "GET", "/readyz").done(),
            await Call(served.app, "GET", "/nowhere").done(),
        ]
    assert calls[0].headers[b"x-request-id"] == b"abc-123"
    assert calls[1].headers[b"x-request-id"] not in (b"bad id\x80", b"")
    for call in calls:
        decoded = report.decode(call.headers[report.REPORT_HEADER])
        assert (decoded.model, decoded.numerics, decoded.state) == (MODEL, "fp_fake", report.NodeState.READY)
        assert decoded.kv_blocks_total == LIMITS.blocks


@pytest.mark.parametrize("stream", [False, True])
async def test_server_timing_splits_the_whole_way(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        call = await chat_call(served.app, stream=stream).done()
    terms = [term.split(";dur=") for term in call.headers[b"server-timing"].decode().split(", ")]
    assert [name for name, _ in terms] == ["parse", "queue", "prefill", "first"]
    assert all(float(value) >= 0 for _, value in terms)


async def test_fields_that_nobody_defines_are_named_safely(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        call = await chat_call(served.app, more={"foo": 1, "b\r\nset-cookie: x": 2, "ü" * 100: 3}).done()
    assert call.headers[b"x-edge-ignored"] == b"foo, b__set-cookie__x, " + b"_" * 64


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
async def test_a_client_that_leaves_frees_its_sequence(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool, steps: int
) -> None:
    gate = threading.Semaphore(0)
    async with serving(executor(tokenizer, ends=False, gate=gate), tokenizer, chat_template) as served:
        call = chat_call(served.app, stream=stream, max_tokens=300)
        for step in range(steps):
            gate.release()
            await until(partial(lambda done: served.engine.load().step == done + 3, step))
        await until(lambda: served.engine.load().step == steps + 2)
        call.leave()
        await until(lambda: served.engine.load().blocks_spare == LIMITS.blocks, gate)
        await call.done()
        assert served.engine.gauges.aborts == 1
        assert served.engine.gauges.abort_steps_max <= 2
        assert served.engine.live == 0


async def test_a_queued_client_that_leaves_is_gone_from_the_queue(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    gate = threading.Semaphore(0)
    async with serving(executor(tokenizer, ends=False, gate=gate), tokenizer, chat_template) as served:
        first = chat_call(served.app, max_tokens=450)
        second = chat_call(served.app, max_tokens=450)
        await until(lambda: served.engine.live == 2)
        second.leave()
        await until(lambda: served.engine.live == 1, gate)
        await second.done()
        assert served.engine.load().running == 1
        first.leave()
        await until(lambda: first.ended, gate)


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
    ("GET", "/node/v1/status", b"", [], 403, "node_token"),
    ("GET", "/node/v1/status", b"", [(b"x-node-token", b"wrong")], 403, "node_token"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "code"), ERRORS)
async def test_errors_are_shaped_as_openai_does(
    method: str, path: str, body: bytes, headers: list[tuple[bytes, bytes]], status: int, code: str
) -> None:
    app = NodeApp(Node(MODEL), Hosts("127.0.0.1"), b"secret", limits=ApiLimits(body_bytes=1000))
    call = await Call(app, method, path, body, headers).done()
    error = call.json()["error"]
    assert (call.status, error["code"]) == (status, code)
    assert set(error) >= {"message", "type", "param", "code"}
    assert (b"allow" in call.headers) is (status == 405)


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
        await until(lambda: served.engine.stalled_s() > 0.01)
        for path in ("/readyz", "/healthz"):
            assert (await Call(served.app, "GET", path).done()).status == 503
        gate.release(100)
        assert (await call.done()).status == 200
        await until(lambda: served.engine.stalled_s() == 0)
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


async def test_models_and_status(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        models = (await Call(served.app, "GET", "/v1/models").done()).json()
        model = (await Call(served.app, "GET", f"/v1/models/{MODEL}").done()).json()
        head = await Call(served.app, "HEAD", "/readyz").done()
        await chat_call(served.app).done()
        await until_free(served)
        token = [(b"x-node-token", b"secret")]
        status = (await Call(served.app, "GET", "/node/v1/status", headers=token).done()).json()
    assert models["data"] == [model]
    assert (model["id"], model["object"]) == (MODEL, "model")
    assert (head.status, head.body) == (200, b"")
    assert (status["state"], status["running"], status["waiting"], status["aborts"]) == ("ready", 0, 0, 0)
    assert status["step_counter"] > 0
    assert {"abort_steps_max", "stalled_s", "preemptions", "prefill_tokens_per_s"} <= set(status)
    assert status["kv_blocks_free"] + status["kv_blocks_evictable"] == status["kv_blocks_total"]
    assert status["kv_blocks_evictable"] > 0
    assert (status["kv_blocks_reused"], status["kvr"]) == (0, 0.0)
    assert status["kv_blocks_computed"] > 0
    assert (status["ild_wake"]["count"], status["ild_gap"]["count"]) == (1, status["step_counter"] - 1)


async def test_usage_tells_what_was_reused_in_the_next_turn(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        first = {"role": "user", "content": "Tell me something about the sea, and about the ships on it."}
        answers = []
        for messages in (
            [first],
            [first, {"role": "assistant", "content": TEXT}, {"role": "user", "content": "More?"}],
        ):
            answers.append((await chat_call(served.app, more={"messages": messages}).done()).json()["usage"])
        status = served.node.status(0.0)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in answers]
    known = answers[0]["prompt_tokens"] + answers[0]["completion_tokens"] - 1
    assert cached == [0, known // 16 * 16]
    assert status["kv_blocks_reused"] == cached[1] // 16


TOKEN_FIELD = [(b"x-node-token", b"secret")]


async def test_the_feed_of_blocks_follows_what_requests_do_until_the_node_drains(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        feed = Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD)
        await feed.text_holds(b"event: snapshot\nid: ")
        await chat_call(served.app).done()
        await feed.text_holds(b"event: change\n")
        held = HeldBlocks()
        for event in SseParser().feed(feed.body):
            held.apply(decode(event.data))
        assert held.position is not None
        last = (b"last-event-id", held.position.encode())
        again = Call(served.app, "GET", "/node/v1/events", headers=[*TOKEN_FIELD, last])
        await chat_call(served.app, content="How are you, and how are all of yours?").done()
        await again.text_holds(b"event: change\n")
        await feed.text_holds(again.body)
        assert b"snapshot" not in again.body
        served.node.drain()
        await feed.done()
        await again.done()
    assert (feed.status, feed.headers[b"content-type"], feed.ended) == (200, b"text/event-stream", True)


async def test_an_answer_names_the_blocks_of_its_prompt_to_the_proxy_alone(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        stranger = await chat_call(served.app).done()
        call = await chat_call(served.app, headers=TOKEN_FIELD).done()
        snapshot = await served.engine.feed.reader().next()
    assert b"x-node-prefix" not in stranger.headers
    prefix = decode_prefix(call.headers[b"x-node-prefix"])
    assert prefix.blocks == call.json()["usage"]["prompt_tokens"] // 16 > 0
    held = HeldBlocks()
    held.apply(decode(SseParser().feed(snapshot or b"")[0].data))
    assert held.left(prefix) == prefix


async def test_requests_of_different_salts_share_no_kv(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    cached = []
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        for salt in (b"aa", b"aa", b"bb", b"bb"):
            call = await chat_call(served.app, headers=[*TOKEN_FIELD, (b"x-node-salt", salt)]).done()
            cached.append(call.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, True, False, True]


async def test_only_who_holds_the_token_sets_salt_and_priority(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        for field in ((b"x-node-salt", b"aa"), (b"x-node-priority", b"-1")):
            refused = await chat_call(served.app, headers=[field]).done()
            assert (refused.status, refused.json()["error"]["code"]) == (403, "node_token")
        assert (await chat_call(served.app, headers=[(b"x-latency-budget-ms", b"60000")]).done()).status == 200


async def test_who_leaves_the_feed_makes_room_in_it(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        calls = [Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD) for _ in range(READERS)]
        for call in calls:
            await call.text_holds(b"snapshot")
        refused = await Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD).done()
        calls[0].leave()
        await calls[0].done()
        again = Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD)
        await again.text_holds(b"snapshot")
        for call in [*calls[1:], again]:
            call.leave()
            await call.done()
    assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_the_feed_needs_the_token_and_an_engine(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        without = await Call(served.app, "GET", "/node/v1/events").done()
        head = await Call(served.app, "HEAD", "/node/v1/events", headers=TOKEN_FIELD).done()
    early = await Call(NodeApp(Node(MODEL), Hosts("127.0.0.1"), None), "GET", "/node/v1/events").done()
    assert (without.status, head.status, head.body, early.status) == (403, 200, b"", 503)


async def test_a_long_prompt_does_not_hold_the_event_loop(
    tokenizer: Tokenizer, chat_template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    encode = tokenizer.encode_segments

    def noted(segments: list[str]) -> list[list[int]]:
        threads.append(threading.current_thread())
        return encode(segments)

    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        monkeypatch.setattr(tokenizer, "encode_segments", noted)
        await chat_call(served.app, content="short").done()
        for _ in range(2):  # what was encoded once is known
            await chat_call(served.app, content="long " * 1000).done()
    assert [thread is threading.main_thread() for thread in threads] == [True, False, True]


async def test_unseeded_requests_differ_and_seeds_are_taken_as_they_are(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    fake = executor(tokenizer)
    async with serving(fake, tokenizer, chat_template) as served:
        asked: tuple[dict[str, Any], ...] = (
            {},
            {},
            {"seed": 5},
            {"seed": -1},
            {"ignore_eos": True, "max_tokens": 30, "top_p": 0},
        )
        for fields in asked:
            await chat_call(served.app, more=fields).done()
    opened = [row.opens for plan in fake.plans for row in plan.rows if row.opens]
    assert opened[0].seed != opened[1].seed
    assert [sampling.seed for sampling in opened[2:4]] == [5, 2**64 - 1]
    assert opened[0].stop_ids == tuple(tokenizer.eos_ids)
    assert opened[4].stop_ids == ()
    assert 0 < opened[4].top_p < 1e-6
