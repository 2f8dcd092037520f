"""Compiles every kernel to machine code, with the constants that a real model gives it, and holds each to the shared
memory and the registers of its device. Needs no GPU.

    python tests/engine/executor/gpu/compile_kernels.py 80 90 [--few]

--few: of other architectures than the first only products and attention in bf16; less of float32; heads half as large,
and a quarter of a row at a time.

The interpreter takes what the compiler does not (shapes, types, unsupported instructions): this finds it. A process of
its own, because Triton decides once whether it interprets.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

try:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ModuleNotFoundError as error:
    raise SystemExit(
        f"{error.name} is missing: run ./scripts/install --dev, and start this with .venv/bin/python"
    ) from None

from engine.executor.gpu.tiles import Pair, Tile, Tiles, attention_shared, tiles_for
from engine.executor.kernels import adjust, attention, draw, embed, matmul, norm, outcome, rope

SHARED = {80: 166_912, 86: 101_376, 87: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Architecture -> bytes that a program may ask for: CUDA C++ Programming Guide, technical specifications per compute
capability (the most a block can have, less 1 KiB for the system)."""
DIM, GROUP = 128, 4
HEADS = {"HEADS": 32, "DIM": DIM}
FIRST = 90
"""The architecture for which everything is compiled."""
PAGED = {"KV_HEADS": 8, "TABLE": 512, "BLOCK_TOKENS": 16}
VOCAB = {"VOCAB": 128256}
TYPES = {
    "bf": "*bf16", "f": "*fp32", "h": "*fp16", "i": "*i32", "l": "*i64", "d": "*fp64", "b": "*i8", "u": "*u8",
    "n": "i32", "m": "i32", "s": "fp32",
}  # fmt: skip
"""`n`: any number; `m`: one that is known to be a multiple of 16, as all addresses are."""

INSTRUCTION = re.compile(r"\b(wgmma\.mma_async|mma)\.sync\S*?\.m(\d+)n\d+k(\d+)")
"""Of tensor cores. Products must all be of one shape but for its columns: then K is added up in one order."""


class Case(NamedTuple):
    name: str
    kernel: Any
    signature: str
    """A type for every argument that is no constant: of TYPES."""
    constants: dict[str, Any]
    options: dict[str, Any] = {}  # noqa: RUF012
    planned: int = 0
    """Bytes of shared memory that the tiles were chosen by; 0 where nothing is planned."""


def products(tiles: Tiles, value: str, few: bool) -> Iterator[Case]:
    """value: of TYPES, what is computed in. few: each size and each kernel once."""
    for name, bits, level in (("dense", 16, value), ("8 bits", 8, "b"), ("4 bits", 4, "u")):
        pair = tiles.dense if bits == 16 else tiles.kept
        scale = value if bits == 16 else "h"
        part = f"{level} {scale} {scale}"
        last = "wide" if "wide" in _sizes(pair) else "narrow"
        for size, tile in _sizes(pair).items():
            if not few or (bits == 16 and size != "deep"):
                yield Case(
                    f"matmul, {name}, {size}", matmul.matmul, f"{value} {part} {part} {part} f n m m m m m m",
                    *_cut(tile, value, {"BITS": bits}),
                )  # fmt: skip
            if not few or (size, bits) == (last, 4):
                yield Case(
                    f"gated, {name}, {size}", matmul.gated, f"{value} {part} {part} {value} n m m m",
                    *_cut(tile, value, {"GATE_BITS": bits, "UP_BITS": bits, "BN": tile.paired.cols}),
                )  # fmt: skip


def _sizes(pair: Pair) -> dict[str, Tile]:
    found = {"narrow": pair.narrow, "wide": pair.wide, "deep": pair.deep or pair.narrow}
    return {name: tile for name, tile in found.items() if name == "narrow" or tile != pair.narrow}


