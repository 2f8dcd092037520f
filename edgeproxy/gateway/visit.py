"""One request at one node: what is expected of it, and what the estimates learn from what came of it."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from edgeproxy.gateway.account import Call, Ending
from edgeproxy.gateway.answer import Whole
from edgeproxy.gateway.attempt import Begun
from edgeproxy.gateway.hold import Holds
from edgeproxy.gateway.plan import Plan
from edgeproxy.gateway.refusal import code_of
from edgeproxy.routing.forecast import Timings
from edgeproxy.routing.load import Sent
from edgeproxy.upstream.node import Node

_TELLING = 8
"""A node's first answers also stand for nodes of its model that have not answered yet."""


class Visit:
    """A context that counts the request at the node. What ends it without `served` teaches nothing."""

    __slots__ = ("_holds", "_plan", "_served", "node", "sent")
    node: Node
    sent: Sent

    def __init__(self, plan: Plan, node: Node, holds: Holds, now: float) -> None:
        self._plan = plan
        self._holds = holds
        self._served = False
        self._begin(node, now)

    def __enter__(self) -> Visit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def swap(self, other: Visit) -> None:
        """Two copies of the request change places: the one that answers is this one's from now on."""
        self.node, other.node = other.node, self.node
        self.sent, other.sent = other.sent, self.sent

    def move(self, node: Node) -> None:
        """The request goes on at another node."""
        self._end()
        self._begin(node, monotonic())

    def answered(self, outcome: Whole | Begun, call: Call) -> None:
        """The first content is here, or a whole answer. A refusal teaches nothing."""
        if isinstance(outcome, Whole) and outcome.status != 200:
            call.code = code_of(outcome)
            return
        plan, node, sent = self._plan, self.node, self.sent
        tokens = sent.tokens
        if call.prompt_tokens is not None:
            plan.counted(node.slot, call.prompt_tokens, call.cached_tokens)
            if call.cached_tokens is not None:
                tokens = max(float(call.prompt_tokens - call.cached_tokens), 1.0)
        if call.prefix is not None and plan.names:
            node.evictions.answered(call.prefix, plan.names, plan.size)
        if plan.session is not None:
            plan.known.sessions.served(plan.session, node.slot)
        outlook, first_at, terms = node.outlook, call.first_at, call.terms
        if first_at is None:  # not streamed, by a node that tells no terms: when its first token was made, nobody knows
            outlook.load.began(sent, None)
            return
        shown = first_at - sent.at
        queue = terms.get("queue")
        work = None
        if queue is not None:  # of the node's own terms, those that are not queue
            work = terms.get("parse", 0.0) + terms.get("prefill", 0.0) + terms.get("first", 0.0)
        outlook.began(sent, tokens, Timings(shown, queue, work))
        if outlook.pace.samples <= _TELLING:
            for other in plan.nodes:
                other.outlook.pace.suppose(outlook.pace)
        call.expected_s, call.shown_s = sent.expected, shown

    def resumed(self) -> None:
        """Another node goes on with the stream: its prompt is computed, and tells nothing of first tokens."""
        self.node.outlook.load.began(self.sent, None)

    def served(self, ending: Ending | None = None) -> None:
        """The answer came to its end. `ending`: of a stream whose node counts its prompt there only."""
        self._served = True
        if ending is not None:
            prompt, cached = ending.counts()
            if prompt is not None:
                self._plan.counted(self.node.slot, prompt, cached)

    def _begin(self, node: Node, now: float) -> None:
        plan = self._plan
        self.node = node
        self.sent = node.outlook.sent(now, plan.wanted.to_compute(node.slot))
        if plan.names:
            plan.known.fleet.prefixes.sent(node.slot, plan.names)
        node.in_flight += 1

    def _end(self) -> None:
        node, plan = self.node, self._plan
        node.in_flight -= 1
        node.outlook.load.ended(self.sent, monotonic(), served=self._served)
        if not self.sent.began and plan.names:
            plan.known.fleet.prefixes.unsent(node.slot, plan.names, plan.depth(node.slot))
        self._holds.rest(node)
