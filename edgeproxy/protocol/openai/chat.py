"""The response objects of chat completions and of the model list, as JSON bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson

from edgeproxy.protocol.openai import sse
from edgeproxy.protocol.openai.errors import ApiError

FinishReason = Literal["stop", "length", "tool_calls"]


class TokenLogprob(NamedTuple):
    """A token of the answer, with the natural logarithm of its probability."""

    token: str
    logprob: float
    raw: bytes | None
    """What it adds to the text, perhaps a part of a character; None for a token without text of its own."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens in its place."""

    def view(self) -> dict[str, Any]:
        return {**self._alone(), "top_logprobs": [other._alone() for other in self.top]}

    def _alone(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "logprob": self.logprob,
            "bytes": None if self.raw is None else list(self.raw),
        }


Logprobs = Sequence[TokenLogprob] | None
"""None where the client did not ask for them."""


def _logprobs(tokens: Logprobs) -> dict[str, Any] | None:
    return None if tokens is None else {"content": [token.view() for token in tokens], "refusal": None}


class Usage(NamedTuple):
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


class Call(NamedTuple):
    """A tool call of an answer."""

    id: str
    name: str
    arguments: str
    """JSON."""

    def view(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class Choice(NamedTuple):
    """One whole answer."""

    text: str
    finish: FinishReason
    logprobs: Logprobs = None
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What all objects of one answer have in common."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    fingerprint: str
    """`system_fingerprint`: equal for nodes whose output is equal bit for bit."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        views = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return orjson.dumps({**self._head(self._whole_kind()), "choices": views, "usage": usage.view()})

    def _whole_kind(self) -> str:
        return "chat.completion"

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [call.view() for call in choice.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(choice.logprobs),
            "finish_reason": choice.finish,
        }

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
    """The events of a streamed answer: `role`, `text` and calls, `finish`, with `include_usage` `usage`, and `done`.

    `index`: which of several answers.
    """

    include_usage: bool

    def role(self, index: int = 0) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def text(self, text: str, logprobs: Logprobs = None, index: int = 0) -> bytes:
        return self._chunk(index, {"content": text}, None, logprobs)

    def call(self, number: int, identity: str, name: str, index: int = 0) -> bytes:
        """A tool call begins, the one of this number in its answer."""
        call = {"index": number, **Call(identity, name, "").view()}
        return self._chunk(index, {"tool_calls": [call]}, None)

    def arguments(self, number: int, text: str, index: int = 0) -> bytes:
        """A further part of its arguments."""
        return self._chunk(index, {"tool_calls": [{"index": number, "function": {"arguments": text}}]}, None)

    def finish(self, reason: FinishReason, logprobs: Logprobs = None, index: int = 0) -> bytes:
        """logprobs: of tokens at the end that added no text."""
        return self._chunk(index, {}, reason, logprobs or None)

    def usage(self, usage: Usage) -> bytes:
        """The usage of the whole request, with empty choices. Sent only where the client asked for it."""
        return self._event([], {"usage": usage.view()})

    def done(self) -> bytes:
        return sse.encode(sse.DONE)

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: FinishReason | None, logprobs: Logprobs = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": _logprobs(logprobs), "finish_reason": finish}
        return self._event([choice], {"usage": None} if self.include_usage else {})

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        return sse.encode(orjson.dumps({**self._head(self._chunk_kind()), "choices": choices, **usage}))

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk"


def error_event(error: ApiError) -> bytes:
    """An error inside a stream that has begun; no `[DONE]` follows it."""
    return sse.encode(error.body())


def model_view(model: str, created: int, owner: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": created, "owned_by": owner}


def model_list(models: Iterable[dict[str, Any]]) -> bytes:
    return orjson.dumps({"object": "list", "data": list(models)})
