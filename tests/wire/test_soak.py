"""Ten minutes of mixed load: nothing grows, and nothing is left at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import monotonic

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client import h3_peer
from tests.wire import h2_client, raw
from tests.wire.apps import read_body
from tests.wire.talkers import Listening, listen

pytestmark = pytest.mark.long
SOAK_S = float(os.environ.get("SOAK_S", "600"))
OBJECTS, RESIDENT = 1.05, 1.3
"""How much more there may be at the end than after the first fifth. Objects tell a leak at once; the memory of the
process grows a little as long as the allocator still spreads out."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Echoes in pieces; fails or dawdles where the path asks for it."""
    body = await read_body(receive)
    if scope["path"] == "/fail":
        raise ZeroDivisionError
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for start in range(0, len(body), 4096):
        await send({"type": "http.response.body", "body": body[start : start + 4096], "more_body": True})
        if scope["path"] == "/slow":
            await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b""})


async def visit(listening: Listening, rng: random.Random) -> None:
    """One client: some requests, some of them given up, and it leaves."""
    client = await listening.connect()
    for _ in range(rng.randrange(1, 8)):
        path = rng.choice(["/", "/", "/slow", "/fail"])
        body = rng.randbytes(rng.choice([0, 100, 20_000]))
        await client.ask("POST", path, ("content-length", str(len(body))), end=not body)
        if body:
            await client.send(body, end=True)
        if rng.random() < 0.2:
            await client.leave()
            return
        found = await client.answer()
        assert found.status == (500 if path == "/fail" else 200)
        if path == "/fail":
            return  # h1 closes the connection then
        assert found.body == body


async def visitors(name: str, certificate: DevCertificate, seed: int, until: float) -> int:
    rng, visits = random.Random(seed), 0
    async with AsyncExitStack() as stack:
        listening = await listen(stack, name, certificate, app, Limits(cancel_grace_s=0, tickets=64))
        while monotonic() < until:
            with suppress(ConnectionError):
                await visit(listening, rng)
            visits += 1
            await listening.forget()
    return visits


def resident() -> int:
    gc.collect()
    return int((Path("/proc/self/statm").read_text()).split()[1])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the test itself collects of the log would grow. It may run at the lowest priority beside other work, where a
    visit has been seen to take 18 s: only what never ends is a hang."""
    for client in (raw, h2_client, h3_peer):
        monkeypatch.setattr(client, "PATIENCE_S", 120.0)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def test_ten_minutes_of_mixed_load_leave_memory_flat(quiet: None, certificate: DevCertificate) -> None:
    before = asyncio.all_tasks()
    for seconds in (SOAK_S / 5, SOAK_S * 4 / 5):
        until = monotonic() + seconds
        names = [(name, seed) for seed, name in enumerate(("h1", "h2", "h3") * 3)]
        visits = await asyncio.gather(*(visitors(name, certificate, seed, until) for name, seed in names))
        assert min(visits) > 0
        if seconds == SOAK_S / 5:
            early, objects = resident(), len(gc.get_objects())
    assert resident() <= early * RESIDENT
    assert len(gc.get_objects()) <= objects * OBJECTS
    assert asyncio.all_tasks() == before
