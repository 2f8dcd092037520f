"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string. What may be the start of one is held back, so that no part of a stop
    string ever gets out. How the text is cut into pieces changes nothing: of several stop strings the one that is
    complete first counts, and of those that end together the longest.
    """

    def __init__(self, stops: Sequence[str], told: bool = False) -> None:
        """`told`: the one that is found is passed on too."""
        self._stops = stops
        self._told = told
        self._held = ""
        self.found = False
        self.kept = 0
        """Characters that were not passed on: held back, of a stop string, or behind it."""

    def push(self, text: str) -> str:
        """The text that is safe to show. After a stop string was found: nothing more."""
        shown = "" if self.found else self._before(text)
        self.kept += len(text) - len(shown)
        return shown

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        self.kept -= len(held)
        return held

    def _before(self, text: str) -> str:
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self.found = True
            self._held = ""
            end, start = min(matches)
            return text[: end if self._told else start]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


def without_begun(text: str, mark: str) -> str:
    """Less what at its end may be the beginning of a mark."""
    return text[: len(text) - overlap(text, mark)]
