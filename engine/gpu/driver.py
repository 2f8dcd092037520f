"""Whether CUDA would find a device here that the kernels run on.

Asked of its driver, which makes no context for that and takes no memory: before torch is imported, and before minutes
go into packing a model.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LEAST_MAJOR = 8
"""Of compute capability: Ampere."""
_MAJOR, _MINOR = 75, 76
"""CUdevice_attribute: COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def problem(load: Callable[[str], Any] = ctypes.CDLL, torch: Path | None = None) -> str | None:
    """Why not; None: it would. The first device that CUDA_VISIBLE_DEVICES leaves. torch: where it is installed."""
    try:
        driver = load("libcuda.so.1")
    except OSError as error:
        return f"there is no CUDA driver ({error}); install NVIDIA's driver, or start the container with --gpus"
    if code := driver.cuInit(0):
        return f"CUDA's driver finds no CUDA device (error {code}); check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if _asked(driver, "cuDeviceGetCount") == 0:
        return "CUDA's driver finds no CUDA device; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    major, minor = (_asked(driver, "cuDeviceGetAttribute", attribute, 0) for attribute in (_MAJOR, _MINOR))
    if major < LEAST_MAJOR:
        return f"the GPU has compute capability {major}.{minor}; the kernels need {LEAST_MAJOR}.0 (Ampere) or newer"
    if not _cuda_in(torch or _torch()):
        return "torch is installed without CUDA; install the build for it: pip install torch triton"
    return None


def _asked(driver: Any, function: str, *arguments: int) -> int:
    """0 where it fails."""
    found = ctypes.c_int(0)
    return 0 if getattr(driver, function)(ctypes.byref(found), *arguments) else found.value


def _torch() -> Path | None:
    spec = find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _cuda_in(folder: Path | None) -> bool:
    """Whether a torch was built with CUDA. Importing it would tell too, in seconds."""
    try:
        told = (folder / "version.py").read_text() if folder is not None else ""
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*= *['\"]", told, re.MULTILINE) is not None
