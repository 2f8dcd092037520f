"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call: Mistral."""

from __future__ import annotations

import re
from typing import Final

from engine.text.stop import overlap, without_begun
from engine.text.tools.calls_in_json import CallsInJson
from engine.text.tools.events import Arguments, CallStart, Event
from engine.text.tools.json_call import ValueEnd
from engine.text.tools.marks import MISTRAL_MARK as MARK

HEAD_CHARS: Final = 256
_NAMED: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")


class MistralParser(CallsInJson):
    marks = True

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._in_list = False
        self._marked = False
        """What comes next is a call, or a list of them."""
        self._arguments: ValueEnd | None = None

    def outside(self, events: list[Event]) -> bool:
        if self._arguments is not None:
            return self._in_arguments(self._arguments, events)
        if self._in_list:
            return self._between()
        return self._after_mark(events) if self._marked else self._text(events)

    def after(self, refused: str | None, events: list[Event]) -> None:
        if refused is not None:
            events.append(refused)

    def rest(self, within: bool, events: list[Event], *, cut: bool) -> None:
        self.unfinished = self.unfinished or self._arguments is not None
        if within or (cut and self._marked):
            return
        if self._marked and not self._in_list:
            events.append(MARK + self.held)
        elif self._arguments is None and not self._in_list:
            events.append(without_begun(self.held, MARK) if cut else self.held)

    def _text(self, events: list[Event]) -> bool:
        before, mark, after = self.held.partition(MARK)
        if mark:
            events.append(before)
            self.held, self._marked = after, True
            return True
        kept = self.held[: len(self.held) - overlap(self.held, MARK)]
        events.append(kept)
        self.held = self.held[len(kept) :]
        return False

    def _after_mark(self, events: list[Event]) -> bool:
        begins = self.held.lstrip()
        if begins[:1] == "[":
            self.held, self._in_list, self._marked = begins[1:], True, False
            return True
        named = _NAMED.match(self.held[:HEAD_CHARS])
        if named is None and len(self.held) < HEAD_CHARS:
            return False
        self._marked = False
        if named is None or named[1] not in self.names:
            events.append(MARK)
            kept = HEAD_CHARS if named is None else named.end()
            events.append(self.held[:kept])
            self.held = self.held[kept:]
            return True
        events.append(CallStart(self.calls, named[1]))
        self.held, self._arguments = self.held[named.end() :], ValueEnd()
        return True

    def _in_arguments(self, end: ValueEnd, events: list[Event]) -> bool:
        taken = end.take(self.held)
        events.append(Arguments(self.calls, self.held[:taken]))
        self.held = self.held[taken:]
        if end.done:
            self.calls, self._arguments = self.calls + 1, None
        return True

    def _between(self) -> bool:
        """In a list, before a call or at its end."""
        begins = self.held.lstrip(" \t\r\n,")
        if not begins:
            return False
        if begins[0] == "{":
            self.begin(begins)
        else:
            self.held, self._in_list = begins.removeprefix("]"), False
        return True
