from __future__ import annotations

from edgeproxy.routing.affinity import Sessions


def test_the_last_node_of_a_session_is_remembered_and_the_oldest_session_is_forgotten() -> None:
    sessions = Sessions(most=2)
    sessions.served(1, 10)
    sessions.served(2, 20)
    sessions.served(1, 11)
    sessions.served(3, 30)
    assert [sessions.slot(key) for key in (1, 2, 3)] == [11, None, 30]
    assert len(sessions) == 2
