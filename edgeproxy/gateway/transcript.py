"""What a client has got of a stream, and so what it takes to have another node go on with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from edgeproxy.gateway.continuation import Said
from edgeproxy.protocol.node.resume import MAX_IDS, Resume, count_ids, decode_note, is_note
from edgeproxy.protocol.openai.sse import DONE, Event, encode

MAX_SINCE = 16
"""Events after one note. A sound node sends one with text before the next note, and at most three more at the end."""
MAX_NOTE_BYTES = 2**16
"""Kept as they came, before they are read and put together: most streams end before that."""
_ERROR = b'{"error"'
"""How a native node's error event begins; looking for it anywhere would cost more than all else here."""
_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|refusal|text|arguments)":\s*"[^"]')
"""In an event with something to read. Quotes within a text are escaped there, so that no text looks like it."""
_DIGITS = 11
"""Bytes of an id and its comma, at most."""


class NodeGaveUp(Exception):
    """A native node told of its own failure in an event, which the client need not see."""

    def __init__(self, passed: bytes) -> None:
        super().__init__()
        self.passed = passed
        """What came before it."""


class Transcript:
    """Keeps the notes of a native node's stream (`protocol.node.resume`) and passes all else on.

    Costs next to nothing while all goes well: notes are kept as they came, and the few events since the last one are
    read only when the node has died.
    """

    __slots__ = (
        "_before",
        "_chars",
        "_first",
        "_ids",
        "_max_tokens",
        "_notes",
        "_seed",
        "_shown",
        "_since",
        "_sound",
        "_written",
        "numerics",
        "said",
    )

    def __init__(self, numerics: str | None, said: Said | None = None) -> None:
        """`numerics`: of the node; None for one that tells nothing, whose stream is passed on as it comes.
        `said`: keeps the text too, where some node can go on from that."""
        self.numerics = numerics
        self.said = said
        self._before: int | None = None
        self._sound = numerics is not None
        self._first: Event | None = None
        self._seed: int | None = None
        self._max_tokens = 0
        self._ids = bytearray()
        self._chars = 0
        self._notes = bytearray()
        """Those that were not read yet, as they came."""
        self._written = 0
        """Tokens of notes that were read."""
        self._shown = 0
        """Events with text, where no notes tell of tokens."""
        self._since: list[Event] = []
        """Events after the last note."""

    @property
    def resumable(self) -> bool:
        self._read()
        return self._sound and self._seed is not None

    def take(self, events: Sequence[Event]) -> bytes:
        """What the client gets of these events. Raises NodeGaveUp."""
        if self.numerics is None and self.said is None:
            passed = events[0].raw if len(events) == 1 else b"".join([event.raw for event in events])
        else:
            passed = self._take(events)
        if self.numerics is None or not (self._notes or self._written):
            for data, _, comment in events:
                if not comment and _TEXT.search(data) is not None:
                    self._shown += 1
        return passed

    @property
    def written(self) -> int:
        """Tokens so far: by a native node's notes; of others the events with text, a token each on most servers."""
        return self._written + count_ids(self._notes) + self._shown

    def goes_on_as_text(self) -> None:
        """The next events are those of a node that goes on from the text alone."""
        if self.said is not None:
            self.numerics, self._sound, self._before = None, False, self.said.chunks

    def _take(self, events: Sequence[Event]) -> bytes:
        said, before = self.said, self._before
        if said is not None:
            for event in events:
                said.add(event)
            if before is not None:
                return b"".join([said.rename(event, before) for event in events])
        if self.numerics is None:
            return b"".join([event.raw for event in events])
        return self._take_notes(events)

    def _take_notes(self, events: Sequence[Event]) -> bytes:
        passed: list[bytes] = []
        if len(self._notes) > MAX_NOTE_BYTES:
            self._read()
        for event in events:
            if event.comment and is_note(event.raw):
                self._notes += event.raw
                self._since.clear()
                continue
            if event.data.startswith(_ERROR) and self.resumable and _is_failure(event):
                raise NodeGaveUp(b"".join(passed))
            passed.append(event.raw)
            if not event.comment:
                self._keep(event)
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def resume(self) -> Resume | None:
        """None where the stream cannot be gone on with, or nothing but its `[DONE]` is missing."""
        if self._since and self._since[-1].data == DONE:
            return None
        if not self.resumable or self._seed is None or self._first is None or self.numerics is None:
            return None
        try:
            head = orjson.loads(self._first.data)
            shown = _Shown(self._chars)
            for event in self._since:
                shown.add(event)
            if shown.counted:
                return None
            return Resume(
                id=str(head["id"]),
                created=int(head["created"]),
                numerics=self.numerics,
                seed=self._seed,
                max_tokens=self._max_tokens,
                ids=tuple(orjson.loads(b"[" + self._ids + b"]")),
                chars=shown.chars,
                finished=shown.finished,
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            return None  # not what a native node sends

    def missing_end(self) -> bytes:
        """`[DONE]`, where a native node died between the usage and that."""
        counted = bool(self._since) and b'"choices":[]' in self._since[-1].data
        return encode(DONE) if counted and self.resumable else b""

    def _read(self) -> None:
        lines = self._notes.splitlines()
        self._written += count_ids(self._notes)
        self._notes.clear()
        for line in lines:
            note = decode_note(bytes(line))
            if note is None or len(self._ids) > MAX_IDS * _DIGITS:
                self._sound = False
                return
            if note.seed is not None and note.max_tokens is not None:
                self._seed, self._max_tokens = note.seed, note.max_tokens
            if note.ids:
                self._ids += b"," + note.ids if self._ids else note.ids
            self._chars = note.chars

    def _keep(self, event: Event) -> None:
        if self._first is None:
            self._first = event
        elif len(self._since) < MAX_SINCE:
            self._since.append(event)
        else:
            self._sound = False


class _Shown:
    """What the events since the last note told the client. Raises from `add` on what is no chunk."""

    def __init__(self, chars: int) -> None:
        self.chars = chars
        self.finished = False
        self.counted = False
        """The usage was there, which is the last before `[DONE]`, or that itself."""

    def add(self, event: Event) -> None:
        if event.data == DONE:
            self.counted = True
            return
        choices = orjson.loads(event.data)["choices"]
        self.counted = self.counted or not choices
        for choice in choices:
            self.chars += _size_of(choice)
            self.finished = self.finished or choice["finish_reason"] is not None


def _size_of(choice: dict[str, Any]) -> int:
    """As the node counts: characters of text and of arguments, and 1 for each call that begins."""
    if "delta" not in choice:
        return len(choice["text"])
    delta = choice["delta"]
    size = len(delta.get("content") or "")
    for call in delta.get("tool_calls") or ():
        size += len(call["function"].get("arguments") or "") + ("id" in call)
    return size


def _is_failure(event: Event) -> bool:
    """Whether it tells an error of the node's: one of the request's own would come of it anywhere."""
    try:
        error = orjson.loads(event.data)["error"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return False
    return bool(error) and not (isinstance(error, dict) and error.get("type") == "invalid_request_error")
