"""Who runs in the next step: continuous batching under one token budget.

Decode rows come first, then prefill chunks, which together take about one quantum of time; a new request joins at the
next plan. Plans run one step ahead of results: a sequence's next decode row is planned before its last token is known,
and what finished meanwhile runs nothing. Blocks are released when the last submitted plan that names them has
completed.

Pure: no clock but the `now` passed in, no thread, no executor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edgeproxy.protocol.node.blocks import BlockChange
from edgeproxy.protocol.openai.errors import ApiError
from engine import jump
from engine.admission import Admission, Mode
from engine.chunks import LEAST_CHUNK, LEAST_LONE, LONE_QUANTA, QUANTA, QUANTUM_S, Chunks
from engine.due import DueMasks
from engine.executor.base import Limits
from engine.fairness import Shares
from engine.gauges import Gauges
from engine.kv import IntegrityError
from engine.load import Load
from engine.places import Places
from engine.sequence import Delta, GenerationRequest, Phase, Sequence
from engine.step import BLOCK_TOKENS, Finish, Row, RowResult, StepPlan, StepResult
from engine.tables import Tables, Tier
from engine.waiting import Waiting, prefill_order

PRIORITY_S = 1.0
"""A request of one priority less waits as if it had come so much later: so it waits, but never for ever."""

Events = list[tuple[str, Delta]]
"""Request id and what happened to it."""
Refusals = list[tuple[str, ApiError]]
"""Requests that waited and are refused after all."""


def _unheard(_: BlockChange) -> None: ...


class Scheduler:
    def __init__(
        self,
        limits: Limits,
        gauges: Gauges,
        *,
        queue: int,
        max_wait_s: float | None = None,
        mode: Mode = Mode.GUARANTEE,
        quantum_s: float = QUANTUM_S,
        changed: Callable[[BlockChange], None] = _unheard,
        tier: Tier | None = None,
    ) -> None:
        """queue: most requests that wait. max_wait_s: longest that one may be expected to; None for any.

        changed: called when a prefix becomes or is no longer one that can be reused.

        tier: where blocks are looked for that the pool has given up.
        """
        if not 0 < limits.slots <= limits.step_tokens:
            raise ValueError(f"{limits.slots} slots need as many step tokens, {limits.step_tokens} given")
        self._limits = limits
        self._gauges = gauges
        self._quantum_s = quantum_s
        self._tables = Tables(limits.blocks, gauges, changed, tier)
        self._places = Places(limits.slots)
        self._sequences: dict[str, Sequence] = {}
        """Those that have not ended, in order of arrival."""
        self._shares = Shares()
        self._waiting = Waiting(self._shares)
        self._admission = Admission(
            limits,
            self._places,
            self._tables,
            self._waiting,
            gauges,
            queue=queue,
            max_wait_s=max_wait_s,
            mode=mode,
            lone_s=LONE_QUANTA * quantum_s,
        )
        self._submitted: deque[tuple[StepPlan, list[Sequence]]] = deque()
        self.masks = DueMasks()
        self._arrivals = 0
        self._step = 0
        self._completed = 0
        self._woken: float | None = None
        """When the request came that ended idleness, until its first step is known."""

    @property
    def step(self) -> int:
        """The step counter: plans handed out."""
        return self._step

    @property
    def in_flight(self) -> int:
        """Plans handed out and not completed."""
        return len(self._submitted)

    @property
    def unhurried(self) -> bool:
        """Whether the next step is better planned when this one is done, so that a newcomer waits for one alone.

        Where nobody decodes, steps are long, and a gap between them costs little.
        """
        return self.rehearsing or not any(sequence.decodes for sequence in self._places.running)

    @property
    def idle(self) -> bool:
        """Nothing to plan and nothing to complete."""
        return not self._submitted and not self._places.running and not self._waiting

    def load(self) -> Load:
        spare, free = self._tables.spare, self._tables.free
        running, waiting = len(self._places.running), len(self._sequences) - len(self._places.running)
        if self.rehearsing:
            running, waiting = 0, sum(not sequence.request.rehearsal for sequence in self._sequences.values())
        return Load(
            running=running,
            waiting=waiting,
            waiting_prefill_tokens=sum([left.prompt_awaited for left in self._sequences.values() if left.prefills]),
            blocks_free=free,
            blocks_evictable=spare - free,
            step=self._step,
        )

    @property
    def rehearsing(self) -> bool:
        """Whether all that runs is a rehearsal."""
        return self._places.rehearsing

    def add(self, request: GenerationRequest, submitted: float) -> Refusals:
        """Queues a request.

        Raises ApiError where it will never fit (400), or comes too late, would wait too long or finds no room (429).
        Where the queue is full of requests of one tenant, the last of them is refused in its place, and returned.
        """
        if request.request_id in self._sequences or not request.prompt or request.max_tokens < 1:
            raise ValueError(f"request {request.request_id} is a duplicate or empty")
        sequence = Sequence(request, submitted, (submitted + request.priority * PRIORITY_S, self._arrivals))
        crowded_out = self._admission.enter(sequence)
        if crowded_out is not None:
            self._end(crowded_out[0], Delta((), Finish.ABORT))
        if self.idle and not request.rehearsal:
            self._woken = submitted
        self._arrivals += 1
        self._sequences[request.request_id] = sequence
        self._shares.came(request.salt)
        self._waiting.put(sequence)
        self._start_waiting()
        return [] if crowded_out is None else [(crowded_out[0].request.request_id, crowded_out[1])]

    def abort(self, request_id: str, asked_at: int) -> Events:
        """Ends a request, if it has not ended. asked_at: the step counter when its end was asked for, or before."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return []
        sequence.aborted_at = asked_at
        delta = self._end(sequence, Delta((), Finish.ABORT))
        self._retire()
        self._start_waiting()
        return [(request_id, delta)]

    def abort_all(self) -> Events:
        return [event for request_id in list(self._sequences) for event in self.abort(request_id, self._step)]

    def plan(self) -> StepPlan | None:
        """The next step, or None where no sequence can run one. Every plan must come back to `complete`, in order."""
        rows: list[Row] = []
        named: list[Sequence] = []
        spare = max(0, min(jump.MOST, self._limits.step_tokens - len(self._places.running)))
        for sequence in self._places.running.copy():
            if not sequence.decodes:
                continue
            tokens = sequence.named(1 + spare) if sequence.forced > sequence.planned else ()
            count = len(tokens) or 1
            if sequence.holds(count) or self._grow(sequence, count):
                spare -= count - 1
                rows.append(self._row(sequence, tokens))
                named.append(sequence)
        while self._plan_prefill(rows, named) and not rows:
            pass
        if not rows:
            return None
        self._step += 1
        for sequence in named:
            sequence.last_step = self._step
        plan = StepPlan(self._step, tuple(rows))
        self.masks.planned(plan, named)
        self._submitted.append((plan, named))
        return plan

    def complete(self, result: StepResult, now: float) -> Events:
        """Takes the result of the oldest plan; frees what it was the last to name."""
        plan, sequences = self._submitted.popleft()
        if result.step != plan.step or [row.slot for row in result.rows] != [row.slot for row in plan.rows]:
            raise RuntimeError(f"the executor answered step {plan.step} with another's rows ({result.step})")
        self._completed = plan.step
        self._clocked(plan, sequences, result)
        events: Events = []
        for sequence, ran, row in zip(sequences, plan.rows, result.rows, strict=True):
            if sequence.started is None:
                sequence.started = result.started
            if sequence.finish is not None:
                continue
            computed = ran.start + (len(ran.tokens) or 1)
            if row.finish is Finish.ERROR:
                self._tables.forget(sequence)
            elif computed // BLOCK_TOKENS > sequence.registered:
                self._tables.computed(sequence, computed, self._step)
            if row.tokens or row.finish:
                events.append((sequence.request.request_id, self._advance(sequence, row, result, now)))
        self._retire()
        self._start_waiting()
        return events

    def overdue(self, now: float) -> Refusals:
        """Refuses those whose wait has turned out too long; whom they kept out may start."""
        refused: Refusals = []
        while (found := self._admission.overdue(now)) is not None:
            sequence, refusal = found
            self._end(sequence, Delta((), Finish.ABORT))
            refused.append((sequence.request.request_id, refusal))
            self._start_waiting()
        return refused

    def check(self) -> None:
        """Raises IntegrityError unless every block and slot is where it belongs."""
        self._tables.check(self._places.holders())
        self._places.check()
        if self._tables.spare < 0:
            raise IntegrityError(f"{-self._tables.spare} more blocks are promised than there are")

    def drop_idle(self) -> None:
        """The content of all blocks that nobody holds is lost."""
        self._tables.drop()

    def idle_blocks(self) -> list[tuple[bytes, int]]:
        """Name and block of what a second tier may keep, the least recently used first."""
        return self._tables.idle()

    # What waits.

    def _start_waiting(self) -> None:
        """Without overtaking: a large request whose turn it is waits, but never for ever."""
        while self._waiting and self._places.free and self._admission.can_start(sequence := self._waiting.next()):
            self._waiting.remove(sequence)
            self._places.take(sequence)
            self._tables.open(sequence, self._admission.needed(sequence))
            if not sequence.charged:
                sequence.charged = True
                self._shares.prefilled(sequence.request.salt, sequence.prompt_left)

    # What runs.

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Blocks for its next positions, at the cost of the last in rank; False where it sits this step out."""
        while sequence.phase is Phase.RUNNING and not self._tables.grow(sequence, sequence.planned + count):
            if self._places.leaving or not all(other.decodes or other.prefills for other in self._places.running):
                return False  # blocks are on their way
            self._preempt(self._places.running[-1])
        return sequence.phase is Phase.RUNNING

    def _preempt(self, sequence: Sequence) -> None:
        """It starts again later with the tokens it has by then; what it computed may still be there."""
        self._gauges.preemptions += 1
        self._leave(sequence)
        self._retire()

    def _plan_prefill(self, rows: list[Row], named: list[Sequence]) -> bool:
        """Adds chunks to a plan. True where a sequence sat it out, since more of it can be loaded than one plan may."""
        prompts = prefill_order(self._places.running, self._step)
        if not prompts:
            return False
        self._tables.begin_plan()
        passes = len(prompts) > 1 and prompts[0].prompt_left > prompts[1].prompt_left
        lone = not rows and not passes  # who is passed by a longer one is to wait no longer than beside streams
        quanta = 1 if self.rehearsing else LONE_QUANTA if lone else min(len(prompts), QUANTA)
        room = self._limits.step_tokens - sum(row.count for row in rows)
        least = LEAST_LONE if lone and not self.rehearsing else LEAST_CHUNK
        chunks = Chunks(self._gauges.prefill_cost, quanta * self._quantum_s, room, least)
        loading = False
        for sequence in prompts:
            if chunks.spent:
                break
            self._tables.reuse(sequence)
            if self._tables.load(sequence):
                loading = True
                continue
            if not (count := chunks.take(sequence.planned, sequence.prompt_left)):
                break
            rows.append(self._row(sequence, self._chunk(sequence, count)))
            named.append(sequence)
            if lone and not sequence.prefills:
                chunks.at_most(self._quantum_s)
        return loading

    def _chunk(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        start, end = sequence.planned, sequence.planned + count
        if not self._tables.grow(sequence, end):
            raise IntegrityError(f"request {sequence.request.request_id} was promised fewer blocks than its prompt")
        return tuple(sequence.tokens[start:end])

    def _row(self, sequence: Sequence, tokens: tuple[int, ...]) -> Row:
        row = sequence.row(tokens)
        if row.sample:
            self._shares.decoded(sequence.request.salt, 1)
        if row.forced:
            self._shares.prefilled(sequence.request.salt, len(tokens))
        return row

    def _clocked(self, plan: StepPlan, sequences: list[Sequence], result: StepResult) -> None:
        rehearsed = all(sequence.request.rehearsal for sequence in sequences)
        self._gauges.stepped(plan, result, rehearsed=rehearsed, woken=self._woken)
        self._woken = self._woken if rehearsed else None

    def _advance(self, sequence: Sequence, row: RowResult, result: StepResult, now: float) -> Delta:
        first = not sequence.generated
        tokens, finish = row.tokens, row.finish
        if sequence.request.constraint is None:
            sequence.tokens.extend(tokens)
        else:
            tokens, finish = jump.taken(sequence, row)
            self._gauges.jumped(len(tokens) - len(row.tokens))
        sequence.generated += len(tokens)
        if finish is None and sequence.generated >= sequence.request.max_tokens:
            finish = Finish.LENGTH
        if first and tokens:
            timing = sequence.timing(result.ended, now)
            delta = Delta(tokens, finish, timing, sequence.cached, sequence.prefix, row.logprobs)
        else:
            delta = Delta(tokens, finish, None, 0, None, row.logprobs)
        return self._end(sequence, delta) if finish else delta

    # What goes.

    def _end(self, sequence: Sequence, delta: Delta) -> Delta:
        sequence.finish = delta.finish
        if sequence.generated and not sequence.request.rehearsal:
            self._gauges.answered(sequence.generated)
        del self._sequences[sequence.request.request_id]
        self._shares.went(sequence.request.salt)
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
            self._freed(sequence)
        elif sequence.phase is Phase.RUNNING:
            self._leave(sequence)
        return delta

    def _leave(self, sequence: Sequence) -> None:
        self._places.leave(sequence)
        self._tables.keep_promise(sequence)

    def _retire(self) -> None:
        self._tables.completed(self._completed)
        for sequence in self._places.left(self._completed):
            self._tables.release(sequence)
            if sequence.finish is None:
                sequence.restart()
                self._waiting.put(sequence)
            else:
                self._freed(sequence)

    def _freed(self, sequence: Sequence) -> None:
        if sequence.aborted_at is not None and not sequence.request.rehearsal:
            self._gauges.freed(self._step - sequence.aborted_at)
