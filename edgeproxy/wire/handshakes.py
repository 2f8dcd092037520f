"""TLS handshakes in progress: who has to give way where they are too many."""

from __future__ import annotations

from collections.abc import Callable

from edgeproxy.wire.quota import address_key


class Handshakes:
    """A newcomer always finds a place. Where all are taken, the oldest handshake gives way of the client that has most
    of them: who opens connections and says nothing shuts out himself, and one that takes a round trip or two is
    long done before it is the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_client: dict[str, dict[Callable[[], object], None]] = {}
        self.total = 0

    def begin(self, host: str, give_up: Callable[[], object]) -> bool:
        """`give_up` ends it, after which `end` is called as ever. False where another had to give way for it."""
        full = self.total >= self._most
        if full:
            crowded = max(self._by_client.values(), key=len)
            oldest = next(iter(crowded))
            self._remove(next(key for key, of_it in self._by_client.items() if of_it is crowded), oldest)
            oldest()
        self._by_client.setdefault(address_key(host), {})[give_up] = None
        self.total += 1
        return not full

    def end(self, host: str, give_up: Callable[[], object]) -> None:
        """It is complete, or has failed."""
        self._remove(address_key(host), give_up)

    def _remove(self, key: str, give_up: Callable[[], object]) -> None:
        of_it = self._by_client.get(key, {})
        if give_up not in of_it:
            return
        del of_it[give_up]
        self.total -= 1
        if not of_it:
            del self._by_client[key]
