"""A scripted executor: no model, but a strict reader of plans.

Its "KV" is a grid of cells, written where a plan says and read back before each token is made. As in a real model, a
cell depends on all tokens up to it. So a block reused for another prefix, one written while others read it, a position
skipped or a table too short shows as a wrong token or raises, as does every breach of the contract.
"""

from __future__ import annotations

import struct
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.constraint import Constraint
from engine.executor.base import Executor, Limits
from engine.step import BLOCK_TOKENS, Finish, Logprobs, Row, RowResult, Sampling, StepPlan, StepResult

VOCAB = 1000
LIMITS = Limits(slots=4, blocks=64, step_tokens=16, context=256, vocab=VOCAB)
Script = Callable[[Sequence[int]], int]
"""The next token of a sequence, given all before it."""


def scripted(history: Sequence[int]) -> int:
    return zlib.crc32(array("q", history).tobytes()) % VOCAB


def expected(
    prompt: Sequence[int],
    max_tokens: int,
    stop_ids: tuple[int, ...] = (),
    script: Script = scripted,
    constraint: Constraint | None = None,
) -> list[int]:
    """What a sequence must give, whatever runs beside it. constraint: asked for each token by itself."""
    history = list(prompt)
    ended = False
    while len(history) - len(prompt) < max_tokens and not ended:
        token = script(history)
        if constraint is not None:
            token = _allowed((token, *stop_ids), constraint.mask())
            ended = constraint.accept(token) is not None
        history.append(token)
        ended = ended or token in stop_ids
    return history[len(prompt) :]


def logprobs(token: int, top: int | None, vocab: int) -> tuple[Logprobs, ...]:
    """As if each token were less likely than the one before it in the vocabulary."""
    if top is None:
        return ()
    return (Logprobs(-0.5, tuple(((token + step) % vocab, -0.5 - step) for step in range(top))),)


Cell = tuple[int, int]
"""A token and a digest of all tokens up to it."""
_CELL = struct.Struct("<qI")


