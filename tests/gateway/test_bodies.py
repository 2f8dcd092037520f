"""What all bodies take together has a limit, one client has a part of it, and what is over is given back."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.bodies import FREE_BYTES, Bodies, trim
from edgeproxy.protocol.openai.errors import ApiError
from tests.gateway.drive import ask, chat, edge

LONG = 2 * FREE_BYTES


def refused(bodies: Bodies, client: str, size: int = LONG) -> bool:
    with closing(bodies.room(client)) as room:
        try:
            room.cover(size)
        except ApiError as error:
            assert (error.status, error.headers) == (503, ((b"retry-after", b"1"),))
            return True
        return False


def test_a_client_has_half_and_leaves_the_rest_to_others() -> None:
    bodies = Bodies(4 * LONG)
    with ExitStack() as stack:
        for client in ("a", "a", "b"):
            stack.enter_context(closing(bodies.room(client))).cover(LONG)
        assert refused(bodies, "a")
        assert not refused(bodies, "b")
        stack.enter_context(closing(bodies.room("c"))).cover(LONG)
        assert refused(bodies, "d")
    assert bodies.held == 0
    assert not refused(bodies, "a")


def test_a_body_that_grows_is_counted_once_and_one_that_was_announced_can_end() -> None:
    bodies = Bodies(4 * LONG)
    with closing(bodies.room("a")) as room:
        room.cover(LONG)
        for size in (1, FREE_BYTES, LONG - 1, LONG):
            room.cover(size)
        assert bodies.held == LONG
        room.cover(2 * LONG)
        assert bodies.held == 2 * LONG
        with pytest.raises(ApiError):
            room.cover(2 * LONG + 1)
    assert bodies.held == 0


def test_short_bodies_are_never_refused() -> None:
    bodies = Bodies(0)
    assert not refused(bodies, "a", FREE_BYTES)
    assert refused(bodies, "a", FREE_BYTES + 1)


def test_giving_memory_back_to_the_system_works_wherever_it_is_known() -> None:
    trim()


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_finds_no_room_is_told_to_come_again(tmp_path: Path, announced: bool) -> None:
    async with edge(tmp_path, GatewayLimits(bodies_bytes=2 * LONG)) as e:
        pieces = [b" " * LONG, b" "]
        reply = await ask(e.app, pieces=pieces, headers={"content-length": str(LONG + 1)} if announced else {})
        assert (reply.status, reply.error["code"]) == (503, "too_many_bytes")
        assert (await ask(e.app, chat("ok"))).status == 200
        assert e.near.seen.get("ok") == 1
