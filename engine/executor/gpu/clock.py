"""When something was on the device, told in the host's clock. Pure."""

from __future__ import annotations

from typing import Any, Protocol


class Event(Protocol):
    """Of a device's stream, with a time: a torch.cuda.Event."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from this event to a later one of its kind; both have passed."""


class DeviceClock:
    """Turns events, asked for in their order, into seconds of CLOCK_MONOTONIC."""

    def __init__(self, anchor: Event, at: float) -> None:
        """anchor: an event that passed at `at`."""
        self._anchor, self._at = anchor, at

    def seconds(self, event: Event, given: float, seen: float) -> float:
        """given: when the host gave the event to the device, or before. seen: when it had seen it pass, or after."""
        # Device and host count at rates that differ by some 10^-5, so a sum of the device's intervals runs away from
        # the host's clock in one direction, which nobody knows. But an event passes after it was given and before it
        # was seen to have passed. Between these the device's intervals stand; a sum that has left them is put back to
        # their edge, which becomes the new anchor. An idle device passes what it is given at once, and a host that
        # waits sees it at once: so both edges are close to the truth again and again, whichever clock is the faster.
        at = self._at + self._anchor.elapsed_time(event) / 1000
        self._anchor, self._at = event, min(max(at, given), seen)
        return self._at
