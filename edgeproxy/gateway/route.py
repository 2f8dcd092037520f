"""Which nodes may serve a request, in the order in which they are tried."""

from __future__ import annotations

from functools import partial
from random import Random

from xxhash import xxh3_64_intdigest

from edgeproxy.access.tenants import Tenant
from edgeproxy.gateway.admit import ChatRequest
from edgeproxy.gateway.controls import Controls
from edgeproxy.gateway.hold import Holds
from edgeproxy.gateway.plan import Known, Plan, Route
from edgeproxy.gateway.visit import Visit
from edgeproxy.observe.fleet import PATTERN_MODEL
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.routing.affinity import Sessions
from edgeproxy.routing.length import Length
from edgeproxy.routing.shortlist import Shortlist
from edgeproxy.upstream.node import Fleet, Node

_REMEMBERED = 1024
_MAX_NAME = 256
"""Characters: where a pattern matches, models' names are the clients', and longer ones are not kept."""


class Router:
    """Asks the choice for a tenant's request. `rng` shares equal nodes out."""

    def __init__(self, fleet: Fleet, rng: Random) -> None:
        self._fleet = fleet
        self.sessions = Sessions()
        self._known = Known(fleet, self.sessions, rng)
        self.holds = Holds()
        self._secret = rng.getrandbits(64)
        self._lengths: dict[tuple[str, bool, bool], Length] = {}
        """By model, whether it is a chat, and whether it has tools."""
        self._nodes: tuple[Node, ...] = ()
        self._lists: dict[tuple[int, frozenset[str] | None], Shortlist[Node]] = {}
        self._routes: dict[tuple[str, frozenset[str] | None, str, bool, bool], Route] = {}
        """By tenant and its regions, model, whether it is a chat, and whether it has tools."""
        self._epochs: dict[int, int] = {}

    def label(self, model: str) -> str | None:
        """A model as logs and labels name it; None where nobody serves it."""
        if model in self._fleet.models:
            return model
        return PATTERN_MODEL if self._fleet.serving(model) else None

    def plan(self, request: ChatRequest, tenant: Tenant, wishes: Controls) -> Plan:
        """Raises ApiError 404; a model that only other tenants' regions serve does not exist for this one."""
        if self._nodes is not self._fleet.nodes:
            self._reloaded()
        form = tenant.name, tenant.regions, request.model, request.messages > 0, request.tools
        route = self._routes.get(form)
        if route is None:
            route = self._route(request, tenant)
            if len(request.model) <= _MAX_NAME:
                if len(self._routes) >= _REMEMBERED:
                    self._routes.clear()
                self._routes[form] = route
        return Plan(self._known, route, request.prompt, request.messages, wishes.session or request.session, wishes)

    def visit(self, plan: Plan, node: Node, now: float) -> Visit:
        """The request goes to the node now."""
        if plan.names:
            self._look_after(node, plan)
        return Visit(plan, node, self.holds, now)

    def _look_after(self, node: Node, plan: Plan) -> None:
        """What the prefix view cannot know by itself: how much the node can hold, and whether it was started anew."""
        prefixes, slot = self._fleet.prefixes, node.slot
        if self._epochs.get(slot, 0) != node.epoch:
            self._epochs[slot] = node.epoch
            prefixes.lost(slot)
            plan.forget(slot)
        report = node.report
        if report is not None and report.kv_blocks_total:
            prefixes.capacity(slot, report.kv_blocks_total * report.block_tokens, plan.bytes_per_token)

    def _route(self, request: ChatRequest, tenant: Tenant) -> Route:
        model = request.model
        label = model if model in self._fleet.models else PATTERN_MODEL
        nodes = partial(self._serving, model, tenant.regions)
        shortlist = nodes()
        length = self._lengths.setdefault((label, request.messages > 0, request.tools), Length())
        # Names of a prompt's chunks differ by tenant and by model, and nobody outside can compute them.
        key = xxh3_64_intdigest(f"{tenant.name}\0{label}".encode(), self._secret)
        return Route(label, key, length, nodes, shortlist)

    def _serving(self, model: str, regions: frozenset[str] | None) -> Shortlist[Node]:
        """Raises ApiError 404."""
        if self._nodes is not self._fleet.nodes:
            self._reloaded()
        nodes = self._fleet.serving(model)
        # The fleet gives the same tuple for the same model, for as long as it has the same nodes.
        key = (id(nodes), regions)
        found = self._lists.get(key)
        if found is None:
            allowed = nodes if regions is None else tuple(node for node in nodes if node.region in regions)
            if not allowed:
                raise model_not_found()
            if len(self._lists) >= _REMEMBERED:
                self._lists.clear()
            found = self._lists[key] = Shortlist(allowed)
        return found

    def _reloaded(self) -> None:
        self._nodes = self._fleet.nodes
        self._lists.clear()
        self._routes.clear()


def model_not_found() -> ApiError:
    # The name is not repeated: it is the client's, and may be anything.
    return ApiError(
        404, "the model does not exist here; GET /v1/models lists those that do", "model_not_found", "model"
    )
