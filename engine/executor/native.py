"""The CPU executor: weights in place in the mapped file, kernels and step loop in C++ (engine/csrc)."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engine import _native
from engine.executor.base import Executor, Limits, Residency
from engine.model import layout
from engine.model.arch import LlamaConfig
from engine.model.contents import digest_of
from engine.model.gguf import Gguf
from engine.model.image import Image
from engine.model.packer import Packer
from engine.step import Finish, Logprobs, RowResult, StepPlan, StepResult

PACKER: Final = Packer("x16", MappingProxyType({"Q4_1": "Q4_1x16", "Q8_0": "Q8_0x16"}), _native.pack)
"""The layout of csrc/tensor.h: tiles of 16 rows, for every instruction set alike."""
PACKERS: Final = MappingProxyType({"int16": PACKER, "int8": PACKER, "float32": Packer("blocks")})
"""Arithmetic -> the layout whose kernels do it. Float32 runs on GGUF's own blocks."""
ACTIVATION_BITS: Final = MappingProxyType({"int16": 16, "int8": 8, "float32": 16})
"""Arithmetic -> bits of activations before packed matrices, which there are none of with float32."""

_KV_NAMES: Final = MappingProxyType({"f16": "kv16", "int8": "kv8"})
_FINISH = (None, Finish.STOP, Finish.ERROR)


class NativeExecutor(Executor):
    """Runs steps on `threads` threads of its own; an idle executor uses no CPU.

    Packed matrices are multiplied with activations of 16 or 8 bits (csrc/kernels.h), others with float32. A step's
    result depends on its rows alone: not on the number of threads, nor on what else is in the batch. After a fork the
    child can only drop it.
    """

    def __init__(
        self,
        model: Gguf | Image,
        config: LlamaConfig,
        *,
        threads: int,
        slots: int,
        blocks: int,
        context: int,
        step_tokens: int,
        isa: str = "",
        activation_bits: int = 16,
        kv_dtype: str = "f16",
    ) -> None:
        """`isa`: one of `_native.isas()`, empty for the best of this machine. `activation_bits`: 16 or 8, before packed
        matrices. `kv_dtype`: a key of layout.KV_DTYPES.

        Raises ValueError for tensors or numbers that the kernels cannot run, RuntimeError if the file cannot be mapped,
        MemoryError if there is no room for the KV pool and activations.
        """
        sizes = layout.Sizes(step_tokens, slots, blocks, threads, activation_bits // 8, context, kv_dtype)
        self._native: _native.Executor | None = _native.Executor(
            str(model.path),
            config,
            tuple(model.tensors.values()),
            threads=threads,
            slots=slots,
            blocks=blocks,
            context=context,
            step_tokens=step_tokens,
            isa=isa,
            activation_bits=activation_bits,
            plan=layout.plan(config, 0, sizes).arena,
            kv_dtype=kv_dtype,
        )
        packed = any(tensor.dtype in PACKER.dtypes.values() for tensor in model.tensors.values())
        kinds = (f"i{activation_bits}" if packed else "f32", _KV_NAMES[kv_dtype])
        super().__init__(
            Limits(slots, blocks, step_tokens, context, config.vocab),
            f"native-3-{self._native.isa}-{'-'.join(kinds)}-{_digest(model)}",
        )

    def residency(self) -> Residency:
        """Asks the system, for some 14 ms a GiB. Raises RuntimeError once closed."""
        return Residency(*self._open().residency())

    def read_file(self, offset: int, into: bytearray | memoryview) -> bool:
        """Raises ValueError beyond the file's end, RuntimeError once closed."""
        self._open().read_file(offset, into)
        return True

    def submit(self, plan: StepPlan) -> None:
        """Raises ValueError naming what breaks the contract, RuntimeError beyond `depth` plans or once closed."""
        self._open().submit(plan)

    def allow(self, slot: int, step: int, mask: bytes | None) -> None:
        """Raises ValueError for a mask that is too short."""
        self._open().allow(slot, step, mask)

    def collect(self) -> StepResult:
        """Raises RuntimeError if nothing is submitted or once closed."""
        step, rows, started, ended = self._open().collect()
        results = tuple(
            RowResult(
                slot,
                () if token is None else (token,),
                _FINISH[finish],
                () if logprobs is None else (Logprobs(*logprobs),),
            )
            for slot, token, finish, logprobs in rows
        )
        return StepResult(step, results, started, ended)

    def logits(self, slot: int) -> array[float]:
        """Raises ValueError for a slot that has sampled nothing, RuntimeError while a plan is submitted."""
        values = self._open().logits(slot)
        if values is None:
            raise ValueError(f"slot {slot} has sampled nothing yet")
        return array("f", values)

    def worker_seconds(self) -> tuple[float, ...]:
        """Includes the moments in which a thread waits for the others without sleeping, 20 us at most at a time."""
        return tuple(self._open().worker_seconds())

    def page_faults(self) -> int:
        return sum(map(_page_faults, self._open().thread_ids()))

    @property
    def block_bytes(self) -> int:
        return self._open().block_bytes

    def read_block(self, block: int) -> bytes:
        return self._open().read_block(block)

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        self._open().write_block(block, content)

    def release(self) -> None:
        """Raises RuntimeError while a plan is submitted."""
        self._open().release()

    def close(self) -> None:
        if self._native is not None:
            self._native.close()
            self._native = None

    def _open(self) -> _native.Executor:
        if self._native is None:
            raise RuntimeError("the executor is closed")
        return self._native


def _page_faults(thread: int) -> int:
    """Of a thread of this process (proc_pid_stat(5), fields 10 and 12); 0 where the system does not tell."""
    try:
        told = Path(f"/proc/self/task/{thread}/stat").read_bytes()
    except OSError:
        return 0
    fields = told.rpartition(b")")[2].split()
    return int(fields[7]) + int(fields[9])


def _digest(model: Gguf | Image) -> str:
    return model.digest if isinstance(model, Image) else digest_of(model.path)
