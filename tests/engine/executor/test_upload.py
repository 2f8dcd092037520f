"""The ring alone, on a transport whose copies arrive when and in which order a test likes."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.executor.upload import Span, Uploader, UploadError

PATIENCE_S = 20


class Device:
    """Copies in a thread of its own, picking at random among what was sent; pieces of a layer are counted."""

    def __init__(self, source: bytes, slots: int, slot_bytes: int, seed: int = 0) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self.memory = bytearray(len(source))
        self.marked: list[int] = []
        self.most = 0
        self.closed = False
        self.fails: dict[str, int] = {}
        """Method -> the call, counted from 0, that fails."""
        self._source = source
        self._buffers = [b""] * slots
        self._used: set[int] = set()
        self._flying: dict[int, Span] = {}
        self._arrived = bytearray(len(source))
        self._change = threading.Condition()
        self._random = random.Random(seed)
        self._ended = False
        self._thread = threading.Thread(target=self._fly, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The uploader does, when nothing is under way."""
        assert not self._flying
        self.closed = True
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def stage(self, slot: int, piece: Span) -> None:
        with self._change:
            assert slot not in self._used, "a slot is used again before it has drained"
            assert piece.nbytes <= self.slot_bytes
            self._used.add(slot)
            self.most = max(self.most, len(self._used))
        self._maybe_fail("stage")
        self._buffers[slot] = self._source[piece.offset : piece.offset + piece.nbytes]

    def send(self, slot: int, piece: Span) -> None:
        self._maybe_fail("send")
        with self._change:
            self._flying[slot] = piece
            self._change.notify_all()

    def drained(self, slot: int) -> None:
        with self._change:
            assert self._change.wait_for(lambda: slot not in self._flying, PATIENCE_S)
            self._used.discard(slot)
        self._maybe_fail("drained")

    def mark(self, layer: int) -> None:
        self.marked.append(layer)

    def follow(self, layer: int) -> None:
        """Like a device whose work waits there: until all that was sent has arrived."""
        assert layer in self.marked
        with self._change:
            assert self._change.wait_for(lambda: not self._flying, PATIENCE_S)

    def holds(self, span: Span) -> bool:
        part = slice(span.offset, span.offset + span.nbytes)
        return self.memory[part] == self._source[part]

    def _maybe_fail(self, method: str) -> None:
        with self._change:
            left = self.fails.get(method)
            if left is not None:
                self.fails[method] = left - 1
        if left == 0:
            raise OSError(f"{method} failed")

    def _fly(self) -> None:
        with self._change:
            while True:
                self._change.wait_for(lambda: self._flying or self._ended)
                if not self._flying:
                    return
                slot = self._random.choice(sorted(self._flying))
                piece = self._flying.pop(slot)
                self.memory[piece.offset : piece.offset + piece.nbytes] = self._buffers[slot]
                self._change.notify_all()


def spans(sizes: Sequence[int]) -> list[Span]:
    return [Span(sum(sizes[:index]), size) for index, size in enumerate(sizes)]


def content(nbytes: int) -> bytes:
    return random.Random(7).randbytes(nbytes)


SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=8)


@given(SIZES, st.integers(1, 5), st.integers(1, 150), st.integers(1, 4), st.integers(0, 1 << 16))
def test_all_bytes_arrive_and_each_layer_before_work_on_it(
    sizes: list[int], slots: int, slot_bytes: int, threads: int, seed: int
) -> None:
    layers = spans(sizes)
    device = Device(content(sum(sizes)), slots, slot_bytes, seed)
    upload = Uploader(device, layers, threads=threads)
    upload.begin()
    for index, layer in enumerate(layers):
        upload.wait(index)
        assert device.holds(layer)
    assert upload.finish() >= 0
    device.close()
    assert all(map(device.holds, layers))
    assert device.most <= slots
    assert sorted(device.marked) == list(range(len(layers)))


