from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from edgeproxy.protocol.node import report
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.serving import (
    LIMITS,
    MODEL,
    TEXT,
    Call,
    chat_call,
    executor,
    serving,
    until,
    until_free,
)


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
    if stream:  # told when all else of the head is done, the report too
        handled = report.decode(call.headers[report.REPORT_HEADER]).handling_s
        assert sum(float(value) for _, value in terms) / 1e3 >= handled - 3e-6, "but for what rounding takes"


async def test_names_that_the_template_cannot_show_are_told_of(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    messages = [{"role": "user", "content": "Hi", "name": "ann"}, {"role": "assistant", "content": "", "name": "bob"}]
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        call = await chat_call(served.app, messages=[*messages, {"role": "user", "content": "?"}]).done()
    assert (call.status, call.headers[b"x-edge-ignored"]) == (200, b"messages[0].name, messages[1].name")


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


async def test_models_and_status(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        token = [(b"x-node-token", b"secret")]
        models = (await Call(served.app, "GET", "/v1/models", headers=token).done()).json()
        model = (await Call(served.app, "GET", f"/v1/models/{MODEL}", headers=token).done()).json()
        head = await Call(served.app, "HEAD", "/readyz").done()
        await chat_call(served.app, headers=token).done()
        await until_free(served)
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
