from collections.abc import Iterable
from typing import Protocol

from engine.model.arch import LlamaConfig
from engine.model.layout import Piece
from engine.step import Sampling, StepPlan

class _Tensor(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

_Logprobs = tuple[float, tuple[tuple[int, float], ...]]
"""The fields of step.Logprobs."""

class Executor:
    def __init__(
        self,
        path: str,
        config: LlamaConfig,
        tensors: Iterable[_Tensor],
        *,
        threads: int,
        slots: int,
        blocks: int,
        context: int,
        step_tokens: int,
        isa: str,
        activation_bits: int,
        plan: Iterable[Piece],
        kv_dtype: str,
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    def residency(self) -> tuple[float, float, float]:
        """(share of the weights in memory before they were asked for, seconds to get the rest, share now)"""
    def read_file(self, offset: int, into: bytearray | memoryview) -> None: ...
    def submit(self, plan: StepPlan) -> None: ...
    def allow(self, slot: int, step: int, mask: bytes | None) -> None: ...
    def collect(self) -> tuple[int, list[tuple[int, int | None, int, _Logprobs | None]], float, float]:
        """(step, [(slot, token, finish, logprobs)], started, ended); finish: 0 none, 1 stop, 2 error"""
    def logits(self, slot: int) -> bytes | None:
        """float32 [vocab]; None if the slot has none."""
    def worker_seconds(self) -> list[float]:
        """CPU time of each compute thread since it began."""
    def thread_ids(self) -> list[int]:
        """Of its threads (gettid(2)), those that fault memory ahead of use among them."""
    @property
    def block_bytes(self) -> int: ...
    def read_block(self, block: int) -> bytes: ...
    def write_block(self, block: int, content: bytes | memoryview) -> None: ...
    def release(self) -> None: ...
    def close(self) -> None: ...

def isas() -> list[str]:
    """Instruction sets that this machine runs, best first."""

SOURCES: str
"""Digest of the C++ that it was built from (executor/built.py)."""

PACKED_ALIGNMENT: int
"""Bytes; offsets of packed tensors in their file are multiples of it."""

def pack(dtype: str, rows: int, cols: int, data: bytes) -> bytes:
    """A matrix [rows, cols] in GGUF's blocks -> the same weights in tiles of 16 rows, rows padded with zeros.

    `dtype`: "Q4_1" or "Q8_0"; the result's dtype in a tensor table is "Q4_1x16" or "Q8_0x16", its shape stays
    (rows, cols). Layout: engine/csrc/tensor.h. Raises ValueError for other types and for data of another size.
    """

def philox4x32(counter: list[int], key: list[int]) -> list[int]: ...
def matmul(isa: str, dtype: str, weights: bytes, rows: int, cols: int, x: bytes, activation_bits: int = 16) -> bytes:
    """x [n, cols] f32 times a matrix [rows, cols] -> [n, rows] f32.

    GGUF's blocks are multiplied in float32. For packed types x is first turned into levels of 8 or 16 bits, per 32
    values: most = max |x|; NaN or infinity: scale = NaN, levels = 0; most < 2**-100: both 0; else scale = most / top
    and levels = rint(x * (top / most)), ties to even, with top 127 or 32639, every operation rounded to float32 once.
    Then, block by block in order, y += (levels . w) * (d * scale), and for Q4_1 y += m * (scale * sum(levels)), by
    fused multiply-adds.
    """

def sample(
    isa: str,
    logits: bytes,
    sampling: Sampling,
    position: int,
    history: tuple[int, ...] = (),
    allowed: bytes | None = None,
) -> tuple[int, _Logprobs | None] | None:
    """(token, logprobs) for `position` out of f32 logits, or None if they are not finite."""
