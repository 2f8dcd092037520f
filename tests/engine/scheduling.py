"""Scheduler and fake executor, driven by hand as the engine's thread drives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.admission import Mode
from engine.executor.base import Limits
from engine.gauges import Gauges
from engine.scheduler import QUANTUM_S, Events, Scheduler
from engine.sequence import Delta, GenerationRequest
from engine.step import Finish, Sampling, StepPlan
from tests.engine.fake_executor import FakeExecutor, written

LIMITS = Limits(slots=3, blocks=12, step_tokens=8, context=160, vocab=1000)


@dataclass
class Bench:
    limits: Limits = LIMITS
    queue: int = 64
    mode: Mode = Mode.GUARANTEE
    quantum_s: float = QUANTUM_S
    gauges: Gauges = field(default_factory=Gauges)
    deltas: defaultdict[str, list[Delta]] = field(default_factory=lambda: defaultdict(list))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.executor = FakeExecutor(built_for=self.limits, clock=self.tick)
        self.scheduler = Scheduler(self.limits, self.gauges, queue=self.queue, mode=self.mode, quantum_s=self.quantum_s)
        self.requests: dict[str, GenerationRequest] = {}
        self._by_seed: dict[int, GenerationRequest] = {}
        self._in_slot: dict[int, GenerationRequest] = {}
        self._salt_of: dict[int, bytes] = {}

    def tick(self) -> float:
        self.now += 1
        return self.now

    def add(
        self,
        name: str,
        prompt: int | Sequence[int],
        max_tokens: int,
        stop_ids: tuple[int, ...] = (),
        salt: bytes = b"",
        priority: int = 0,
    ) -> GenerationRequest:
        """prompt: its tokens, or how many: then they are of its own."""
        if isinstance(prompt, int):
            prompt = [(ord(name[0]) * 31 + i) % 1000 for i in range(prompt)]
        sampling = Sampling(seed=len(self._by_seed), stop_ids=stop_ids, presence=0.5, first=len(prompt))
        request = GenerationRequest(name, tuple(prompt), sampling, max_tokens, salt, priority)
        self.scheduler.add(request, self.now)
        self.requests[name] = self._by_seed[sampling.seed] = request
        return request

    def submit(self) -> StepPlan | None:
        plan = self.scheduler.plan() if self.scheduler.in_flight < self.executor.depth else None
        if plan is not None:
            self._watch(plan)
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

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """As the engine's loop does: always one plan ahead, until nothing is left."""
        while not self.scheduler.idle and not until():
            while self.submit():
                pass
            self.collect()

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]

    def finishes(self, name: str) -> list[Finish]:
        return [delta.finish for delta in self.deltas[name] if delta.finish]

    def cached(self, name: str) -> int:
        return next(delta.cached for delta in self.deltas[name] if delta.timing)

    def steps(self, name: str) -> list[int]:
        """The steps with a row of it."""
        found, slots = [], dict[int, int]()
        for plan in self.executor.plans:
            slots.update({row.slot: row.opens.seed for row in plan.rows if row.opens})
            if self.requests[name].sampling.seed in [slots[row.slot] for row in plan.rows]:
                found.append(plan.step)
        return found

    def _watch(self, plan: StepPlan) -> None:
        """No row reads what a request of another salt wrote."""
        for row in plan.rows:
            if row.opens is not None:
                self._in_slot[row.slot] = self._by_seed[row.opens.seed]
            salt = self._in_slot[row.slot].salt
            self._salt_of.update(dict.fromkeys(written(row), salt))
            assert {self._salt_of[block] for block in row.blocks} == {salt}
