"""One call written as a JSON object: `{"name": ..., "arguments": {...}}`, read as it comes."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final

import orjson

from engine.text.tools.events import Arguments, CallStart, Event

HEAD_CHARS: Final = 512
"""Within so many the arguments must begin for them to be told before the call is complete."""
_KEYS: Final = ("arguments", "parameters")
_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"([A-Za-z0-9_.-]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_STRUCTURE: Final = re.compile(r'["{}\[\]]')
_IN_STRING: Final = re.compile(r'\\.|"', re.DOTALL)


class ValueEnd:
    """Finds the end of a JSON object or list in a text that comes in pieces, by its brackets alone."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = False
        self._escaped = False
        """The last piece ended behind a backslash in a string."""
        self.done = False

    def take(self, text: str) -> int:
        """How many characters of it belong to the value. Behind its end: none."""
        at = 0
        if self._escaped and text:
            self._escaped, at = False, 1
        while at < len(text) and not self.done:
            found = (_IN_STRING if self._string else _STRUCTURE).search(text, at)
            if found is None:
                self._escaped = self._string and _ends_in_backslash(text, at)
                return len(text)
            at = found.end()
            self._see(found[0])
        return at

    def _see(self, mark: str) -> None:
        if mark == '"':
            self._string = not self._string
        elif not self._string:
            self._depth += 1 if mark in "{[" else -1
            self.done = self._depth <= 0


class _State(Enum):
    HEAD = "what it is, is not known"
    ARGUMENTS = "in the arguments of a call"
    TAIL = "behind them"
    ENDED = "nothing more is taken"


class JsonCall:
    """Once it has `ended`, `rest` is what lies behind it; where it was no call, `refused` is its text."""

    def __init__(self, names: frozenset[str], index: int) -> None:
        self._names = names
        self.index = index
        """Of the next call."""
        self._state = _State.HEAD
        self._head = ""
        self._end = ValueEnd()
        self.refused: str | None = None
        self.rest = ""

    @property
    def ended(self) -> bool:
        return self._state is _State.ENDED

    @property
    def in_arguments(self) -> bool:
        """Its beginning was told, and its arguments are not whole."""
        return self._state is _State.ARGUMENTS

    def push(self, text: str) -> list[Event]:
        """Not to be called once it has ended."""
        if self._state is _State.HEAD:
            return self._in_head(text)
        if self._state is _State.ARGUMENTS:
            return self._in_arguments(text)
        self._behind(text)
        return []

    def finish(self) -> list[Event]:
        if self._state is _State.HEAD:
            return self._whole("")
        self._state = _State.ENDED
        return []

    def _in_head(self, text: str) -> list[Event]:
        self._head += text
        known = _HEAD.match(self._head[:HEAD_CHARS])
        if known is not None and known[1] in self._names:
            self._state, self._end = _State.ARGUMENTS, ValueEnd()
            return [CallStart(self.index, known[1]), *self._in_arguments(self._head[known.end() :])]
        begins = self._head[:HEAD_CHARS].lstrip()
        if begins and begins[0] not in "{[":
            white = self._head.index(begins)
            self.refused, self.rest = self._head[:white], self._head[white:]
            self._state = _State.ENDED
            return []
        taken = self._end.take(text)
        if not self._end.done:
            return []
        self._head = self._head[: len(self._head) - len(text) + taken]
        return self._whole(text[taken:])

    def _whole(self, rest: str) -> list[Event]:
        """A complete value in which the name did not come first, or no call."""
        self.rest, self._state = rest, _State.ENDED
        calls = _calls_of(self._head, self._names)
        if not calls:
            self.refused = self._head
        events: list[Event] = []
        for name, arguments in calls:
            events += [CallStart(self.index, name), Arguments(self.index, arguments)]
            self.index += 1
        return events

    def _in_arguments(self, text: str) -> list[Event]:
        taken = self._end.take(text)
        events: list[Event] = [Arguments(self.index, text[:taken])] if taken else []
        if self._end.done:
            self.index += 1
            self._state = _State.TAIL
            self._behind(text[taken:])
        return events

    def _behind(self, text: str) -> None:
        """The brace that closes the call. Where it is missing, what comes instead belongs to no call."""
        text = text.lstrip()
        if text:
            self.rest = text.removeprefix("}")
            self._state = _State.ENDED


def _ends_in_backslash(text: str, at: int) -> bool:
    """Whether a string that goes on beyond the text ends in the first half of an escape."""
    backslashes = len(text[at:]) - len(text[at:].rstrip("\\"))
    return backslashes % 2 == 1


def _calls_of(text: str, names: frozenset[str]) -> list[tuple[str, str]]:
    """Name and arguments of each call; none where it is not made of calls alone."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []
    found = [_call_of(item, names) for item in (value if isinstance(value, list) else [value])]
    return [call for call in found if call is not None] if all(found) else []


def _call_of(value: Any, names: frozenset[str]) -> tuple[str, str] | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments: Any = next((value[key] for key in _KEYS if value.get(key) is not None), {})
    if not isinstance(arguments, dict):
        return None
    try:
        return name, orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:  # nested too deeply
        return None
