"""Which node served a session last. A preference with a price (`choose.AFFINITY_S`), never a chain."""

from __future__ import annotations

from collections import OrderedDict

SESSIONS = 65_536
"""Sessions remembered; beyond them, the one used longest ago is forgotten."""


class Sessions:
    """Session key (64 bits, keyed by its tenant) -> the slot of a node."""

    __slots__ = ("_most", "_slots")

    def __init__(self, most: int = SESSIONS) -> None:
        self._most = most
        self._slots: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, session: int) -> int | None:
        return self._slots.get(session)

    def served(self, session: int, slot: int) -> None:
        self._slots[session] = slot
        self._slots.move_to_end(session)
        if len(self._slots) > self._most:
            self._slots.popitem(last=False)
