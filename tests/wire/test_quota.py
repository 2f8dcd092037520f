from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.wire.limits import Limits
from edgeproxy.wire.quota import Quota, address_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("fe80::1%eth0", "fe80::2%eth1"),
    ],
)
def test_addresses_that_one_client_can_choose_from_count_as_one(one: str, other: str) -> None:
    assert address_key(one) == address_key(other)


@pytest.mark.parametrize(("one", "other"), [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8:0:1::1")])
def test_addresses_of_different_clients_do_not(one: str, other: str) -> None:
    assert address_key(one) != address_key(other)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_what_is_held_never_exceeds_the_limits_and_all_of_it_comes_back(steps: list[tuple[str, bool]]) -> None:
    quota = Quota(Limits(connections=5, connections_per_address=2))
    held: list[tuple[str, Callable[[], None]]] = []
    for host, opens in steps:
        if opens:
            release = quota.admit(host)
            full = len(held) >= 5 or sum(1 for other, _ in held if other == host) >= 2
            assert (release is None) == full
            if release is not None:
                held.append((host, release))
        elif held:
            _, give_back = held.pop(0)
            give_back()
            give_back()  # twice does no harm
        assert quota.total == len(held)
