from __future__ import annotations

from typing import Any

import orjson
import pytest

from edgeproxy.protocol.openai.chat import (
    Choice,
    Completion,
    CompletionStream,
    TokenLogprob,
    Usage,
    error_event,
    model_list,
    model_view,
)
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.sse import SseParser, has_content

USAGE = Usage(prompt=3, completion=2, cached=1)
USAGE_VIEW = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def parsed(event: bytes) -> dict[str, Any]:
    (only,) = SseParser().feed(event)
    value = orjson.loads(only.data)
    assert isinstance(value, dict)
    return value


def test_a_whole_answer_has_every_key_of_the_schema() -> None:
    value = orjson.loads(Completion("id", 7, "m", "fp").whole([Choice("hello", "stop")], USAGE))
    assert value == {
        "id": "id",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE_VIEW,
    }


def test_a_stream_opens_with_the_role_goes_on_with_text_and_closes_with_the_reason() -> None:
    stream = CompletionStream("id", 7, "m", "fp", include_usage=False)
    chunks = [parsed(event) for event in (stream.role(), stream.text("a"), stream.finish("length"))]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "a"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert [has_content(chunk) for chunk in chunks] == [False, True, True]
    for chunk in chunks:
        assert (chunk["id"], chunk["object"], chunk["created"]) == ("id", "chat.completion.chunk", 7)
        assert (chunk["model"], chunk["system_fingerprint"]) == ("m", "fp")
        assert chunk["choices"][0]["logprobs"] is None
        assert "usage" not in chunk
    assert SseParser().feed(stream.done())[0].data == b"[DONE]"


def test_asked_for_usage_comes_last_with_no_choices_and_is_null_before() -> None:
    stream = CompletionStream("id", 7, "m", "fp", include_usage=True)
    assert parsed(stream.text("a"))["usage"] is None
    last = parsed(stream.usage(USAGE))
    assert (last["choices"], last["usage"]) == ([], USAGE_VIEW)


def test_log_probabilities_are_shaped_as_openai_does() -> None:
    told = TokenLogprob("\ufffd", -0.25, b"\xe2\x82", (TokenLogprob("<end>", -2.0, None),))
    expected = {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.25,
                "bytes": [0xE2, 0x82],
                "top_logprobs": [{"token": "<end>", "logprob": -2.0, "bytes": None}],
            }
        ],
        "refusal": None,
    }
    stream = CompletionStream("id", 7, "m", "fp", include_usage=False)
    for event in (stream.text("a", [told]), stream.finish("stop", [told])):
        assert parsed(event)["choices"][0]["logprobs"] == expected
    assert parsed(stream.finish("stop", []))["choices"][0]["logprobs"] is None
    whole = orjson.loads(Completion("id", 7, "m", "fp").whole([Choice("a", "stop", [told])], USAGE))
    assert whole["choices"][0]["logprobs"] == expected


@pytest.mark.parametrize("text", ["\n", "\r\n\r\n", "\u2028", 'quote " and \\', "ü💡", "\x00"])
def test_any_text_stays_one_event(text: str) -> None:
    stream = CompletionStream("id", 7, "m", "fp", include_usage=False)
    assert parsed(stream.text(text))["choices"][0]["delta"]["content"] == text


def test_an_error_in_a_stream_is_content() -> None:
    chunk = parsed(error_event(invalid("no", "p", "c")))
    assert chunk["error"] == {"message": "no", "type": "invalid_request_error", "param": "p", "code": "c"}
    assert has_content(chunk)


def test_models_are_listed_as_openai_does() -> None:
    assert orjson.loads(model_list([model_view("m", 7, "us")])) == {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 7, "owned_by": "us"}],
    }
