"""Only requests that name this proxy are answered, and nobody is served from afar without keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.access.origin import BindError, HostCheck, check_bind, is_loopback
from edgeproxy.config import Address
from edgeproxy.protocol.openai.errors import ApiError


def accepts(check: HostCheck, host: bytes | None) -> bool:
    try:
        check.check(host)
    except ApiError as error:
        assert (error.status, error.code) == (421, "misdirected_request")
        return False
    return True


LOOPBACK = [b"localhost", b"LOCALHOST:8080", b"127.0.0.1", b"127.0.0.1:1", b"[::1]", b"[::1]:8443", b"localhost."]
FOREIGN = [
    None,
    b"",
    b"evil.example",
    b"localhost.evil.example",
    b"127.0.0.1.evil.example:8080",
    b"127.0.0.2.nip.io",
    b"[::1].evil.example",
    b"evil.example:127.0.0.1",
    b"\xff\xfe",
    b"a" * 100_000,
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_names_are_accepted(host: bytes) -> None:
    assert accepts(HostCheck([Address("127.0.0.1", 8080)]), host)


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::"])
def test_foreign_names_are_refused(bound: str, host: bytes | None) -> None:
    check = HostCheck([Address(bound, 8080)], ["api.example"])
    assert not accepts(check, host)
    assert not accepts(check, host), "a refusal is not remembered as acceptance"


def test_addresses_are_accepted_where_they_are_bound() -> None:
    assert accepts(HostCheck([Address("10.0.0.1", 80)]), b"10.0.0.1:80")
    assert not accepts(HostCheck([Address("10.0.0.1", 80)]), b"10.0.0.2:80")
    assert accepts(HostCheck([Address("0.0.0.0", 80)]), b"10.0.0.2:80")
    assert accepts(HostCheck([Address("::", 80)]), b"[2001:db8::1]")


def test_configured_names_are_accepted_in_any_case() -> None:
    check = HostCheck([Address("127.0.0.1", 8080)], ["API.example"])
    assert accepts(check, b"api.EXAMPLE:443")
    assert accepts(check, b"api.EXAMPLE:443")


@given(st.binary(max_size=40))
def test_no_host_is_a_fault(host: bytes) -> None:
    accepts(HostCheck([Address("0.0.0.0", 1)]), host)


def test_memory_does_not_grow_with_the_names_seen() -> None:
    check = HostCheck([Address("0.0.0.0", 1)])
    for i in range(5000):
        assert accepts(check, b"10.0.0.1:%d" % i)
    assert len(check._accepted) <= 1024


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_open_bind_needs_keys() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "proxy.example"):
        with pytest.raises(BindError, match="edgeproxy keys"):
            check_bind(Address(host, 8080), keys_required=False)
        check_bind(Address(host, 8080), keys_required=True)
    check_bind(Address("127.0.0.1", 8080), keys_required=False)
