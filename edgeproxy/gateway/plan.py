"""One request's way through the fleet: what of it decides where it goes, and who may serve it as things stand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic

from xxhash import xxh3_64_intdigest

from edgeproxy.gateway.controls import Controls
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.routing.affinity import Sessions
from edgeproxy.routing.choose import Decision, Hold, Levels, Wanted, choose
from edgeproxy.routing.home import Home
from edgeproxy.routing.length import Length
from edgeproxy.routing.prefix import chain, held_bytes
from edgeproxy.routing.shortlist import Shortlist
from edgeproxy.upstream.node import Fleet, Node

_BELIEVED_SHARE = 0.75
"""Of what was believed to be cached: an answer that counts less shows that the node has forgotten."""


@dataclass(frozen=True, slots=True)
class Known:
    """What all plans share."""

    fleet: Fleet
    sessions: Sessions
    rng: Random


@dataclass(frozen=True, slots=True)
class Route:
    """What a tenant's requests of one model and form share, for as long as the fleet has the same nodes."""

    label: str
    """The model's name for logs and labels."""
    key: int
    """Of the tenant and the model: what names of chunks and of sessions are made with."""
    length: Length
    serving: Callable[[], Shortlist[Node]]
    """The nodes of the model in the tenant's regions as things stand. Raises ApiError 404 where there are none."""
    nodes: Shortlist[Node]
    """They."""


class Plan:
    """One request's way: asked as often as it has to be sent somewhere."""

    __slots__ = (
        "_holders",
        "_messages",
        "_nodes",
        "_route",
        "known",
        "label",
        "names",
        "session",
        "size",
        "wanted",
        "wishes",
    )

    def __init__(
        self, known: Known, route: Route, prompt: bytes, messages: int, session: bytes | None, wishes: Controls
    ) -> None:
        """`messages`: 0 where it is no chat."""
        self.known = known
        self._route = route
        self._nodes = route.nodes
        self.label = route.label
        """The model's name for logs and labels."""
        self.size = size = len(prompt)
        """Of the prompt, in bytes."""
        self._messages = messages
        self.names = chain(prompt, route.key)
        """Of its chunks."""
        self.wishes = wishes
        length = route.length
        self.session: int | None = None
        sticky: int | None = None
        if session is not None:
            self.session = xxh3_64_intdigest(session, route.key)
            sticky = known.sessions.slot(self.session)
        self._holders: Sequence[tuple[int, int]] = ()
        levels: Levels = ()
        if self.names:
            self._holders = known.fleet.prefixes.holders(self.names)
            levels = [(slots, length.held(size, messages, held_bytes(depth))) for slots, depth in self._holders]
        self.wanted = Wanted(length.tokens(size, messages), levels, sticky, length.usual)

    @property
    def nodes(self) -> Sequence[Node]:
        """All that may serve it."""
        regions = self.wishes.regions
        return self._nodes.nodes if regions is None else [node for node in self._nodes.nodes if node.region in regions]

    @property
    def slots(self) -> Collection[int]:
        return {node.slot for node in self.nodes}

    @property
    def bytes_per_token(self) -> float:
        return 1.0 / self._route.length.per_byte

    def decide(self, now: float, hold_s: float = 0.0) -> Decision[Node] | Hold:
        """`hold_s`: how long it may be held where all nodes are hot."""
        known, wanted, regions = self.known, self.wanted, self.wishes.regions
        if regions is None:
            home = known.fleet.home
            nodes, far = self._nodes.pick(wanted, home, now, known.rng)
        else:
            home = Home(regions, strict=True)
            nodes, far = self.nodes, ()
        return choose(nodes, wanted, home, now, known.rng, hold_s, far)

    def in_turn(self, now: float) -> Iterator[Node]:
        """Every node that may serve it, as things stand; none, where a reload has taken the model away."""
        try:
            self._nodes = self._route.serving()
        except ApiError:
            return iter(())
        found = self.decide(now)
        assert not isinstance(found, Hold)  # no leave to hold was given
        return in_turn(found, now)

    def depth(self, slot: int) -> int:
        """How many chunks of its prompt the node was taken to hold."""
        return next((depth for slots, depth in self._holders if slots >> slot & 1), 0)

    def forget(self, slot: int) -> None:
        """The node holds nothing of the prompt after all."""
        self._holders = [(slots & ~(1 << slot), depth) for slots, depth in self._holders]

    def elsewhere(self, now: float) -> str | None:
        """A region outside those wished for that has a fit node with room."""
        wished = self.wishes.regions or ()
        others = [node for node in self._nodes.nodes if node.region not in wished]
        found = choose(others, self.wanted, self.known.fleet.home, now, self.known.rng)
        if isinstance(found, Hold) or found.first is None or found.hot or not found.fit:
            return None
        return found.first.region

    def counted(self, slot: int, prompt_tokens: int, cached_tokens: int | None) -> None:
        """An answer of the node counted its prompt."""
        size, length = self.size, self._route.length
        if prompt_tokens <= 0 or not size:
            return
        length.counted(size, self._messages, prompt_tokens)
        if cached_tokens is None:
            return
        believed = self.wanted.held(slot)
        if believed is None:
            length.found(min(max(cached_tokens, 0), prompt_tokens))
        elif cached_tokens < _BELIEVED_SHARE * min(believed, prompt_tokens):
            self.known.fleet.prefixes.overestimated(slot)


def in_turn(decision: Decision[Node], now: float) -> Iterator[Node]:
    """The first choice, then the best of each region that has not been tried, then the rest: what fails a request is
    seldom one node's own, and a region that dies takes all its nodes along. Where all connections are taken it would
    stand in line, so such nodes come after the others. Unfit nodes stay last; after them come those that have been down
    and up again since `now`, the time of the decision. All but the first stand as they do when the second is asked for.
    """
    first = decision.first
    if first is None:
        return
    full: list[Node] = []
    tried: set[str] = set()
    if first.pool.full:
        full.append(first)
    else:
        tried.add(first.region)
        yield first
    fit, last = decision.others(monotonic())
    later: list[Node] = []
    for node in fit:
        if node.pool.full:
            full.append(node)
        elif node.region in tried or node.standby:
            later.append(node)
        else:
            tried.add(node.region)
            yield node
    yield from later
    yield from full
    yield from last
    for node in (first, *fit, *last):
        if node.ready and node.ready_since > now:
            yield node
