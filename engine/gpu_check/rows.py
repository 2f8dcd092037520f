"""The checks, in their order, and the parts of the time that they have: together less than six minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from engine.gpu_check.table import Check, Line

if TYPE_CHECKING:
    from engine.executor.gpu.device import Device
    from engine.gpu_check.speed import Ceiling
    from engine.gpu_check.watch import Watch


class Bench:
    """What checks share within a process; made when the first asks for it."""

    def __init__(self, model: str | None) -> None:
        """model: a GGUF file that was named; None for the usual one, if it is at hand."""
        self.model = model

    @cached_property
    def device(self) -> Device:
        from engine.executor.gpu.device import CudaDevice

        return CudaDevice()

    @cached_property
    def watch(self) -> Watch:
        from engine.gpu_check.watch import Watch

        return Watch()

    @cached_property
    def ceiling(self) -> Ceiling:
        from engine.gpu_check.speed import ceiling

        return ceiling()


class Row(NamedTuple):
    name: str
    share_s: float
    check: Callable[[Bench], Check]


def rows() -> tuple[Row, ...]:
    """On a CUDA device. The first one's share is also what torch and CUDA take to come up, from a cold disk; each
    compiles what it is the first to need. What is asked of an 8B comes early: if time is short, it is for others."""
    return (
        Row("NVML", 45, lambda bench: bench.watch.device),
        Row("ceilings", 15, lambda bench: lambda: _ceilings(bench)),
        Row("tiny, bf16", 45, _tiny("bf16", 16)),
        Row("heads of 128, bf16", 20, _heads),
        Row("8B, bf16", 50, _speed("LLAMA_8B", 16, held=True)),
        Row("tiny, f32", 30, _tiny("f32", 32)),
        Row("tiny, f16", 20, _tiny("f16", 16)),
        Row("tiny, bf16, weights of 8 bits", 15, _tiny("bf16", 8)),
        Row("tiny, bf16, weights of 4 bits", 15, _tiny("bf16", 4)),
        Row("tiny, bf16, KV in fp8", 15, _tiny("bf16", 16, "fp8")),
        Row("SmolLM2's shape, bf16, 4 bits", 20, _smollm2),
        Row("8B, weights of 8 bits", 20, _speed("LLAMA_8B", 8)),
        Row("1B, bf16", 15, _speed("LLAMA_1B", 16)),
        Row("the model's tokens, f32", 15, _tokens("f32")),
        Row("the model's tokens, bf16", 10, _tokens("bf16")),
    )


def interpreted() -> tuple[Row, ...]:
    """On the CPU, with the kernels in numpy."""
    return (Row("tiny, f32", 300, _smallest),)


def _ceilings(bench: Bench) -> Iterator[Line]:
    yield Line("copy within the device", f"{bench.ceiling.bytes_per_s / 1e12:.2f} TB/s")
    yield Line("torch's product in bf16", f"{bench.ceiling.flops / 1e12:.0f} TFLOP/s")


def _tiny(dtype: str, bits: int, kv: str = "16") -> Callable[[Bench], Check]:
    def made(bench: Bench) -> Check:
        from engine.gpu_check import correct, models

        told = "KV in fp8" if kv == "fp8" else f"weights of {bits} bits"
        return correct.check(f"tiny, {dtype}, {told}", models.TINY, bench.device, dtype, bits, 200, kv, part=64)

    return made


def _heads(bench: Bench) -> Check:
    from engine.gpu_check import correct, models

    return correct.check("heads of 128, bf16", models.HEADS, bench.device, "bf16", 16, 200)


def _smollm2(bench: Bench) -> Check:
    """Long enough for two parts of attention, as they are in use."""
    from engine.gpu_check import correct, models

    return correct.check("SmolLM2's shape, bf16, 4 bits", models.SMOLLM2, bench.device, "bf16", 4, 1300)


def _smallest(bench: Bench) -> Check:
    from engine.executor.gpu.device import CpuDevice
    from engine.gpu_check import correct, models

    return correct.check("tiny, f32", models.SMALLEST, CpuDevice(), "f32", 32, 24)


def _speed(config: str, bits: int, *, held: bool = False) -> Callable[[Bench], Check]:
    def made(bench: Bench) -> Check:
        from engine.gpu_check import models, speed

        name = f"{config.removeprefix('LLAMA_')}, {'bf16' if bits == 16 else f'weights of {bits} bits'}"
        shape, most = getattr(models, config), lambda: bench.ceiling
        return speed.check(name, shape, bench.device, "bf16", bits, most, bench.watch, held=held)

    return made


def _tokens(dtype: str) -> Callable[[Bench], Check]:
    def made(bench: Bench) -> Check:
        from engine.gpu_check import real

        return real.check(bench.device, bench.model, dtype)

    return made
