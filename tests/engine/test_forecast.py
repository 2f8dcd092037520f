"""The queue is bounded by the wait that a newcomer is to expect; who finds a place never is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.executor.base import Limits
from engine.forecast import HORIZON_S, Job, Pace, Room, wait_of
from engine.gauges import ANSWERS
from engine.sequence import GenerationRequest
from engine.step import BLOCK_TOKENS, Sampling
from tests.engine.scheduling import Bench

LIMITS = Limits(slots=3, blocks=60, step_tokens=64, context=640, vocab=1000)
PACE = Pace(prompt_tokens_per_s=100.0, step_s=0.1, answer_tokens=None)

jobs = st.builds(Job, st.integers(0, 500), st.floats(0, 300), st.integers(0, 20))
paces = st.builds(Pace, st.floats(1, 1e4), st.floats(1e-4, 1), st.none())


@given(jobs, paces)
def test_who_comes_alone_waits_for_nothing(newcomer: Job, pace: Pace) -> None:
    assert wait_of(newcomer, [], [], Room(1, 20), pace).seconds == 0


@given(jobs, st.lists(jobs, max_size=4), st.lists(jobs, max_size=8), jobs, paces)
def test_one_more_before_it_never_shortens_a_wait(
    newcomer: Job, running: list[Job], ahead: list[Job], further: Job, pace: Pace
) -> None:
    before = wait_of(newcomer, running, ahead, Room(2, 25), pace)
    after = wait_of(newcomer, running, [*ahead, further], Room(2, 25), pace)
    assert min(after.place_s, HORIZON_S) >= min(before.place_s, HORIZON_S), "beyond that nobody looks"
    assert after.prompts_s >= before.prompts_s


def test_a_place_is_free_when_enough_have_ended() -> None:
    running = [Job(0, 10, 5), Job(0, 30, 5)]
    assert wait_of(Job(50, 10, 5), running, [], Room(0, 10), PACE).place_s == pytest.approx(1.0)
    assert wait_of(Job(50, 10, 10), running, [], Room(0, 5), PACE).place_s == pytest.approx(1.0)
    assert wait_of(Job(50, 10, 15), running, [], Room(0, 0), PACE).place_s == pytest.approx(3.0)
    assert wait_of(Job(50, 10, 5), running, [Job(100, 5, 5)], Room(0, 10), PACE).place_s == pytest.approx(2.5)


def test_shorter_prompts_go_first_and_longer_ones_are_passed_by() -> None:
    running = [Job(40, 10, 5), Job(400, 30, 5)]
    assert wait_of(Job(50, 10, 5), running, [], Room(1, 10), PACE).seconds == pytest.approx(0.4)
    assert wait_of(Job(500, 10, 5), running, [], Room(1, 10), PACE).seconds == pytest.approx(4.4)


def test_an_answer_takes_the_mean_of_late_but_never_more_than_asked_for() -> None:
    pace = Pace(100.0, 0.1, 20.0)
    assert (pace.left(1000), pace.left(7), PACE.left(1000)) == (20, 7, 1000)


def test_an_answer_beyond_the_mean_is_half_through_and_what_must_come_is_counted() -> None:
    pace = Pace(100.0, 0.1, 20.0)
    assert pace.left(1000, had=19) == 20
    assert pace.left(1000, had=300) == 300
    assert pace.left(200, had=300) == 200
    assert pace.left(1000, least=700) == 700


@dataclass
class Crowd:
    """A bench whose step is a second, so that a forecast in seconds is one in steps."""

    max_wait_s: float
    answer: int
    mode: Mode = Mode.GUARANTEE
    asked: dict[str, int] = field(default_factory=dict)
    """The step at which each came that was let in."""
    refused: int = 0

    def __post_init__(self) -> None:
        self.bench = Bench(LIMITS, max_wait_s=self.max_wait_s, mode=self.mode, quantum_s=1e6)
        for number in range(ANSWERS):
            self.bench.add(f"known{number}", [number] * 40, self.answer)
            self.bench.run()

    @property
    def full(self) -> bool:
        load = self.bench.scheduler.load()
        return load.waiting > 0 or load.running == LIMITS.slots

    def come(self, prompt: int, salt: bytes = b"") -> ApiError | None:
        name = f"{len(self.asked) + self.refused}"
        try:
            self.bench.add(name, [len(self.asked) % 1000, *range(prompt - 1)], self.answer, salt=salt)
        except ApiError as refusal:
            self.refused += 1
            return refusal
        self.asked[name] = self.bench.scheduler.load().step
        return None

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            while self.bench.submit():
                pass
            if self.bench.scheduler.in_flight:
                self.bench.collect()


@given(
    max_wait_s=st.integers(5, 40),
    answer=st.integers(2, 40),
    arrivals=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 120)), min_size=20, max_size=60),
    mode=st.sampled_from(Mode),
)
@settings(deadline=None, max_examples=20)
def test_whoever_is_let_in_runs_about_within_the_bound_and_who_finds_a_place_is_let_in(
    max_wait_s: int, answer: int, arrivals: list[tuple[int, int]], mode: Mode
) -> None:
    crowd = Crowd(max_wait_s, answer, mode)
    for many, prompt in arrivals:
        for _ in range(many):
            full = crowd.full
            refusal = crowd.come(prompt)
            assert refusal is None or full
            assert refusal is None or (refusal.status, refusal.code) == (429, "wait_predicted")
        crowd.step()
    crowd.bench.run()
    for name, asked in crowd.asked.items():
        assert crowd.bench.steps(name)[0] - asked <= 1.5 * max_wait_s + 8


@given(max_wait_s=st.integers(2, 20), answer=st.integers(5, 40), prompt=st.integers(1, 100))
@settings(deadline=None, max_examples=20)
def test_who_comes_again_when_told_is_let_in(max_wait_s: int, answer: int, prompt: int) -> None:
    crowd = Crowd(max_wait_s, answer)
    refusal = None
    while refusal is None:
        refusal = crowd.come(prompt)
    assert refusal.recovery is not None
    assert refusal.recovery["expected_ms"] > max_wait_s * 1000
    retry_s = refusal.recovery["retry_after_ms"] / 1000
    if retry_s >= 30:
        return  # nobody is told of more
    crowd.step(round(retry_s) + 4)
    assert crowd.come(prompt) is None


def test_a_lone_request_is_let_in_however_short_the_wait() -> None:
    crowd = Crowd(max_wait_s=0, answer=30)
    assert crowd.come(500) is None
    crowd.bench.run()


def test_before_enough_is_known_nobody_is_refused_for_a_wait() -> None:
    bench = Bench(LIMITS, max_wait_s=0.0, queue=64)
    for number in range(40):
        bench.add(f"{number}", [number] * 50, 20)
    bench.run(until=lambda: sum(bool(bench.finishes(name)) for name in bench.requests) == ANSWERS - 1)
    bench.add("more", 50, 20)
    bench.run()
    assert len(bench.requests) == 41


def test_what_is_cached_is_no_wait() -> None:
    """Of a prompt that the pool holds only the end is run, also of those that wait before it."""
    crowd = Crowd(max_wait_s=12, answer=2)
    crowd.come(500)
    crowd.bench.run()
    prompt = crowd.bench.requests["0"].prompt
    for number in range(12):
        crowd.bench.add(f"again{number}", prompt, 2)
    with pytest.raises(ApiError, match="wait_predicted"):
        for number in range(12):
            crowd.bench.add(f"other{number}", [number + 7, *prompt], 2)


def test_a_quiet_tenant_is_not_refused_for_the_crowd_of_another() -> None:
    crowd = Crowd(max_wait_s=15, answer=10)
    while crowd.come(40, salt=b"crowd") is None:
        pass
    assert crowd.come(40, salt=b"crowd") is not None
    assert crowd.come(40, salt=b"quiet") is None
    crowd.bench.run()


def test_an_answer_that_goes_on_from_another_node_is_not_refused_for_a_wait() -> None:
    crowd = Crowd(max_wait_s=15, answer=10)
    while crowd.come(40) is None:
        pass
    resumed = GenerationRequest("resumed", tuple(range(40)), Sampling(first=30), 10)
    assert resumed.resumed
    assert crowd.bench.scheduler.add(resumed, crowd.bench.now) == []


# Answers of a node that knows short ones, of which one is long. A step of it is a second.

STOPS = (1,)
"""So that nobody can tell when an answer ends."""
HALF = LIMITS.blocks * BLOCK_TOKENS // 2


def knowing(answer: int, max_wait_s: float) -> Bench:
    return Crowd(max_wait_s, answer).bench


def test_who_would_wait_for_memory_that_a_long_answer_is_certain_to_hold_is_refused_at_once() -> None:
    bench = knowing(10, max_wait_s=20)
    bench.add("long", 20, HALF)
    with pytest.raises(ApiError, match="wait here for memory") as caught:
        bench.add("as long", 20, HALF)
    assert caught.value.code == "wait_predicted"
    bench.add("short", 20, 10)
    assert bench.scheduler.load().running == 2, "it finds the place that the other would have kept it from"
    bench.run()


def test_min_tokens_are_certain_too() -> None:
    bench = knowing(10, max_wait_s=20)
    bench.add("long", 20, HALF, STOPS, min_tokens=200)
    with pytest.raises(ApiError, match="wait_predicted"):
        bench.add("as long", 20, HALF, STOPS)
    bench.run()


def test_who_waited_as_long_as_may_be_for_an_answer_with_no_end_in_sight_is_told_so_and_those_behind_start() -> None:
    bench = knowing(10, max_wait_s=20)
    bench.add("long", 20, HALF, STOPS)
    bench.add("as long", 20, HALF, STOPS)
    bench.add("short", 20, 10)
    assert bench.scheduler.load().waiting == 2, "nothing told that the first is long"
    asked = bench.now
    bench.run(until=lambda: bool(bench.overdue))
    assert list(bench.overdue) == ["as long"]
    error = bench.overdue["as long"]
    assert (error.status, error.code) == (429, "wait_predicted")
    assert "has waited here for memory" in error.message
    assert error.recovery is not None
    assert error.recovery["expected_ms"] > 20_000
    assert bench.now - asked > 20, "no sooner"
    assert bench.scheduler.load().waiting == 0
    bench.run()
    assert bench.steps("short")[0] < bench.steps("long")[-1]


def test_who_waited_too_long_but_is_about_to_start_is_not_sent_away() -> None:
    bench = knowing(10, max_wait_s=20)
    for number in range(LIMITS.slots):
        bench.add(f"{number}", 20, 35, STOPS)
    bench.add("last", 20, 35, STOPS)
    asked = bench.scheduler.load().step
    bench.run()
    assert not bench.overdue
    assert bench.steps("last")[0] - asked > 20
