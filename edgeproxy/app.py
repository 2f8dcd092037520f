"""Wires the rooms together: the public application behind every listener, and the operator's on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from random import Random
from time import monotonic, time
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import HostCheck
from edgeproxy.access.tenants import Tenant
from edgeproxy.admin import Admin, Known
from edgeproxy.config import Address, Config
from edgeproxy.gateway.account import Account
from edgeproxy.gateway.app import ROUTED, AsgiApp, Gateway
from edgeproxy.gateway.route import model_not_found
from edgeproxy.observe.burn import Burn
from edgeproxy.observe.fleet import NodeView
from edgeproxy.observe.live import Live
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.outcomes import Outcomes
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.observe.telemetry import telemetry_families
from edgeproxy.observe.trace import Tracer
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.web import json, starlette


class Built(NamedTuple):
    """ASGI applications for http scopes."""

    public: AsgiApp
    admin: AsgiApp
    live: Live
    """To be run beside them; the dashboard's pages end with it."""


def build(
    config: Config,
    fleet: Fleet,
    keys: Keys,
    log: Log,
    rng: Random,
    started: int,
    reloads: ReloadStatus | None = None,
    tracer: Tracer | None = None,
    connections: Mapping[str, int] | None = None,
    quic: QuicCounts | None = None,
) -> Built:
    """`started`: Unix seconds, shown as the models' `created`. `connections`: how many there were over TCP, by what
    became of them. `quic`: the same of QUIC."""
    views = node_views(fleet)
    reloads = reloads or ReloadStatus(started)
    burn = Burn(config.objective)
    budgets = {model: milliseconds / 1e3 for model, milliseconds in config.budgets.items()}
    named = [config.budget_ms / 1e3, *budgets.values(), *keys.budgets]
    telemetry = partial(telemetry_families, log, tracer)
    metrics = Metrics(version(), views, reloads, burn, connections, named, telemetry, quic)
    account = Account(log, metrics, Outcomes(burn), tracer)
    public = Gateway(
        fleet,
        keys,
        HostCheck(_bound(config.listen.http, config.listen.https), config.hosts),
        config.limits,
        config.budget_ms / 1e3,
        budgets,
        config.fallbacks,
        account,
        log,
        starlette(_public_routes(fleet, keys, started, reloads)),
        rng,
    )
    known = Known(version(), config, fleet, views, account, reloads, started)
    live = Live(
        known.view,
        lambda: known.requests(account.outcomes.newest()),
        lambda: known.requests(account.outcomes.changes()),
        started,
        time,
    )
    hosts = HostCheck(_bound(config.listen.admin), config.hosts)
    return Built(public, Admin(known, live, public, keys, hosts), live)


def version() -> str:
    try:
        return metadata.version("edgeproxy")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0+unknown"


def _bound(*addresses: Address | None) -> Iterable[Address]:
    return [address for address in addresses if address is not None]


def _public_routes(fleet: Fleet, keys: Keys, started: int, reloads: ReloadStatus) -> list[Route]:
    async def models(request: Request) -> Response:
        names = _models_of(fleet, _tenant(request, keys))
        return json({"object": "list", "data": [_model(name, started) for name in names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _models_of(fleet, _tenant(request, keys)):
            raise model_not_found()
        return json(_model(name, started))

    async def openapi(request: Request) -> Response:
        from edgeproxy.protocol.openai.openapi import document  # nothing else of the proxy reads the schema

        return json(document(version()))

    async def alive(request: Request) -> Response:
        return json({"status": "ok"})

    async def ready(request: Request) -> Response:
        """A node is ready once it has produced a real token; so is the proxy, until it is told to end."""
        if reloads.stopping:
            raise ApiError(503, "the proxy is going down; send requests elsewhere", "stopping")
        if any(node.ready for node in fleet.nodes):
            return json({"status": "ready"})
        raise ApiError(503, "no node is ready yet; try again", "not_ready", headers=((b"retry-after", b"1"),))

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/openapi.json", openapi),
        Route("/healthz", alive),
        Route("/readyz", ready),
        *(Route(path, _PostAlone()) for path in sorted(ROUTED)),
    ]


class _PostAlone:
    """What comes here is no POST: those go to nodes. An object, because Starlette lets functions have GET alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise ApiError(405, "use POST", "method_not_allowed", headers=((b"allow", b"POST"),))


def _tenant(request: Request, keys: Keys) -> Tenant:
    value = request.headers.get("authorization")
    return keys.tenant(None if value is None else value.encode("latin-1"))


def _models_of(fleet: Fleet, tenant: Tenant) -> list[str]:
    """Those that nodes in the tenant's regions serve, each once."""
    allowed = tenant.regions
    return [
        name for name in fleet.models if allowed is None or any(node.region in allowed for node in fleet.serving(name))
    ]


def _model(name: str, started: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": started, "owned_by": "edgeproxy"}


def node_views(fleet: Fleet) -> Callable[[], list[NodeView]]:
    """Asked for anew by everybody who looks."""
    return lambda: [_view(node, monotonic()) for node in fleet.nodes]


def _view(node: Node, now: float) -> NodeView:
    """Of a node that is not ready only what is true of it now: what it said last looks like what it would say."""
    return NodeView(
        name=node.name,
        region=node.region,
        ready=node.ready,
        trouble=node.trouble,
        breaker=node.breaker.state(now),
        in_flight=node.in_flight,
        rtt_s=node.rtt.srtt if node.ready else None,
        models=node.config.models,
        kind=node.config.kind,
        standby=node.standby,
        rtt_min_s=node.rtt.minimum(now),
        report=node.report if node.ready else None,
        instruments=node.instruments,
        price_per_hour=node.config.price_per_hour,
        silences=node.silences,
    )
