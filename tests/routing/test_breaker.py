from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.breaker import Breaker


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(at)
    return breaker


def test_five_failures_in_a_row_open_and_four_do_not() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(0)
    breaker.succeeded(0)
    for _ in range(4):
        breaker.failed(0)
    assert breaker.admits(0)
    breaker.failed(0)
    assert (breaker.admits(0), breaker.state(0)) == (False, "open")


def test_half_of_ten_within_thirty_seconds_opens_and_older_ones_do_not_count() -> None:
    breaker = Breaker()
    for second in range(9):
        breaker.failed(second) if second % 2 else breaker.succeeded(second)
    assert breaker.admits(9)
    breaker.failed(9)
    assert not breaker.admits(9)

    slow = Breaker()
    for second in range(0, 400, 8):
        slow.failed(second) if second % 16 else slow.succeeded(second)
    assert slow.admits(400)


def test_half_open_admits_one_request_and_its_success_closes() -> None:
    breaker = opened()
    assert not breaker.admits(0.9)
    assert (breaker.admits(1.0), breaker.state(1.0)) == (True, "half-open")
    breaker.started(1.0)
    assert not breaker.admits(1.0)
    breaker.succeeded(1.1)
    assert (breaker.admits(1.1), breaker.state(1.1)) == (True, "closed")


def test_each_failed_trial_doubles_the_wait_up_to_thirty_seconds() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(7):
        step = 0.0
        while not breaker.admits(now + step):
            step += 0.5
        waits.append(step)
        now += step
        breaker.started(now)
        breaker.failed(now)
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_trial_that_its_client_abandons_frees_the_place() -> None:
    breaker = opened()
    breaker.started(1.0)
    breaker.abandoned()
    assert breaker.admits(1.0)


def test_a_trial_that_is_never_heard_of_again_does_not_hold_the_place_for_ever() -> None:
    breaker = opened()
    breaker.started(1.0)
    assert breaker.admits(31.0)


def test_a_probe_closes_it_but_only_an_answer_shortens_the_next_wait() -> None:
    breaker = opened()
    breaker.probed(0.5)
    assert not breaker.admits(0.5)
    breaker.probed(1.0)
    assert breaker.state(1.0) == "closed"
    for _ in range(5):
        breaker.failed(2.0)
    assert not breaker.admits(3.9)
    breaker.probed(4.0)
    breaker.succeeded(4.0)
    for _ in range(5):
        breaker.failed(5.0)
    assert breaker.admits(6.0)


def test_failures_of_requests_sent_before_it_opened_do_not_prolong_it() -> None:
    breaker = opened()
    for _ in range(20):
        breaker.failed(0.5)
    assert breaker.admits(1.0)


def test_429_holds_off_without_opening() -> None:
    breaker = Breaker()
    breaker.hold_off(7, now=10)
    breaker.hold_off(2, now=10)
    assert (breaker.admits(16.9), breaker.state(16.9)) == (False, "closed")
    assert breaker.admits(17)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ok", "bad", "probe", "start", "left"]), st.floats(0, 5)), max_size=80))
def test_whatever_happens_it_admits_again_within_a_minute(steps: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(), 0.0
    for what, pause in steps:
        now += pause
        match what:
            case "ok":
                breaker.succeeded(now)
            case "bad":
                breaker.failed(now)
            case "probe":
                breaker.probed(now)
            case "start":
                breaker.started(now)
            case _:
                breaker.abandoned()
    assert breaker.admits(now + 60)
