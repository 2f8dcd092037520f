"""A start on a GPU: what must be installed, whether it fits, the executor. Loaded by such nodes alone."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from engine.gpu import driver, fit
from engine.model import gpu_layout, layout
from engine.model.gpu_image import packer, parts
from engine.model.gpu_layout import GpuSizes
from engine.startup import INTERPRETED, ModelOptions, StartError
from engine.step import BLOCK_TOKENS

if TYPE_CHECKING:
    from engine.executor.cuda import CudaExecutor
    from engine.executor.gpu.device import Device
    from engine.gpu.monitor import Monitor
    from engine.model.arch import LlamaConfig
    from engine.model.gguf import TensorInfo
    from engine.model.image import Image
    from engine.model.packer import Packer

NEEDED = ("torch", "triton", "numpy")


def problem() -> str | None:
    """Why no node can run on a GPU here; None: one can."""
    return _missing() or driver.problem()


def packer_of(options: ModelOptions) -> Packer:
    """Raises StartError where a GPU node's packages are not installed."""
    if missing := _missing():
        raise StartError(f"{missing}, or run with --device cpu")
    return packer(options.gpu_dtype, kept=options.gpu_weights == "kept")


def _missing() -> str | None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return None
    named = ", ".join(missing)
    return f"a node on a GPU needs {', '.join(NEEDED)}, and {named} cannot be imported: install edgeproxy[gpu]"


def sizes_of(config: LlamaConfig, options: ModelOptions) -> GpuSizes:
    blocks = options.kv_tokens // BLOCK_TOKENS
    return GpuSizes(
        options.step_tokens,
        options.slots,
        blocks,
        min(config.context, blocks * BLOCK_TOKENS),
        options.gpu_dtype,
        "16" if options.kv_dtype == "f16" else options.kv_dtype,
    )


def memory_plan(config: LlamaConfig, weights: int, options: ModelOptions) -> layout.Plan:
    """weights: bytes of the image's. Raises LayoutError for a KV type that a GPU has no kernels for."""
    return gpu_layout.plan(config, weights, sizes_of(config, options))


def needs(config: LlamaConfig, plan: layout.Plan, options: ModelOptions) -> fit.Needs:
    """Of the device's memory."""
    return fit.needs(plan, ("sorting", gpu_layout.sort_bytes(config, sizes_of(config, options))))


def packed_bytes(tensors: Iterable[TensorInfo], options: ModelOptions) -> int:
    """Of a GGUF file's tensors, once they are packed for a GPU. Raises ValueError for a matrix that cannot be."""
    dtypes = packer(options.gpu_dtype, kept=options.gpu_weights == "kept").dtypes
    return sum(
        parts(dtypes[tensor.dtype], *tensor.shape)[-1].end
        if len(tensor.shape) == 2 and tensor.dtype in dtypes
        else tensor.nbytes
        for tensor in tensors
    )


def open_executor(image: Image, options: ModelOptions, monitor: Monitor | None) -> CudaExecutor:
    """Asks whether it fits before there is a CUDA context, then takes all memory that steps need, and captures them.

    Raises ValueError (LayoutError), RuntimeError (DeviceError, and where there is too little memory after all).
    """
    config = image.config
    plan = memory_plan(config, image.sections["weights"].nbytes, options)
    if monitor is not None:
        monitor.check(needs(config, plan, options))
    from engine.executor.cuda import CudaExecutor

    return CudaExecutor(image, _device(options), sizes_of(config, options))


def _device(options: ModelOptions) -> Device:
    from engine.executor.gpu.device import CpuDevice, CudaDevice

    return CpuDevice() if options.device == INTERPRETED else CudaDevice()
