from __future__ import annotations

from edgeproxy.routing.hold import Held, Room


def test_a_node_that_turns_cold_takes_the_best_it_may_serve() -> None:
    room = Room()
    elsewhere = Held({2}, 9.0, arrival=0.0)
    late = Held({1, 2}, 9.0, arrival=2.0)
    early = Held({1}, 9.0, arrival=1.0)
    pressing = Held({1}, 9.0, arrival=3.0, deadline=4.0)
    urgent = Held({1}, 9.0, arrival=4.0, priority=-1)
    for held in (elsewhere, late, early, pressing, urgent):
        assert room.enter(held)
    assert [room.take(1) for _ in range(5)] == [urgent, pressing, early, late, None]
    assert room.take(2) is elsewhere
    assert len(room) == 0


def test_those_whose_time_is_over_leave() -> None:
    room = Room()
    short, long = Held({1}, 1.0, arrival=0.0), Held({1}, 2.0, arrival=0.0)
    room.enter(short)
    room.enter(long)
    assert room.due(0.9) == []
    assert room.due(1.0) == [short]
    room.leave(short)
    room.leave(long)
    assert room.take(1) is None


def test_the_room_is_bounded() -> None:
    room = Room(most=2)
    assert [room.enter(Held({1}, 9.0, arrival=float(i))) for i in range(3)] == [True, True, False]
