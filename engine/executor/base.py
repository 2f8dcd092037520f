"""The contract every executor keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import NamedTuple

from engine.step import StepPlan, StepResult


class Limits(NamedTuple):
    """What an executor was built for; a plan beyond these is a programming error and raises ValueError on submit."""

    slots: int
    blocks: int
    """KV blocks in the pool, numbered from 0."""
    step_tokens: int
    """Most tokens of all rows of one step together."""
    context: int
    """Most positions of one sequence."""
    vocab: int


class Residency(NamedTuple):
    """How much of the mapped weights is in memory."""

    before: float
    """Share of their pages before they were asked for."""
    populate_s: float
    """Seconds that the system took to get the rest and to fill the page tables."""
    now: float
    """Share of their pages."""

    def __str__(self) -> str:
        return f"weights {self.before:.0%} in memory at the start, {self.now:.0%} after {self.populate_s * 1000:.0f} ms"


class Executor(ABC):
    """Runs step plans in the order of submission.

    Contract:
    - Pipelined: `submit` returns at once and may be called while an earlier plan runs; at most `depth` plans may be
      submitted and not collected. `collect` blocks (without holding the interpreter lock) until the oldest is done.
    - Both are called from one thread, the engine's.
    - A decode row takes the token its slot sampled last, so that step n+1 can be submitted before step n's result
      is known. If the slot finished meanwhile (STOP or ERROR), the row runs nothing and returns no tokens.
    - Only the KV of positions named by a row is written, in the blocks of that row's table; a block shared between
      tables is never written, because the scheduler never names a shared position.
    - Batch invariance: a row's result does not depend on the other rows of the step nor on how its tokens were cut
      into chunks, bit for bit.
    - Logits that are not finite end that sequence with Finish.ERROR; the other rows go on.
    """

    depth: int = 2

    def __init__(self, limits: Limits, numerics: str) -> None:
        self._limits, self._numerics = limits, numerics

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def numerics(self) -> str:
        """Names everything that decides the bits of the output: weights, kernels, instruction set, KV type."""
        return self._numerics

    @abstractmethod
    def submit(self, plan: StepPlan) -> None: ...

    @abstractmethod
    def allow(self, slot: int, step: int, mask: bytes | None) -> None:
        """Which tokens a constrained slot may sample in `step`, which is submitted: bit i % 8 of byte i // 8 for
        token i, as many as fill 32-bit words, one set at least; None: all.

        Every sampling row of such a slot needs it before it can be collected, also where nobody wants its result.
        Only the sampling waits for it, not the forward. Not before the step that sampled the token before is collected.
        """

    @abstractmethod
    def collect(self) -> StepResult: ...

    @abstractmethod
    def logits(self, slot: int) -> array[float]:
        """The slot's last logits, shape [vocab], float32. For tests and oracles; only while nothing is submitted."""

    def worker_seconds(self) -> tuple[float, ...]:
        """CPU time of each compute thread since it began; empty where they are not the executor's own."""
        return ()

    def page_faults(self) -> int:
        """Minor and major, of the executor's own threads since they began; 0 where it has none."""
        return 0

    def phases(self) -> tuple[tuple[str, float], ...]:
        """What of its start took how many seconds, as far as it is told; some of it beside the rest."""
        return ()

    def residency(self) -> Residency | None:
        """Of weights that are mapped; None where they are not."""
        return None

    def read_file(self, offset: int, into: bytearray | memoryview) -> bool:
        """Fills `into` with bytes of the model's file as the steps see them. From any thread.

        False, and nothing read, where steps run on a copy of the file.
        """
        return False

    @property
    @abstractmethod
    def block_bytes(self) -> int:
        """Of one KV block, as `read_block` gives it."""

    @abstractmethod
    def read_block(self, block: int) -> bytes:
        """Keys and values of all positions of a block, in an order of the executor's own.

        The steps that computed them are collected, and no submitted plan writes the block. Raises ValueError for a
        block outside the pool.
        """

    @abstractmethod
    def write_block(self, block: int, content: bytes | memoryview) -> None:
        """Puts back what `read_block` of an executor with the same numerics gave; plans submitted later read it.

        No submitted plan names the block. Raises ValueError for another number of bytes.
        """

    @abstractmethod
    def release(self) -> None:
        """Gives the memory of KV and activations back to the system; the next step takes it again.

        Nothing is submitted. What KV held is lost, and so are the slots' logits; weights stay mapped.
        """

    @abstractmethod
    def close(self) -> None:
        """Waits for submitted plans, then releases threads and memory. Idempotent."""
