"""Which nodes may serve a request, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from edgeproxy.access.tenants import Tenant
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.routing.choose import Decision, Hold, Wanted, choose
from edgeproxy.upstream.node import Fleet, Node

PATTERN_MODEL = "(pattern)"
"""Label of models that only a pattern of the configuration matches: their names are the clients'."""


class Router:
    """Asks the choice for a tenant's request. `rng` shares equal nodes out."""

    def __init__(self, fleet: Fleet, rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng

    def route(self, model: str, tenant: Tenant, now: float) -> tuple[str, Decision[Node]]:
        """The model's name for logs and labels, and who may serve it.

        Raises ApiError 404; a model that only other tenants' regions serve does not exist for this one.
        """
        nodes = self._fleet.serving(model)
        if tenant.regions is not None:
            nodes = tuple(node for node in nodes if node.region in tenant.regions)
        if not nodes:
            raise model_not_found()
        label = model if model in self._fleet.models else PATTERN_MODEL
        decision = choose(nodes, Wanted(tokens=1.0), self._fleet.home, now, self._rng)
        assert not isinstance(decision, Hold)
        return label, decision


def in_turn(decision: Decision[Node], now: float) -> Iterator[Node]:
    """The first choice, then the best of each region that has not been tried, then the rest: what fails a request is
    seldom one node's own, and a region that dies takes all its nodes along. Unfit nodes stay last; after them come
    those that have been down and up again since `now`, the time of the decision."""
    first = decision.first
    if first is None:
        return
    yield first
    others, fit = decision.candidates[1:], max(decision.healthy - 1, 0)
    tried = {first.region}
    later: list[Node] = []
    for node in others[:fit]:
        if node.region in tried:
            later.append(node)
        else:
            tried.add(node.region)
            yield node
    yield from later
    yield from others[fit:]
    for node in decision.candidates:
        if node.ready and node.ready_since > now:
            yield node


def model_not_found() -> ApiError:
    # The name is not repeated: it is the client's, and may be anything.
    return ApiError(
        404, "the model does not exist here; GET /v1/models lists those that do", "model_not_found", "model"
    )
