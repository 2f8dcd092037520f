"""A proxy that starts tells what it waits for, and is announced when it can serve."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from edgeproxy.readiness import until_ready


@dataclass
class Node:
    name: str
    ready: bool = False
    trouble: str = "connection refused"


class Start:
    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self.changed, self.stop, self.heard = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)
        self.heard.set()

    def run(self, *, late_s: float = 60.0, others_s: float = 60.0) -> asyncio.Task[None]:
        waiting = until_ready(lambda: self.nodes, self.changed, self.stop, self.say, late_s=late_s, others_s=others_s)
        return asyncio.create_task(waiting)

    def up(self, node: Node) -> None:
        node.ready = True
        self.changed.set()


async def test_where_all_are_ready_nobody_waits_and_nothing_is_said() -> None:
    start = Start(Node("a", ready=True), Node("b", ready=True))
    await start.run()
    assert start.said == []


async def test_a_start_without_any_ready_node_says_why_once_and_goes_on_waiting() -> None:
    first, second = Node("a", trouble="no certificate"), Node("b")
    start = Start(first, second)
    waiting = start.run(late_s=0.01, others_s=0.0)
    await start.heard.wait()
    await asyncio.sleep(0.05)
    assert start.said == ["a: not ready: no certificate", "b: not ready: connection refused"]
    assert not waiting.done()
    start.up(first)
    await waiting
    assert len(start.said) == 2


async def test_another_trouble_is_said_too() -> None:
    node = Node("a")
    start = Start(node)
    waiting = start.run(late_s=0.01, others_s=0.0)
    await start.heard.wait()
    start.heard.clear()
    node.trouble = "it answers 401"
    await start.heard.wait()
    start.up(node)
    await waiting
    assert start.said == ["a: not ready: connection refused", "a: not ready: it answers 401"]


async def test_who_is_not_ready_with_the_first_is_named_when_the_proxy_is_announced() -> None:
    start = Start(Node("a", ready=True), Node("b"))
    await start.run(others_s=0.0)
    assert start.said == ["b: not ready: connection refused"]


async def test_a_proxy_that_is_to_stop_says_nothing_more() -> None:
    start = Start(Node("a"))
    waiting = start.run()
    start.stop.set()
    await waiting
    assert start.said == []
