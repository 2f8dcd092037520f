from __future__ import annotations

import asyncio

from edgeproxy.wire.stall import StallWatch


class Queue(asyncio.WriteTransport):
    size = 0

    def get_write_buffer_size(self) -> int:
        return self.size


def stalls(*sizes: int) -> list[bool]:
    """Asked once a second, with a limit of 3 s."""
    queue = Queue()
    watch = StallWatch(queue, 3)
    verdicts = []
    for second, queue.size in enumerate(sizes):
        verdicts.append(watch.stalled(float(second)))
    return verdicts


def test_a_queue_that_does_not_shrink_has_stalled_after_the_limit() -> None:
    assert stalls(9, 9, 9, 9, 9) == [False, False, False, True, True]


def test_a_queue_that_only_grows_has_stalled_too() -> None:
    assert stalls(1, 2, 3, 4) == [False, False, False, True]


def test_any_progress_starts_the_time_anew() -> None:
    assert stalls(9, 9, 9, 8, 8, 8, 8) == [False] * 6 + [True]


def test_an_empty_queue_never_stalls_however_long_nothing_is_written() -> None:
    assert stalls(0, 0, 0, 0, 0, 0, 5, 5) == [False] * 8
