from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from engine.executor.base import Limits
from engine.gauges import Gauges
from engine.scheduler import Events, Scheduler
from engine.sequence import Delta, GenerationRequest
from engine.step import Finish, Sampling, StepPlan
from tests.engine.fake_executor import FakeExecutor, expected

LIMITS = Limits(slots=3, blocks=12, step_tokens=8, context=160, vocab=1000)


@dataclass
class Bench:
    """Scheduler and fake executor, driven by hand as the engine's thread drives them."""

    limits: Limits = LIMITS
    queue: int = 64
    gauges: Gauges = field(default_factory=Gauges)
    deltas: defaultdict[str, list[Delta]] = field(default_factory=lambda: defaultdict(list))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.executor = FakeExecutor(built_for=self.limits, clock=self.tick)
        self.scheduler = Scheduler(self.limits, self.gauges, queue=self.queue)

    def tick(self) -> float:
        self.now += 1
        return self.now

    def add(self, name: str, prompt: int, max_tokens: int, stop_ids: tuple[int, ...] = ()) -> GenerationRequest:
        tokens = tuple((ord(name[0]) * 31 + i) % 1000 for i in range(prompt))
        request = GenerationRequest(name, tokens, Sampling(stop_ids=stop_ids), max_tokens)
        self.scheduler.add(request, self.now)
        return request

    def submit(self) -> StepPlan | None:
        plan = self.scheduler.plan() if self.scheduler.in_flight < self.executor.depth else None
        if plan is not None:
            self.executor.submit(plan)
        return plan

    def collect(self) -> None:
        self.take(self.scheduler.complete(self.executor.collect(), self.tick()))

    def abort(self, name: str) -> None:
        self.take(self.scheduler.abort(name, self.scheduler.load().step))

    def take(self, events: Events) -> None:
        for name, delta in events:
            self.deltas[name].append(delta)
        self.scheduler.check()

    def run(self) -> None:
        """As the engine's loop does: always one plan ahead, until nothing is left."""
        while not self.scheduler.idle:
            while self.submit():
                pass
            self.collect()

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]

    def finishes(self, name: str) -> list[Finish]:
        return [delta.finish for delta in self.deltas[name] if delta.finish]


Action = tuple[Literal["add", "submit", "collect", "abort"], int, int]
ACTIONS: st.SearchStrategy[list[Action]] = st.lists(
    st.tuples(st.sampled_from(["add", "submit", "submit", "collect", "abort"]), st.integers(1, 60), st.integers(1, 40)),
    max_size=120,
)


@given(ACTIONS, st.integers(1, 5))
def test_whatever_comes_each_request_ends_once_with_its_own_tokens(actions: list[Action], stop_every: int) -> None:
    bench = Bench()
    stop_ids = tuple(range(0, 1000, stop_every * 20))
    requests: dict[str, GenerationRequest] = {}
    aborted: set[str] = set()
    for number, (action, a, b) in enumerate(actions):
        if action == "add":
            name = f"{number}"
            requests[name] = bench.add(name, a, b, stop_ids)
        elif action == "submit":
            bench.submit()
        elif action == "collect" and bench.scheduler.in_flight:
            bench.collect()
        elif action == "abort" and requests:
            name = list(requests)[a % len(requests)]
            if not bench.finishes(name):
                aborted.add(name)
            bench.abort(name)
    bench.run()
    for name, request in requests.items():
        whole = expected(request.prompt, request.max_tokens, stop_ids)
        if name in aborted:
            assert bench.finishes(name) == [Finish.ABORT]
            assert bench.tokens(name) == whole[: len(bench.tokens(name))]
        else:
            assert bench.tokens(name) == whole
            assert bench.finishes(name) == [Finish.STOP if whole[-1] in stop_ids else Finish.LENGTH]
    load = bench.scheduler.load()
    assert (load.running, load.waiting, load.waiting_prefill_tokens) == (0, 0, 0)
    assert load.blocks_free == LIMITS.blocks
    assert bench.gauges.aborts == len(aborted)
    assert bench.gauges.abort_steps_max <= 2
    bench.scheduler.check()


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12))
def test_requests_start_in_order_of_arrival(sizes: list[tuple[int, int]]) -> None:
    bench = Bench()
    for number, (prompt, max_tokens) in enumerate(sizes):
        bench.add(chr(97 + number), prompt, max_tokens)
    bench.run()
    opened = [row.opens for plan in bench.executor.plans for row in plan.rows if row.opens]
    assert len(opened) == len(sizes)
    started = [name for name, deltas in sorted(bench.deltas.items(), key=lambda item: item[0]) if deltas]
    queued = [next(delta.timing.queue_s for delta in bench.deltas[name] if delta.timing) for name in started]
    assert queued == sorted(queued)


def test_a_joining_request_is_in_the_next_plan_beside_the_decode_rows() -> None:
    bench = Bench()
    bench.add("a", 4, 20)
    bench.submit()
    bench.collect()
    bench.add("b", 5, 20)
    plan = bench.submit()
    assert plan is not None
    assert [(row.start, row.count, row.sample) for row in plan.rows] == [(4, 1, True), (0, 5, True)]


