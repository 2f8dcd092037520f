"""The response objects of chat completions and of the model list, as JSON bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from edgeproxy.protocol.openai import sse
from edgeproxy.protocol.openai.errors import ApiError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int
    completion: int
    cached: int
    """Prompt tokens whose KV was reused."""

    def view(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """What all objects of one answer have in common."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    fingerprint: str
    """`system_fingerprint`: equal for nodes whose output is equal bit for bit."""

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish,
        }
        return orjson.dumps({**self._head("chat.completion"), "choices": [choice], "usage": usage.view()})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class CompletionStream(Completion):
    """The events of a streamed answer: `role`, `text`..., `finish`, with `include_usage` `usage`, and `done`."""

    include_usage: bool

    def role(self) -> bytes:
        return self._chunk({"role": "assistant", "content": "", "refusal": None}, None)

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text}, None)

    def finish(self, reason: FinishReason) -> bytes:
        return self._chunk({}, reason)

    def usage(self, usage: Usage) -> bytes:
        """The usage of the whole request, with empty choices. Sent only where the client asked for it."""
        return self._event([], {"usage": usage.view()})

    def done(self) -> bytes:
        return sse.encode(sse.DONE)

    def _chunk(self, delta: dict[str, Any], finish: FinishReason | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._event([choice], {"usage": None} if self.include_usage else {})

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        return sse.encode(orjson.dumps({**self._head("chat.completion.chunk"), "choices": choices, **usage}))


def error_event(error: ApiError) -> bytes:
    """An error inside a stream that has begun; no `[DONE]` follows it."""
    return sse.encode(error.body())


def model_view(model: str, created: int, owner: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": owner}


def model_list(models: Iterable[dict[str, Any]]) -> bytes:
    return orjson.dumps({"object": "list", "data": list(models)})
