"""What the forms share whose calls are JSON objects with something of their own around them."""

from __future__ import annotations

from abc import abstractmethod

from engine.text.tools.events import Event, Parser
from engine.text.tools.json_call import JsonCall


class CallsInJson(Parser):
    """A parser of a form whose calls are JSON objects: what it does between them is the form's own."""

    marks = False
    """Something that is no text stands before each call."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self.held = ""
        """Text that is not told yet."""
        self._call: JsonCall | None = None

    def push(self, text: str) -> list[Event]:
        self.held += text
        events: list[Event] = []
        while self.held and self._step(events):
            pass
        return events

    def finish(self, *, cut: bool = False) -> list[Event]:
        events: list[Event] = []
        within = self._call is not None
        if self._call is not None:
            self.unfinished = self._call.in_arguments
            events += self._call.finish()
            self._end(self._call, [] if cut and self.marks else events)
        self.rest(within, events, cut=cut)
        self.held = ""
        return events

    def begin(self, text: str) -> None:
        """A call begins where `text` does."""
        self.held, self._call = text, JsonCall(self.names, self.calls)

    @abstractmethod
    def outside(self, events: list[Event]) -> bool:
        """Takes what can be taken of the text held. False where more of it must come first."""

    @abstractmethod
    def after(self, refused: str | None, events: list[Event]) -> None:
        """A call has ended. `refused`: the text that was none after all."""

    @abstractmethod
    def rest(self, within: bool, events: list[Event], *, cut: bool) -> None:
        """The answer has ended, `within` a call. `cut`: as of `finish`."""

    def _step(self, events: list[Event]) -> bool:
        if self._call is None:
            return self.outside(events)
        text, self.held = self.held, ""
        events += self._call.push(text)
        if self._call.ended:
            self._end(self._call, events)
        return True

    def _end(self, call: JsonCall, events: list[Event]) -> None:
        self.calls, self._call, self.held = call.index, None, call.rest
        self.after(call.refused, events)
