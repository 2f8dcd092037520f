"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SmolLM2."""

from __future__ import annotations

from engine.text.stop import overlap, without_begun
from engine.text.tools.calls_in_json import CallsInJson
from engine.text.tools.events import Event
from engine.text.tools.marks import HERMES_CLOSE as CLOSE
from engine.text.tools.marks import HERMES_OPEN as OPEN


class HermesParser(CallsInJson):
    """White space around calls is no text, and a closing tag may be missing."""

    marks = True

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._closes = False
        """A call has ended, and its closing tag may come."""
        self._gap = ""
        """White space before the tag."""
        self._skips = False
        """White space that comes next is left out."""

    def outside(self, events: list[Event]) -> bool:
        if self._closes or self._skips:
            self.held = self.held.lstrip()
        if self._closes:
            return self._close()
        self._skips = self._skips and not self.held
        return self._text(events)

    def after(self, refused: str | None, events: list[Event]) -> None:
        if refused is None:
            self._closes = self._skips = True
        else:
            events.append(self._gap + OPEN + refused)

    def rest(self, within: bool, events: list[Event], *, cut: bool) -> None:
        if not within and not self._closes:
            events.append(without_begun(self.held, OPEN) if cut else self.held)

    def _text(self, events: list[Event]) -> bool:
        before, tag, after = self.held.partition(OPEN)
        if tag:
            events.append(before.rstrip())
            self._gap = before[len(before.rstrip()) :]
            self.begin(after)
            return True
        kept = self.held[: len(self.held) - overlap(self.held, OPEN)].rstrip()
        events.append(kept)
        self.held = self.held[len(kept) :]
        return False

    def _close(self) -> bool:
        if self.held != CLOSE and CLOSE.startswith(self.held):
            return False
        self.held, self._closes = self.held.removeprefix(CLOSE), False
        return True
