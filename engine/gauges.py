"""What an engine learns of itself while it runs: rates for forecasts, and how fast aborted sequences go. Pure."""

from __future__ import annotations

from engine.step import StepPlan, StepResult

STEP_WEIGHT = 0.1
"""Of the newest step in the moving average of step times."""
PREFILL_DECAY = 0.9
"""Per prefill step, of the sums behind the prefill rate."""


class Gauges:
    """Written by the engine thread; single numbers, so any thread may read them."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self.aborts = 0
        """Sequences ended from outside: the client left, or a stop string was found."""
        self.abort_steps_max = 0
        """Most step counters between asking for such an end and its blocks being free."""
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """0 until a prefill ran."""
        return self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0

    def stepped(self, plan: StepPlan, result: StepResult) -> None:
        seconds = result.ended - result.started
        self.step_ms += (seconds * 1000 - self.step_ms) * (STEP_WEIGHT if self.step_ms else 1.0)
        prefill = sum(len(row.tokens) for row in plan.rows)
        if 2 * prefill > sum(row.count for row in plan.rows):  # else the time is the decode rows'
            self._prefill_tokens = self._prefill_tokens * PREFILL_DECAY + prefill
            self._prefill_s = self._prefill_s * PREFILL_DECAY + seconds

    def freed(self, steps: int) -> None:
        self.aborts += 1
        self.abort_steps_max = max(self.abort_steps_max, steps)
