from __future__ import annotations

import asyncio

from edgeproxy.wire.stall import BodyPace, StallWatch


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


def slow(*octets: int) -> list[bool]:
    """So many each second, in windows of 3 s of which each must bring 30."""
    pace = BodyPace(3, 10)
    pace.begin(0)
    verdicts = []
    for second, count in enumerate(octets, 1):
        if count:
            pace.arrived(count, second)
        verdicts.append(pace.too_slow(second))
    return verdicts


def test_a_body_at_its_least_pace_or_above_is_waited_for() -> None:
    assert not any(slow(*[10] * 10))
    assert not any(slow(30, 0, 0, 30, 0, 0, 30, 0))


def test_a_body_that_comes_an_octet_at_a_time_is_too_slow() -> None:
    assert slow(1, 1, 1) == [False, False, True]


def test_a_body_that_came_fast_and_then_drips_is_too_slow() -> None:
    assert slow(1000, 0, 0, 1, 1, 1) == [False] * 5 + [True]


def test_a_body_of_which_nothing_comes_is_too_slow_wherever_the_window_stands() -> None:
    assert slow(50, 50, 50, 50, 0, 0, 0) == [False] * 6 + [True]


def test_what_is_not_waited_for_is_never_too_slow() -> None:
    pace = BodyPace(3, 10)
    assert not pace.too_slow(100)
    pace.begin(100)
    pace.end()
    assert not pace.too_slow(200)