def test_a_long_prompt_takes_only_what_the_decode_rows_leave() -> None:
    bench = Bench()
    bench.add("a", 1, 20)
    bench.submit()
    bench.add("b", 30, 1)
    plans = [bench.submit()]
    for _ in range(4):
        bench.collect()
        plans.append(bench.submit())
    rows = [[(row.start, row.count, row.sample) for row in plan.rows] for plan in plans if plan]
    assert rows[0] == [(1, 1, True), (0, 7, False)]
    assert rows[1] == [(2, 1, True), (7, 7, False)]
    assert rows[4] == [(5, 1, True), (28, 2, True)]


def test_a_decode_row_is_planned_before_the_token_it_runs_is_known() -> None:
    bench = Bench()
    bench.add("a", 3, 3)
    first, second = bench.submit(), bench.submit()
    assert first is not None
    assert second is not None
    assert (second.rows[0].start, second.rows[0].tokens, second.rows[0].sample) == (3, (), True)
    assert second.rows[0].opens is None


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_row_is_planned_past_max_tokens(max_tokens: int) -> None:
    bench = Bench()
    bench.add("a", 3, max_tokens)
    bench.run()
    assert sum(row.sample for plan in bench.executor.plans for row in plan.rows) == max_tokens


def test_an_aborted_sequence_keeps_its_blocks_until_the_last_plan_that_names_it_completes() -> None:
    bench = Bench()
    bench.add("a", 8, 100)
    bench.submit()
    bench.submit()
    bench.abort("a")
    assert bench.finishes("a") == [Finish.ABORT]
    assert bench.submit() is None
    bench.collect()
    assert bench.scheduler.load().blocks_free < LIMITS.blocks
    bench.collect()
    assert bench.scheduler.load().blocks_free == LIMITS.blocks
    assert bench.tokens("a") == []


def test_an_abort_of_what_waits_lets_the_next_in_at_once() -> None:
    bench = Bench()
    bench.add("a", 8, 88)
    bench.add("b", 60, 100)
    bench.add("c", 8, 8)
    assert bench.scheduler.load().waiting == 2
    bench.abort("b")
    assert bench.scheduler.load().running == 2


def test_a_large_request_at_the_head_is_not_overtaken() -> None:
    bench = Bench()
    bench.add("a", 8, 88)
    bench.add("b", 60, 100)
    bench.add("c", 1, 1)
    bench.run()
    order = [row.opens for plan in bench.executor.plans for row in plan.rows if row.opens]
    assert len(order) == 3
    waited = {name: next(d.timing.queue_s for d in bench.deltas[name] if d.timing) for name in "bc"}
    assert waited["b"] < waited["c"]


def test_a_full_queue_refuses_and_what_runs_is_unharmed() -> None:
    bench = Bench(queue=1)
    bench.add("a", 8, 88)
    bench.add("b", 60, 100)
    with pytest.raises(ApiError, match="oom_predicted") as caught:
        bench.add("c", 8, 8)
    assert caught.value.status == 429
    bench.run()
    assert (bench.finishes("a"), bench.finishes("b"), bench.finishes("c")) == ([Finish.LENGTH], [Finish.LENGTH], [])


def test_without_a_queue_what_can_start_at_once_is_taken() -> None:
    bench = Bench(queue=0)
    bench.add("a", 8, 8)
    bench.add("b", 8, 9)
    with pytest.raises(ApiError, match="oom_predicted"):
        bench.add("c", 90, 70)


def test_a_request_that_never_fits_is_refused_as_such() -> None:
    with pytest.raises(ApiError, match="context_length_exceeded"):
        Bench().add("a", 100, 61)


def test_logits_that_are_not_finite_end_one_sequence_alone() -> None:
    bench = Bench()
    bench.executor.diverges_at = 12
    bench.add("a", 10, 20)
    other = bench.add("b", 20, 20)
    bench.run()
    assert bench.finishes("a") == [Finish.ERROR]
    assert bench.tokens("b") == expected(other.prompt, 20)


def test_timing_splits_the_way_to_the_first_token() -> None:
    bench = Bench()
    bench.add("a", 8, 2)
    bench.now += 10
    bench.run()
    timed = [delta.timing for delta in bench.deltas["a"]]
    assert timed[0] is not None
    assert (timed[0].queue_s, timed[0].prefill_s, timed[0].first_s) == (11, 1, 1)
    assert timed[1:] == [None]


def test_an_answer_to_another_step_is_an_error() -> None:
    bench = Bench()
    bench.add("a", 8, 2)
    bench.submit()
    result = bench.executor.collect()
    bench.executor.plans.clear()
    with pytest.raises(RuntimeError, match="step 1"):
        bench.scheduler.complete(type(result)(result.step + 1, result.rows), 0.0)


def test_more_slots_than_step_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="9 slots"):
        Scheduler(Limits(slots=9, blocks=1, step_tokens=8, context=16, vocab=1), Gauges(), queue=1)


def test_no_sequence_misses_a_turn() -> None:
    bench = Bench()
    for name in "abc":
        bench.add(name, 2, 10)
    bench.run()
    sampled = Counter(row.slot for plan in bench.executor.plans for row in plan.rows if row.sample)
    assert set(sampled.values()) == {10}
    assert len(bench.executor.plans) == 10
