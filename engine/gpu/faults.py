"""Which of a GPU's events mean that nothing more is to be computed on it. Pure.

Sources: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors); the Xids that speak of a program and not of the
device are those that NVIDIA's DRA driver for Kubernetes lets pass.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

PROGRAMS: Final = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "memory page fault",
        43: "processing stopped",
        45: "preemptive cleanup after earlier errors",
        68: "video processor exception",
        109: "context switch timeout",
    }
)
"""Xids that a program's fault makes, its own or a neighbour's: the device is sound. If it was ours, its step fails."""
DEVICES: Final = MappingProxyType(
    {
        48: "uncorrectable memory error",
        63: "memory row remapped or page retired",
        64: "memory row could not be remapped",
        74: "NVLink error",
        79: "it has fallen off the bus",
        92: "many correctable memory errors",
        94: "contained memory error",
        95: "uncontained memory error",
        119: "its firmware does not answer",
        120: "firmware error",
        140: "unrecovered memory error",
    }
)
"""Words for the Xids that are met most."""
RECOVERY_CHANGED: Final = 154
"""An Xid that only says that the recovery action is another."""
ACTIONS: Final = MappingProxyType(
    {
        1: "a reset of the device",
        2: "a restart of the machine",
        3: "its peers to be drained",
        4: "draining and a reset",
        5: "a recovery of the IMEX domain",
        6: "a reset of its bus",
        7: "a restart of the system",
    }
)
"""NVML's recovery actions; 0 is none."""
KINDS: Final = MappingProxyType(
    {
        "nvmlEventTypeXidCriticalError": "xid",
        "nvmlEventTypeDoubleBitEccError": "ecc",
        "nvmlEventTypeFatalPoisonError": "poison",
        "nvmlEventTypeDramRetirementFailure": "retirement",
        "nvmlEventTypeGpuUnavailableError": "unavailable",
        "nvmlEventTypeGpuRecoveryAction": "recovery",
    }
)
"""NVML's event types that are watched -> what they are called in metrics."""
_TEXTS: Final = MappingProxyType(
    {
        "ecc": "uncorrectable memory error (double-bit ECC)",
        "poison": "fatal poison: corrupt data was used",
        "retirement": "memory that failed could not be retired",
        "unavailable": "it is unavailable",
    }
)


class Event(NamedTuple):
    kind: str
    """A value of KINDS."""
    text: str
    fatal: bool


def judged(kind: str, data: int, action: int | None) -> Event:
    """data: NVML's of the event; an Xid's number.

    action: the recovery action that the driver asks for now; None where it does not tell.
    """
    wants = _wants(action)
    if kind == "xid":
        if data == RECOVERY_CHANGED:
            return Event(kind, f"Xid {data}: {wants or 'no recovery is needed any more'}", bool(wants))
        text = PROGRAMS.get(data) or DEVICES.get(data)
        told = f"Xid {data}" + (f": {text}" if text else "") + (f"; {wants}" if wants else "")
        return Event(kind, told, data not in PROGRAMS or bool(wants))
    if kind == "recovery":
        return Event(kind, wants or "no recovery is needed any more", bool(wants))
    return Event(kind, _TEXTS[kind] + (f"; {wants}" if wants else ""), True)


def refused(action: int | None) -> str | None:
    """Why nothing is to be begun on a device, if so."""
    return _wants(action)


def _wants(action: int | None) -> str | None:
    return f"the driver asks for {ACTIONS.get(action, f'recovery {action}')}" if action else None
