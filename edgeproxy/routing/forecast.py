"""When a node would show its first token, and everything about the node that the answer rests on."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from edgeproxy.routing.gain import Gain
from edgeproxy.routing.lateness import Lateness
from edgeproxy.routing.load import FRESH_S, HOT_QUEUE_S, UNREPORTED_PUSHES, Load, Occupancy, Sent
from edgeproxy.routing.pace import CHUNK_TOKENS, Pace
from edgeproxy.routing.rtt import RttEstimator
from edgeproxy.routing.typical import Typical

DOUBT_S = 0.010
DOUBT_SHARE = 0.20
"""The larger of both is what a hot node pays: it wins only where it is clearly better all the same."""
STARVED_S = 30.0
"""Without an answer for so long, six probes of a near node, what was learnt of a node's pace begins to fade."""
MOMENT_S = 0.010
"""Answers this close to one that was learnt from came out of the same few steps: they tell the same, and hundreds of
them a second would wash out what all earlier ones told."""
SETTLED = 50
"""Until so many were learnt from, every one is: what is known of a new node cannot be washed out."""
_MAX_WAITED = 4.0
_MAX_SHARED = 2.0


Basis = tuple[float, float, float, float, float, float, float, float, float, float]
"""Network (seconds), when prompts ahead are done and when there is memory, doubt of an old report (seconds), rows that
run; pace and gains, as they were."""


class Forecast(NamedTuple):
    """Seconds from sending to the first token here."""

    network: float
    queue: float
    prefill: float
    decode: float

    @property
    def total(self) -> float:
        return self.network + self.queue + self.prefill + self.decode

    @classmethod
    def of(cls, basis: Basis, now: float, tokens: float) -> Forecast:
        """`basis`: as an Outlook gave it at `now`; `tokens`: of the prompt, that the node has to compute."""
        network, free_at, room_at, rest, running, decode, per_token, per_row, waited, shared = basis
        ahead, rows = max(free_at - now, 0.0), per_row * running
        prefill = per_token * tokens + rows * (1.0 + tokens / CHUNK_TOKENS)
        beside = min(ahead, decode + prefill) * shared
        return cls(network, ahead * waited + max(room_at - now, 0.0) + rest, prefill + beside, decode)


class Timings(NamedTuple):
    """What an answer told of its first token, in seconds."""

    first_token: float
    """From sending to the first content, at the proxy."""
    queue: float | None = None
    """On the node; None where it does not say."""
    work: float | None = None
    """On the node: prefill, first decode step and what goes around them; None where it does not say."""


class Outlook:
    """One node: how far (`rtt`), how busy (`load`), how fast (`pace`)."""

    __slots__ = ("_learnt_at", "_since", "lateness", "load", "pace", "rtt", "shared", "typical", "waited")

    def __init__(self, rtt: RttEstimator | None = None, pace: Pace | None = None) -> None:
        self.rtt = rtt or RttEstimator()
        self.load = Load()
        self.pace = pace or Pace()
        self.lateness = Lateness()
        self.typical = Typical()
        self.waited = Gain(1.0, _MAX_WAITED)
        """Real queue by the prompts ahead: a scheduler that takes short prompts first makes it small..."""
        self.shared = Gain(0.0, _MAX_SHARED)
        """...and has prompts share the steps: what a prompt took longer, by the smaller of itself and those ahead."""
        self._learnt_at = -inf
        """The first token that was learnt from last."""
        self._since: float | None = None
        """First probe."""

    def cost(self, now: float, tokens: float, doubted: bool = False, most: float = inf) -> float:
        """`forecast(...).total`: asked of every node at every request, and therefore unrolled.

        `tokens`: of the prompt, that the node has to compute. `doubted`: with what a hot node pays for the doubt.
        `most`: of a node that costs more, it is told only that it does.
        """
        pace, load = self.pace, self.load
        rows = pace.per_row * load.running
        work = pace.decode + rows + (pace.per_token + rows / CHUNK_TOKENS) * tokens
        spent = work + self.rtt.network
        if spent > most:  # and all that follows only adds to it
            return spent
        hot = load.free_tokens < tokens
        if load.free_at > now:
            queue = load.free_at - now
            spent += queue * self.waited.value + (queue if queue < work else work) * self.shared.value
            hot = hot or queue > HOT_QUEUE_S
        if load.room_at > now:
            spent += load.room_at - now
            hot = True
        if load.reported_at is None:
            hot = hot or load.pending >= UNREPORTED_PUSHES
        elif now - load.reported_at > FRESH_S:
            spent += load.widening(now)
        if hot and doubted:
            spent += max(DOUBT_S, DOUBT_SHARE * spent)
        return spent

    def forecast(self, now: float, tokens: float) -> Forecast:
        return Forecast.of(self.basis(now), now, tokens)

    def basis(self, now: float) -> Basis:
        """What a forecast of now rests on. Most decisions are never looked at: so much is kept of them."""
        load, pace, rest = self.load, self.pace, 0.0
        if load.reported_at is not None and now - load.reported_at > FRESH_S:
            rest = load.widening(now)
        return (
            self.rtt.network, load.free_at, load.room_at, rest, load.running,
            pace.decode, pace.per_token, pace.per_row, self.waited.value, self.shared.value,
        )  # fmt: skip

    def reported(self, told: Occupancy, now: float, tokens_per_s: float = 0.0) -> None:
        """A report came with an answer or a probe; `tokens_per_s`: the prefill rate that it states, 0 if none."""
        self.pace.declared(tokens_per_s)
        self.load.reported(told, self.pace, now, self.rtt.srtt or 0.0)

    def sent(self, now: float, tokens: float) -> Sent:
        """A request with so many tokens to compute goes there now; `load.ended` is owed for it, once. What is expected
        of it is when a first token usually comes: people are told that, and it is compared with the fact."""
        load = self.load
        ahead = load.free_at - now
        expected = self.cost(now, tokens) * self.typical.factor(ahead)
        sent = Sent(now, tokens, load.running, ahead if ahead > 0.0 else 0.0, expected)
        load.sent(sent, self.pace)
        return sent

    def began(self, sent: Sent, tokens: float, timings: Timings) -> None:
        """The first token is here: what was to be computed in truth, and how long it took."""
        first_token, queue, work = timings
        at = sent.at + first_token
        self.load.began(sent, queue, self.pace, at)
        if -MOMENT_S < at - self._learnt_at < MOMENT_S and self.pace.samples >= SETTLED:
            return
        self._learnt_at = at
        self.lateness.seen(first_token - sent.expected)
        self.typical.seen(sent.queue, later=first_token > sent.expected)
        if queue is not None:
            self.waited.learn(sent.queue, queue)
        if work is None:
            # All is mixed: what is neither the network nor the queue that we expected was work.
            work = first_token - (self.rtt.srtt or 0.0) - sent.queue * self.waited.value
        else:
            alone = self.pace.expect(tokens, sent.running)
            beside = min(sent.queue, alone)
            self.shared.learn(beside, work - alone)
            work -= beside * self.shared.value
        self.pace.observe(tokens, sent.running, max(work, 0.0))

    def probed(self, now: float) -> None:
        """It lives: where it has not answered for a while, its pace is doubted, so that it does not starve."""
        if self._since is None:
            self._since = now
        elif now - max(self._since, self._learnt_at) > STARVED_S and not self.load.pending:
            self.pace.relax()
