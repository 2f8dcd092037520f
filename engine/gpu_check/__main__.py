"""The check itself. See scripts/gpu_check."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.gpu_check.driver import Driver, Timed
from engine.gpu_check.rows import Bench, Row, interpreted, rows
from engine.gpu_check.table import Table
from engine.gpu_check.worker import Tell, end_with_parent, serve, teller

DRIVER = Path("/dev/nvidiactl")
"""Is there where NVIDIA's driver is loaded."""


def main(arguments: Sequence[str] | None = None, driver: Path = DRIVER) -> int:
    """0: all is as it should be, or there is no GPU."""
    parser = argparse.ArgumentParser(
        "scripts/gpu_check", description="Checks and times the GPU executor, in six minutes."
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: interpreted, a tiny model, no times"
    )
    parser.add_argument(
        "--model", help="a GGUF file to compare tokens with the CPU's; else SmolLM2, where it is at hand"
    )
    parser.add_argument("--tell", type=int, help=argparse.SUPPRESS)
    names = "; ".join(row.name for row in rows())
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"these alone, of: {names}".replace("%", "%%"))
    options = parser.parse_args(arguments)
    known = interpreted() if options.device == "cpu" else rows()
    if unknown := set(options.checks) - {row.name for row in known}:
        parser.error(f"there is no check {'; '.join(sorted(unknown))}; there are: {'; '.join(r.name for r in known)}")
    if options.model is not None and options.device == "cpu":
        parser.error("--device cpu checks a tiny model of its own: leave --model out")
    if options.model is not None and not Path(options.model).is_file():
        parser.error(f"there is no file {options.model}: name a GGUF file, or leave --model out")
    chosen = [row for row in known if not options.checks or row.name in options.checks]
    if options.tell is not None:
        end_with_parent()
        return _work(chosen, options.device, options.model, teller(options.tell))
    return _driven(chosen, options.device, options.model, driver)


def _driven(chosen: Sequence[Row], device: str, model: str | None, driver: Path) -> int:
    def command(names: Sequence[str], descriptor: int) -> list[str]:
        named = [] if model is None else ["--model", model]
        return [sys.executable, "-m", __package__, "--device", device, *named, "--tell", str(descriptor), "--", *names]

    table = Table()
    absent = Driver(command, table).run([Timed(row.name, row.share_s) for row in chosen])
    if absent is not None and driver.exists():
        print(f"FAIL no GPU check: {absent}, but NVIDIA's driver is loaded here ({driver})")
        return 1
    if absent is not None:
        print(f"no GPU check: {absent}. Nothing was run, and there are no figures.")
        return 0
    print(f"{table.failed} failed" if table.failed else "all as it should be")
    return 1 if table.failed else 0


def _work(chosen: Sequence[Row], device: str, model: str | None, tell: Tell) -> int:
    """A worker's part."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
    bench = Bench(model)
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        tell({"absent": f"{error}; install edgeproxy[gpu]"})
        return 0
    if device == "cuda":
        if not torch.cuda.is_available():
            tell({"absent": f"torch {torch.__version__} of {sys.executable} finds no CUDA device"})
            return 0
        try:
            tell({"head": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {bench.device.name}"})
        except RuntimeError as error:
            tell({"absent": f"the device cannot be used: {error}"})
            return 0
    checks = {row.name: lambda row=row: row.check(bench)() for row in chosen}
    return 0 if serve(checks, [row.name for row in chosen], tell) else 1


if __name__ == "__main__":
    sys.exit(main())
