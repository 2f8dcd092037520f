"""Whether the weights that a node serves are those that were packed: asked once it is ready, since a start must not
read them all, and again when somebody has changed the file in place, for which it is looked at every second. What
changes without the system's knowing (a disk that rots beneath a page not in memory) is found at the next start's check.

The bytes are read where the steps read them, in small pieces with rests between them, longer ones beside requests: it
costs some 1 % of a core where nobody asks, and a fifth of that otherwise.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import xxhash

from engine.model import cache
from engine.model.image import Image, ImageError

if TYPE_CHECKING:
    from engine.executor.base import Executor
    from engine.loop import EngineLoop

PIECE_BYTES: Final = 256 << 10
REST_S: Final = 0.0025
BUSY_REST_S: Final = 0.02
BEGIN_S: Final = 0.5
"""What the first requests are not to be disturbed by."""
LOOK_S: Final = 1.0
"""How often it is asked whether the file was changed: one stat(2)."""


class WeightsDamaged(RuntimeError):
    """What the node computes is wrong; the message names image, section and remedy."""

    def __init__(self, image: Image, section: str) -> None:
        super().__init__(
            f"{image.path}: its {section} do not have the hash that was written, so that answers would be wrong; look "
            "for errors of disk and memory in the kernel's log"
        )
        self.section = section


def guard(image: Image, executor: Executor, engine: EngineLoop, folder: Path) -> WeightsCheck:
    """A check that is to be started. On damage the engine ends with an error, one line says so (JSON, on standard
    error), and an image of the cache `folder` is set aside, so that the next start packs anew."""

    def damaged(error: WeightsDamaged) -> None:
        engine.condemn(error)
        aside = None
        with suppress(ImageError, OSError):  # of a folder that may only be read
            aside = cache.set_aside(image, folder)
        remedy = (
            f"it is now {aside}: start again, and it is packed anew"
            if aside
            else "run engine pack again, unless another node has done so"
        )
        line = {
            "level": "fatal",
            "event": "weights_damaged",
            "image": str(image.path),
            "section": error.section,
            "set_aside": str(aside) if aside else None,
            "message": f"{error}; {remedy}",
        }
        print(orjson.dumps(line).decode(), file=sys.stderr, flush=True)

    return WeightsCheck(image, executor, damaged, lambda: engine.live > 0)


class WeightsCheck:
    """A thread that reads the weights of a node. `stop` ends it within a piece."""

    SECTION: Final = "weights"
    """The others are checked when a start reads them."""

    def __init__(
        self,
        image: Image,
        executor: Executor,
        damaged: Callable[[WeightsDamaged], None],
        busy: Callable[[], bool] = lambda: False,
        *,
        rest: Callable[[float], bool] | None = None,
    ) -> None:
        """damaged: called from the thread, once, which then ends. busy: whether requests run.

        rest: waits for so many seconds, True to stop; None for real time.
        """
        self._image = image
        self._executor = executor
        self._damaged = damaged
        self._busy = busy
        self._stop = threading.Event()
        self._rest = rest or self._stop.wait
        self._thread = threading.Thread(target=self._run, name="weights-check", daemon=True)
        self.rounds = 0
        """How often all of them were found sound."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._watch()
        except (OSError, RuntimeError):
            return  # the file is gone, or the executor closed: what runs has its mapping, and ends in other ways

    def _watch(self) -> None:
        seen = _stamp(self._image.path)
        if self._rest(BEGIN_S):
            return
        urgent = False
        while (sound := self._sound(urgent)) is not None:
            if not sound:
                self._damaged(WeightsDamaged(self._image, self.SECTION))
                return
            self.rounds += 1
            while (now := _stamp(self._image.path)) == seen or now is None or (seen and now[0] != seen[0]):
                if self._rest(LOOK_S):
                    return
            seen, urgent = now, True

    def _sound(self, urgent: bool) -> bool | None:
        """None where it is to stop. urgent: somebody was there, so that requests are no reason to take one's time."""
        section = self._image.sections[self.SECTION]
        state = xxhash.xxh3_64()
        with closing(_Reader(self._executor, self._image.path)) as reader:
            for at in range(section.offset, section.offset + section.nbytes, PIECE_BYTES):
                size = min(PIECE_BYTES, section.offset + section.nbytes - at)
                state.update(reader.read(at, size))
                if self._rest(BUSY_REST_S if self._busy() and not urgent else REST_S):
                    return None
        return state.hexdigest() == section.xxh3


class _Reader:
    """From the executor's mapping; from the file where the executor has copied it."""

    def __init__(self, executor: Executor, path: Path) -> None:
        self._executor = executor
        self._path = path
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._file: FileIO | None = None

    def read(self, offset: int, nbytes: int) -> memoryview:
        into = self._buffer[:nbytes]
        if not self._executor.read_file(offset, into):
            self._file = self._file or FileIO(self._path)
            self._file.seek(offset)
            into = into[: self._file.readinto(into) or 0]
        return into

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    """Which file it is, and when it was changed: ctime too, since anybody can set mtime back."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
