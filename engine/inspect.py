"""`engine inspect`: what a model file holds, and the memory that a node of it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Column, Table

from engine import memory
from engine.model import layout
from engine.model.arch import ARCHITECTURE, LlamaConfig, llama_config
from engine.model.gguf import TensorInfo
from engine.model.gguf import read as read_gguf
from engine.model.image import VERSION, Image, is_image, verify
from engine.model.image import read as read_image
from engine.model.pack import check_weights
from engine.model.source import SourceError, check_published, resolve
from engine.startup import ModelOptions, packer_of


def show(options: ModelOptions, check: bool) -> None:
    """Raises ValueError (SourceError, GgufError, ImageError). check: read an image's weights too."""
    path = resolve(options.model)
    console = Console()
    console.print(str(path), soft_wrap=True)
    try:
        image = read_image(path, packer_of(options).layout) if is_image(path) else None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; name a file you may read") from error
    if image is not None:
        console.print(_origin(image, options.device))
        _show(console, image.config, image.tensors, options, packed=True)
        if check:
            verify(image)
            console.print("every section has the hash that was written, and there is nothing between them")
    else:
        gguf = read_gguf(path)
        _show(console, llama_config(gguf), gguf.tensors, options, packed=False)
        if check:
            check_published(options.model)
            check_weights(gguf)
            console.print("no number of its weights is NaN or infinite; a GGUF file has no hashes of them")


def _show(
    console: Console, config: LlamaConfig, tensors: Mapping[str, TensorInfo], options: ModelOptions, *, packed: bool
) -> None:
    console.print(_facts(config), _kinds(tensors.values()))
    weights = sum(tensor.nbytes for tensor in tensors.values())
    if options.device == "cpu":
        plan = layout.plan(config, weights, options.sizes)
        console.print(_memory(plan, f"{plan.sizes.threads} threads"))
        console.print(_fits(plan), soft_wrap=True)
    else:
        from engine import gpu_startup

        if not packed:
            weights = gpu_startup.packed_bytes(tensors.values(), options)
        plan = gpu_startup.memory_plan(config, weights, options)
        console.print(_memory(plan, "on a GPU"))
        needed = layout.mib(gpu_startup.needs(config, plan, options).nbytes)
        console.print(f"needs {needed} of the GPU; how much of it is free is asked when a node starts", soft_wrap=True)


def _fits(plan: layout.Plan) -> str:
    """Whether a node would start here and now."""
    available = memory.available()
    try:
        needed = layout.check_fits(plan, available)
    except layout.LayoutError as error:
        return f"does not fit: {error}"
    return f"fits: needs {layout.mib(needed)}, {available.bound} leaves {layout.mib(available.nbytes)}"


def _origin(image: Image, device: str) -> Table:
    table = Table("image", "value")
    table.add_row("version", str(VERSION))
    table.add_row("layout", image.layout)
    table.add_row("instruction sets", _isas() if device == "cpu" else "of a GPU")
    table.add_row("architecture", ARCHITECTURE)
    template = image.template
    table.add_row("chat template", "none" if template is None else f"{len(template.source):,} characters")
    table.add_row("packed from", f"{image.source.name}, {layout.mib(image.source.nbytes)}")
    table.add_row("its xxh3", image.source.digest)
    for name, section in image.sections.items():
        table.add_row(name, f"{section.nbytes:,} bytes at {section.offset:,}, xxh3 {section.xxh3}")
    return table


def _isas() -> str:
    """A layout is for all of them alike; which one runs is chosen at start."""
    from engine._native import isas

    return f"{', '.join(isas())} here, the first is used; the layout is the same for all"


def _facts(config: LlamaConfig) -> Table:
    table = Table("configuration", "value")
    for name, value in asdict(config).items():
        table.add_row(name, str(value))
    return table


def _kinds(tensors: Iterable[TensorInfo]) -> Table:
    """A line for all tensors that differ only in their layer."""
    count: Counter[tuple[str, str, str]] = Counter()
    nbytes: Counter[tuple[str, str, str]] = Counter()
    for tensor in tensors:
        name = ".".join("*" if part.isdigit() else part for part in tensor.name.split("."))
        kind = (name, tensor.dtype, " x ".join(map(str, tensor.shape)))
        count[kind] += 1
        nbytes[kind] += tensor.nbytes
    table = Table(Column("tensor", overflow="fold"), "type", "shape", _number("count"), _number("MiB"))
    for kind, number in count.items():
        table.add_row(*kind, str(number), f"{nbytes[kind] / 2**20:.2f}")
    table.add_section()
    table.add_row(f"{count.total()} tensors", "", "", str(count.total()), f"{nbytes.total() / 2**20:.2f}")
    return table


def _number(title: str) -> Column:
    """Never cut, however narrow the terminal."""
    return Column(title, justify="right", no_wrap=True)


def _memory(plan: layout.Plan, where: str) -> Table:
    sizes = plan.sizes
    title = f"memory: {sizes.blocks} blocks, {sizes.slots} slots, steps of {sizes.step_tokens}, {where}"
    table = Table(
        Column("region", no_wrap=True),
        Column("buffer", overflow="fold"),
        _number("offset"),
        Column("phases", no_wrap=True),
        _number("bytes"),
        title=title,
        title_justify="left",
    )
    for region in plan.regions:
        for placed in region.buffers:
            live = f"{placed.buffer.first} to {placed.buffer.last}"
            offset = f"{region.offset + placed.offset:,}"
            each = f" for each of {placed.copies} threads" if placed.stride else ""
            table.add_row(region.name, placed.buffer.name + each, offset, live, f"{placed.buffer.nbytes:,}")
        table.add_section()
    table.add_row("arena", "", "", "", f"{plan.nbytes:,}")
    return table
