"""What an engine learns of itself while it runs: rates for forecasts, reuse, dispatch times, busy threads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, sqrt
from typing import Any

from engine.chunks import PrefillCost
from engine.forecast import Pace
from engine.step import Row, StepPlan, StepResult

STEP_WEIGHT = 0.1
"""Of the newest step in the moving average of step times."""
PREFILL_DECAY = 0.9
"""Per prefill step, of the sums behind the prefill rates."""
ANSWERS = 8
"""Before so many have ended, nobody says how long they are."""
ANSWER_WEIGHT = 1 / 32
"""Of the newest answer in the moving average of their lengths, at least."""
BUCKETS = 24
"""Powers of two microseconds: the last begins at 4 s."""
WINDOW_S = 1.0
"""Of busy time, over which the use of threads and memory is looked at."""
LATELY_S = 1.0
"""Time constant of how busy an engine is: after three of them without a step it is idle to 5 %."""


class Histogram:
    """Durations in buckets that double: bucket i counts those below 2**i microseconds and in no bucket before."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_us = 0.0
        self.most_us = 0.0

    def observe(self, seconds: float) -> None:
        us = max(0.0, seconds * 1e6)
        self.sum_us += us
        self.most_us = max(self.most_us, us)
        self.counts[min(int(us).bit_length(), BUCKETS - 1)] += 1

    def quantile_us(self, q: float) -> float:
        """By the rank within its bucket, in which durations are taken to lie evenly, and never beyond the longest; 0
        where nothing was observed."""
        wanted, passed = q * sum(self.counts), 0
        for index, count in enumerate(self.counts):
            if count and passed + count >= wanted:
                below = (1 << index) >> 1
                within = below + ((1 << index) - below) * (wanted - passed) / count
                return round(min(within, self.most_us), 2)
            passed += count
        return 0.0

    def view(self) -> dict[str, Any]:
        return {
            "count": sum(self.counts),
            "sum_us": round(self.sum_us, 1),
            "p50_us": self.quantile_us(0.5),
            "p99_us": self.quantile_us(0.99),
            "buckets": {str(1 << index): count for index, count in enumerate(self.counts) if count},
        }


class Rate:
    """Tokens a second, of late."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def took(self, tokens: int, seconds: float) -> None:
        self._tokens = self._tokens * PREFILL_DECAY + tokens
        self._seconds = self._seconds * PREFILL_DECAY + seconds

    @property
    def per_s(self) -> float:
        """0 before the first."""
        return self._tokens / self._seconds if self._seconds else 0.0


class Utilisation:
    """Of the executor's threads and of memory, over busy time: from a step that ends idleness to the last before it.

    None where nothing was measured yet. The ratios are those of the last window; the sums are since the first.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.worker_s: tuple[float, ...] = ()
        """CPU time of each worker."""
        self.page_faults = 0
        """Minor and major, of the threads that make steps: what else the process does, such as to read a prompt that it
        refuses, is no step's."""
        self.shares: tuple[float, ...] = ()
        """Of busy time that each worker ran."""
        self.faults_per_token: float | None = None
        """MPFR."""
        self._began: tuple[float, tuple[float, ...], int, int] | None = None
        """The window's busy time, CPU times, faults and tokens at its beginning."""
        self._first: tuple[tuple[float, ...], int] = ((), 0)
        self._busy = 0.0
        """The busy share of time up to `_busy_at`, when the last step ended; what is longer ago weighs less."""
        self._busy_at = 0.0

    def worked(self, busy_s: float, until: float) -> None:
        """A step has ended. busy_s: how long there had been something to do since the one before."""
        self.busy_s += busy_s
        self._busy = 1 - (1 - self._busy_until(until - busy_s)) * exp(-busy_s / LATELY_S)
        self._busy_at = until

    def use_lately(self, now: float) -> float | None:
        """The workers' mean share of the last seconds, busy or not: an exponential mean, which idleness brings to 0."""
        return None if self.worker_busy is None else self.worker_busy * self._busy_until(now)

    def _busy_until(self, idle_until: float) -> float:
        return self._busy * exp(-max(0.0, idle_until - self._busy_at) / LATELY_S)

    @property
    def due(self) -> bool:
        return self._began is None or self.busy_s - self._began[0] >= WINDOW_S

    @property
    def worker_busy(self) -> float | None:
        """The workers' mean share."""
        return fsum(self.shares) / len(self.shares) if self.shares else None

    @property
    def susi(self) -> float | None:
        """1 - standard deviation / mean of the workers' shares: 1 where all do the same."""
        mean = self.worker_busy
        if not mean:
            return None
        deviation = sqrt(fsum((share - mean) ** 2 for share in self.shares) / len(self.shares))
        return max(0.0, 1 - deviation / mean)

    def sample(self, worker_s: Sequence[float], page_faults: int, tokens: int) -> None:
        """When a window is due. All three count from whenever they like."""
        if self._began is None:
            self._first = (tuple(worker_s), page_faults)
        else:
            busy_s, workers, faults, before = self._began
            lasted = self.busy_s - busy_s
            self.shares = tuple(min(1.0, (now - then) / lasted) for now, then in zip(worker_s, workers, strict=True))
            self.faults_per_token = (page_faults - faults) / max(1, tokens - before)
        self.worker_s = tuple(now - then for now, then in zip(worker_s, self._first[0], strict=True))
        self.page_faults = page_faults - self._first[1]
        self._began = (self.busy_s, tuple(worker_s), page_faults, tokens)


