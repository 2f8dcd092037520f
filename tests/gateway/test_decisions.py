"""A page is told of each request the node that it did not go to, and only these are looked up."""

from __future__ import annotations

from pathlib import Path

from edgeproxy.gateway.decisions import KEPT, Decisions
from edgeproxy.observe.rings import Kind
from edgeproxy.routing.choose import Decision, Wanted
from edgeproxy.routing.home import Home
from edgeproxy.upstream.node import Node
from tests.gateway.drive import ask, chat, edge
from tests.observe.records import record


async def test_runners_up_are_those_of_the_decisions(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for number in range(3):
            await ask(e.app, chat("ok"), headers={"x-request-id": f"r{number}"})
        await ask(e.app, chat("near-only"), headers={"x-request-id": "alone"})
        recent = (await ask(e.admin, method="GET", path="/admin/status")).json["recent"]
        decisions = (await ask(e.admin, method="GET", path="/admin/decisions")).json["decisions"]
        expected = {one["request_id"]: one["runner_up"] for one in decisions}
        assert {one["request_id"]: one["runner_up"] for one in recent} == expected
        assert expected["r0"]["node"] == "far-1"
        assert expected["alone"] is None


def test_an_answered_request_is_explained_as_long_however_many_are_refused() -> None:
    made = Decision[Node]([], None, [], "home", Wanted(50.0), Home(()), 0.0)
    decisions = Decisions()
    record_of = {"tenant": "", "hedge": None, "resumed_on": ()}
    decisions.add(Kind.ANSWERED, made, record(request_id="mine", **record_of))
    for number in range(KEPT + 1):
        refused = record(request_id=f"no-{number}", first_token_s=None, status=400, **record_of)
        decisions.add(Kind.REFUSED, made, refused)
    assert decisions.of("mine") is not None and decisions.of("no-0") is None
    assert [one["request_id"] for one in decisions.latest(2)] == [f"no-{KEPT}", f"no-{KEPT - 1}"]