def _cut(tile: Tile, value: str, more: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
    return (
        {"BM": tile.rows, "BN": tile.cols, "BK": tile.depth} | more,
        {"num_warps": tile.warps, "num_stages": tile.stages},
        tile.shared(4 if value == "f" else 2),
    )


def attentions(tiles: Tiles, value: str, kinds: Sequence[str], dim: int) -> Iterator[Case]:
    """kinds: of TYPES, what keys and values are in."""
    planned = attention_shared(tiles.queries, tiles.stages, 4 if value == "f" else 2, dim)
    constants = HEADS | PAGED | {"DIM": dim, "BD": dim, "PART": 1024, "PARTS": 8, "BM": tiles.queries}
    for kv in kinds:
        yield Case(
            f"attend over {kv}", attention.attend, f"{value} {kv} {kv} i i i i i f f s", constants,
            {"num_stages": tiles.stages, "num_warps": tiles.warps}, planned,
        )  # fmt: skip


def others(width: int) -> Iterator[Case]:
    """What needs hardly any shared memory, and is the same on every device. width: of a row, or what of it is taken at
    a time."""
    norms = {"COLS": width, "EPS": 1e-5, "BR": 1, "BC": width}
    sampling = VOCAB | {"BLOCK": width}
    yield Case("add_norm", norm.add_norm, "f f f bf n", norms | {"ADD": True})
    yield Case("gather_norm", norm.gather_norm, "f f f i bf n", norms)
    for bits, level in ((16, "bf"), (8, "b"), (4, "u")):
        table = f"i i i {level} h h f n"
        yield Case(f"embed {bits}", embed.embed, table, {"COLS": width, "BITS": bits, "BR": 1, "BC": width})
    for kv in ("bf", "u"):
        yield Case(
            f"rope into {kv}", rope.rope_and_store, f"f f i i i bf {kv} {kv} n", HEADS | PAGED | {"BR": 16, "BP": 64}
        )
    yield Case("merge", attention.merge, "f f i i bf n", HEADS | {"PART": 1024, "PARTS": 8, "BR": 16, "BD": DIM})
    wide = {"num_warps": 8}
    yield Case("adjust", adjust.adjust, "f i i i i i d i i f f i", sampling | {"WORDS": 4008}, wide)
    yield Case("draw", draw.draw, "f l i i i i d i", sampling, wide)
    yield Case("commit", outcome.commit, "i i i i i", VOCAB, {"num_warps": 1})
    yield Case("tell", outcome.tell, "f i i i i d", sampling, wide)


def build(case: Case, arch: int, *, spills: bool = False) -> str:
    """What was made of it. Raises triton's errors, and MemoryError beyond registers (but where it may spill), the
    device's shared memory or the plan."""
    names = case.kernel.arg_names
    kinds = dict(zip((n for n in names if n not in case.constants), case.signature.split(), strict=True))
    signature = {name: TYPES[kinds[name]] if name in kinds else "constexpr" for name in names}
    divided = (i for i, name in enumerate(names) if signature[name].startswith("*") or kinds.get(name) == "m")
    attributes = {(i,): [["tt.divisibility", 16]] for i in divided}
    source = ASTSource(case.kernel, signature, case.constants, attributes)
    found = triton.compile(source, GPUTarget("cuda", arch, 32), {**case.options, "enable_fp_fusion": False})
    shared = found.metadata.shared
    if shared > min(SHARED[arch], case.planned or SHARED[arch]):
        raise MemoryError(f"sm_{arch} {case.name}: {shared} bytes of shared memory; {case.planned} were planned")
    used = {kind.replace(".mma_async", "") + f".m{m}k{k}" for kind, m, k in INSTRUCTION.findall(found.asm["ptx"])}
    plan = f" of {case.planned}" if case.planned else ""
    registers, stack = _taken(found.asm["cubin"])
    if stack and not spills:
        raise MemoryError(f"sm_{arch} {case.name}: {stack} bytes of a thread's registers do not fit into them")
    told = f"{shared}{plan} bytes of shared memory, {registers} registers"
    return f"{told}, {len(found.asm['cubin'])} of code; {' '.join(sorted(used))}"


def _taken(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and what of them lies in memory: a spill, since no kernel has arrays of its own."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True, timeout=60)
    (found,) = re.findall(r"REG:(\d+) STACK:(\d+)", told.stdout)
    return int(found[0]), int(found[1])


def cases(arch: int, value: str, few: bool) -> Iterator[Case]:
    """value: of TYPES, what is computed in. Float32 is written out instruction by instruction, and slow to compile."""
    exact = value == "f"
    dim = DIM // 2 if few else DIM
    tiles = tiles_for(arch // 10, SHARED[arch], 4 if exact else 2, dim, GROUP)
    yield from (case for case in products(tiles, value, few) if not (few and exact) or "dense" in case.name)
    if not few or arch == FIRST:
        yield from attentions(tiles, value, (value,) if few and exact else (value, "u"), dim)
    elif not exact:
        yield from attentions(tiles, value, (value,), dim)


def main() -> None:
    few = "--few" in sys.argv
    for arch in (int(argument) for argument in sys.argv[1:] if argument.isdigit()):
        for value in ("bf",) if few and arch != FIRST else ("bf", "f"):
            for case in cases(arch, value, few):
                print(
                    f"sm_{arch} in {TYPES[value][1:]}, {case.name}: {build(case, arch, spills=value == 'f')}",
                    flush=True,
                )
        if arch == FIRST or not few:
            for case in others(1024 if few else 4096):
                print(f"sm_{arch} {case.name}: {build(case, arch)}", flush=True)


if __name__ == "__main__":
    main()
