"""A page is told of each request the node that it did not go to, and only these are looked up."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.drive import ask, chat, edge


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
