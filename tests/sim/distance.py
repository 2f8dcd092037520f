"""A raw server behind a relay."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from edgeproxy.sim.relay import Relay
from tests.upstream.raw import RawServer, Script, raw_server, until


@contextlib.asynccontextmanager
async def distance(script: Script, delay_s: float) -> AsyncIterator[tuple[RawServer, Relay]]:
    async with raw_server(script) as server:
        relay = Relay("127.0.0.1", server.port, delay_s)
        await relay.start("127.0.0.1", 0)
        try:
            yield server, relay
        finally:
            relay.kill()
            await until(lambda: not relay.sides and not relay.connecting)
