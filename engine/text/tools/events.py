"""What a text with tool calls turns out to be, in the order in which it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class CallStart(NamedTuple):
    call: int
    """Of the call in its answer, from 0."""
    name: str


class Arguments(NamedTuple):
    call: int
    text: str
    """A further part of the JSON of its arguments."""


Event = str | CallStart | Arguments
"""A string is plain text."""


class Parser(ABC):
    """Reads an answer as it comes. How its text is cut into pieces changes nothing in what comes out, joined.

    What is no call after all, however much it looked like one, is text.
    """

    def __init__(self, names: frozenset[str]) -> None:
        """`names`: of the functions that may be called; to any other there is no call."""
        self.names = names
        self.calls = 0
        """Begun so far."""
        self.ended = False
        """The answer is over here, whatever else was sampled."""
        self.unfinished = False
        """The answer has ended in the middle of its last call. Known from `finish` on."""

    @abstractmethod
    def push(self, text: str) -> list[Event]: ...

    @abstractmethod
    def finish(self, *, cut: bool = False) -> list[Event]:
        """The answer has ended: what was held back. `cut`: not by the model, so that a call may be left unfinished."""


class CallsOnly(Parser):
    """A parser of answers that are calls and nothing else: what of them is no call is a part of one that was cut."""

    def __init__(self, inner: Parser) -> None:
        super().__init__(inner.names)
        self._inner = inner

    def push(self, text: str) -> list[Event]:
        return self._calls_of(self._inner.push(text))

    def finish(self, *, cut: bool = False) -> list[Event]:
        return self._calls_of(self._inner.finish(cut=cut))

    def _calls_of(self, events: list[Event]) -> list[Event]:
        self.calls, self.ended, self.unfinished = self._inner.calls, self._inner.ended, self._inner.unfinished
        return [event for event in events if not isinstance(event, str)]


def size_of(event: Event) -> int:
    """What counts as sent of it: characters, and 1 for a call's beginning."""
    return 1 if isinstance(event, CallStart) else len(event.text if isinstance(event, Arguments) else event)


def without(event: Event, size: int) -> Event:
    """Less its first `size`, which is below `size_of(event)`."""
    if isinstance(event, CallStart):
        return event
    return event._replace(text=event.text[size:]) if isinstance(event, Arguments) else event[size:]


def joined(events: list[Event]) -> list[Event]:
    """The same, with what continues each other as one, and nothing empty."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if not size_of(event):
            continue
        if isinstance(event, str) and isinstance(last, str):
            found[-1] = last + event
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and last.call == event.call:
            found[-1] = Arguments(last.call, last.text + event.text)
        else:
            found.append(event)
    return found