@given(
    SIZES,
    st.integers(1, 4),
    st.integers(1, 100),
    st.integers(1, 4),
    st.sampled_from(["stage", "send", "drained"]),
    st.integers(0, 6),
)
def test_an_error_in_one_copy_is_told_by_everything_and_nothing_hangs(
    sizes: list[int], slots: int, slot_bytes: int, threads: int, method: str, call: int
) -> None:
    layers = spans(sizes)
    device = Device(content(sum(sizes)), slots, slot_bytes)
    device.fails[method] = call
    upload = Uploader(device, layers, threads=threads)
    upload.begin()
    waited: list[int] = []
    try:
        for index in range(len(layers)):
            upload.wait(index)
            waited.append(index)
        upload.finish()
        assert device.fails[method] >= 0, "the failing call was made and nobody told"
    except UploadError as error:
        assert f"{method} failed" in str(error)
        with pytest.raises(UploadError):
            upload.finish()
        with pytest.raises(UploadError):
            upload.wait(len(layers) - 1)
    device.close()
    assert all(device.holds(layers[index]) for index in waited)


def test_what_the_device_was_given_is_never_more_than_the_ring_and_each_layer_is_marked_in_its_turn() -> None:
    """So whatever waits for all of it (a graph's first capture, a module that is loaded) waits for little."""
    device = Held(content(80), slots=2, slot_bytes=5)
    upload = Uploader(device, spans([20, 20, 20, 20]), threads=1)
    upload.begin()
    for arrived in range(16):
        sent = min(16, arrived + 2)
        device.until(sent, marked=list(range(sent // 4)))
        device.let()
    upload.finish()
    device.close()


class Held(Device):
    """Copies one piece each time that it is let."""

    def __init__(self, source: bytes, slots: int, slot_bytes: int) -> None:
        self._let = threading.Semaphore(0)
        self.sent = 0
        super().__init__(source, slots, slot_bytes)

    def let(self) -> None:
        self._let.release()

    def until(self, sent: int, marked: list[int]) -> None:
        with self._change:
            assert self._change.wait_for(lambda: (self.sent, self.marked) == (sent, marked), PATIENCE_S)

    def mark(self, layer: int) -> None:
        with self._change:
            super().mark(layer)
            self._change.notify_all()

    def send(self, slot: int, piece: Span) -> None:
        super().send(slot, piece)
        with self._change:
            self.sent += 1
            self._change.notify_all()

    def drained(self, slot: int) -> None:
        assert self._let.acquire(timeout=PATIENCE_S)
        super().drained(slot)


def test_the_slots_are_given_back_when_nothing_is_under_way_any_more() -> None:
    for cancelled in (False, True):
        device = Held(content(40), slots=2, slot_bytes=5)
        upload = Uploader(device, spans([40]), threads=1)
        upload.begin()
        device.until(2, marked=[])
        if cancelled:
            upload.cancel()
        for _ in range(8):
            device.let()
        with pytest.raises(UploadError) if cancelled else nullcontext():
            upload.finish()
        assert device.closed
        assert not device._flying


def test_who_waits_for_a_layer_is_woken_by_an_error() -> None:
    device = Device(content(100), 1, 10)
    device.fails["stage"] = 4
    upload = Uploader(device, [Span(0, 100)], threads=1)
    told: list[str] = []

    def wait() -> None:
        try:
            upload.wait(0)
        except UploadError as error:
            told.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    upload.begin()
    waiter.join(PATIENCE_S)
    with pytest.raises(UploadError):
        upload.finish()
    device.close()
    assert told == ["layer 0 was not uploaded: stage failed"]


def test_an_upload_that_is_cancelled_ends_with_what_is_under_way() -> None:
    device = Device(content(1000), 2, 1)
    upload = Uploader(device, [Span(0, 1000)])
    upload.cancel()
    upload.begin()
    with pytest.raises(UploadError, match="cancelled"):
        upload.finish()
    device.close()
    assert not device.marked


def test_an_upload_that_never_began_can_be_finished() -> None:
    device = Device(content(10), 1, 10)
    upload = Uploader(device, [Span(0, 10)])
    upload.cancel()
    with pytest.raises(UploadError):
        upload.finish()
    device.close()


def test_the_time_is_from_beginning_to_end() -> None:
    times = iter([10.0, 12.5])
    device = Device(content(10), 1, 10)
    upload = Uploader(device, [Span(0, 10)], clock=lambda: next(times))
    upload.begin()
    assert upload.finish() == 2.5
    device.close()
