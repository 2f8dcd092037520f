"""GPU executors on torch's CPU device, over images of files made for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import CpuDevice, Device
from engine.executor.gpu.tiles import Pair, Tile, Tiles
from engine.model.gpu_image import packer
from engine.model.gpu_layout import GpuSizes
from engine.model.pack import pack

SMALL = Tile(16, 128, 64)
TINY_TILES = Tiles(Pair(SMALL, SMALL), Pair(SMALL, SMALL), 1 << 30, tokens=64, heads=256, queries=32)


def make_cuda(
    path: Path, dtype: str = "f32", *, kept: bool = False, device: Device | None = None, **changes: Any
) -> CudaExecutor:
    sizes = {"step_tokens": 96, "slots": 8, "blocks": 24, "context": 128, "part": 64}
    image = pack(path, path.with_suffix(f".{dtype}-{kept}"), packer(dtype, kept=kept))
    return CudaExecutor(image, device or CpuDevice(TINY_TILES), GpuSizes(**sizes | {"dtype": dtype} | changes))
