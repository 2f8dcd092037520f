"""Scheduler and fake executor, driven by hand as the engine's thread drives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.chunks import QUANTUM_S
from engine.constraint import Constraint
from engine.executor.base import Executor, Limits
from engine.gauges import Gauges
from engine.scheduler import Events, Scheduler
from engine.sequence import Delta, GenerationRequest
from engine.step import Finish, Sampling, StepPlan
from tests.engine.fake_executor import FakeExecutor, written

LIMITS = Limits(slots=3, blocks=12, step_tokens=8, context=160, vocab=1000)
ROOMY = Limits(slots=8, blocks=80, step_tokens=32, context=640, vocab=1000)
EVER_S = 1e6
"""A quantum that no step fills."""


@dataclass
class DictTier:
    """A second tier in memory, of `most` blocks; of what it holds every `loses`-th is found not to be sound."""

    executor: Executor
    most: int = 1000
    loses: int = 0
    contents: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    """By name: the block, and the salt of the sequence that computed it."""
    salt_of: dict[int, bytes] = field(default_factory=dict)
    """By block, as the bench has it."""
    loaded: int = 0

    def holds(self, name: bytes) -> bool:
        return name in self.contents

    def load(self, name: bytes, block: int) -> bool:
        if name not in self.contents:  # gave way to what was evicted for `block`
            return False
        content, self.salt_of[block] = self.contents[name]
        self.loaded += 1
        if self.loses and self.loaded % self.loses == 0:
            del self.contents[name]
            return False
        self.executor.write_block(block, content)
        return True

    def evicted(self, name: bytes, block: int) -> None:
        content = self.executor.read_block(block), self.salt_of[block]
        assert self.contents.get(name, content) == content, "a name stands for one content"
        self.contents[name] = content
        while len(self.contents) > self.most:
            del self.contents[next(iter(self.contents))]


@dataclass
class Bench:
    limits: Limits = LIMITS
    queue: int = 64
    max_wait_s: float | None = None
    mode: Mode = Mode.GUARANTEE
    quantum_s: float = QUANTUM_S
    gauges: Gauges = field(default_factory=Gauges)
    deltas: defaultdict[str, list[Delta]] = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)
    """Requests that had to make room in the queue."""
    overdue: dict[str, ApiError] = field(default_factory=dict)
    """Requests that waited too long after all."""
    now: float = 0.0
    tier: DictTier | None = None
    """Its executor is put in."""

    def __post_init__(self) -> None:
        self.executor = FakeExecutor(built_for=self.limits, clock=self.tick)
        self._salt_of: dict[int, bytes] = {}
        if self.tier is not None:
            self.tier.executor, self.tier.salt_of = self.executor, self._salt_of
        self.scheduler = Scheduler(
            self.limits,
            self.gauges,
            queue=self.queue,
            max_wait_s=self.max_wait_s,
            mode=self.mode,
            quantum_s=self.quantum_s,
            tier=self.tier,
        )
        self.requests: dict[str, GenerationRequest] = {}
        self._by_seed: dict[int, GenerationRequest] = {}
        self._in_slot: dict[int, GenerationRequest] = {}

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
        within_s: float | None = None,
        constraint: Constraint | None = None,
        rehearsal: bool = False,
        min_tokens: int = 0,
    ) -> GenerationRequest:
        """prompt: its tokens, or how many: then they are of its own."""
        if isinstance(prompt, int):
            prompt = [(ord(name[0]) * 31 + i) % 1000 for i in range(prompt)]
        sampling = Sampling(
            seed=len(self._by_seed),
            stop_ids=stop_ids,
            presence=0.5,
            first=len(prompt),
            min_tokens=min_tokens,
            constrained=constraint is not None,
        )
        terms = (salt, priority, within_s, constraint)
        request = GenerationRequest(name, tuple(prompt), sampling, max_tokens, *terms, rehearsal=rehearsal)
        for other, _ in self.scheduler.add(request, self.now):
            assert not self.deltas[other], "who is told to go has not begun"
            del self.requests[other]
            self.refused.append(other)
        self.requests[name] = self._by_seed[sampling.seed] = request
        return request

    def submit(self) -> StepPlan | None:
        plan = self.scheduler.plan() if self.scheduler.in_flight < self.executor.depth else None
        if plan is not None:
            self._watch(plan)
            self.executor.submit(plan)
        return plan

    def collect(self) -> None:
        self.allow()
        events = self.scheduler.complete(self.executor.collect(), self.tick())
        self.allow()
        self.take(events)
        for name, refusal in self.scheduler.overdue(self.now):
            assert not self.deltas[name], "who is told to go has not begun"
            del self.requests[name]
            self.overdue[name] = refusal

    def allow(self) -> None:
        for mask in self.scheduler.masks.due():
            self.executor.allow(*mask)

    def abort(self, name: str) -> None:
        self.take(self.scheduler.abort(name, self.scheduler.load().step))

    def take(self, events: Events) -> None:
        for name, delta in events:
            self.deltas[name].append(delta)
        self.scheduler.check()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """As the engine's loop does, until nothing is left."""
        while not self.scheduler.idle and not until():
            while not (self.scheduler.unhurried and self.scheduler.in_flight) and self.submit():
                self.allow()
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
