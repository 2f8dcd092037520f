"""What `launch:` says of a node that the proxy starts: the engine's options, in its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, get_args

from edgeproxy.config import Arithmetic, Device, GpuDtype, GpuWeights, KvDtype, Launch
from edgeproxy.config_tree import Place

STEP_TOKENS: Final = 128
"""The engine's default; a test holds it to the engine's own."""
_ADMISSIONS = ("guarantee", "optimistic")


def read_launch(node: Place) -> Launch:
    """Raises ConfigError, also for what the engine would refuse at each of its starts."""
    found = node.mapping([field.name for field in fields(Launch)])
    if "source" not in found:
        raise node.error("has no `source`", "name the model: package:distribution/file, or a path")
    launch = Launch(
        source=found["source"].text(),
        threads=found["threads"].count(1, 1024) if "threads" in found else None,
        kv_tokens=found["kv_tokens"].count(64, 2**31) if "kv_tokens" in found else None,
        arithmetic=_choice(found, "arithmetic", get_args(Arithmetic), "arithmetic of the engine"),
        kv_dtype=_choice(found, "kv_dtype", get_args(KvDtype), "type of keys and values"),
        slots=found["slots"].count(1, 4096) if "slots" in found else None,
        step_tokens=found["step_tokens"].count(1, 1 << 16) if "step_tokens" in found else None,
        device=_choice(found, "device", get_args(Device), "device of the engine"),
        gpu_dtype=_choice(found, "gpu_dtype", get_args(GpuDtype), "type that a GPU computes in"),
        gpu_weights=_choice(found, "gpu_weights", get_args(GpuWeights), "way to hold weights on a GPU"),
        quantum_ms=found["quantum_ms"].number(0.1, 10_000) if "quantum_ms" in found else None,
        max_wait_ms=found["max_wait_ms"].number(0, 600_000) if "max_wait_ms" in found else None,
        admission=_choice(found, "admission", _ADMISSIONS, "way to admit requests"),
        kv_store=found["kv_store"].text() if "kv_store" in found else None,
        kv_store_size=found["kv_store_size"].count(1 << 20, 1 << 50) if "kv_store_size" in found else None,
        sleep_after=found["sleep_after"].number(1, 1e9) if "sleep_after" in found else None,
    )
    _check(found, launch)
    return launch


def _check(found: Mapping[str, Place], launch: Launch) -> None:
    """Whether the values go together. Raises ConfigError."""
    if launch.slots is not None and launch.slots > (step := launch.step_tokens or STEP_TOKENS):
        raise found["slots"].error(
            f"{launch.slots} slots do not fit into a step of {step} tokens",
            f"write `step_tokens: {launch.slots}` or more",
        )
    if (launch.device, launch.kv_dtype) in (("cuda", "int8"), ("cpu", "fp8")):
        remedy = "use f16 or fp8" if launch.device == "cuda" else "use f16 or int8"
        raise found["kv_dtype"].error(f"{launch.kv_dtype!r} is not for `device: {launch.device}`", remedy)


def _choice(found: Mapping[str, Place], key: str, names: tuple[Any, ...], what: str) -> Any:
    """None where it is not given."""
    if key not in found:
        return None
    name = found[key].text()
    if name not in names:
        raise found[key].error(f"{name!r} is no {what}", f"use one of {', '.join(names)}")
    return name
