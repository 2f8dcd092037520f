"""The operator's application: metrics, decisions, the dashboard, and a chat to try the fleet with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import HostCheck, is_loopback
from edgeproxy.config import Config
from edgeproxy.gateway.account import Account
from edgeproxy.gateway.app import CHAT_PATH, AsgiApp, Scope
from edgeproxy.gateway.watch import Receive, Send
from edgeproxy.observe.blame import Blame
from edgeproxy.observe.cost import costs
from edgeproxy.observe.dashboard import CONTENT_SECURITY_POLICY, IMMUTABLE, PAGE, asset
from edgeproxy.observe.fleet import NodeView
from edgeproxy.observe.live import MAX_CLIENTS, Live
from edgeproxy.observe.outcomes import SHOWN
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.observe.rings import kind_of
from edgeproxy.observe.verdict import Lately, Verdict, verdict
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.upstream.node import Fleet
from edgeproxy.web import error_response, json, starlette

ADMIN_CHAT = "/admin/chat"
_FORBIDDEN = (
    "this listener needs a key with `admin: true` from elsewhere than loopback; a browser cannot send one: "
    "forward the port with ssh (docs/alerts.md)"
)
_PAGE_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What there is to show, and whom to ask for it."""

    version: str
    config: Config
    fleet: Fleet
    nodes: Callable[[], list[NodeView]]
    account: Account
    reloads: ReloadStatus
    started: float

    def status(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "budget_ms": self.config.budget_ms,
            "configuration": asdict(self.reloads),
            "home": self.fleet.home.region,
            "nodes": [_node(node) for node in self.nodes()],
        }

    def view(self, since: float, now: float) -> dict[str, Any]:
        """For the dashboard; times are Unix seconds, `since` the start of the history wanted."""
        requests, found = self.account.metrics.requests, self.account.outcomes.view(since, now)
        lately, why = Lately(**found["lately"]), Blame(**found["blame"])
        return {
            **self.status(),
            **found,
            "verdict": self._verdict(found["burn"], lately, found["objective"], why)._asdict(),
            "now": now,
            "started": self.started,
            "locations": self.fleet.locations,
            "protocols": requests.protocols,
            "codes": requests.codes,
            "costs": [[*place, cost] for place, cost in self.costs(now).items()],
        }

    def _verdict(self, burn: list[dict[str, Any]], lately: Lately, objective: float, why: Blame) -> Verdict:
        return verdict(self.nodes(), burn, lately, objective, why, self.reloads.error)

    def costs(self, now: float) -> dict[tuple[str, str], float]:
        """(model, region) -> of 1,000 tokens over the last hour."""
        return costs(self.nodes(), self.account.metrics.produced.window(now))

    def requests(self, found: dict[str, Any]) -> dict[str, Any]:
        """`found`: as Outcomes tells them; with what became of each, and the node that it did not go to."""
        recent = found["recent"]
        others = self.account.decisions.runners_up({one["request_id"] for one in recent}, 2 * SHOWN)
        shown = [{**one, "kind": kind_of(one).value, "runner_up": others.get(one["request_id"])} for one in recent]
        return {**found, "recent": shown}


def _node(node: NodeView) -> dict[str, Any]:
    report = node.report._asdict() if node.report is not None else None
    return {**asdict(node), "report": report, "queue_s": node.queue_s, "kv_used": node.kv_used}


class Admin:
    """ASGI. Before the operator's pages stand the Host check, and a key with `admin: true` unless from loopback."""

    def __init__(self, known: Known, live: Live, gateway: AsgiApp, keys: Keys, hosts: HostCheck) -> None:
        self._app = starlette(_routes(known, live))
        self._gateway = gateway
        self._keys = keys
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._admit(scope)
            except ApiError as error:
                await error_response(error)(scope, receive, send)
                return
            if scope["path"] == ADMIN_CHAT:  # the gateway asks for a tenant's key, where any are needed
                path = CHAT_PATH
                await self._gateway({**scope, "path": path, "raw_path": path.encode()}, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        fields: Mapping[bytes, bytes] = dict(scope["headers"])
        self._hosts.check(fields.get(b"host"))
        client = scope.get("client")
        if client is not None and is_loopback(client[0]):
            return
        key = fields.get(b"authorization")
        if self._keys.required and key is None:
            raise ApiError(401, _FORBIDDEN, "invalid_api_key", headers=((b"www-authenticate", b"Bearer"),))
        if not self._keys.required or not self._keys.tenant(key).admin:
            raise ApiError(403, _FORBIDDEN, "forbidden")


class _Events(StreamingResponse):
    """Ends its generator with the connection: left suspended, it would keep its place among the dashboards until some
    collection of garbage. That a page is closed is no failure."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            async with aclosing(self._events):
                await super().__call__(scope, receive, send)


def _routes(known: Known, live: Live) -> list[Route]:
    account = known.account

    async def metrics(request: Request) -> Response:
        content, kind = account.metrics.exposition(request.headers.get("accept", ""))
        return Response(content, media_type=kind)

    async def status(request: Request) -> Response:
        return json({**known.status(), **known.requests(account.outcomes.newest())})

    async def events(request: Request) -> Response:
        if live.clients >= MAX_CLIENTS:
            raise ApiError(503, f"{MAX_CLIENTS} dashboards are open; close one", "too_many_dashboards")
        return _Events(live.events(request.headers.get("last-event-id")))

    async def decisions(request: Request) -> Response:
        """The newest first; `?limit=` says how many."""
        limit = request.query_params.get("limit", "100")
        if not limit.isdecimal() or not limit.isascii() or len(limit) > 6:
            raise ApiError(400, "`limit` must be a whole number", "invalid_value", "limit")
        return json({"decisions": account.decisions.latest(int(limit))})

    async def decision(request: Request) -> Response:
        found = account.decisions.of(request.path_params["request_id"])
        if found is None:
            raise ApiError(404, "no decision is kept for this request id; only the last ones are", "not_found")
        return json(found)

    async def one(request: Request) -> Response:
        """One of the recent ones, for who looks for its own: on a busy proxy it is soon gone from the list."""
        found = account.outcomes.of(request.path_params["request_id"])
        if found is None:
            raise ApiError(404, "no request of this id is kept; only the last ones are", "not_found")
        return json(known.requests({"recent": [found]})["recent"][0])

    async def page(request: Request) -> Response:
        found = asset(request.path_params.get("name", PAGE))
        if found is None:
            raise HTTPException(404)
        caching = "public, max-age=31536000, immutable" if found.name in IMMUTABLE else "no-cache"
        return Response(found.content, media_type=found.kind, headers={**_PAGE_HEADERS, "cache-control": caching})

    async def without_slash(request: Request) -> Response:
        """Relative to this very origin: the client's Host is not repeated."""
        name = request.path_params.get("name")
        if name is not None and asset(name) is None:
            raise HTTPException(404)
        return Response(status_code=308, headers={"location": "/dashboard" + (f"/{name}" if name else "")})

    return [
        Route("/metrics", metrics),
        Route("/admin/status", status),
        Route("/admin/events", events),
        Route("/admin/decisions", decisions),
        Route("/admin/decisions/{request_id}", decision),
        Route("/admin/requests/{request_id}", one),
        Route("/dashboard", page),
        Route("/dashboard/", without_slash),
        Route("/dashboard/{name}", page),
        Route("/dashboard/{name}/", without_slash),
        Route("/assets/{name}", page),
        Route("/", page),
    ]
