from __future__ import annotations

import pytest

from edgeproxy.protocol.node.request import BUDGET_HEADER, POLICY_HEADER, PRIORITY_HEADER, SALT_HEADER, Terms, decode
from edgeproxy.protocol.openai.errors import ApiError


def read(*fields: tuple[bytes, bytes]) -> Terms:
    return decode(dict(fields).get)


@pytest.mark.parametrize(
    "terms",
    [
        Terms(),
        Terms(b"\0\xff" * 16, -3, 150),
        Terms(priority=1000),
        Terms(budget_ms=1),
        Terms(budget_ms=9, strict=True),
    ],
)
def test_terms_survive_the_wire(terms: Terms) -> None:
    assert read(*terms.encode()) == terms


def test_nothing_asked_is_nothing_said() -> None:
    assert Terms().encode() == []


def test_a_budget_alone_refuses_nobody() -> None:
    assert read((BUDGET_HEADER, b"150")) == Terms(budget_ms=150)
    assert Terms(budget_ms=150).within_s is None, "only who asks for it is refused"


def test_who_asks_for_it_is_refused_beyond_the_budget() -> None:
    assert read((BUDGET_HEADER, b"150"), (POLICY_HEADER, b"refuse")).within_s == 0.15
    assert read((POLICY_HEADER, b"refuse")).within_s is None


@pytest.mark.parametrize(
    "field",
    [
        *((SALT_HEADER, value) for value in (b"a", b"AA", b"aa" * 65, b"\xff\xff")),
        *((PRIORITY_HEADER, value) for value in (b"1001", b"-1001", b"1.0", b"+1", b"\xb2")),
        *((BUDGET_HEADER, value) for value in (b"0", b"-1", b"1.5", b"3600001", b"9" * 10)),
        (POLICY_HEADER, b"please"),
        *((name, b"") for name in (SALT_HEADER, PRIORITY_HEADER, BUDGET_HEADER, POLICY_HEADER)),
    ],
)
def test_what_cannot_be_read_is_a_400_that_names_the_field(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(ApiError) as raised:
        read(field)
    assert (raised.value.status, raised.value.param) == (400, field[0].decode())
