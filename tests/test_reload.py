"""The files are read again while requests go on: what is well comes into force, what is not changes nothing."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import orjson
import pytest

from edgeproxy.access.keys import Keys, add_key
from edgeproxy.app import build
from edgeproxy.config_file import load
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.protocol.openai.sse import SseParser
from edgeproxy.reload import Reload
from edgeproxy.upstream.launch import Launcher
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.probe import Prober
from edgeproxy.wire.certificates import Certificates
from edgeproxy.wire.tls import make_dev_certificate
from tests.fake_exchange import ANSWER, STREAM
from tests.fake_node import FakeNode
from tests.gateway.drive import Lines, ask, begin, chat


@dataclass
class Served:
    app: AsgiApp
    admin: AsgiApp
    fleet: Fleet
    reload: Reload
    status: ReloadStatus
    file: Path
    said: list[str]
    changed: asyncio.Event

    def node(self, name: str) -> Node:
        return next(node for node in self.fleet.nodes if node.name == name)

    async def until_ready(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while not all(node.ready for node in self.fleet.nodes if node.name in names):
                self.changed.clear()
                await self.changed.wait()


def regions(*nodes: FakeNode, more: str = "") -> str:
    lines = [
        f"  r{number}:\n    nodes:\n      - {{url: '{node.url}', models: [ok, slow, role-then-stall]}}"
        for number, node in enumerate(nodes)
    ]
    return "\n".join([more, "regions:", *lines, ""])


def write(path: Path, text: str) -> None:
    """As editors do: a new file takes the old one's place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@asynccontextmanager
async def served(folder: Path, text: str, certificates: Certificates | None = None) -> AsyncIterator[Served]:
    file = folder / "regions.yaml"
    write(file, text)
    config = load(file)
    said: list[str] = []
    changed = asyncio.Event()
    launcher = Launcher(config, "t", logging.getLogger("test"))
    fleet = Fleet.from_config(config, token="t", origins=launcher.origins)
    keys, status, lines = Keys(config.keys), ReloadStatus(1.0), Lines(folder)
    app, admin, _ = build(config, fleet, keys, lines.log, Random(1), 1, status)
    prober = Prober(fleet, rng=Random(1), changed=lambda node: changed.set())
    reload = Reload(config, fleet, launcher, prober, keys, "t", said.append, status, certificates)
    tasks = [asyncio.create_task(work) for work in (launcher.run(), prober.run(), reload.watch(0.01))]
    try:
        found = Served(app, admin, fleet, reload, status, file, said, changed)
        await found.until_ready(*(node.name for node in fleet.nodes))
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        fleet.close()
        lines.close()


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for is told by no event
            await asyncio.sleep(0.005)


async def test_a_node_that_is_new_serves_and_one_that_stays_keeps_what_is_known(tmp_path: Path) -> None:
    async with FakeNode() as one, FakeNode() as two, served(tmp_path, regions(one)) as s:
        kept = s.node("r0-1")
        write(s.file, regions(one, two))
        await until(lambda: s.status.reloads == 1)
        assert s.node("r0-1") is kept
        assert kept.ready
        assert kept.rtt.srtt is not None
        await s.until_ready("r1-1")
        await one.stop()
        assert (await ask(s.app, chat("ok"))).body == ANSWER
        assert "new: r1-1" in s.said[-1]


