"""The nodes of the configuration, alive: each with its pool, round trip, breaker and last word about itself."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

import msgspec

from edgeproxy.config import Config, ConfigError, GatewayLimits, NodeConfig, NodeTls
from edgeproxy.protocol.json_edit import members, written
from edgeproxy.protocol.node.instruments import Instruments
from edgeproxy.protocol.node.report import REPORT_HEADER, TOKEN_HEADER, NodeReport, NodeState, decode
from edgeproxy.protocol.node.resume import STREAM_HEADER
from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.evictions import Evictions
from edgeproxy.routing.forecast import Outlook
from edgeproxy.routing.home import Home
from edgeproxy.routing.load import Occupancy
from edgeproxy.routing.prefix import PrefixView
from edgeproxy.upstream.h1 import Pool, PoolLimits
from edgeproxy.upstream.origin import Origin, parse
from edgeproxy.upstream.salts import Salts
from edgeproxy.upstream.tls import node_context

STUCK_S = 10.0
"""Sequences run and no step for so long: the engine hangs, whatever its health endpoint says. A step takes ~10 ms."""


class Node:
    """One node. `ready` is the prober's verdict; `in_flight` is counted by whoever sends."""

    def __init__(
        self, config: NodeConfig, region: str, pool: Pool, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """`headers`: credentials that every request to this node carries."""
        self.configure(config)
        self.name = config.name
        self.region = region
        self.pool = pool
        self.headers = tuple(headers)
        self.chat_headers = (*self.headers, (STREAM_HEADER, b"1")) if config.kind == "native" else self.headers
        """Of a chat request: a native node is asked for what a resume of its stream needs."""
        self.outlook = Outlook()
        self.rtt = self.outlook.rtt
        self.native = config.kind == "native"
        self.breaker = Breaker()
        self.slot = 0
        """Its number in the fleet's prefix view."""
        self.epoch = 0
        """How often it was started anew, as far as was seen: what it held is lost then."""
        self.evictions = Evictions()
        """What its feed tells; of native nodes."""
        self.draining = False
        """It has said so: it ends what it has begun and takes nothing new."""
        self.report: NodeReport | None = None
        self.instruments: Instruments | None = None
        """What it measures of itself, for people; of native nodes, while they answer."""
        self.context: int | None = None
        """Most tokens of one request on a foreign node; 0 where it does not say, None before it was asked."""
        self.ready = False
        self.ready_since = -inf
        self.trouble = "not probed yet"
        """Why it is not ready, for people; empty while it is."""
        self.silent = False
        """It is not ready because it gives no sign of life: a request there would only wait."""
        self.silences = 0
        """How often what waited there was given back for that."""
        self.in_flight = 0
        self.alarm = asyncio.Event()
        """Set to have it probed now."""
        self._step = -1
        self._step_since = -inf

    def configure(self, config: NodeConfig) -> None:
        """`config`: of the very same node (`_identity`). What is known of it stays."""
        self.config = config
        self.standby = config.standby
        """Serves only while no other node is fit."""

    def observe(self, headers: Iterable[tuple[bytes, bytes]], now: float) -> None:
        """Takes the node's report from an answer's headers. A report that cannot be read counts as none."""
        for name, value in headers:
            if name == REPORT_HEADER:
                try:
                    report = decode(value)
                except ValueError:
                    return
                self.report = report
                self._take(report, now)
                if report.step_counter != self._step or not report.running:
                    self._step, self._step_since = report.step_counter, now
                return

    @property
    def numerics(self) -> str | None:
        """Equal on nodes that continue each other's streams exactly; None where it is not known."""
        if self.config.kind != "native" or self.report is None:
            return None
        return self.report.numerics or None

    def body(self, body: bytes) -> bytes:
        """A client's request with the model as this node calls it; as it came where that is the same. Raises ApiError
        400 where it is nested too deeply for that."""
        if not self.config.names:
            return body
        value = members(body)
        value["model"] = msgspec.Raw(written(self.config.name_of(msgspec.json.decode(value["model"], type=str))))
        return written(value)

    def _take(self, report: NodeReport, now: float) -> None:
        if report.step_counter < self._step:
            self.epoch += 1
        self.draining = report.state is NodeState.DRAINING
        free = (report.kv_blocks_free + report.kv_blocks_evictable) * report.block_tokens
        told = Occupancy(report.running, report.waiting, report.waiting_prefill_tokens, free)
        self.outlook.reported(told, now, report.prefill_tokens_per_s)

    def stuck(self, now: float) -> bool:
        """Its last report runs sequences, and no step was made since a report STUCK_S ago."""
        return self.report is not None and self.report.running > 0 and now - self._step_since > STUCK_S

    def up(self, now: float) -> None:
        if not self.ready:
            self.ready_since = now
            if self.report is None:  # it cannot say whether it has been started anew, so it has
                self.epoch += 1
        self.ready, self.silent, self.trouble = True, False, ""

    def down(self, trouble: str, *, silent: bool = False) -> None:
        """No more requests until a probe succeeds. If it was thought well, one is made at once."""
        if self.ready:
            self.alarm.set()
            self.instruments = None  # who still answers, while it drains, is asked again
        self.ready, self.silent, self.trouble = False, silent, trouble

    def give_back(self, trouble: str) -> int:
        """It has fallen silent: what waits there is tried elsewhere. Returns how many that are, probes among them."""
        self.down(trouble, silent=True)
        given = self.pool.give_back(trouble)
        self.silences += given > 0
        return given


Locations = dict[str, tuple[float, float]]
"""The regions that have one: degrees north and east."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The nodes of another configuration, and what it says of each."""

    nodes: tuple[Node, ...]
    settings: tuple[NodeConfig, ...]
    locations: Locations

    @property
    def changed(self) -> tuple[Node, ...]:
        """Those that stay, and of which something else is said."""
        return tuple(node for node, config in zip(self.nodes, self.settings, strict=True) if node.config != config)


class Fleet:
    """All nodes, in the operator's order."""

    def __init__(self, nodes: Iterable[Node], salts: Salts | None = None) -> None:
        self.salts = salts or Salts(secrets.token_bytes(32))
        self.prefixes = PrefixView()
        self.home = Home(())
        self.nodes: tuple[Node, ...] = ()
        self.regions: tuple[str, ...] = ()
        self.locations: Locations = {}
        self.models: tuple[str, ...] = ()
        """Model ids in file order, without the patterns."""
        self.continues = False
        """Some node goes on with a stream from its text."""
        self.replace(nodes)

    @classmethod
    def from_config(cls, config: Config, *, token: str, origins: Mapping[str, Origin] | None = None) -> Fleet:
        """`token` goes to native nodes only; `origins`: node name -> where to connect instead of its url (relays).

        Raises ConfigError where a node's url or key cannot be used.
        """
        fleet = cls(_nodes(config, token, origins or {}), Salts(token.encode("ascii")))
        fleet.locations = _locations(config)
        return fleet

    def planned(self, config: Config, *, token: str, origins: Mapping[str, Origin]) -> Planned:
        """The nodes of another configuration: those of this fleet where they are the same ones, so that what is known
        of them is kept. Raises ConfigError as `from_config`; nothing is replaced yet."""
        now = {_identity(node): node for node in self.nodes}
        wanted = _nodes(config, token, origins)
        nodes = tuple(now.get(_identity(node), node) for node in wanted)
        return Planned(nodes, tuple(node.config for node in wanted), _locations(config))

    def follow(self, planned: Planned) -> tuple[Node, ...]:
        """From now on it is as planned. Returns the nodes that are no more, as `replace` does."""
        for node, settings in zip(planned.nodes, planned.settings, strict=True):
            node.configure(settings)
        self.locations = planned.locations
        return self.replace(planned.nodes)

    def replace(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """From now on these are the nodes. Returns those that are no more: requests under way at them may end."""
        before, self.nodes = self.nodes, tuple(nodes)
        gone = tuple(node for node in before if node not in self.nodes)
        for node in gone:
            node.draining = True
            self.prefixes.leave(node.slot)
        for node in self.nodes:
            if node not in before:
                node.slot = self.prefixes.join()
        self._place()
        self._index()
        return gone

    def _place(self) -> None:
        self.regions = tuple(dict.fromkeys(node.region for node in self.nodes))
        home, self.home = self.home, Home(self.regions)
        if home.region in self.regions:
            self.home.region = home.region

    def _index(self) -> None:
        self.continues = any(node.config.continue_final_message for node in self.nodes)
        named: dict[str, tuple[Node, ...]] = {}
        prefixed: dict[str, tuple[Node, ...]] = {}
        for node in self.nodes:
            for model in node.config.models:
                table, key = (prefixed, model[:-1]) if model.endswith("*") else (named, model)
                table[key] = (*table.get(key, ()), node)
        self.models = tuple(named)
        self._serving = {model: _serving(model, named, prefixed) for model in named}
        # The patterns that match a name are beginnings of each other: the longest stands for them all.
        self._patterns = [
            (prefix, _serving(prefix, {}, prefixed)) for prefix in sorted(prefixed, key=len, reverse=True)
        ]

    def serving(self, model: str) -> tuple[Node, ...]:
        """The nodes that serve a model: those that name it, and those with a pattern that it matches."""
        found = self._serving.get(model)
        if found is not None:
            return found
        return next((nodes for prefix, nodes in self._patterns if model.startswith(prefix)), ())

    def measured(self, now: float) -> None:
        """A round trip has been measured: look at the home region again."""
        minimums: dict[str, float | None] = dict.fromkeys(self.regions)
        for node in self.nodes:
            rtt, known = node.rtt.minimum(now), minimums[node.region]
            if rtt is not None and (known is None or rtt < known):
                minimums[node.region] = rtt
        self.home.update(minimums)

    def close(self) -> None:
        for node in self.nodes:
            node.pool.close()


def _identity(node: Node) -> tuple[object, ...]:
    """What makes it another node when it changes: how it is reached, and what it computes. Its price, its turn and what
    it may be asked for change nothing of what was learnt."""
    free = replace(node.config, price_per_hour=None, standby=False, continue_final_message=False)
    return node.name, node.region, free, node.headers, node.pool.origin


def _serving(
    model: str, named: Mapping[str, tuple[Node, ...]], prefixed: Mapping[str, tuple[Node, ...]]
) -> tuple[Node, ...]:
    found = named.get(model, ())
    for prefix, nodes in prefixed.items():
        if model.startswith(prefix):
            found += tuple(node for node in nodes if node not in found)
    return found


def _locations(config: Config) -> Locations:
    return {region.name: region.location for region in config.regions if region.location is not None}


def _nodes(config: Config, token: str, origins: Mapping[str, Origin]) -> list[Node]:
    return [
        _node(node, region.name, config, token, origins.get(node.name))
        for region in config.regions
        for node in region.nodes
    ]


def _node(config: NodeConfig, region: str, whole: Config, token: str, origin: Origin | None) -> Node:
    try:
        own = parse(config.url)
    except ValueError as error:
        raise ConfigError(f"{whole.path}: node {config.name}: {error}") from error
    headers = []
    if config.kind == "native":
        headers.append((TOKEN_HEADER, token.encode("ascii")))
    if config.api_key_env is not None:
        headers.append((b"authorization", b"Bearer " + _key(config, config.api_key_env, whole)))
    tls = config.tls or NodeTls()
    try:
        context = node_context(tls) if own.scheme == "https" else None
    except ValueError as error:
        raise ConfigError(f"{whole.path}: node {config.name}: tls: {error}") from error
    limits = _pool_limits(whole.limits)
    pool = Pool(origin or own, name=config.name, limits=limits, ssl_context=context, server_name=tls.name)
    return Node(config, region, pool, headers)


def _key(config: NodeConfig, variable: str, whole: Config) -> bytes:
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"{whole.path}: node {config.name}: api_key_env names {variable}, which is not set or is no key; "
            f"export {variable} before starting, or remove api_key_env"
        )
    return key.encode("ascii")


def _pool_limits(limits: GatewayLimits) -> PoolLimits:
    pool = PoolLimits()
    response = replace(pool.response, first_byte_s=limits.first_byte_s, stall_s=limits.stall_s)
    return replace(pool, response=response)
