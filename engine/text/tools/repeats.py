"""Ends an answer before a call that says again, word for word, what others of it said.

Where calls are enforced, a small model cannot turn to text when all is said, and repeats itself until `max_tokens`.
Where they are not it may do so too, and who runs calls would run each of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from engine.text.tools.events import Arguments, CallStart, Event, Parser


class Repeats(Parser):
    """A parser of which no call comes more than `most` times. While one could still be too many, it is held back."""

    def __init__(self, inner: Parser, most: int) -> None:
        super().__init__(inner.names)
        self._inner: Final = inner
        self._most: Final = most
        self._told: Counter[tuple[str, str]] = Counter()
        """The calls before this one, by name and arguments."""
        self._name = ""
        self._arguments = ""
        self._held: list[Event] | None = None
        """Of this call, while it may be a repetition."""

    def push(self, text: str) -> list[Event]:
        return self._passed(self._inner.push(text))

    def finish(self, *, cut: bool = False) -> list[Event]:
        events = self._passed(self._inner.finish(cut=cut))
        self.unfinished = self._inner.unfinished and not self.ended
        return events if self.ended else events + self._released()

    def _passed(self, events: list[Event]) -> list[Event]:
        passed: list[Event] = []
        for event in events:
            if self.ended:
                break
            if isinstance(event, CallStart):
                passed += self._released()
                self._begin(event)
            elif isinstance(event, Arguments):
                self._arguments += event.text
            if self._held is None:
                passed.append(event)
                continue
            self._held.append(event)
            if self._repeats():
                self.ended, self._held = True, None
            elif not any(arguments.startswith(self._arguments) for arguments in self._spent()):
                passed += self._released()
        return passed

    def _begin(self, start: CallStart) -> None:
        if self._name:
            self._told[self._name, self._arguments] += 1
        self._name, self._arguments = start.name, ""
        self._held = []

    def _spent(self) -> list[str]:
        """The arguments with which this function may not be called again."""
        return [call[1] for call, times in self._told.items() if call[0] == self._name and times >= self._most]

    def _repeats(self) -> bool:
        """Arguments are one JSON object, so that nothing can follow those that are whole."""
        return bool(self._arguments) and self._arguments in self._spent()

    def _released(self) -> list[Event]:
        held, self._held = self._held or [], None
        self.calls += sum(isinstance(event, CallStart) for event in held)
        return held
