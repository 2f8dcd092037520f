from __future__ import annotations

import pytest

from edgeproxy.protocol.openai.errors import ApiError
from engine.hosts import Hosts, is_loopback


@pytest.mark.parametrize("host", [b"127.0.0.1:8101", b"localhost", b"LOCALHOST:1", b"[::1]:8101", b"10.0.0.5:80"])
def test_loopback_and_the_bound_address_are_answered(host: bytes) -> None:
    Hosts("10.0.0.5").check(host)


@pytest.mark.parametrize("host", [b"", b"evil.example", b"evil.example:8101", b"10.0.0.6", b"127.0.0.1.evil.example"])
def test_other_names_are_not(host: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        Hosts("10.0.0.5").check(host)
    assert caught.value.status == 421


def test_where_all_addresses_are_bound_any_address_is_answered_but_no_name() -> None:
    hosts = Hosts("0.0.0.0", also=["node.internal"])
    hosts.check(b"192.0.2.7:8101")
    hosts.check(b"[2001:db8::7]")
    hosts.check(b"node.internal:8101")
    with pytest.raises(ApiError):
        hosts.check(b"evil.example")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_loopback_is_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
