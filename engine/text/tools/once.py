"""Ends an answer before a call that says again, word for word, what an earlier one of it said.

Where calls are enforced, a small model cannot turn to text when all is said, and repeats itself until `max_tokens`.
"""

from __future__ import annotations

from typing import Final

from engine.text.tools.events import Arguments, CallStart, Event, Parser


class Once(Parser):
    """A parser of which no call comes twice. While a call could still be one that was there, it is held back."""

    def __init__(self, inner: Parser) -> None:
        super().__init__(inner.names)
        self._inner: Final = inner
        self._told: list[tuple[str, str]] = []
        """Name and arguments of the calls before this one."""
        self._name = ""
        self._arguments = ""
        self._held: list[Event] | None = None
        """Of this call, while it may be a repetition."""

    def push(self, text: str) -> list[Event]:
        return self._passed(self._inner.push(text))

    def finish(self) -> list[Event]:
        events = self._passed(self._inner.finish())
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
            elif not any(arguments.startswith(self._arguments) for arguments in self._earlier()):
                passed += self._released()
        return passed

    def _begin(self, start: CallStart) -> None:
        if self._name:
            self._told.append((self._name, self._arguments))
        self._name, self._arguments = start.name, ""
        self._held = []

    def _earlier(self) -> list[str]:
        return [arguments for name, arguments in self._told if name == self._name]

    def _repeats(self) -> bool:
        """Arguments are one JSON object, so that nothing can follow those that are whole."""
        return bool(self._arguments) and self._arguments in self._earlier()

    def _released(self) -> list[Event]:
        held, self._held = self._held or [], None
        self.calls += sum(isinstance(event, CallStart) for event in held)
        return held