class Gauges:
    """Written by the engine thread; single numbers, so any thread may read them."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self.aborts = 0
        """Sequences ended from outside: the client left, or a stop string was found."""
        self.abort_steps_max = 0
        """Most step counters between asking for such an end and its blocks being free."""
        self.preemptions = 0
        self.blocks_reused = 0
        """Blocks that a sequence found computed."""
        self.blocks_loaded = 0
        """Of the reused those that came from the second tier."""
        self.blocks_computed = 0
        """Blocks that a sequence had to compute. Neither counts what a preempted one takes up again."""
        self.gap = Histogram()
        """The end of a step's last kernel to the start of the next step's first."""
        self.wake = Histogram()
        """A request's arrival at an idle engine to the start of the first kernel."""
        self.prefilled = 0
        """Tokens of prompts that were run, those of resumed sequences again."""
        self.generated = 0
        """Tokens of answers."""
        self.forced = 0
        """Of these what no step sampled: a form left no choice (`engine/jump.py`)."""
        self.utilisation = Utilisation()
        self._last_ended = 0.0
        self.prefill_cost = PrefillCost()
        self._decode_s = 0.0
        """Of a step without prefill."""
        self._prefill = Rate()
        self._prompts = Rate()
        self._answers = 0
        self._answer_tokens = 0.0

    @property
    def tokens(self) -> int:
        return self.prefilled + self.generated

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of steps that do little else; 0 until a prefill ran."""
        return self._prefill.per_s

    @property
    def pace(self) -> Pace | None:
        """None until a prefill ran."""
        rate = self._prompts.per_s
        mean = self._answer_tokens if self._answers >= ANSWERS else None
        return Pace(rate, self.step_ms / 1000, mean) if rate else None

    @property
    def kvr(self) -> float:
        """Reused blocks of all that were reused or computed; 0 before the first."""
        blocks = self.blocks_reused + self.blocks_computed
        return self.blocks_reused / blocks if blocks else 0.0

    def stepped(
        self, plan: StepPlan, result: StepResult, *, rehearsed: bool = False, woken: float | None = None
    ) -> None:
        """rehearsed: nobody waited for it; it tells how fast the node is, and its tokens do not count.

        woken: when the request came that ended idleness, where this is the first step since.
        """
        seconds = result.ended - result.started
        if not rehearsed:
            self._dispatched(result, woken)
        self._last_ended = result.ended
        self.step_ms += (seconds * 1000 - self.step_ms) * (STEP_WEIGHT if self.step_ms else 1.0)
        chunks = [len(row.tokens) for row in plan.rows]
        named = prefill = sum(chunks)
        if named:
            chunks = [0 if row.forced else len(row.tokens) for row in plan.rows]
            prefill = sum(chunks)
        if not rehearsed:
            self.prefilled += prefill
            self.generated += sum([len(row.tokens) for row in result.rows])
        if prefill:
            self._prompts.took(prefill, seconds)
            own_s = max(seconds / 4, seconds - self._decode_s) if 0 in chunks else seconds
            positions = sum(_positions(row) for row in plan.rows if not row.forced)
            self.prefill_cost.took(prefill, positions, own_s)
        elif not named:
            self._decode_s += (seconds - self._decode_s) * (STEP_WEIGHT if self._decode_s else 1.0)
        if prefill > chunks.count(0):  # else the time is the decode rows'
            self._prefill.took(prefill, seconds)

    def _dispatched(self, result: StepResult, woken: float | None) -> None:
        if woken is None:
            self.gap.observe(result.started - self._last_ended)
            self.utilisation.worked(max(0.0, result.ended - self._last_ended), result.ended)
        else:
            self.wake.observe(result.started - woken)
            self.utilisation.worked(max(0.0, result.ended - result.started), result.ended)

    def jumped(self, tokens: int) -> None:
        """So many came out beside the one that was sampled."""
        self.generated += tokens
        self.forced += tokens

    def answered(self, tokens: int) -> None:
        """A request has ended after so many."""
        self._answers += 1
        weight = max(ANSWER_WEIGHT, 1 / self._answers)
        self._answer_tokens += (tokens - self._answer_tokens) * weight

    def freed(self, steps: int) -> None:
        self.aborts += 1
        self.abort_steps_max = max(self.abort_steps_max, steps)


def _positions(row: Row) -> int:
    """How many positions stand before each token of a chunk, together."""
    tokens = len(row.tokens)
    return tokens * row.start + tokens * tokens // 2
