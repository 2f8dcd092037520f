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

UNMEASURED_S = 1.0
"""Taken for the network of a node that nobody has measured: after all that were, in the operator's order."""
DOUBT_S = 0.010
DOUBT_SHARE = 0.20
"""The larger of both is what a hot node pays: it wins only where it is clearly better all the same."""
STARVED_S = 30.0
"""Without an answer for so long, six probes of a near node, what was learnt of a node's pace begins to fade."""
_MAX_WAITED = 4.0
_MAX_SHARED = 2.0


Basis = tuple[float, float, float, float, float, float, float, float, float, float]
"""Network, prompts ahead, wait for memory, doubt of an old report (seconds); tokens; pace and gains, as they were."""


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
    def of(cls, basis: Basis) -> Forecast:
        """`basis`: as an Outlook gives it."""
        far, ahead, room, rest, tokens, decode, per_token, rows, waited, shared = basis
        ahead = max(ahead, 0.0)
        prefill = per_token * tokens + rows * (1.0 + tokens / CHUNK_TOKENS)
        beside = min(ahead, decode + prefill) * shared
        return cls(far, ahead * waited + max(room, 0.0) + rest, prefill + beside, decode)


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

    __slots__ = ("_learnt_at", "extra_trips", "lateness", "load", "pace", "rtt", "shared", "typical", "waited")

    def __init__(self, rtt: RttEstimator | None = None, pace: Pace | None = None) -> None:
        self.rtt = rtt or RttEstimator()
        self.load = Load()
        self.pace = pace or Pace()
        self.extra_trips = 0
        """Round trips for handshakes before a request can be sent: 0 while a warm connection waits."""
        self.lateness = Lateness()
        self.typical = Typical()
        self.waited = Gain(1.0, _MAX_WAITED)
        """Real queue by the prompts ahead: a scheduler that takes short prompts first makes it small..."""
        self.shared = Gain(0.0, _MAX_SHARED)
        """...and has prompts share the steps: what a prompt took longer, by the smaller of itself and those ahead."""
        self._learnt_at: float | None = None
        """None until it is first seen."""

    def cost(self, now: float, tokens: float, doubted: bool = False, most: float = inf) -> float:
        """`forecast(...).total`: asked of every node at every request, and therefore unrolled.

        `tokens`: of the prompt, that the node has to compute. `doubted`: with what a hot node pays for the doubt.
        `most`: of a node that costs more, it is told only that it does.
        """
        pace, network = self.pace, self.rtt.network
        work = pace.decode + pace.per_token * tokens
        spent = work + (UNMEASURED_S if network is None else network)
        if spent > most:  # and all that follows only adds to it
            return spent
        load = self.load
        running, reported_at = load.running, load.reported_at
        if running:
            beside = pace.per_row * running * (1.0 + tokens / CHUNK_TOKENS)
            work += beside
            spent += beside
        if self.extra_trips and network is not None:
            spent += self.extra_trips * (self.rtt.srtt or 0.0)
        queue, room = load.free_at - now, load.room_at - now
        if queue > 0.0:
            spent += queue * self.waited.value + (queue if queue < work else work) * self.shared.value
        if room > 0.0:
            spent += room
        if reported_at is not None:
            if now - reported_at > FRESH_S:
                spent += load.widening(now)
            unknown = False
        else:
            unknown = load.pending >= UNREPORTED_PUSHES
        if doubted and (unknown or queue > HOT_QUEUE_S or room > 0.0 or load.free_tokens < tokens):
            spent += max(DOUBT_S, DOUBT_SHARE * spent)
        return spent

    def expect(self, now: float, tokens: float) -> float:
        """When the first token usually comes: what people are told, and what is compared with the fact."""
        return self.cost(now, tokens) * self.typical.factor(self.load.free_at - now)

    def forecast(self, now: float, tokens: float) -> Forecast:
        return Forecast.of(self.basis(now, tokens))

    def basis(self, now: float, tokens: float) -> Basis:
        """What the forecast of now rests on. Most decisions are never looked at: so much is kept of them."""
        load, pace, network = self.load, self.pace, self.rtt.network
        far = UNMEASURED_S if network is None else network
        if self.extra_trips and network is not None:
            far += self.extra_trips * (self.rtt.srtt or 0.0)
        ahead, room, rest = load.free_at - now, load.room_at - now, 0.0
        if load.reported_at is not None and now - load.reported_at > FRESH_S:
            rest = load.widening(now)
        rows = pace.per_row * load.running
        return far, ahead, room, rest, tokens, pace.decode, pace.per_token, rows, self.waited.value, self.shared.value

    def reported(self, told: Occupancy, now: float, tokens_per_s: float = 0.0) -> None:
        """A report came with an answer or a probe; `tokens_per_s`: the prefill rate that it states, 0 if none."""
        self.pace.declared(tokens_per_s)
        self.load.reported(told, self.pace, now, self.rtt.srtt or 0.0)

    def sent(self, now: float, tokens: float) -> Sent:
        """A request with so many tokens to compute goes there now. `ended` is owed for it, once."""
        load = self.load
        sent = Sent(now, tokens, load.running, max(load.free_at - now, 0.0))
        load.sent(sent, self.pace)
        return sent

    def began(self, sent: Sent, tokens: float, timings: Timings, expected: float) -> None:
        """The first token is here: what was to be computed in truth, how long it took, and how long was expected."""
        self.load.began(sent, timings.queue, self.pace, sent.at + timings.first_token)
        self.lateness.seen(timings.first_token - expected)
        self.typical.seen(sent.queue, later=timings.first_token > expected)
        queue, work = timings.queue, timings.work
        if queue is not None:
            self.waited.learn(sent.queue, queue)
        if work is None:
            # All is mixed: what is neither the network nor the queue that we expected was work.
            work = timings.first_token - (self.rtt.srtt or 0.0) - sent.queue * self.waited.value
        else:
            alone = self.pace.expect(tokens, sent.running)
            beside = min(sent.queue, alone)
            self.shared.learn(beside, work - alone)
            work -= beside * self.shared.value
        self._learnt_at = sent.at + timings.first_token
        self.pace.observe(tokens, sent.running, max(work, 0.0))

    def probed(self, now: float) -> None:
        """It lives: where it has not answered for a while, its pace is doubted, so that it does not starve."""
        if self._learnt_at is None:
            self._learnt_at = now
        elif now - self._learnt_at > STARVED_S and not self.load.pending:
            self.pace.relax()

    def ended(self, sent: Sent, now: float, *, served: bool) -> None:
        """The answer is over. One that failed teaches nothing: a node that fails fast must not look fast."""
        self.load.ended(sent, now, served=served)
