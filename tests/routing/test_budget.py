from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.budget import Ledger, node_terms, settle


def test_server_timing_has_what_is_known_in_milliseconds_and_in_order() -> None:
    ledger = Ledger(first=0.0042, rtt=0.0401, edge=0.00031, total=0.0622)
    assert ledger.server_timing() == b"rtt;dur=40.10, edge;dur=0.31, first;dur=4.20, total;dur=62.20"
    assert Ledger().server_timing() == b""
    assert Ledger(edge=-1e-9).server_timing() == b"edge;dur=0.00"


def test_what_the_user_waits_is_the_total_and_the_way_to_the_client() -> None:
    assert Ledger(client=0.030, total=0.100).wait == pytest.approx(0.130)
    assert Ledger(total=0.100).wait == pytest.approx(0.100)
    assert Ledger(client=0.030).wait is None
    assert Ledger(client=0.030, total=0.100).remaining(0.150) == pytest.approx(0.020)


@given(st.none() | st.floats(0, 10), st.floats(0, 10))
def test_what_is_left_is_shared_out_and_nothing_of_it_lost(estimate: float | None, left: float) -> None:
    rtt, unexplained = settle(left, estimate)
    assert (rtt or 0.0) + unexplained == pytest.approx(left)
    assert (rtt is None) == (estimate is None)
    assert 0 <= (rtt or 0.0) <= (estimate or 0.0)


def test_an_estimate_gives_way_to_what_was_measured() -> None:
    assert settle(0.010, 0.040) == (0.010, 0.0)
    assert settle(0.050, 0.040) == pytest.approx((0.040, 0.010))
    assert settle(-1e-9, 0.040) == (0.0, 0.0)


def test_what_remains_of_the_budget() -> None:
    assert Ledger(total=0.100).remaining(0.150) == pytest.approx(0.050)
    assert Ledger(total=0.200).remaining(0.150) == pytest.approx(-0.050)
    assert Ledger().remaining(0.150) is None


def test_a_nodes_terms_are_read_from_its_header() -> None:
    terms = node_terms(b'queue;dur=0.5, prefill;desc="a";dur=31.25 ,first;dur=4, cache;dur=9, total')
    assert terms == {"queue": 0.0005, "prefill": 0.03125, "first": 0.004}
    assert node_terms(b'parse;dur=25e-02;desc="b", queue;dur= 5. ') == {"parse": 0.00025, "queue": 0.005}


@pytest.mark.parametrize(
    "raw",
    [None, b"", b"queue", b"\xff"]
    + [b"queue;dur=" + odd for odd in (b"", b"x", b"nan", b"-1", b"inf", b"1e9", b"9999999999", b"1x", b"1 2")],
)
def test_what_is_odd_is_left_out(raw: bytes | None) -> None:
    assert node_terms(raw) == {}


def test_an_over_long_header_is_not_parsed() -> None:
    assert node_terms(b"queue;dur=1, " * 1000) == {}


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_header_raises(raw: bytes) -> None:
    assert all(0 <= seconds < 1e6 for seconds in node_terms(raw).values())


@settings(deadline=None)
@given(st.floats(0, 100), st.floats(0, 100))
def test_what_is_written_can_be_read(queue: float, first: float) -> None:
    terms = node_terms(Ledger(queue=queue, first=first).server_timing())
    assert terms == pytest.approx({"queue": queue, "first": first}, abs=1e-5)
