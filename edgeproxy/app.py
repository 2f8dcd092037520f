"""Wires the rooms together: the public application behind every listener, and the operator's on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from random import Random
from time import monotonic
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import HostCheck, is_loopback
from edgeproxy.access.tenants import Tenant
from edgeproxy.config import Address, Config
from edgeproxy.gateway.account import Account
from edgeproxy.gateway.app import CHAT_PATH, AsgiApp, Gateway, Scope
from edgeproxy.gateway.route import model_not_found
from edgeproxy.gateway.watch import Receive, Send
from edgeproxy.observe.dashboard import ASSETS, CONTENT_SECURITY_POLICY, asset
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import CONTENT_TYPE, Metrics, NodeView
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.upstream.node import Fleet, Node

_JSON = "application/json"


def build(
    config: Config,
    fleet: Fleet,
    keys: Keys,
    log: Log,
    rng: Random,
    started: int,
    reloads: ReloadStatus | None = None,
) -> tuple[AsgiApp, AsgiApp]:
    """(public, admin) ASGI applications for http scopes. `started`: Unix seconds, shown as the models' `created`."""
    views = _views(fleet)
    reloads = reloads or ReloadStatus(started)
    account = Account(log, Metrics(version(), views, reloads))
    rest = _starlette(_public_routes(fleet, keys, started, reloads))
    public = Gateway(
        fleet,
        keys,
        HostCheck(_bound(config.listen.http, config.listen.https), config.hosts),
        config.limits,
        config.budget_ms / 1e3,
        config.fallbacks,
        account,
        log,
        rest,
        rng,
    )
    admin = _starlette(_admin_routes(config, fleet, views, account, reloads))
    return public, _Admin(admin, keys, HostCheck(_bound(config.listen.admin), config.hosts))


def version() -> str:
    try:
        return metadata.version("edgeproxy")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0+unknown"


def _starlette(routes: list[Route]) -> Starlette:
    app = Starlette(routes=routes, exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host
    return app


def _bound(*addresses: Address | None) -> Iterable[Address]:
    return [address for address in addresses if address is not None]


def _public_routes(fleet: Fleet, keys: Keys, started: int, reloads: ReloadStatus) -> list[Route]:
    async def models(request: Request) -> Response:
        names = _models_of(fleet, _tenant(request, keys))
        return _json({"object": "list", "data": [_model(name, started) for name in names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _models_of(fleet, _tenant(request, keys)):
            raise model_not_found()
        return _json(_model(name, started))

    async def alive(request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(request: Request) -> Response:
        """A node is ready once it has produced a real token; so is the proxy, until it is told to end."""
        if reloads.stopping:
            raise ApiError(503, "the proxy is going down; send requests elsewhere", "stopping")
        if any(node.ready for node in fleet.nodes):
            return _json({"status": "ready"})
        raise ApiError(503, "no node is ready yet; try again", "not_ready", headers=((b"retry-after", b"1"),))

    async def chat(request: Request) -> Response:
        raise ApiError(405, "use POST", "method_not_allowed", headers=((b"allow", b"POST"),))

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/healthz", alive),
        Route("/readyz", ready),
        Route(CHAT_PATH, chat, methods=["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    ]


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


class _Admin:
    """What stands before the operator's pages: the Host check, and a key with `admin: true` unless from loopback."""

    def __init__(self, app: Starlette, keys: Keys, hosts: HostCheck) -> None:
        self._app = app
        self._keys = keys
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._admit(scope)
            except ApiError as error:
                await _error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        fields: Mapping[bytes, bytes] = dict(scope["headers"])
        self._hosts.check(fields.get(b"host"))
        client = scope.get("client")
        if client is not None and is_loopback(client[0]):
            return
        if not self._keys.required or not self._keys.tenant(fields.get(b"authorization")).admin:
            raise ApiError(
                403, "this listener needs a key with `admin: true` from elsewhere than loopback", "forbidden"
            )


def _admin_routes(
    config: Config, fleet: Fleet, views: Callable[[], list[NodeView]], account: Account, reloads: ReloadStatus
) -> list[Route]:
    async def metrics(request: Request) -> Response:
        return Response(account.metrics.exposition(), media_type=CONTENT_TYPE)

    async def status(request: Request) -> Response:
        return _json(
            {
                "version": version(),
                "budget_ms": config.budget_ms,
                "configuration": asdict(reloads),
                "home": fleet.home.region,
                "nodes": views(),
                "recent": list(account.recent),
            }
        )

    async def decisions(request: Request) -> Response:
        """The newest first; `?limit=` says how many."""
        limit = request.query_params.get("limit", "100")
        if not limit.isdigit() or len(limit) > 6:
            raise ApiError(400, "`limit` must be a whole number", "invalid_value", "limit")
        return _json({"decisions": account.decisions.latest(int(limit))})

    async def decision(request: Request) -> Response:
        found = account.decisions.of(request.path_params["request_id"])
        if found is None:
            raise ApiError(404, "no decision is kept for this request id; only the last ones are", "not_found")
        return _json(found)

    async def page(request: Request) -> Response:
        found = asset(request.path_params.get("name", ASSETS[0]))
        if found is None:
            raise HTTPException(404)
        content, kind = found
        return Response(content, media_type=kind, headers=_PAGE_HEADERS)

    return [
        Route("/metrics", metrics),
        Route("/admin/status", status),
        Route("/admin/decisions", decisions),
        Route("/admin/decisions/{request_id}", decision),
        Route("/", page),
        Route("/{name}", page),
    ]


_PAGE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def _views(fleet: Fleet) -> Callable[[], list[NodeView]]:
    return lambda: [_view(node, monotonic()) for node in fleet.nodes]


def _view(node: Node, now: float) -> NodeView:
    return NodeView(
        name=node.name,
        region=node.region,
        ready=node.ready,
        trouble=node.trouble,
        breaker=node.breaker.state(now),
        in_flight=node.in_flight,
        rtt_s=node.rtt.srtt,
        models=node.config.models,
    )


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)


def _error_response(error: ApiError) -> Response:
    response = Response(error.body(), error.status, media_type=_JSON)
    response.raw_headers.extend(error.headers)
    return response


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: 404 and 405."""
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing at this path", 405: "this path does not take this method"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    message, code = messages.get(error.status_code, error.detail), codes.get(error.status_code)
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    return _error_response(ApiError(error.status_code, message, code, headers=headers))


async def _on_fault(request: Request, error: Exception) -> Response:
    return _error_response(ApiError(500, "the proxy failed; the operator's log says where", "internal_error"))


_HANDLERS = {ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_fault}