def written(row: Row) -> tuple[int, ...]:
    return row.blocks[row.start // BLOCK_TOKENS :]


def cell(before: Cell | None, token: int) -> Cell:
    return token, zlib.crc32(token.to_bytes(4), before[1] if before else 0)


@dataclass
class _Slot:
    sampling: Sampling
    length: int = 0
    seen: list[int] = field(default_factory=list)
    """Where it penalises: what is counted."""
    last: int = 0
    finished: bool = False


@dataclass
class FakeExecutor(Executor):
    script: Script = scripted
    built_for: Limits = LIMITS
    gate: threading.Semaphore | None = None
    """Where set, each collect takes one permit: the test decides when a step ends."""
    waits: bool = False
    """For such a permit."""
    clock: Callable[[], float] = lambda: 0.0
    fails_at: int | None = None
    """The step whose collect raises."""
    diverges_at: int | None = None
    """The position whose logits are not finite."""
    plans: list[StepPlan] = field(default_factory=list)
    closed: bool = False
    releases: int = 0
    submitted: deque[StepPlan] = field(default_factory=deque)
    masks: dict[tuple[int, int], bytes | None] = field(default_factory=dict)
    """Of slot and step, until they are used."""
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _kv: dict[tuple[int, int], Cell] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        return self.built_for

    @property
    def numerics(self) -> str:
        return "fp_fake"

    def submit(self, plan: StepPlan) -> None:
        assert len(self.submitted) < self.depth, "more plans than the depth"
        assert plan.step == len(self.plans) + 1, "steps count by one"
        assert plan.rows, "an empty plan"
        assert sum(row.count for row in plan.rows) <= self.limits.step_tokens, "over the token budget"
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "a slot twice"
        for row in plan.rows:
            others = {block for other in plan.rows if other is not row for block in other.blocks}
            assert len(set(row.blocks)) == len(row.blocks), "a block twice in a table"
            assert not others & set(written(row)), "a row writes a block of another's table"
        self.plans.append(plan)
        self.submitted.append(plan)

    def allow(self, slot: int, step: int, mask: bytes | None) -> None:
        assert any(plan.step == step for plan in self.submitted), "a mask for a step that is not submitted"
        assert (slot, step) not in self.masks, "two masks"
        self.masks[slot, step] = mask

    def collect(self) -> StepResult:
        if self.gate is not None:
            self.waits = True
            self.gate.acquire()
            self.waits = False
        started = self.clock()
        plan = self.submitted.popleft()
        if plan.step == self.fails_at:
            raise RuntimeError("the device is gone")
        return StepResult(plan.step, tuple(self._run(row, plan.step) for row in plan.rows), started, self.clock())

    def logits(self, slot: int) -> array[float]:
        raise NotImplementedError

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * _CELL.size

    def read_block(self, block: int) -> bytes:
        assert block not in {own for plan in self.submitted for row in plan.rows for own in written(row)}
        return b"".join(_CELL.pack(*self._kv[block, offset]) for offset in range(BLOCK_TOKENS))

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        assert len(content) == self.block_bytes
        assert block not in {named for plan in self.submitted for row in plan.rows for named in row.blocks}
        for offset, found in enumerate(_CELL.iter_unpack(content)):
            self._kv[block, offset] = found

    def release(self) -> None:
        assert not self.submitted
        self._kv.clear()
        self.releases += 1

    def close(self) -> None:
        self.closed = True

    def _run(self, row: Row, step: int) -> RowResult:
        if row.opens is not None:
            assert row.tokens, "the first row of a sequence brings its tokens"
            last = self._slots.get(row.slot)
            again = last is not None and last.sampling is row.opens and row.forced
            self._slots[row.slot] = _Slot(row.opens, last.length if last is not None and again else 0)
        slot = self._slots[row.slot]
        if slot.finished and not row.tokens:
            self.masks.pop((row.slot, step), None)
            return RowResult(row.slot)
        reused = row.tokens and row.start > slot.length and row.start % BLOCK_TOKENS == 0
        assert row.start == slot.length or reused, "positions follow each other"
        assert len(row.blocks) == -(-(row.start + row.count) // BLOCK_TOKENS), "the table covers the positions"
        assert row.start + row.count <= self.limits.context
        for position, token in enumerate(row.tokens or (slot.last,), row.start):
            before = self._kv[_place(row, position - 1)] if position else None
            self._kv[_place(row, position)] = cell(before, token)
        slot.length = row.start + row.count
        if row.opens is not None and row.opens.penalises:
            assert list(row.history[: slot.length]) == self._read(row, slot.length), "penalties need all tokens"
            slot.seen = list(row.history)
        if not row.sample:
            return RowResult(row.slot)
        if slot.length == self.diverges_at:
            slot.finished = True
            return RowResult(row.slot, (), Finish.ERROR)
        slot.last = self.script(self._read(row, slot.length))
        if slot.sampling.constrained:
            slot.last = _allowed((slot.last, *slot.sampling.stop_ids), self.masks.pop((row.slot, step)))
        if slot.sampling.penalises:
            assert slot.seen == self._read(row, slot.length), "penalties count all tokens"
            slot.seen.append(slot.last)
        slot.finished = slot.last in slot.sampling.stop_ids
        told = logprobs(slot.last, slot.sampling.logprobs, self.limits.vocab)
        return RowResult(row.slot, (slot.last,), Finish.STOP if slot.finished else None, told)

    def _read(self, row: Row, length: int) -> list[int]:
        tokens: list[int] = []
        before: Cell | None = None
        for position in range(length):
            found = self._kv[_place(row, position)]
            assert found == cell(before, found[0]), f"position {position} was computed after other tokens"
            tokens.append(found[0])
            before = found
        return tokens


def _allowed(tokens: Sequence[int], mask: bytes | None) -> int:
    """The first of the tokens that may be sampled, else the lowest of all that may."""
    if mask is None:
        return tokens[0]
    for token in tokens:
        if mask[token // 8] >> token % 8 & 1:
            return token
    return next(8 * index + bit for index, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1)


def _place(row: Row, position: int) -> tuple[int, int]:
    return row.blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS
