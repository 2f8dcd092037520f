from __future__ import annotations

from random import Random

import pytest

from edgeproxy.routing.pace import CHUNK_TOKENS, Pace


def truth(tokens: float, running: float, *, speed: float = 1.0) -> float:
    return speed * (0.008 + 0.0006 * tokens + 0.0004 * running * (1 + tokens / CHUNK_TOKENS))


def taught(pace: Pace, samples: int, rng: Random, *, speed: float = 1.0, noise: float = 0.05) -> Pace:
    for _ in range(samples):
        tokens, running = float(rng.choice((20, 100, 400, 1500))), float(rng.randrange(0, 12))
        pace.observe(tokens, running, truth(tokens, running, speed=speed) * rng.gauss(1.0, noise))
    return pace


@pytest.mark.parametrize("seed", range(5))
def test_the_model_is_learnt_from_noisy_answers(seed: int) -> None:
    pace = taught(Pace(), 100, Random(seed))
    for tokens, running in ((20, 0), (300, 4), (1500, 0), (1500, 10)):
        assert pace.expect(tokens, running) == pytest.approx(truth(tokens, running), rel=0.15, abs=0.003)


def test_a_new_speed_is_learnt_within_fifty_answers() -> None:
    rng = Random(1)
    pace = taught(taught(Pace(), 300, rng), 50, rng, speed=3.0)
    assert pace.expect(800, 2) == pytest.approx(truth(800, 2, speed=3.0), rel=0.25)


def test_one_stalled_answer_is_no_new_speed() -> None:
    pace = taught(Pace(), 100, Random(2))
    before = pace.expect(300, 1)
    pace.observe(300, 1, 20.0)
    assert pace.expect(300, 1) == pytest.approx(before, rel=0.2)


def test_many_equal_answers_do_not_make_the_model_forget_the_rest() -> None:
    pace = taught(Pace(), 100, Random(3))
    for _ in range(5000):
        pace.observe(20, 0, truth(20, 0))
    assert pace.expect(1500, 0) == pytest.approx(truth(1500, 0), rel=0.2)
    pace.observe(20, 0, truth(20, 0) * 1.5)
    assert pace.expect(1500, 0) == pytest.approx(truth(1500, 0), rel=0.3)


def test_what_the_node_declares_holds_until_it_has_answered() -> None:
    pace = Pace()
    pace.declared(1000.0)
    assert pace.per_token == 0.001
    pace.observe(100, 0, 0.1)
    learnt = pace.per_token
    pace.declared(50.0)
    assert pace.per_token == learnt


def test_nothing_is_ever_expected_to_take_less_than_no_time() -> None:
    rng, pace = Random(4), Pace()
    for _ in range(500):
        pace.observe(rng.uniform(0, 3000), rng.uniform(0, 30), rng.choice((0.0, 0.001, 5.0)))
        assert min(pace.decode, pace.per_token, pace.per_row) >= 0


def test_what_a_token_takes_is_never_learnt_to_be_next_to_nothing() -> None:
    """Two answers that differ little in length say as well that all of it is fixed cost."""
    pace = Pace()
    pace.declared(5000.0)
    pace.observe(386.0, 0.0, 0.041)
    pace.observe(311.0, 0.0, 0.047)
    assert pace.per_token >= 0.25 / 5000.0


def test_a_node_that_has_never_answered_is_taken_to_be_like_one_that_has() -> None:
    known, unknown, rated = taught(Pace(), 100, Random(5)), Pace(), Pace()
    rated.declared(100.0)
    for pace in (unknown, rated):
        pace.suppose(known)
    assert unknown.expect(300, 2) == known.expect(300, 2)
    assert rated.per_token == 0.01 and rated.decode == known.decode
    unknown.observe(100, 0, 0.2)
    learnt = unknown.expect(300, 2)
    unknown.suppose(known)
    assert unknown.expect(300, 2) == learnt


def test_a_slow_node_that_gets_no_requests_is_tried_again_in_the_end() -> None:
    slow, usual = taught(Pace(), 50, Random(6), speed=10.0), taught(Pace(), 50, Random(6))
    for _ in range(12):
        slow.relax()
    assert slow.expect(300, 2) < usual.expect(300, 2)


def test_what_is_supposed_of_a_node_that_never_answers_fades_too_and_a_probe_does_not_bring_it_back() -> None:
    supposed, known = Pace(), taught(Pace(), 5, Random(6), speed=10.0)
    supposed.declared(100.0)
    supposed.suppose(known)
    for _ in range(12):
        supposed.relax()
        supposed.declared(100.0)
        supposed.suppose(known)
    assert supposed.decode < 0.1 * known.decode
    assert supposed.per_token == 0.25 / 100.0, "as far as samples may take it"


def test_a_first_answer_that_is_much_sooner_than_declared_is_believed_of_the_next_like_it() -> None:
    """A node's declared rate is that of its rehearsal, which may have been slow: all the difference from one sample is
    more than the fixed cost can give."""
    pace = Pace()
    pace.declared(150.0)
    pace.observe(37.0, 0.0, 0.110)
    assert pace.expect(37.0, 0.0) == pytest.approx(0.110, rel=0.25)
