"""A stream that another node goes on with is the stream that the first would have given, wherever it was cut."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from edgeproxy.protocol.node.resume import Resume, decode_note, is_note, with_resume
from edgeproxy.protocol.openai.sse import DONE, Event, SseParser
from engine.generation import Generation
from engine.opener import Opener
from engine.sequence import Delta
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, MODEL, Call, Served, says, serving

TEXT = "Grüße 💡👩‍👩‍👧 and 한국어, more."
TOKEN = b"node-secret"
ASKED = [(b"x-edge-stream", b"1"), (b"x-node-token", TOKEN)]


@pytest.fixture(autouse=True)
def every_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted engine is so fast that many steps would come as one event."""

    async def one(generation: Generation) -> Delta:
        await generation._wake.wait()
        item = generation._arrived.popleft()
        if not generation._arrived:
            generation._wake.clear()
        assert isinstance(item, Delta)
        return item

    monkeypatch.setattr(Generation, "next", one)


def node(tokenizer: Tokenizer, template: ChatTemplate, *, ends: bool = True) -> Any:
    fake = FakeExecutor(script=says(tokenizer, TEXT, ends=ends), built_for=LIMITS)
    return serving(fake, tokenizer, template, token=TOKEN)


def body(**more: Any) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    options = {"include_usage": True}
    return orjson.dumps({"model": MODEL, "messages": messages, "stream": True, "stream_options": options, **more})


async def stream(served: Served, raw: bytes) -> list[Event]:
    call = await Call(served.app, "POST", "/v1/chat/completions", raw, ASKED).done()
    assert call.status == 200, call.body
    return SseParser().feed(call.body)


def so_far(events: list[Event]) -> Resume:
    """What a proxy would know that has got these events."""
    first = orjson.loads(next(event.data for event in events if not event.comment))
    notes = [note for event in events if is_note(event.raw) and (note := decode_note(event.raw))]
    assert notes
    assert notes[0].seed is not None
    assert notes[0].max_tokens is not None
    ids = b",".join(note.ids for note in notes if note.ids)
    shown = shown_of(events)
    return Resume(
        first["id"],
        first["created"],
        "fp_fake",
        notes[0].seed,
        notes[0].max_tokens,
        tuple(orjson.loads(b"[%b]" % ids)),
        len(shown["text"]),
        bool(shown["finish"]),
    )


def shown_of(events: list[Event]) -> dict[str, Any]:
    found: dict[str, Any] = {"text": "", "roles": 0, "finish": [], "usage": [], "done": 0, "heads": set()}
    found["logprobs"] = []
    for event in events:
        if event.comment:
            continue
        if event.data == DONE:
            found["done"] += 1
            continue
        chunk = orjson.loads(event.data)
        found["heads"].add((chunk["id"], chunk["created"], chunk["system_fingerprint"]))
        if chunk.get("usage"):
            found["usage"].append((chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]))
        for choice in chunk["choices"]:
            found["text"] += choice["delta"].get("content", "")
            found["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
            found["roles"] += "role" in choice["delta"]
            found["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return found


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"seed": 5},
    {"stop": ["한국"]},
    {"stop": [" and more", "zzz"]},
    {"stop": "💡"},
    {"max_tokens": 7},
    {"max_tokens": 1},
    {"min_tokens": 9, "stop": ["and"]},
    {"presence_penalty": 1, "stop_token_ids": [30]},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "stop": ["한국"]},
    {"logprobs": True, "stop": [" and more", "zzz"], "max_tokens": 9},
    {"logprobs": True, "stop": " andy"},
]


@pytest.mark.parametrize("fields", CASES)
async def test_cut_anywhere_and_resumed_it_says_the_same(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any]
) -> None:
    async with node(tokenizer, chat_template) as first, node(tokenizer, chat_template) as second:
        whole = await stream(first, body(**fields))
        expected = shown_of(whole)
        assert expected["done"] == expected["roles"] == 1
        opened = next(index for index, event in enumerate(whole) if is_note(event.raw))
        for cut in range(opened + 1, len(whole)):
            if b'"usage":{' in whole[cut - 1].data:
                continue  # all that is missing is [DONE]
            rest = await stream(second, with_resume(body(**fields), so_far(whole[:cut])))
            assert shown_of(whole[:cut] + rest) == expected, cut


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "stop": " andy"}])
async def test_a_resume_can_be_resumed(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any]
) -> None:
    async with node(tokenizer, chat_template) as served:
        whole = await stream(served, body(**fields))
        assert len(whole) > 40
        events = whole[:5]
        for _ in range(3):
            events += (await stream(served, with_resume(body(**fields), so_far(events))))[:5]
        assert not shown_of(events)["finish"]
        events += await stream(served, with_resume(body(**fields), so_far(events)))
        assert shown_of(events) == shown_of(whole)


async def test_withheld_tokens_are_told_too(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    """Every token is in a note, in order, and each note says how much text stood before it."""
    async with node(tokenizer, chat_template) as served:
        whole = await stream(served, body(stop=[" and never"]))
    ids: list[int] = []
    for index, event in enumerate(whole):
        if is_note(event.raw):
            note = decode_note(event.raw)
            assert note is not None
            assert note.chars == len(shown_of(whole[:index])["text"])
            ids += orjson.loads(b"[%b]" % note.ids)
    assert ids == [*tokenizer.encode(TEXT), tokenizer.eos_ids[-1]]
    assert shown_of(whole)["text"] == TEXT


async def test_an_unseeded_stream_tells_the_seed_it_chose(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with node(tokenizer, chat_template) as served:
        seeds = {so_far(await stream(served, body())).seed for _ in range(2)}
        assert len(seeds) == 2
        assert so_far(await stream(served, body(seed=-3))).seed == 2**64 - 3


async def test_the_seed_of_a_resume_counts_and_not_a_new_one(
    tokenizer: Tokenizer, chat_template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tokenizer, chat_template) as served:
        known = so_far((await stream(served, body()))[:4])
        seen: list[int] = []
        sampling = Opener._sampling

        def spy(opener: Opener, *arguments: Any) -> Any:
            found = sampling(opener, *arguments)
            seen.append(found.seed)
            return found

        monkeypatch.setattr(Opener, "_sampling", spy)
        await stream(served, with_resume(body(), known))
        assert seen == [known.seed]


async def test_who_does_not_ask_for_notes_gets_none(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with node(tokenizer, chat_template) as served:
        call = await Call(served.app, "POST", "/v1/chat/completions", body(), ASKED[1:]).done()
        assert call.status == 200
        assert not any(event.comment for event in SseParser().feed(call.body))


async def test_what_cannot_be_resumed_is_refused(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with node(tokenizer, chat_template) as served:
        known = so_far((await stream(served, body()))[:4])
        whole = {"stream": False, "stream_options": None}
        for raw, status, code in (
            (with_resume(body(), known._replace(numerics="other")), 409, "numerics"),
            (with_resume(body(), known._replace(ids=(10**6,))), 400, "invalid_value"),
            (with_resume(body(), known._replace(chars=-1)), 400, "invalid_value"),
            (with_resume(body(**whole), known), 400, "invalid_parameter_combination"),
        ):
            call = await Call(served.app, "POST", "/v1/chat/completions", raw, ASKED).done()
            assert (call.status, call.json()["error"]["code"]) == (status, code)
