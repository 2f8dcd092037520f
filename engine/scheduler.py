"""Who runs in the next step: continuous batching under one token budget.

Decode rows come first, then prefill chunks in order of start; a new request joins at the next plan. Plans run one step
ahead of results: a sequence's next decode row is planned before its last token is known, and what finished meanwhile
runs nothing. A sequence holds the blocks of its worst case from start to end, so that nothing admitted ever runs dry.
Blocks are freed when the last submitted plan that names them has completed.

Pure: no clock but the `now` passed in, no thread, no executor.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine import admission
from engine.executor.base import Limits
from engine.gauges import Gauges
from engine.kv import BlockPool, IntegrityError, blocks_for
from engine.sequence import Delta, GenerationRequest, Sequence, Timing
from engine.step import Finish, Row, RowResult, StepPlan, StepResult

Events = list[tuple[str, Delta]]
"""Request id and what happened to it."""


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot for reports."""

    running: int
    waiting: int
    waiting_prefill_tokens: int
    """Prompt tokens that no plan names yet, of running and waiting sequences."""
    blocks_free: int
    step: int


class Scheduler:
    def __init__(self, limits: Limits, gauges: Gauges, *, queue: int) -> None:
        if not 0 < limits.slots <= limits.step_tokens:
            raise ValueError(f"{limits.slots} slots need as many step tokens, {limits.step_tokens} given")
        self._limits = limits
        self._gauges = gauges
        self._queue = queue
        self._pool = BlockPool(limits.blocks)
        self._slots = list(reversed(range(limits.slots)))
        self._sequences: dict[str, Sequence] = {}
        """Waiting and running ones, in order of arrival."""
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._retiring: list[Sequence] = []
        """Finished, but named by a plan that has not completed."""
        self._submitted: deque[tuple[StepPlan, list[Sequence]]] = deque()
        self._step = 0
        self._completed = 0

    @property
    def in_flight(self) -> int:
        """Plans handed out and not completed."""
        return len(self._submitted)

    @property
    def idle(self) -> bool:
        """Nothing to plan and nothing to complete. (What waits can always start on an empty pool.)"""
        return not self._submitted and not self._running

    def load(self) -> Load:
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            waiting_prefill_tokens=sum(sequence.prompt_left for sequence in self._sequences.values()),
            blocks_free=self._pool.free,
            step=self._step,
        )

    def add(self, request: GenerationRequest, submitted: float) -> None:
        """Queues a request. Raises ApiError where it will never fit (400) or the queue is full (429)."""
        if request.request_id in self._sequences or not request.prompt or request.max_tokens < 1:
            raise ValueError(f"request {request.request_id} is a duplicate or empty")
        admission.check_fits(request, self._limits)
        sequence = Sequence(request, submitted)
        must_wait = self._waiting or not self._can_start(sequence)
        if must_wait and len(self._waiting) >= self._queue:
            raise admission.refusal(request, self._blocks_to_spare(), self._expected_wait_s())
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)
        self._start_waiting()

    def abort(self, request_id: str, asked_at: int) -> Events:
        """Ends a request, if it has not ended. asked_at: the step counter when its end was asked for."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        sequence.aborted_at = asked_at
        return [(request_id, self._end(sequence, Delta((), Finish.ABORT)))]

    def abort_all(self) -> Events:
        return [event for request_id in list(self._sequences) for event in self.abort(request_id, self._step)]

    def plan(self) -> StepPlan | None:
        """The next step, or None where no sequence can run one. Every plan must come back to `complete`, in order."""
        budget = self._limits.step_tokens
        rows: list[tuple[Sequence, Row]] = []
        for sequence in self._running:
            if sequence.decodes:
                rows.append((sequence, self._row(sequence, ())))
        budget -= len(rows)
        for sequence in self._running:
            if chunk := min(sequence.prompt_left, budget):
                tokens = sequence.request.prompt[sequence.planned : sequence.planned + chunk]
                rows.append((sequence, self._row(sequence, tokens)))
                budget -= chunk
        if not rows:
            return None
        self._step += 1
        for sequence, _ in rows:
            sequence.last_step = self._step
        plan = StepPlan(self._step, tuple(row for _, row in rows))
        self._submitted.append((plan, [sequence for sequence, _ in rows]))
        return plan

    def complete(self, result: StepResult, now: float) -> Events:
        """Takes the result of the oldest plan; frees what it was the last to name."""
        plan, sequences = self._submitted.popleft()
        if result.step != plan.step or [row.slot for row in result.rows] != [row.slot for row in plan.rows]:
            raise RuntimeError(f"the executor answered step {plan.step} with another's rows ({result.step})")
        self._completed = plan.step
        self._gauges.stepped(plan, result)
        events: Events = []
        for sequence, row in zip(sequences, result.rows, strict=True):
            if sequence.started is None:
                sequence.started = result.started
            if sequence.finish is None and (row.tokens or row.finish):
                events.append((sequence.request.request_id, self._advance(sequence, row, result, now)))
        self._retire()
        return events

    def check(self) -> None:
        """Raises IntegrityError unless every block and slot is where it belongs."""
        holders = self._running + self._retiring
        self._pool.check(sequence.blocks for sequence in holders)
        if sorted(self._slots + [sequence.slot for sequence in holders]) != list(range(self._limits.slots)):
            raise IntegrityError("slots are lost or held twice")

    def _can_start(self, sequence: Sequence) -> bool:
        return bool(self._slots) and admission.blocks_needed(sequence.request) <= self._pool.free

    def _start_waiting(self) -> None:
        """In order of arrival, without overtaking: a large request at the head waits, but never for ever."""
        while self._waiting and self._can_start(self._waiting[0]):
            sequence = self._waiting.popleft()
            sequence.slot = self._slots.pop()
            sequence.blocks = self._pool.allocate(admission.blocks_needed(sequence.request))
            self._running.append(sequence)

    def _row(self, sequence: Sequence, tokens: tuple[int, ...]) -> Row:
        start = sequence.planned
        sequence.planned += len(tokens) or 1
        sample = not sequence.prompt_left
        sequence.sampling += sample
        return Row(
            slot=sequence.slot,
            start=start,
            tokens=tokens,
            blocks=sequence.blocks[: blocks_for(sequence.planned)],
            sample=sample,
            opens=sequence.request.sampling if start == sequence.cached else None,
        )

    def _advance(self, sequence: Sequence, row: RowResult, result: StepResult, now: float) -> Delta:
        first = not sequence.generated
        sequence.generated += len(row.tokens)
        finish = row.finish
        if finish is None and sequence.generated >= sequence.request.max_tokens:
            finish = Finish.LENGTH
        timing = None
        if first and row.tokens and sequence.started is not None:
            queue_s, prefill_s = sequence.started - sequence.submitted, result.ended - sequence.started
            timing = Timing(max(0.0, queue_s), prefill_s, max(0.0, now - result.ended))
        delta = Delta(row.tokens, finish, timing, sequence.cached if timing else 0)
        return self._end(sequence, delta) if finish else delta

    def _end(self, sequence: Sequence, delta: Delta) -> Delta:
        sequence.finish = delta.finish
        del self._sequences[sequence.request.request_id]
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            self._freed(sequence)
        else:
            self._running.remove(sequence)
            self._retiring.append(sequence)
        self._retire()
        return delta

    def _retire(self) -> None:
        for sequence in [waited for waited in self._retiring if waited.last_step <= self._completed]:
            self._retiring.remove(sequence)
            self._pool.release(sequence.blocks)
            self._slots.append(sequence.slot)
            self._freed(sequence)
        self._start_waiting()

    def _freed(self, sequence: Sequence) -> None:
        if sequence.aborted_at is not None:
            self._gauges.freed(self._step - sequence.aborted_at)

    def _blocks_to_spare(self) -> int:
        return self._pool.free - sum(admission.blocks_needed(sequence.request) for sequence in self._waiting)

    def _expected_wait_s(self) -> float:
        """Until the first running sequence ends, at the latest."""
        left = [sequence.request.max_tokens - sequence.generated for sequence in self._running]
        return min(left, default=0) * self._gauges.step_ms / 1000
