"""A node that gives no sign of life costs a request its time once: then it is answered elsewhere, or told why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_exchange import ANSWER, STREAM
from tests.gateway.drive import Edge, begin, chat, edge


async def falls_silent(e: Edge, model: str = "nothing") -> None:
    """The near node, once the request is there."""
    await e.near.until(lambda: e.near.seen.get(model) == 1)
    assert e.fleet.nodes[0].give_back("silent while requests waited") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_given_back_is_answered_by_the_next_node(tmp_path: Path, stream: bool) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["nothing"] = "ok"
        reply = begin(e.app, chat("nothing", stream=stream))
        await falls_silent(e)
        await reply.done()
        assert (reply.status, reply.body) == (200, STREAM if stream else ANSWER)
        assert e.lines.requests[0]["failures"] == ["near-1: silent"]


@pytest.mark.parametrize("stream", [False, True])
async def test_with_all_nodes_silent_a_request_is_told_so_and_waits_at_no_other(tmp_path: Path, stream: bool) -> None:
    async with edge(tmp_path) as e:
        e.fleet.nodes[1].down("no answer to a probe", silent=True)
        reply = begin(e.app, chat("nothing", stream=stream))
        await falls_silent(e)
        await reply.done()
        assert (reply.status, reply.error["code"]) == (504, "upstream_failed")
        assert "fell silent" in reply.error["message"]
        assert reply.header(b"retry-after") == b"1"
        assert not e.far.chats
        assert e.in_flight == 0


async def test_a_request_pinned_to_the_region_of_a_silent_node_is_told_so(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = begin(e.app, chat("nothing"), headers={"x-edge-region": "near"})
        await falls_silent(e)
        await reply.done()
        assert (reply.status, reply.error["code"]) == (504, "upstream_failed")
        assert not e.far.chats


async def test_a_node_that_answers_probes_again_is_silent_no_more(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        node = e.fleet.nodes[0]
        node.give_back("silent while requests waited")
        assert (node.ready, node.silent, node.silences) == (False, True, 0), "nothing waited there"
        node.up(1.0)
        assert (node.ready, node.silent) == (True, False)
