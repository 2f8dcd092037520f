"""Whether a plan fits into a device's memory, asked before there is a CUDA context on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine.gpu.device import Holder, Memory
from engine.model.layout import LayoutError, Plan
from engine.step import BLOCK_TOKENS

CONTEXT_BYTES = 640 << 20
"""What CUDA, its libraries and compiled kernels hold of a device beside what a program asks for. An estimate, not
measured: some hundred MiB, more on larger devices."""
_HOLDERS = 4
"""That a message names."""


class Needs(NamedTuple):
    """What a node will ask of the device."""

    parts: tuple[tuple[str, int], ...]
    """Names and bytes."""
    blocks: int
    """Of the KV pool."""
    kv_block: int
    """Bytes of one."""

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.parts) + CONTEXT_BYTES


class Other(NamedTuple):
    """Another device of the machine."""

    name: str
    uuid: str
    free: int


def needs(plan: Plan, *beside: tuple[str, int]) -> Needs:
    """Of a plan whose regions all lie on the device. beside: names and bytes of what is needed there too."""
    regions = ((region.name, region.nbytes) for region in plan.regions)
    return Needs((*regions, *beside), plan.sizes.blocks, plan.kv_block)


def check_fits(
    wanted: Needs, device: str, memory: Memory, holders: Sequence[Holder] = (), others: Iterable[Other] = ()
) -> None:
    """Raises LayoutError: what is needed, what there is, who has the rest, and numbered remedies.

    device: as messages call it.
    """
    if wanted.nbytes <= memory.free:
        return
    parts = ", ".join(f"{name} {mib(nbytes)}" for name, nbytes in (*wanted.parts, ("CUDA", CONTEXT_BYTES)))
    remedies = "; ".join(
        f"({number}) {text}" for number, text in enumerate(_remedies(wanted, device, memory, holders, others), 1)
    )
    raise LayoutError(
        f"this node needs {mib(wanted.nbytes)} of {device} ({parts}) and {mib(memory.free)} of {mib(memory.total)} "
        f"are free{_held(memory, holders)}: {remedies}"
    )


def mib(nbytes: int) -> str:
    """As nvidia-smi writes it."""
    return f"{nbytes / 2**20:,.0f} MiB"


def _held(memory: Memory, holders: Sequence[Holder]) -> str:
    named = [f"{_name(one)} holds {mib(one.nbytes)}" for one in holders[:_HOLDERS] if one.nbytes]
    rest = memory.used - sum(one.nbytes or 0 for one in holders[:_HOLDERS])
    if rest > 0:
        named.append(f"{mib(rest)} {'are held by the driver and others' if named else 'are held, NVML names nobody'}")
    return f" ({', '.join(named)})" if named else ""


def _remedies(
    wanted: Needs, device: str, memory: Memory, holders: Sequence[Holder], others: Iterable[Other]
) -> Iterator[str]:
    over = wanted.nbytes - memory.free
    blocks = wanted.blocks - -(-over // wanted.kv_block)
    if blocks >= 1:
        yield f"a smaller KV pool: --kv-tokens {blocks * BLOCK_TOKENS}"
    if ending := _enough(holders, over):
        yield f"end {' and '.join(map(_name, ending))}"
    for other in others:
        if other.free >= wanted.nbytes:
            yield f"use {other.name}, which has {mib(other.free)} free: CUDA_VISIBLE_DEVICES={other.uuid}"
            break
    if wanted.nbytes > memory.total:
        yield f"a device with at least {mib(wanted.nbytes)}: {device} has {mib(memory.total)} in all"
    yield "a smaller model, or one with int8 or int4 weights"


def _enough(holders: Sequence[Holder], over: int) -> tuple[Holder, ...]:
    """The fewest whose end frees so much; none where all would not."""
    freed = 0
    for count, holder in enumerate(holders, 1):
        freed += holder.nbytes or 0
        if freed >= over:
            return tuple(holders[:count])
    return ()


def _name(holder: Holder) -> str:
    return f"process {holder.pid}" + (f" ({holder.name})" if holder.name else "")
