"""Whatever comes: each request ends once, with the tokens it would have had alone, and no block is lost."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.executor.base import Limits
from engine.step import Finish
from tests.engine.fake_executor import FakeExecutor, expected
from tests.engine.forms import Form
from tests.engine.scheduling import Bench, DictTier

QUEUE = 6
SHARED = [[(family * 7 + i) % 1000 for i in range(80)] for family in range(3)]
"""Beginnings that prompts have in common."""


class Requests(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.aborted: set[str] = set()
        self.forms: dict[str, Form | None] = {}

    @initialize(
        mode=st.sampled_from(Mode),
        slots=st.integers(1, 5),
        blocks=st.integers(1, 14),
        step_tokens=st.sampled_from([5, 16, 40]),
        stop_every=st.integers(1, 8),
        tier=st.sampled_from([None, 3, 20, 1000]),
        loses=st.integers(0, 3),
        max_wait_s=st.sampled_from([None, 0.0, 20.0]),
    )
    def begin(
        self,
        mode: Mode,
        slots: int,
        blocks: int,
        step_tokens: int,
        stop_every: int,
        tier: int | None,
        loses: int,
        max_wait_s: float | None,
    ) -> None:
        limits = Limits(slots=slots, blocks=blocks, step_tokens=step_tokens, context=170, vocab=1000)
        second = DictTier(FakeExecutor(), tier, loses) if tier is not None else None
        self.bench = Bench(limits, QUEUE, max_wait_s, mode, quantum_s=1e6, tier=second)
        self.stop_ids = tuple(range(0, 1000, stop_every * 15))

    @rule(
        family=st.integers(0, len(SHARED) - 1),
        shared=st.sampled_from([0, 15, 16, 17, 48, 80]),
        own=st.lists(st.integers(0, 2), min_size=1, max_size=40),
        max_tokens=st.integers(1, 60),
        salt=st.sampled_from([b"", b"", b"tenant"]),
        priority=st.integers(-1, 1),
        form=st.sampled_from([None, None, Form(2), Form(12), Form(5, ends=9)]),
    )
    def arrive(
        self,
        family: int,
        shared: int,
        own: list[int],
        max_tokens: int,
        salt: bytes,
        priority: int,
        form: Form | None,
    ) -> None:
        self._add([*SHARED[family][:shared], *own], max_tokens, salt, priority, form)

    @rule(number=st.integers(0, 1000), own=st.integers(1, 20), max_tokens=st.integers(1, 40))
    def next_turn(self, number: int, own: int, max_tokens: int) -> None:
        """A prompt that goes on where another's answer stands."""
        names = list(self.bench.requests)
        if names:
            before = self.bench.requests[names[number % len(names)]]
            prompt = [*before.prompt, *self.bench.tokens(before.request_id), *range(own)]
            self._add(prompt, max_tokens, before.salt, before.priority)

    @rule(number=st.integers(0, 1000))
    def leave(self, number: int) -> None:
        names = list(self.bench.requests)
        if names:
            name = names[number % len(names)]
            if not self.bench.finishes(name):
                self.aborted.add(name)
            self.bench.abort(name)

    @rule()
    def submit(self) -> None:
        self.bench.submit()

    @precondition(lambda self: self.bench.scheduler.in_flight)
    @rule()
    def collect(self) -> None:
        self.bench.collect()

    @rule(steps=st.integers(1, 30))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            while self.bench.submit():
                pass
            if self.bench.scheduler.in_flight:
                self.bench.collect()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.run()
        for name, request in bench.requests.items():
            form = self.forms[name]
            begun = form and form.anew()
            whole = expected(request.prompt, request.max_tokens, self.stop_ids, constraint=begun)
            if name in self.aborted:
                assert bench.finishes(name) == [Finish.ABORT]
                assert bench.tokens(name) == whole[: len(bench.tokens(name))]
            else:
                assert bench.tokens(name) == whole
                stopped = whole[-1] in self.stop_ids or (form is not None and len(whole) == form.ends)
                assert bench.finishes(name) == [Finish.STOP if stopped else Finish.LENGTH]
                assert bench.cached(name) < len(request.prompt)
        load = bench.scheduler.load()
        assert (load.running, load.waiting, load.waiting_prefill_tokens) == (0, 0, 0)
        assert load.blocks_spare == bench.limits.blocks
        assert bench.gauges.aborts == len(self.aborted)
        assert bench.gauges.abort_steps_max <= 2
        if bench.mode is Mode.GUARANTEE:
            assert bench.gauges.preemptions == 0
        bench.scheduler.check()

    def _add(self, prompt: list[int], max_tokens: int, salt: bytes, priority: int, form: Form | None = None) -> None:
        load = self.bench.scheduler.load()
        name = f"{len(self.bench.requests) + len(self.bench.refused) + len(self.bench.overdue)}"
        try:
            self.forms[name] = form
            constraint = form and form.anew()
            self.bench.add(name, prompt, max_tokens, self.stop_ids, salt, priority, constraint=constraint)
        except ApiError as refusal:
            if refusal.code == "wait_predicted":
                assert load.waiting + load.running > 0
            elif refusal.status == 429:
                assert load.waiting >= QUEUE
            else:
                room = min(self.bench.limits.context, self.bench.limits.blocks * 16)
                assert len(prompt) + max_tokens > room
        assert self.bench.scheduler.load().waiting <= QUEUE + self.bench.limits.slots


class ManyRequests(Requests):
    pass


_EVERY = settings(deadline=None, suppress_health_check=list(HealthCheck))
TestRequests = Requests.TestCase
TestRequests.settings = settings(_EVERY, max_examples=60, stateful_step_count=40)
TestManyRequests = pytest.mark.long(ManyRequests.TestCase)
TestManyRequests.settings = settings(_EVERY, max_examples=3000, stateful_step_count=60)
