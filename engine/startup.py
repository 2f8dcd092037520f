"""From a model's name to what a node runs: image, executor, tokenizer and template, each as soon as it can be.

A start is bound by what the interpreter must do: import modules, build the tokenizer. So it is arranged that everything
else (page tables, the warm-up's steps) runs beside that, and nothing here loads a module before it is needed.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from engine import memory
from engine.model import cache, layout
from engine.model.image import Image, Progress
from engine.step import BLOCK_TOKENS
from engine.warmup import WarmUp

if TYPE_CHECKING:
    from engine.executor.base import Executor
    from engine.gpu.monitor import Monitor
    from engine.model.packer import Packer
    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

T = TypeVar("T")


INTERPRETED = "interpreted"
"""A device for tests: a GPU's code on the CPU, with its kernels in numpy."""
END_S = 2.0
"""How long a start that is not wanted any more may take to notice."""


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
    arithmetic: str = "int16"
    """Of activations: a key of `native.PACKERS`."""
    kv_dtype: str = "f16"
    """Of keys and values: a key of `layout.KV_DTYPES`; on a GPU f16 (as wide as `gpu_dtype`) or fp8."""
    device: str = "cpu"
    """cpu, cuda, or INTERPRETED."""
    gpu_dtype: str = "bf16"
    """What a GPU computes in: a key of `gpu_layout.WIDTHS`."""
    gpu_weights: str = "kept"
    """kept: matrices stay in the file's 8 or 4 bits; dense: they become `gpu_dtype`."""
    cache: Path | None = None
    """Folder of packed images; None for the user's."""
    verify: bool = False
    """Whether an image's weights are read before anything runs; nodes read them in any case, once they are ready."""

    @property
    def sizes(self) -> layout.Sizes:
        return layout.Sizes(
            self.step_tokens,
            self.slots,
            self.kv_tokens // BLOCK_TOKENS,
            self.threads,
            1 if self.arithmetic == "int8" else 2,
            kv_dtype=self.kv_dtype,
        )


class Text(NamedTuple):
    tokenizer: Tokenizer
    template: ChatTemplate

    def prepare(self) -> None:
        """Loads what a first request may do without. Takes a tenth of a second or two, mostly with the interpreter."""
        self.tokenizer.prepare()
        self.template.prepare()


class Opened(NamedTuple):
    """A model that runs: its first tokens have come out."""

    executor: Executor
    text: Text
    monitor: Monitor | None = None
    """Of the GPU that the executor is on; whoever takes it starts and closes it."""
    image: Image | None = None
    """What its weights are to be held against."""
    settles: bool = False
    """Whether the node is ready only when requests take as long as they will: on a GPU, where the first ones of each
    kind load what later ones find."""


class _Abandoned(Exception):
    """Nobody wants the model any more."""


