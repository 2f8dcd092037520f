"""A proxy whose two regions are far away: each fake node behind a relay that delays, jitters, swallows or resets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.sim.relay import Relay
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.probe import ProbeLimits, Prober
from edgeproxy.upstream.vigil import Vigil, VigilLimits
from tests.fake_node import FakeNode
from tests.gateway.drive import Lines, config

PROBES = ProbeLimits(near_s=0.05, far_s=0.05, settling_s=0.02, timeout_s=0.3, first_retry_s=0.05, last_retry_s=0.1)

VIGIL = VigilLimits(tick_s=0.02)


@dataclass
class Region:
    fake: FakeNode
    relay: Relay
    node: Node

    def swallow(self) -> None:
        """Nothing arrives any more in either direction, and no connection ends: a blackhole, and to either side a peer
        that is half open."""
        self.relay.stall()


@dataclass
class Wan:
    app: AsgiApp
    near: Region
    far: Region
    lines: Lines
    changed: asyncio.Event

    async def until(self, node: Node, *, ready: bool) -> None:
        async with asyncio.timeout(15):
            while node.ready is not ready:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def wan(
    folder: Path, delays_ms: tuple[float, float], limits: GatewayLimits, probes: ProbeLimits = PROBES
) -> AsyncIterator[Wan]:
    """Probes run, quickly. Both regions are ready, and the near one is home."""
    async with FakeNode() as near, FakeNode() as far:
        relays = [Relay("127.0.0.1", fake.port, ms / 1e3) for fake, ms in zip((near, far), delays_ms, strict=True)]
        for relay in relays:
            await relay.start("127.0.0.1", 0)
        urls = [f"http://127.0.0.1:{relay.port}" for relay in relays]
        settings = config(urls[0], urls[1], limits)
        fleet = Fleet.from_config(settings, token="t")
        lines, changed = Lines(folder), asyncio.Event()
        app, *_ = build(settings, fleet, Keys(), lines.log, Random(1), 1)
        prober = Prober(fleet, rng=Random(1), changed=lambda node: changed.set(), limits=probes)
        vigil = Vigil(fleet, limits=VIGIL)
        watching = [asyncio.create_task(work.run()) for work in (prober, vigil)]
        first, second = fleet.nodes
        found = Wan(app, Region(near, relays[0], first), Region(far, relays[1], second), lines, changed)
        try:
            for node in fleet.nodes:
                await found.until(node, ready=True)
            yield found
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            fleet.close()
            for relay in relays:
                relay.kill()
            lines.close()
