from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.routing.load import FRESH_S, MAX_WIDENING_S, UNREPORTED_PUSHES, Load, Occupancy, Sent
from edgeproxy.routing.pace import Pace

PACE = Pace(per_token=0.001, decode=0.0)


def send(load: Load, at: float, tokens: float = 100.0) -> Sent:
    sent = Sent(at, tokens, load.running, 0.0)
    load.sent(sent, PACE)
    return sent


def test_a_send_is_queue_for_the_next_and_is_worked_off() -> None:
    load = Load()
    send(load, 10.0)
    send(load, 10.0)
    assert load.queue(10.0) == pytest.approx(0.2)
    assert load.queue(10.15) == pytest.approx(0.05)
    assert load.queue(11.0) == 0.0


def test_what_a_prompt_costs_whatever_its_length_is_queue_too() -> None:
    """Else a node on which a token seems to cost nothing looks idle, however many requests were sent there."""
    load, pace = Load(), Pace(per_token=0.0, decode=0.05)
    for _ in range(10):
        load.sent(Sent(1.0, 300.0, 0.0, 0.0), pace)
    assert load.queue(1.0) == pytest.approx(0.5)
    load.reported(Occupancy(0, 0, 0), pace, 1.01, trip=0.04)
    assert load.queue(1.01) == pytest.approx(0.5, abs=0.05)


def test_a_report_counts_and_what_it_cannot_have_seen_is_added() -> None:
    load = Load()
    send(load, 9.0)
    late = send(load, 9.98)
    load.reported(Occupancy(2, 0, 300), PACE, 10.0, trip=0.04)
    # The report left 20 ms ago and a request takes 20 ms: 40 ms of the 300 are done when one arrives that is sent now.
    assert load.queue(10.0) == pytest.approx(0.36)
    assert load.running == 2
    load.began(late, None)
    assert load.running == 3
    load.ended(late, 10.5, served=True)
    assert load.running == 2


def test_a_report_that_knows_less_than_what_we_wait_for_is_not_believed() -> None:
    load = Load()
    waiting = [send(load, 1.0 + i / 10) for i in range(3)]
    load.reported(Occupancy(0, 0, 0), PACE, 1.5, trip=0.1)
    assert load.queue(1.5) == pytest.approx(0.2)
    load.began(waiting[0], None)
    load.ended(waiting[1], 1.6, served=False)
    load.reported(Occupancy(0, 0, 0), PACE, 1.6, trip=0.0)
    assert load.queue(1.6) == pytest.approx(0.1)
    load.reported(Occupancy(0, 0, 250), PACE, 1.7, trip=0.0)
    assert load.queue(1.7) == pytest.approx(0.25)


def test_a_node_that_reports_nothing_is_known_by_our_own_requests() -> None:
    load = Load()
    sent = [send(load, 1.0) for _ in range(3)]
    assert load.queue(1.0) == pytest.approx(0.3)
    for one in sent:
        load.began(one, None)
    assert load.queue(1.0) == 0.0  # all have their first token: nothing of ours is before a new one
    assert load.running == 3
    for one in sent:
        load.ended(one, 2.0, served=True)
    assert (load.running, load.pending) == (0, 0)


def test_a_silent_node_turns_hot_by_our_own_unanswered_requests() -> None:
    load, pace = Load(), Pace(per_token=0.0, decode=0.0)
    for _ in range(UNREPORTED_PUSHES):
        assert not load.hot(0.0, 10.0)
        load.sent(Sent(0.0, 10.0, 0.0, 0.0), pace)
    assert load.hot(0.0, 10.0)


def test_an_old_report_is_widened_and_the_usual_queue_comes_back() -> None:
    load = Load()
    for _ in range(60):
        load.began(Sent(0.0, 1.0, 0.0, 0.0), 0.4)  # waits that it told of
    load.reported(Occupancy(0, 0, 0), PACE, 100.0, trip=0.0)
    assert load.queue(100.0 + FRESH_S) == 0.0
    ages = [load.queue(100.0 + FRESH_S + age) for age in (0.0, 1.0, 5.0, 10.0, 100.0)]
    assert ages == sorted(ages) and ages[1] > 0
    assert ages[-1] == pytest.approx(0.4 + MAX_WIDENING_S, rel=0.01)


def test_waiting_for_memory_takes_as_long_as_answers_need_to_end() -> None:
    load = Load()
    load.reported(Occupancy(4, 2, 0, 0), PACE, 5.0, trip=0.0)
    assert load.hot(5.0, 1.0)
    assert load.queue(5.0) == pytest.approx(2 * 2.0 / 4)
    load.reported(Occupancy(4, 0, 0, 1000), PACE, 6.0, trip=0.0)
    assert not load.hot(6.0, 1.0)


@given(st.lists(st.tuples(st.sampled_from(["send", "begin", "end", "fail", "report"]), st.floats(0, 2)), max_size=60))
def test_what_was_sent_and_has_ended_leaves_nothing_behind(steps: list[tuple[str, float]]) -> None:
    load, now = Load(), 0.0
    under_way: list[Sent] = []
    for what, wait in steps:
        now += wait
        if what == "send":
            under_way.append(send(load, now))
        elif what == "report":
            load.reported(Occupancy(len(under_way), 0, 50, 10_000), PACE, now, trip=0.01)
        elif what == "begin":
            for one in [one for one in under_way if not one.began][:1]:
                load.began(one, 0.0)
        elif under_way:
            load.ended(under_way.pop(0), now, served=what == "end")
        assert load.pending == sum(not one.began for one in under_way)
        assert load.running >= 0 and load.queue(now) >= 0
    for one in under_way:
        load.ended(one, now, served=False)
    load.reported(Occupancy(0, 0, 0, 10_000), PACE, now + 1, trip=0.01)
    assert (load.pending, load.running, load.queue(now + 1), load.free_tokens) == (0, 0, 0, 10_000)


def test_who_leaves_before_the_first_token_is_no_queue_any_more() -> None:
    load = Load()
    kept, gone = send(load, 1.0, 100.0), send(load, 1.0, 6000.0)
    load.reported(Occupancy(2, 0, 6100), PACE, 1.1, trip=0.0)
    load.ended(gone, 1.2, served=False)
    assert load.queue(1.2) <= 0.1
    load.ended(kept, 1.3, served=True)
    assert load.queue(1.3) == 0.0


def test_a_prompt_whose_first_token_is_here_stands_before_nobody_whatever_was_expected_of_it() -> None:
    load, slow = Load(), Pace(per_token=0.01, decode=0.0)
    first = Sent(1.0, 100.0, 0.0, 0.0)
    load.sent(first, slow)
    load.reported(Occupancy(1, 0, 0), slow, 1.2, trip=0.0)  # it came with the very answer, which is looked at later
    load.began(first, None, slow, 1.2)
    assert load.queue(1.2) == 0.0


def test_what_others_have_there_still_stands_before_a_newcomer_when_ours_has_begun() -> None:
    load = Load()
    first, second = send(load, 1.0), send(load, 1.0)
    load.reported(Occupancy(1, 0, 500), PACE, 1.0, trip=0.0)
    load.began(first, None, PACE, 1.1)
    assert load.queue(1.1) == pytest.approx(0.3 + 0.1 - 0.1, abs=0.11)
    load.began(second, None, PACE, 1.15)
    assert load.queue(1.15) == pytest.approx(0.15, abs=0.01)
