"""Weights from a mapped file to a device, layer by layer, while the first prefill already runs over the layers before.

    mapped pages --threads--> ring of pinned buffers --asynchronous copies--> device

What is here is the order of things: which thread copies which piece into which slot of the ring, when a slot is free
again, when a layer is complete, and that an error ends all of it. The copies are a Transport's (upload_torch.py). No
torch here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class UploadError(RuntimeError):
    """The weights did not get to the device; its cause says why. The device's copy is not to be used."""


class Span(NamedTuple):
    """A layer's bytes. They lie at the same offset in the file's weights and in the device's arena."""

    offset: int
    nbytes: int


class Transport(Protocol):
    """The copies behind a ring of `slots` buffers of `slot_bytes` each. Calls come from several threads."""

    @property
    def slots(self) -> int: ...

    @property
    def slot_bytes(self) -> int: ...

    def stage(self, slot: int, piece: Span) -> None:
        """Copies a piece of the file into a slot; blocks, without the interpreter lock."""

    def send(self, slot: int, piece: Span) -> None:
        """Begins to copy a slot to the device; returns at once. Sent pieces arrive in any order."""

    def drained(self, slot: int) -> None:
        """Blocks until what was sent from a slot has left it."""

    def mark(self, layer: int) -> None:
        """After the last `send` of a layer: what the device does after a `follow` of it comes after these."""

    def follow(self, layer: int) -> None:
        """Work that this thread gives the device from now on waits there for the layer's mark."""

    def close(self) -> None:
        """All that was sent has drained, and nothing more comes: gives the slots back. Idempotent."""


class Uploader:
    """One upload: pieces in the order of layers, by a few threads, through a ring. `begin`, then `wait` for each layer
    before work on it is submitted, and `finish` in any case.

    Never more than the transport's slots are between `stage` and `drained`. Slots become free in the order of sending.
    A layer is marked by the thread that sends its last piece. So what waits for all that the device was given (a
    module that is loaded) waits for as many pieces as the ring has slots, and not for the rest of the file.
    """

    def __init__(
        self,
        transport: Transport,
        layers: Sequence[Span],
        *,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """layers: in the order in which they will be needed; empty ones are complete at once."""
        self._transport = transport
        self._pieces = deque(_pieces(layers, transport.slot_bytes))
        self._left = [-(-layer.nbytes // transport.slot_bytes) for layer in layers]
        """Pieces of each layer that are not sent."""
        self._free = list(range(transport.slots))
        self._sent: deque[int] = deque()
        """Slots, in the order of sending."""
        self._marked = [False] * len(layers)
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._clock = clock
        self._began = 0.0
        self._threads = [threading.Thread(target=self._run, name=f"upload-{i}", daemon=True) for i in range(threads)]

    def begin(self) -> None:
        """Returns at once."""
        self._began = self._clock()
        with self._change:
            for layer, left in enumerate(self._left):
                if not left:
                    self._mark(layer)
        for thread in self._threads:
            thread.start()

    def wait(self, layer: int) -> None:
        """Blocks until the layer's copies are begun; work submitted after that finds the layer. Raises UploadError."""
        with self._change:
            self._change.wait_for(lambda: self._marked[layer] or self._error is not None)
            if self._error is not None:
                raise UploadError(f"layer {layer} was not uploaded: {self._error}") from self._error
        self._transport.follow(layer)

    def finish(self) -> float:
        """Blocks until nothing of it goes on any more. Seconds that it took. Raises UploadError."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        while self._sent:  # also after an error: a buffer must outlive the copies from it
            self._drain(self._sent.popleft())
        self._transport.close()
        if self._error is not None:
            raise UploadError(f"the weights were not uploaded: {self._error}") from self._error
        return self._clock() - self._began

    def cancel(self) -> None:
        """No further copies; `wait` and `finish` raise UploadError. `finish` must follow all the same."""
        self._fail(UploadError("it was cancelled"))

    def _drain(self, slot: int) -> None:
        try:
            self._transport.drained(slot)
        except Exception as error:
            self._fail(error)

    def _run(self) -> None:
        try:
            while (slot := self._slot()) is not None:
                self._copy(slot)
        except Exception as error:
            self._fail(error)

    def _slot(self) -> int | None:
        """One that nothing is in; waits for it. None where there is nothing more to copy."""
        with self._change:
            self._change.wait_for(lambda: self._over or self._free or self._sent)
            if self._over:
                return None
            if self._free:
                return self._free.pop()
            slot = self._sent.popleft()
        self._transport.drained(slot)
        return slot

    @property
    def _over(self) -> bool:
        return self._error is not None or not self._pieces

    def _copy(self, slot: int) -> None:
        """The next piece through a slot."""
        with self._change:
            if self._over:
                self._free.append(slot)
                self._change.notify_all()
                return
            layer, piece = self._pieces.popleft()
            if not self._pieces:
                self._change.notify_all()
        self._transport.stage(slot, piece)
        with self._change:
            if self._error is not None:
                return
            self._transport.send(slot, piece)
            self._sent.append(slot)
            self._left[layer] -= 1
            if not self._left[layer]:
                self._mark(layer)
            self._change.notify_all()

    def _mark(self, layer: int) -> None:
        self._transport.mark(layer)
        self._marked[layer] = True

    def _fail(self, error: BaseException) -> None:
        """The first error counts."""
        with self._change:
            self._error = self._error or error
            self._pieces.clear()
            self._change.notify_all()


def _pieces(layers: Sequence[Span], most: int) -> list[tuple[int, Span]]:
    """Layers and their pieces, of at most so many bytes."""
    return [
        (index, Span(layer.offset + at, min(most, layer.nbytes - at)))
        for index, layer in enumerate(layers)
        for at in range(0, layer.nbytes, most)
    ]