class Start:
    """Opens a model in a thread of its own, from the constructor on. A context: at its end nothing of it is left.

    Until its result is taken, Python's garbage collector rests: a start makes 10^5 objects that all stay, and looking
    through them again and again takes a tenth of its time.
    """

    def __init__(self, options: ModelOptions, progress: Progress) -> None:
        """Raises StartError at once where the device that was asked for is not there."""
        check_device(options)
        self._options = options
        self._progress = progress
        self._opened: Opened | None = None
        self._abandoned = False
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._done = False
        self._callbacks: list[Callable[[], None]] = []
        self.phases: list[tuple[str, float]] = []
        """What took how many seconds, in order."""
        self.began = time.monotonic()
        gc.disable()
        self._thread = threading.Thread(target=self._run, name="start", daemon=True)
        self._thread.start()

    def __enter__(self) -> Start:
        return self

    def __exit__(self, *_: object) -> None:
        """Where it still runs, it ends at its next step: an image half packed is removed."""
        self._abandoned = True
        self._thread.join(END_S)
        if self._opened is not None:
            self._opened.executor.close()
            if self._opened.monitor is not None:
                self._opened.monitor.close()
            self._opened = None

    @property
    def cache(self) -> Path:
        """Folder of packed images."""
        return self._options.cache or cache.default_folder()

    def then(self, callback: Callable[[], None]) -> None:
        """Calls back when it has ended, in its thread; at once if it has already."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()

    def result(self) -> Opened:
        """Waits for it. Raises StartError."""
        self._thread.join()
        gc.freeze()  # what is there now stays, and is not looked through when the collector looks for more
        gc.enable()
        if self._opened is not None:
            return self._opened
        assert self._failure is not None
        raise self._failure

    def _run(self) -> None:
        try:
            self._opened = self._open()
        except _Abandoned as abandoned:
            self._failure = abandoned
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            # alone: a traceback would keep the executor alive
            self._failure = StartError(memory.exhausted() if memory.is_short(error) else str(error))
        except Exception as error:
            self._failure = error
        with self._lock:
            self._done = True
        for callback in self._callbacks:
            callback()

    def _open(self) -> Opened:
        image = self._timed("image", lambda: open_image(self._options, self._told))
        monitor = open_monitor(self._options)
        try:
            with nullcontext() if monitor is None else monitor.under_load():
                executor, text = self._first_tokens(image, monitor)
        except BaseException:
            if monitor is not None:
                monitor.close()
            raise
        return Opened(executor, text, monitor, image, settles=self._options.device != "cpu")

    def _first_tokens(self, image: Image, monitor: Monitor | None) -> tuple[Executor, Text]:
        executor = self._timed("map and arena", lambda: open_executor(image, self._options, monitor))
        try:
            warm_up = WarmUp(executor)
            text = self._timed("tokenizer and template", lambda: open_text(image))
            self._timed("rest of warm-up", warm_up.finish)
        except BaseException:
            executor.close()
            raise
        return executor, text

    def _told(self, done: int, total: int) -> None:
        self._check()
        self._progress(done, total)

    def _check(self) -> None:
        if self._abandoned:
            raise _Abandoned

    def _timed(self, name: str, function: Callable[[], T]) -> T:
        self._check()
        began = time.monotonic()
        result = function()
        self.phases.append((name, time.monotonic() - began))
        return result


def chosen_device(asked: str, root: Path = Path("/"), say: Callable[[str], None] = lambda text: None) -> str:
    """What `auto` means here: cuda where NVIDIA's driver is loaded, what a GPU node needs is installed, and there is a
    device that the kernels run on. say: told why a machine with that driver gets the CPU."""
    if asked != "auto":
        return asked
    if not (root / "dev/nvidiactl").exists():
        return "cpu"
    from engine import gpu_startup

    problem = gpu_startup.problem()
    if problem is None:
        return "cuda"
    say(f"on the CPU: {problem}")
    return "cpu"


def check_device(options: ModelOptions) -> None:
    """Before minutes go into packing for it. Raises StartError."""
    if options.device == "cuda":
        from engine import gpu_startup

        if (problem := gpu_startup.problem()) is not None:
            raise StartError(f"--device cuda: {problem}; or run with --device cpu")


def packer_of(options: ModelOptions) -> Packer:
    """How the device's kernels want their matrices. Raises StartError where what it needs is not installed."""
    if options.device != "cpu":
        from engine import gpu_startup

        return gpu_startup.packer_of(options)
    try:
        from engine import _native
        from engine.executor.built import behind

        if problem := behind(Path(_native.__file__), getattr(_native, "SOURCES", "")):
            raise StartError(problem)
        from engine.executor.native import PACKERS
    except ImportError as error:
        raise StartError(f"the native executor is not built ({error}): run scripts/install") from error
    return PACKERS[options.arithmetic]


def open_image(options: ModelOptions, progress: Progress) -> Image:
    """Raises ValueError (SourceError, GgufError, ImageError) and StartError."""
    folder = options.cache or cache.default_folder()
    return cache.opened(options.model, folder, packer_of(options), progress, thorough=options.verify)


def open_monitor(options: ModelOptions) -> Monitor | None:
    """Of the GPU that is to be used, before anything is done there."""
    if options.device != "cuda":
        return None
    from engine.gpu.monitor import open_monitor as opened

    return opened()


def memory_plan(image: Image, options: ModelOptions) -> layout.Plan:
    return layout.plan(image.config, image.sections["weights"].nbytes, options.sizes)


def open_executor(image: Image, options: ModelOptions, monitor: Monitor | None = None) -> Executor:
    """Maps the weights and takes all memory that steps need, once it is known to fit.

    Raises ValueError (LayoutError, and for weights that the kernels cannot run), RuntimeError, MemoryError.
    """
    if options.device != "cpu":
        from engine import gpu_startup

        return gpu_startup.open_executor(image, options, monitor)
    from engine.executor.native import ACTIVATION_BITS, NativeExecutor

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
        activation_bits=ACTIVATION_BITS[options.arithmetic],
        kv_dtype=sizes.kv_dtype,
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
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
