"""A node as it is served by: continuous batching, chunked prefill under a time quantum, KV memory and prefix reuse.

The native scheduler's rules, in stretches instead of steps: between two events that change who runs, all steps are
alike, so they are one event. A request that comes in the middle of a stretch cuts it at the step it joins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from operator import attrgetter
from random import Random
from typing import Generic, NamedTuple, TypeVar

from edgeproxy.sim.clock import Clock
from edgeproxy.sim.kv import PrefixCache
from edgeproxy.sim.steps import StepTimes

LEAST_CHUNK = 48
OLDEST_EVERY = 4
PIPELINED = 1
"""Steps already submitted that a newcomer waits for, beside the one that runs."""
_RATE_SHARE = 0.2
"""Of the newest stretch in the reported prefill rate."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    slots: int = 16
    kv_tokens: int = 65536
    queue: int = 256
    """Waiting requests beyond which a node refuses."""
    quantum_s: float = 0.010
    step_tokens: int = 128
    """Most prefill of a step where nobody decodes, on a node as fast as the recording; faster ones take more."""


class Report(NamedTuple):
    """What a node says of its load, as `protocol.node.NodeReport`; tokens instead of blocks, seconds."""

    at: float
    running: int
    waiting: int
    prefill_tokens: int
    """Prompt tokens not yet run, of running and waiting requests."""
    kv_tokens: int
    kv_spare: int
    """Tokens of memory that a new request can have."""
    prefill_tokens_per_s: float
    step_s: float


Owner = TypeVar("Owner")


class Job(Generic[Owner]):
    """One request on a node; `owner` is whatever the caller wants back."""

    __slots__ = ("arrived", "blocks", "cached", "ends_at", "left", "output", "owner", "prompt", "started")

    def __init__(self, owner: Owner, prompt: int, output: int, blocks: Sequence[int]) -> None:
        self.owner = owner
        self.prompt = prompt
        self.output = output
        self.blocks = blocks
        self.left = prompt
        """Prompt tokens to run; less those found in the cache once it has started."""
        self.cached = 0
        self.arrived = self.started = 0.0
        self.ends_at = 0
        """The node's decode step at which its last token comes."""

    def copy(self) -> Job[object]:
        twin = Job[object](self.owner, self.prompt, self.output, self.blocks)
        twin.left, twin.cached, twin.ends_at = self.left, self.cached, self.ends_at
        twin.arrived, twin.started = self.arrived, self.started
        return twin


