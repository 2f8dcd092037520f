"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SmolLM2."""

from __future__ import annotations

from engine.text.stop import overlap
from engine.text.tools.events import Event, Parser
from engine.text.tools.json_call import JsonCall
from engine.text.tools.marks import HERMES_CLOSE as CLOSE
from engine.text.tools.marks import HERMES_OPEN as OPEN


class HermesParser(Parser):
    """White space around calls is no text, and a closing tag may be missing."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._call: JsonCall | None = None
        self._closes = False
        """A call has ended, and its closing tag may come."""
        self._gap = ""
        """White space before the tag."""
        self._skips = False
        """White space that comes next is left out."""

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
        elif not self._closes:
            events.append(self._held)
        self._held = ""
        return events

    def _step(self, events: list[Event]) -> bool:
        """Takes what can be taken of the text held. False where more of it must come first."""
        if self._call is not None:
            text, self._held = self._held, ""
            events += self._call.push(text)
            if self._call.ended:
                self._end(self._call, events)
            return True
        if self._closes or self._skips:
            self._held = self._held.lstrip()
        if self._closes:
            return self._close()
        self._skips = self._skips and not self._held
        return self._text(events)

    def _text(self, events: list[Event]) -> bool:
        before, tag, after = self._held.partition(OPEN)
        if tag:
            events.append(before.rstrip())
            self._gap = before[len(before.rstrip()) :]
            self._held, self._call = after, JsonCall(self.names, self.calls)
            return True
        kept = self._held[: len(self._held) - overlap(self._held, OPEN)].rstrip()
        events.append(kept)
        self._held = self._held[len(kept) :]
        return False

    def _end(self, call: JsonCall, events: list[Event]) -> None:
        self.calls, self._call, self._held = call.index, None, call.rest
        if call.refused is None:
            self._closes = self._skips = True
        else:
            events.append(self._gap + OPEN + call.refused)

    def _close(self) -> bool:
        if self._held != CLOSE and CLOSE.startswith(self._held):
            return False
        self._held, self._closes = self._held.removeprefix(CLOSE), False
        return True
