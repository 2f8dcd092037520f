"""Compiles every kernel to machine code, with the constants that a real model gives it. Needs no GPU.

    python tests/engine/executor/gpu/compile_kernels.py 80 90

The interpreter takes what the compiler does not (shapes, types, unsupported instructions): this finds it. A process of
its own, because Triton decides once whether it interprets.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.executor.gpu.tiles import AMPERE, HOPPER, Tile
from engine.executor.kernels import adjust, attention, draw, embed, matmul, norm, outcome, rope, swiglu

HEADS = {"HEADS": 32, "DIM": 128}
PAGED = {"KV_HEADS": 8, "TABLE": 512, "BLOCK_TOKENS": 16}
VOCAB = {"VOCAB": 128256, "BLOCK": 4096}
POINTERS = {"bf": "*bf16", "f": "*fp32", "h": "*fp16", "i": "*i32", "l": "*i64", "d": "*fp64", "b": "*i8", "u": "*u8"}

INSTRUCTION = re.compile(r"\b(wgmma\.mma_async|mma)\.sync\S*?\.m(\d+)n\d+k(\d+)")
"""Of tensor cores. Products must all be of one shape but for its columns: then K is added up in one order."""


class Case(NamedTuple):
    name: str
    kernel: Any
    signature: str
    """A type for every argument that is no constant: of POINTERS, or `n` for an int32, `s` for a float."""
    constants: dict[str, Any]
    options: dict[str, Any] = {}  # noqa: RUF012


def products(tiles: dict[str, Tile]) -> Iterator[Case]:
    for name, tile in tiles.items():
        cut = {"N": 4096, "K": 4096, "STRIDE": 6144, "BM": tile.rows, "BN": tile.cols, "BK": tile.depth}
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        if name == "quantised":
            for bits, level in ((8, "b"), (4, "u")):
                yield Case(
                    f"matmul of {bits} bits",
                    matmul.matmul_quantised,
                    f"bf {level} h h f n",
                    cut | {"BITS": bits},
                    options,
                )
        else:
            yield Case(f"matmul, {name}", matmul.matmul, "bf bf f n", cut, options)


def cases(arch: int) -> Iterator[Case]:
    tiles = HOPPER if arch >= 90 else AMPERE
    yield from products({"narrow": tiles.narrow, "wide": tiles.wide, "quantised": tiles.quantised})
    norms = {"COLS": 4096, "EPS": 1e-5, "BR": 1, "BC": 4096}
    yield Case("add_norm", norm.add_norm, "f f f bf n", norms | {"ADD": True})
    yield Case("gather_norm", norm.gather_norm, "f f f i bf n", norms)
    yield Case("swiglu", swiglu.swiglu, "f bf n", {"COLS": 14336, "BLOCK": 1024})
    for bits, level in ((16, "bf"), (8, "b"), (4, "u")):
        table = f"i i i {level} h h f n"
        yield Case(f"embed {bits}", embed.embed, table, {"COLS": 4096, "BITS": bits, "BR": 1, "BC": 4096})
    for kv in ("bf", "u"):
        yield Case(
            f"rope into {kv}", rope.rope_and_store, f"f f i i i bf {kv} {kv} n", HEADS | PAGED | {"BR": 16, "BP": 64}
        )
        yield Case(
            f"attend over {kv}", attention.attend, f"bf {kv} {kv} i i i i i f f s",
            HEADS | PAGED | {"PART": 1024, "PARTS": 8, "BM": 64, "BD": 128}, {"num_stages": 2},
        )  # fmt: skip
    yield Case("merge", attention.merge, "f f i i bf n", HEADS | {"PART": 1024, "PARTS": 8, "BR": 16, "BD": 128})
    wide = {"num_warps": 8}
    yield Case("adjust", adjust.adjust, "f i i i i i d i i f f i", VOCAB | {"WORDS": 4008}, wide)
    yield Case("draw", draw.draw, "f l i i i i d i", VOCAB, wide)
    yield Case("commit", outcome.commit, "i i i i i", {"VOCAB": 128256}, {"num_warps": 1})
    yield Case("tell", outcome.tell, "f i i i i d", VOCAB, wide)


def build(case: Case, arch: int) -> str:
    """What was made of it. Raises triton's errors."""
    kinds = iter(POINTERS | {"n": "i32", "s": "fp32"} for _ in range(99))
    types = [next(kinds)[kind] for kind in case.signature.split()]
    names = case.kernel.arg_names
    signature = dict(zip((n for n in names if n not in case.constants), types, strict=True))
    signature |= dict.fromkeys(case.constants, "constexpr")
    ordered = {name: signature[name] for name in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(case.kernel, ordered, case.constants, attributes)
    found = triton.compile(source, GPUTarget("cuda", arch, 32), {**case.options, "enable_fp_fusion": False})
    used = {kind.replace(".mma_async", "") + f".m{m}k{k}" for kind, m, k in INSTRUCTION.findall(found.asm["ptx"])}
    return (
        f"{found.metadata.shared} bytes of shared memory, {len(found.asm['cubin'])} of code; {' '.join(sorted(used))}"
    )


def main() -> None:
    for arch in map(int, sys.argv[1:]):
        for case in cases(arch):
            print(f"sm_{arch} {case.name}: {build(case, arch)}", flush=True)


if __name__ == "__main__":
    main()