class Node(Generic[Owner]):
    """`first(job)` and `done(job)` are called at the moment of the first and last token, `done` last."""

    def __init__(
        self,
        clock: Clock,
        times: StepTimes,
        speed: float,
        limits: NodeLimits,
        block_tokens: int,
        rng: Random | None,
        first: Callable[[Job[Owner]], None],
        done: Callable[[Job[Owner]], None],
    ) -> None:
        """`speed`: how many times as fast as the recording. Without `rng` every step takes its median."""
        self.alive = True
        self.waiting: deque[Job[Owner]] = deque()
        self.prefilling: list[Job[Owner]] = []
        """By arrival."""
        self.decoding: list[tuple[int, int, Job[Owner]]] = []
        """A heap of (ends_at, number, job)."""
        self.cache = PrefixCache()
        self._clock, self._times, self._speed, self._rng = clock, times, speed, rng
        self._limits, self._block_tokens = limits, block_tokens
        self._told_first, self._told_done = first, done
        self._rate = times.prefill_rate() * speed
        self._chunk_alone = int(limits.step_tokens * max(speed, 1.0))
        self._quantum = max(LEAST_CHUNK, int(self._rate * limits.quantum_s))
        self._held = 0
        """KV tokens promised to running requests."""
        self._private = 0
        """Of them, what no cached block holds."""
        self._ticks = 0
        self._context = 0
        """Sum over decoding jobs of context less ticks, so that it stays while they grow together."""
        self._jobs = 0
        self._stretch = 0
        """Number of the stretch under way; an end of another one is void."""
        self._busy = False
        self._began = self._step_s = self._end = 0.0
        self._steps = self._full = self._chunk = 0

    # What the fleet calls.

    def submit(self, job: Job[Owner]) -> bool:
        """False: refused, the queue is full."""
        if len(self.waiting) >= self._limits.queue:
            return False
        job.arrived = self._clock.now
        self.waiting.append(job)
        if not self._busy:
            self._begin()
        elif len(self.waiting) == 1 and self._can_start(job):
            self._cut()
        return True

    def fail(self) -> list[Job[Owner]]:
        """Everything that was there is lost; returned are the requests that were not done."""
        lost = [*self.waiting, *self.prefilling, *(job for _, _, job in self.decoding)]
        self.alive = self._busy = False
        self._stretch += 1
        self.waiting.clear()
        self.prefilling.clear()
        self.decoding.clear()
        self.cache.clear()
        self._held = self._private = self._context = 0
        return lost

    def report(self) -> Report:
        left = sum(job.left for job in self.prefilling) + sum(job.prompt for job in self.waiting)
        if self.prefilling:
            left = max(left - self._elapsed() * self._chunk, 0)
        return Report(
            self._clock.now,
            len(self.prefilling) + len(self.decoding),
            len(self.waiting),
            left,
            self._limits.kv_tokens,
            self._limits.kv_tokens - self._held,
            self._rate,
            self._step_s,
        )

    def copy(self, clock: Clock, first: Callable[[Job[object]], None]) -> Node[object]:
        """As it is now, to be run apart from the fleet, without noise."""
        limits, tokens = self._limits, self._block_tokens
        twin: Node[object] = Node(clock, self._times, self._speed, limits, tokens, None, first, _unheard)
        twin.waiting.extend(job.copy() for job in self.waiting)
        twin.prefilling = [job.copy() for job in self.prefilling]
        twin.decoding = [(ends_at, number, job.copy()) for ends_at, number, job in self.decoding]
        twin.cache = self.cache.copy()
        for name in _STATE:
            setattr(twin, name, getattr(self, name))
        if twin._busy:
            clock.at(twin._end, twin._ended, twin._stretch)
        return twin

    # Who runs.

    def _can_start(self, job: Job[Owner]) -> bool:
        room = self._held + job.prompt + job.output <= self._limits.kv_tokens
        return len(self.prefilling) + len(self.decoding) < self._limits.slots and (room or not self._held)

    def _start_waiting(self) -> None:
        while self.waiting and self._can_start(self.waiting[0]):
            job = self.waiting.popleft()
            job.started = self._clock.now
            # The last token is always run: it is sampled from.
            job.cached = min(self.cache.match(job.blocks) * self._block_tokens, job.prompt - 1)
            job.left = job.prompt - job.cached
            self._held += job.prompt + job.output
            self._private += self._own_tokens(job)
            self.cache.shrink(self._cache_room())
            self.prefilling.append(job)

    def _own_tokens(self, job: Job[Owner]) -> int:
        return max(job.prompt - len(job.blocks) * self._block_tokens, 0) + job.output

    def _cache_room(self) -> int:
        return (self._limits.kv_tokens - self._private) // self._block_tokens

    def _begin(self) -> None:
        """The next stretch, or idleness."""
        if self.waiting:
            self._start_waiting()
        rows = len(self.decoding)
        self._busy = bool(rows or self.prefilling)
        if not self._busy:
            return
        self._stretch += 1
        self._began = self._clock.now
        if self.prefilling:
            self._plan_prefill(rows)
        else:
            self._steps = self._full = self.decoding[0][0] - self._ticks
            self._chunk = 0
            context = self._context / rows + self._ticks + self._steps / 2
            self._step_s = self._took(rows, 0, context, self._steps)
            self._end = self._began + self._steps * self._step_s
        self._clock.at(self._end, self._ended, self._stretch)

    def _plan_prefill(self, rows: int) -> None:
        """Until the first prompt or the first answer is complete."""
        alone = not rows and len(self.prefilling) == 1
        self._chunk = chunk = self._chunk_alone if alone else self._quantum
        oldest, shortest = self.prefilling[0], min(self.prefilling, key=_left)
        steps = ceil(shortest.left / chunk)
        if shortest is not oldest:  # of every four steps one is the oldest's
            steps = min(steps + (steps - 1) // (OLDEST_EVERY - 1), OLDEST_EVERY * ceil(oldest.left / chunk))
        if rows:
            steps = min(steps, self.decoding[0][0] - self._ticks)
        total = sum(job.left for job in self.prefilling)
        self._steps, self._full = steps, min(steps, total // chunk)
        start = shortest.prompt - shortest.left + min(steps * chunk, shortest.left) / 2
        decoded = self._context + rows * (self._ticks + steps / 2)
        tokens = min(chunk, total)
        self._step_s = self._took(rows, tokens, (decoded + tokens * start) / (rows + tokens), steps)
        self._end = self._began + self._full * self._step_s
        if self._steps > self._full:
            rest = total - self._full * chunk
            self._end += self._took(rows, rest, (decoded + rest * start) / (rows + rest), 1)
        self._rate += _RATE_SHARE * (tokens / self._step_s - self._rate)

    def _took(self, rows: int, prefill: int, context: float, steps: int) -> float:
        noise = 1.0 if self._rng is None else self._times.noise(steps, self._rng)
        return self._times.seconds(rows, prefill, context) * noise / self._speed

    def _elapsed(self) -> int:
        """Whole steps of this stretch that are over."""
        return min(int((self._clock.now - self._began) / self._step_s), self._full) if self._busy else 0

    def _cut(self) -> None:
        """The stretch ends at the step that a newcomer joins."""
        steps = self._elapsed() + 1 + PIPELINED
        if steps < self._full:
            self._steps = self._full = steps
            self._end = self._began + steps * self._step_s
            self._stretch += 1
            self._clock.at(self._end, self._ended, self._stretch)

    # What has run.

    def _ended(self, stretch: int) -> None:
        if stretch != self._stretch:
            return
        self._ticks += self._steps
        if self.prefilling:
            self._prefilled()
        while self.decoding and self.decoding[0][0] <= self._ticks:
            job = heappop(self.decoding)[2]
            self._context -= job.prompt + job.output - job.ends_at
            self._finish(job)
        self._begin()

    def _prefilled(self) -> None:
        budget = self._steps * self._chunk
        oldest = self.prefilling[0]
        if len(self.prefilling) > 1:
            budget -= _run(oldest, self._steps // OLDEST_EVERY * self._chunk)
            for job in sorted(self.prefilling, key=_left):
                budget -= _run(job, budget)
        else:
            _run(oldest, budget)
        complete = [job for job in self.prefilling if not job.left]
        if complete:
            self.prefilling = [job for job in self.prefilling if job.left]
        for job in complete:
            if job.blocks:
                self.cache.add(job.blocks, self._cache_room())
            self._told_first(job)
            if job.output > 1:
                self._jobs += 1
                job.ends_at = self._ticks + job.output - 1
                self._context += job.prompt + job.output - job.ends_at
                heappush(self.decoding, (job.ends_at, self._jobs, job))
            else:
                self._finish(job)

    def _finish(self, job: Job[Owner]) -> None:
        self._held -= job.prompt + job.output
        self._private -= self._own_tokens(job)
        self._told_done(job)


def _unheard(_: Job[object]) -> None: ...


_STATE = "_rate _held _private _ticks _context _jobs _stretch _busy _began _step_s _end _steps _full _chunk".split()
"""Plain values of a node."""
_left: Callable[[Job[Owner]], int] = attrgetter("left")


def _run(job: Job[Owner], tokens: int) -> int:
    done = min(job.left, max(tokens, 0))
    job.left -= done
    return done
