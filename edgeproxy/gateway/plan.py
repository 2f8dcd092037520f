"""One request's way through the fleet: what of it decides where it goes, and who may serve it as things stand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import NamedTuple

from edgeproxy.gateway.controls import Controls
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.routing.affinity import Sessions
from edgeproxy.routing.choose import Decision, Hold, Wanted, choose
from edgeproxy.routing.home import Home
from edgeproxy.routing.length import Length
from edgeproxy.routing.prefix import held_bytes
from edgeproxy.routing.shortlist import Shortlist
from edgeproxy.upstream.node import Fleet, Node

_BELIEVED_SHARE = 0.75
"""Of what was believed to be cached: an answer that counts less shows that the node has forgotten."""
_NOTHING: dict[int, int] = {}


class Prompt(NamedTuple):
    """What of a request decides where it goes."""

    size: int
    """Bytes."""
    messages: int
    """0: it is no chat."""
    names: tuple[int, ...]
    """Of its chunks, keyed by tenant and model."""
    session: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """What all plans share."""

    fleet: Fleet
    sessions: Sessions
    rng: Random


class Plan:
    """One request's way: asked as often as it has to be sent somewhere."""

    __slots__ = ("_depths", "_length", "_nodes", "_serving", "decision", "known", "label", "prompt", "wanted", "wishes")

    def __init__(
        self,
        known: Known,
        label: str,
        serving: Callable[[], Shortlist[Node]],
        prompt: Prompt,
        length: Length,
        wishes: Controls,
    ) -> None:
        """`serving`: the nodes of its model in its tenant's regions; `length`: of prompts like it.

        Raises ApiError 404 where there are none."""
        self.known = known
        self._serving = serving
        self._nodes = serving()
        self._length = length
        self.label = label
        """The model's name for logs and labels."""
        self.prompt = prompt
        self._depths = known.fleet.prefixes.depths(prompt.names) if prompt.names else _NOTHING
        self.wishes = wishes
        self.wanted = self._wanted()
        self.decision: Decision[Node] | None = None
        """The last one."""

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
        return 1.0 / self._length.per_byte

    def decide(self, now: float, hold_s: float = 0.0) -> Decision[Node] | Hold:
        """`hold_s`: how long it may be held where all nodes are hot."""
        known, wanted, regions = self.known, self.wanted, self.wishes.regions
        if regions is None:
            home = known.fleet.home
            nodes, far = self._nodes.pick(wanted, home, now, known.rng)
        else:
            home = Home(regions, strict=True)
            nodes, far = self.nodes, ()
        found = choose(nodes, wanted, home, now, known.rng, hold_s, far)
        if not isinstance(found, Hold):
            self.decision = found
        return found

    def in_turn(self, now: float) -> Iterator[Node]:
        """Every node that may serve it, as things stand; none, where a reload has taken the model away."""
        try:
            self._nodes = self._serving()
        except ApiError:
            return iter(())
        found = self.decide(now)
        assert not isinstance(found, Hold)  # no leave to hold was given
        return in_turn(found, now)

    def depth(self, slot: int) -> int:
        """How many chunks of its prompt the node was taken to hold."""
        return self._depths.get(slot, 0)

    def forget(self, slot: int) -> None:
        """The node holds nothing of the prompt after all."""
        self._depths.pop(slot, None)

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
        prompt, length = self.prompt, self._length
        if prompt_tokens <= 0 or not prompt.size:
            return
        length.counted(prompt.size, prompt.messages, prompt_tokens)
        if cached_tokens is None:
            return
        believed = self.wanted.cached.get(slot)
        if believed is None:
            length.found(min(max(cached_tokens, 0), prompt_tokens))
        elif cached_tokens < _BELIEVED_SHARE * min(believed, prompt_tokens):
            self.known.fleet.prefixes.overestimated(slot)

    def _wanted(self) -> Wanted:
        size, messages, _, session = self.prompt
        length = self._length
        cached: dict[int, float] = {}
        if self._depths:
            cached = {slot: length.held(size, messages, held_bytes(depth)) for slot, depth in self._depths.items()}
        sticky = None if session is None else self.known.sessions.slot(session)
        return Wanted(length.tokens(size, messages), cached, sticky, usual=length.usual)


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
