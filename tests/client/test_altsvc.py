"""Alt-Svc fields and what is remembered of them (RFC 7838)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.client.altsvc import (
    DEFAULT_MAX_AGE_S,
    FIRST_WAIT_S,
    LAST_WAIT_S,
    MAX_ORIGINS,
    Alternative,
    AltSvc,
    Endpoint,
    parse,
)

ORIGIN = Endpoint("a.example", 443)
OFFER = 'h3=":8443"; ma=300'
THERE = Endpoint("a.example", 8443)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('h3=":8443"; ma=300', [Alternative("h3", "", 8443, 300)]),
        ('h3=":8443"', [Alternative("h3", "", 8443, DEFAULT_MAX_AGE_S)]),
        ('h3="b.example:1";MA="7"; persist=1', [Alternative("h3", "b.example", 1, 7)]),
        ('h3="[::1]:1"', [Alternative("h3", "::1", 1, DEFAULT_MAX_AGE_S)]),
        ('h2=":1", h3=":2"; ma=1 , w%3Dx=":3"', [("h2", 1), ("h3", 2), ("w=x", 3)]),
        (r'h3="\:\8";ma=1', [("h3", 8)]),
        ('h3=":1"; note="a, b; c=\\"d"', [("h3", 1)]),
        (" clear ", None),
    ],
)
def test_values_are_read_as_the_standard_has_them(value: str, expected: list[object] | None) -> None:
    found = parse(value)
    if expected is not None and not isinstance(expected[0], Alternative):
        assert found is not None
        assert [(alternative.protocol, alternative.port) for alternative in found] == expected
    else:
        assert found == expected


@pytest.mark.parametrize(
    "value", ["h3", "h3=:443", 'h3="443"', 'h3=":0"', 'h3=":65536"', 'h3=":1" ma=1', 'h3=":1", Clear', 'h3="a@b:1"']
)
def test_what_is_malformed_changes_nothing(value: str) -> None:
    with pytest.raises(ValueError, match="not an"):
        parse(value)
    known = AltSvc()
    known.told(ORIGIN, [OFFER], 0)
    known.told(ORIGIN, [value], 0)
    assert known.endpoint(ORIGIN, 1) == THERE


@given(st.text(alphabet='h3=":1;, ma\\\t', max_size=60))
def test_no_value_fails_otherwise_than_it_says(value: str) -> None:
    try:
        parse(value)
    except ValueError as error:
        assert "not an" in str(error)


def test_an_offer_holds_as_long_as_it_says() -> None:
    known = AltSvc()
    known.told(ORIGIN, [OFFER], 1000)
    assert known.endpoint(ORIGIN, 1299) == THERE
    assert known.endpoint(ORIGIN, 1300) is None
    assert known.endpoint(Endpoint("a.example", 444), 1000) is None, "an origin is host and port"


def test_a_new_offer_replaces_the_old_one_and_clear_ends_it() -> None:
    known = AltSvc()
    known.told(ORIGIN, [OFFER], 0)
    known.told(ORIGIN, [], 0)
    assert known.endpoint(ORIGIN, 1) == THERE, "nothing was said"
    known.told(ORIGIN, ['h2=":1"', 'h3="b.example:2"'], 0)
    assert known.endpoint(ORIGIN, 1) == Endpoint("b.example", 2)
    known.told(ORIGIN, ["clear"], 0)
    assert known.endpoint(ORIGIN, 1) is None


def test_what_is_broken_is_left_alone_for_twice_as_long_each_time() -> None:
    known, now = AltSvc(), 0.0
    known.told(ORIGIN, ['h3=":8443"; ma=999999999, h3=":9"; ma=999999999'], now)
    waits = []
    for _ in range(20):
        known.broke(THERE, now)
        assert known.endpoint(ORIGIN, now) == Endpoint("a.example", 9), "the next best"
        low, high = 0.0, 2 * LAST_WAIT_S
        while high - low > 0.5:
            middle = (low + high) / 2
            low, high = (low, middle) if known.endpoint(ORIGIN, now + middle) == THERE else (middle, high)
        waits.append(round(high))
        now += high
    assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == LAST_WAIT_S
    known.works(THERE)
    known.broke(THERE, now)
    assert known.endpoint(ORIGIN, now + FIRST_WAIT_S) == THERE, "an answer makes good again"


def test_what_is_remembered_is_bounded() -> None:
    known = AltSvc()
    for number in range(MAX_ORIGINS + 1):
        known.told(Endpoint(f"{number}.example", 443), [OFFER], 0)
    assert known.endpoint(Endpoint("0.example", 443), 1) is None
    assert known.endpoint(Endpoint("1.example", 443), 1) is not None
