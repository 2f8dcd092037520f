"""From a model's name to what a node runs: image, executor, tokenizer and template, each as soon as it can be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine import memory
from engine.model import cache, layout
from engine.model.image import Image, Progress
from engine.step import BLOCK_TOKENS

if TYPE_CHECKING:
    from engine.executor.native import NativeExecutor
    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer


class StartError(RuntimeError):
    """The node cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model to run, and in how much memory."""

    model: str
    """Model URI: a GGUF file, packed on first use, or an image."""
    threads: int
    kv_tokens: int
    slots: int = 16
    """Most sequences that run at the same time."""
    step_tokens: int = 128
    """Most tokens of one step; bounds how long a prefill chunk holds everybody else up."""
    cache: Path | None = None
    """Folder of packed images; None for the user's."""

    @property
    def sizes(self) -> layout.Sizes:
        return layout.Sizes(self.step_tokens, self.slots, self.kv_tokens // BLOCK_TOKENS, self.threads)


@dataclass(frozen=True, slots=True)
class Text:
    tokenizer: Tokenizer
    template: ChatTemplate


class Phases:
    """How long the parts of a start took. Parts may run beside one another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = self._clock()
        yield
        self.add(name, self._clock() - began)

    def add(self, name: str, seconds: float) -> None:
        self._taken.append((name, seconds))

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in self._taken)


def open_image(options: ModelOptions, progress: Progress) -> Image:
    """Raises ValueError (SourceError, GgufError, ImageError) and StartError."""
    from engine.model.source import resolve

    try:
        from engine.executor.native import PACKER
    except ImportError as error:
        raise StartError(f"the native executor is not built ({error}): run scripts/install") from error
    return cache.opened(resolve(options.model), options.cache or cache.default_folder(), PACKER, progress)


def memory_plan(image: Image, options: ModelOptions) -> layout.Plan:
    return layout.plan(image.config, image.sections["weights"].nbytes, options.sizes)


def open_executor(image: Image, options: ModelOptions) -> NativeExecutor:
    """Maps the weights and takes all memory that steps need, once it is known to fit.

    Raises ValueError (LayoutError, and for weights that the kernels cannot run), RuntimeError, MemoryError.
    """
    from engine.executor.native import NativeExecutor

    layout.check_fits(memory_plan(image, options), memory.available())
    sizes = options.sizes
    return NativeExecutor(
        image,
        image.config,
        threads=sizes.threads,
        slots=sizes.slots,
        blocks=sizes.blocks,
        context=min(image.config.context, sizes.blocks * BLOCK_TOKENS),
        step_tokens=sizes.step_tokens,
    )


def open_text(image: Image) -> Text:
    """Builds tokenizer and template, and takes one message through both.

    Raises ValueError: ImageError, and for a template that cannot render a message.
    """
    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

    if image.template is None:
        raise StartError(f"{image.path}: there is no chat template; use an instruction-tuned model")
    text = Text(Tokenizer(image.vocabulary()), ChatTemplate.from_text(image.template))
    text.tokenizer.encode(text.template.render([{"role": "user", "content": "Hello!"}]))
    return text


def process_age() -> float:
    """Seconds since this process was started, to 10 ms (proc_pid_stat(5), field 22)."""
    import os

    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
