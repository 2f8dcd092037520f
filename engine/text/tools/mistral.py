"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call: Mistral."""

from __future__ import annotations

import re
from typing import Final

from engine.text.stop import overlap
from engine.text.tools.events import Arguments, CallStart, Event, Parser
from engine.text.tools.json_call import JsonCall, ValueEnd
from engine.text.tools.marks import MISTRAL_MARK as MARK

HEAD_CHARS: Final = 256
_NAMED: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")


class MistralParser(Parser):
    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._in_list = False
        self._marked = False
        """What comes next is a call, or a list of them."""
        self._call: JsonCall | None = None
        self._arguments: ValueEnd | None = None

    def push(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while self._held and self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._call is not None:
            events += self._call.finish()
            self._end(self._call, events)
        elif self._marked and not self._in_list:
            events.append(MARK + self._held)
        elif self._arguments is None and not self._in_list:
            events.append(self._held)
        self._held = ""
        return events

    def _step(self, events: list[Event]) -> bool:
        if self._call is not None:
            text, self._held = self._held, ""
            events += self._call.push(text)
            if self._call.ended:
                self._end(self._call, events)
            return True
        if self._arguments is not None:
            return self._in_arguments(self._arguments, events)
        if self._in_list:
            return self._between()
        return self._after_mark(events) if self._marked else self._text(events)

    def _text(self, events: list[Event]) -> bool:
        before, mark, after = self._held.partition(MARK)
        if mark:
            events.append(before)
            self._held, self._marked = after, True
            return True
        kept = self._held[: len(self._held) - overlap(self._held, MARK)]
        events.append(kept)
        self._held = self._held[len(kept) :]
        return False

    def _after_mark(self, events: list[Event]) -> bool:
        begins = self._held.lstrip()
        if begins[:1] == "[":
            self._held, self._in_list, self._marked = begins[1:], True, False
            return True
        named = _NAMED.match(self._held[:HEAD_CHARS])
        if named is None and len(self._held) < HEAD_CHARS:
            return False
        self._marked = False
        if named is None or named[1] not in self.names:
            events.append(MARK)
            kept = HEAD_CHARS if named is None else named.end()
            events.append(self._held[:kept])
            self._held = self._held[kept:]
            return True
        events.append(CallStart(self.calls, named[1]))
        self._held, self._arguments = self._held[named.end() :], ValueEnd()
        return True

    def _in_arguments(self, end: ValueEnd, events: list[Event]) -> bool:
        taken = end.take(self._held)
        events.append(Arguments(self.calls, self._held[:taken]))
        self._held = self._held[taken:]
        if end.done:
            self.calls, self._arguments = self.calls + 1, None
        return True

    def _between(self) -> bool:
        """In a list, before a call or at its end."""
        begins = self._held.lstrip(" \t\r\n,")
        if not begins:
            return False
        if begins[0] == "{":
            self._held, self._call = begins, JsonCall(self.names, self.calls)
        else:
            self._held, self._in_list = begins.removeprefix("]"), False
        return True

    def _end(self, call: JsonCall, events: list[Event]) -> None:
        self.calls, self._call, self._held = call.index, None, call.rest
        if call.refused is not None:
            events.append(call.refused)
