"""A stream that goes on from its text alone, for nodes that offer no more (`continue_final_message: true`).

Approximate, and said to be: another model instance goes on with the partial answer as its own. What was sampled is not
known, so tokens, stop strings over the seam and a seed are not as in an unbroken run.
"""

from __future__ import annotations

from typing import Any

import orjson

from edgeproxy.protocol.openai.sse import DONE, Event, encode, encode_comment

MAX_CHARS = 2**18
SEAM = encode_comment(b"another node goes on from the text so far")
_ONLY_WHOLE = ("tools", "functions", "logprobs", "response_format")
"""Requests whose answer is more than text, or must be of one piece."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_PLAIN = {"role", "content", "refusal"}


class Said:
    """The text of a stream so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._sound = True
        self._finished = False
        self._head: dict[str, Any] = {}
        self.chunks = 0
        """Of text: about as many as tokens."""

    def add(self, event: Event) -> None:
        if event.comment or not self._sound:
            return
        if event.data == DONE:
            self._finished = True
            return
        try:
            self._add(orjson.loads(event.data))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._sound = False

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            return
        if not self._head:
            self._head = {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
            self._chars += len(text)
            others = any(value for name, value in delta.items() if name not in _PLAIN)
            self._sound = self._sound and not others and choice["index"] == 0 and self._chars <= MAX_CHARS
            self._finished = self._finished or choice.get("finish_reason") is not None
            if text:
                self._pieces.append(text)
                self.chunks += 1

    def request(self, body: bytes) -> bytes | None:
        """The client's request with what was said as its last message; None where that would not do."""
        value = orjson.loads(body)
        if not self._sound or self._finished or not self._pieces or value.get("n") not in (None, 1):
            return None
        if any(value.get(name) for name in _ONLY_WHOLE):
            return None
        value["messages"] = [*value["messages"], {"role": "assistant", "content": "".join(self._pieces)}]
        value |= {"continue_final_message": True, "add_generation_prompt": False}
        for name in _LIMITS:
            if isinstance(value.get(name), int):
                value[name] = max(1, value[name] - self.chunks)
        return orjson.dumps(value)

    def rename(self, event: Event, before: int) -> bytes:
        """An event of the node that goes on, as one of the stream that the client has. `before`: chunks of text that
        the nodes before it sent."""
        if event.comment or event.data == DONE:
            return event.raw
        try:
            chunk = orjson.loads(event.data)
            choices = chunk.get("choices") or []
            for choice in choices:
                choice.get("delta", {}).pop("role", None)
            usage = chunk.get("usage")
            if isinstance(usage, dict):
                usage["prompt_tokens"] -= before
                usage["completion_tokens"] += before
        except (ValueError, KeyError, TypeError, AttributeError):
            return event.raw
        if choices and not usage and not any(_shows(choice) for choice in choices):
            return b""
        return encode(orjson.dumps(chunk | self._head))


def _shows(choice: dict[str, Any]) -> bool:
    return bool(choice.get("finish_reason") or any((choice.get("delta") or {}).values()))