async def test_a_node_with_another_price_or_turn_keeps_what_is_known_of_it(tmp_path: Path) -> None:
    async with FakeNode() as one, FakeNode() as two, served(tmp_path, regions(one, two)) as s:
        await ask(s.app, chat("ok"))
        nodes = s.fleet.nodes
        learnt = [node.outlook.pace.samples for node in nodes]
        assert any(learnt)
        settings = regions(one, two).replace("models:", "price_per_hour: 2.5, standby: true, models:", 1)
        write(s.file, settings)
        await until(lambda: s.status.reloads == 1)
        assert s.fleet.nodes == nodes
        assert [node.outlook.pace.samples for node in nodes] == learnt
        assert all(node.pool.idle for node in nodes)
        assert (nodes[0].config.price_per_hour, nodes[0].standby) == (2.5, True)
        assert "kept, with other settings: r0-1" in s.said[-1]
        host = {"host": "127.0.0.1:9080"}
        metrics = (await ask(s.admin, method="GET", path="/metrics", headers=host)).body
        assert b'edgeproxy_node_price_per_hour{node="r0-1",region="r0"} 2.5' in metrics
        asked = len(two.chats)
        await ask(s.app, chat("ok"))
        assert len(two.chats) == asked + 1, "the other stands by"


async def test_a_region_is_where_the_file_last_said(tmp_path: Path) -> None:
    async with FakeNode() as one, FakeNode() as two, served(tmp_path, regions(one)) as s:
        assert s.fleet.locations == {}
        write(s.file, regions(one, two).replace("  r1:\n", "  r1:\n    location: [50.1, 8.7]\n"))
        await until(lambda: s.status.reloads == 1)
        assert s.fleet.locations == {"r1": (50.1, 8.7)}


