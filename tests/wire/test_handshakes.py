from __future__ import annotations

from edgeproxy.wire.handshakes import Handshakes


class Crowd:
    """Handshakes by name; who gave way."""

    def __init__(self, most: int) -> None:
        self.handshakes = Handshakes(most)
        self.gave_way: list[str] = []
        self._calls: dict[str, object] = {}

    def comes(self, host: str, name: str) -> bool:
        def give_up() -> None:
            self.gave_way.append(name)

        self._calls[name] = give_up
        return self.handshakes.begin(host, give_up)

    def ends(self, host: str, name: str) -> None:
        self.handshakes.end(host, self._calls[name])  # type: ignore[arg-type]


def test_the_oldest_of_the_client_with_most_gives_way() -> None:
    crowd = Crowd(4)
    assert crowd.comes("192.0.2.1", "good")
    assert all(crowd.comes("192.0.2.2", f"bad {n}") for n in range(3))
    for n in range(3, 10):
        assert not crowd.comes("192.0.2.2", f"bad {n}")
    assert not crowd.comes("192.0.2.3", "late")
    assert crowd.gave_way == [f"bad {n}" for n in range(8)]
    assert crowd.handshakes.total == 4


def test_hosts_of_one_ipv6_network_are_one_client() -> None:
    crowd = Crowd(3)
    crowd.comes("2001:db8::1", "first")
    crowd.comes("2001:db8:1::1", "other network")
    crowd.comes("2001:db8::2", "second")
    crowd.comes("192.0.2.1", "newcomer")
    assert crowd.gave_way == ["first"]


def test_who_is_done_makes_room_and_counts_once() -> None:
    crowd = Crowd(1)
    crowd.comes("192.0.2.1", "one")
    crowd.ends("192.0.2.1", "one")
    crowd.ends("192.0.2.1", "one")
    assert crowd.handshakes.total == 0
    assert crowd.comes("192.0.2.1", "two")
    assert crowd.gave_way == []