async def test_a_new_certificate_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    files = make_dev_certificate(tmp_path / "tls")
    certificates = Certificates(files.certificate, files.key)
    async with FakeNode() as one, served(tmp_path, regions(one), certificates) as s:
        new = make_dev_certificate(tmp_path / "new", datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
        write(files.key, new.key.read_text())
        await until(lambda: s.status.failures == 1)
        assert str(files.certificate) in (s.status.error or "")
        assert certificates.not_after == files.not_after.timestamp()
        write(files.certificate, new.certificate.read_text())
        await until(lambda: s.status.reloads == 1)
        assert s.status.certificate_not_after == new.not_after.timestamp()
        assert s.said[-1].startswith("reloaded: certificate (until ")


async def test_a_node_that_is_gone_ends_what_it_has_begun(tmp_path: Path) -> None:
    async with FakeNode() as one, FakeNode() as two, served(tmp_path, regions(one, two)) as s:
        gone = s.node("r0-1")
        exchange = begin(s.app, chat("slow", stream=True))
        await one.until(lambda: len(one.chats) == 1)
        write(s.file, regions(two).replace("r0:", "r1:"))
        await until(lambda: s.status.reloads == 1)
        assert [node.name for node in s.fleet.nodes] == ["r1-1"]
        assert (await ask(s.app, chat("ok"))).body == ANSWER
        assert len(two.chats) == 1
        assert gone.pool.busy
        one.gate.set()
        assert (await exchange.done()).body == STREAM
        await until(lambda: not gone.pool.idle)
        probes = len(one.requests)
        await asyncio.sleep(0.05)
        assert len(one.requests) == probes, "nobody asks for a node that is gone"


@pytest.mark.parametrize(
    ("broken", "remedy"),
    [
        ("regions: [", "not valid YAML"),
        ("regions: {}\n", "name at least one entry"),
        ("regionz: {}\n", "did you mean 'regions'"),
        (
            "regions:\n  a:\n    nodes:\n      - {url: 'http://127.0.0.1:1', models: [m], api_key_env: NOT_SET_X}\n",
            "export",
        ),
    ],
)
async def test_a_broken_file_keeps_what_was_in_force_and_says_why(tmp_path: Path, broken: str, remedy: str) -> None:
    async with FakeNode() as one, served(tmp_path, regions(one)) as s:
        nodes = s.fleet.nodes
        write(s.file, broken)
        await until(lambda: s.status.failures == 1)
        assert s.fleet.nodes is nodes
        assert (await ask(s.app, chat("ok"))).body == ANSWER
        assert remedy in s.said[-1]
        host = {"host": "127.0.0.1:9080"}
        shown = (await ask(s.admin, method="GET", path="/admin/status", headers=host)).json["configuration"]
        assert remedy in shown["error"]
        feed = begin(s.admin, method="GET", path="/admin/events", headers=host)
        await feed.until(lambda seen: seen.body.count(b"\n\n") >= 2)
        feed.leave()
        await feed.done()
        (event,) = [event for event in SseParser().feed(feed.body) if event.data]
        assert remedy in orjson.loads(event.data)["verdict"]["text"]
        metrics = (await ask(s.admin, method="GET", path="/metrics", headers=host)).body
        assert b"edgeproxy_config_stale 1.0" in metrics
        assert b'edgeproxy_config_reloads_total{outcome="refused"} 1.0' in metrics
        write(s.file, regions(one))
        await until(lambda: s.status.reloads == 1)
        assert s.status.error is None


async def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    async with FakeNode() as one, served(tmp_path, regions(one)) as s:
        s.file.unlink()
        await until(lambda: s.status.failures == 1)
        assert (await ask(s.app, chat("ok"))).body == ANSWER


async def test_keys_are_withdrawn_even_while_the_other_file_is_broken(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    first = add_key(keys, "acme", disclose=False, admin=False, regions=())
    async with FakeNode() as one, served(tmp_path, regions(one, more="keys: keys.yaml")) as s:
        bearer = {"authorization": f"Bearer {first}"}
        assert (await ask(s.app, chat("ok"), headers=bearer)).status == 200
        keys.unlink()
        add_key(keys, "other", disclose=False, admin=False, regions=())
        write(s.file, "regions: [")
        s.reload.now()
        assert (await ask(s.app, chat("ok"), headers=bearer)).status == 401
        assert s.status.error is not None


async def test_a_file_that_is_being_written_is_left_to_settle(tmp_path: Path) -> None:
    """Half of a file may be a sound configuration, of half the regions."""
    async with FakeNode() as one, FakeNode() as two, served(tmp_path, regions(one, two)) as s:
        text = regions(one, two, more="budget_ms: 99")
        half = text[: text.index("  r1:")]
        task = asyncio.create_task(s.reload.watch(0.0))
        for number in range(20):
            s.file.write_text(half + "#" * number)  # another size at each look
            await asyncio.sleep(0)
        s.file.write_text(text)
        await until(lambda: s.status.needs_restart == ("budget_ms",))
        assert len(s.fleet.nodes) == 2
        assert not any("gone" in said for said in s.said)
        task.cancel()


async def test_what_needs_a_new_start_is_said(tmp_path: Path) -> None:
    async with FakeNode() as one, served(tmp_path, regions(one)) as s:
        write(s.file, regions(one, more="budget_ms: 99\nlisten: {http: '127.0.0.1:1'}"))
        await until(lambda: s.status.reloads == 1)
        assert s.status.needs_restart == ("listen", "budget_ms")
        assert "at the next start only: listen, budget_ms" in s.said[-1]


async def test_a_model_that_is_new_is_listed(tmp_path: Path) -> None:
    async with FakeNode() as one, served(tmp_path, regions(one)) as s:
        write(s.file, regions(one).replace("ok,", "ok, brand-new,"))
        await until(lambda: s.status.reloads == 1)
        models = await ask(s.app, method="GET", path="/v1/models")
        assert "brand-new" in [model["id"] for model in orjson.loads(models.body)["data"]]


async def test_a_relay_comes_and_goes_with_its_region(tmp_path: Path) -> None:
    async with FakeNode() as one, served(tmp_path, regions(one)) as s:
        write(s.file, regions(one).replace("  r0:\n", "  r0:\n    relay: {delay_ms: 5}\n"))
        await until(lambda: s.status.reloads == 1)
        await s.until_ready("r0-1")
        assert (s.node("r0-1").rtt.srtt or 0.0) >= 0.004
        assert (await ask(s.app, chat("ok"))).body == ANSWER
