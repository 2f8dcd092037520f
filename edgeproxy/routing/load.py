"""How busy a node is: its last report, corrected by what this proxy has sent there since.

The queue is a fluid: `free_at` is the moment from which a request *sent then* would find no prompt before it. A send
moves it on by its own work, a report sets it anew; in between it needs no upkeep. Reports alone herd (everybody runs to
the node that was idle a second ago), own sends alone are blind to others: so both (llm-d-router#298).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from edgeproxy.routing.pace import Pace

FRESH_S = 10.0
"""Twice the period in which near nodes are probed: an older report is widened instead of trusted."""
WIDENING = 0.001
"""Seconds that each further second of a report's age adds to the queue expected."""
MAX_WIDENING_S = 0.050
HOT_QUEUE_S = 0.250
"""A prompt queue as long as the longest hold at the proxy: a wait here can still go elsewhere, one there cannot."""
UNREPORTED_PUSHES = 8
"""A node that reports nothing is hot while so many of our own requests there wait for their first token."""
SERVICE_S = 2.0
"""From sending to the end of an answer, until a node has shown its own."""
USUAL_PROMPT_TOKENS = 200.0
"""Of a waiting request, where a node counts requests and no tokens."""
_WEIGHT = 0.1
_MAX_PENDING = 4096


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What a node tells of its load. None: it does not tell."""

    running: int
    waiting: int
    """Requests that have not been started: there is no room for them."""
    prefill_tokens: int | None = None
    """Prompt tokens still to be computed, of running and waiting requests."""
    free_tokens: int | None = None
    """For how many more tokens there is KV memory, what could be evicted included."""


class Sent:
    """A request that this proxy has sent and whose answer is not over."""

    __slots__ = ("at", "began", "expected", "queue", "running", "tokens", "work")

    def __init__(self, at: float, tokens: float, running: float, queue: float, expected: float = 0.0) -> None:
        """`tokens`: of its prompt, to be computed; `running`, `queue` (seconds) and `expected`, seconds to its first
        token: as forecast when it was sent."""
        self.at = at
        self.tokens = tokens
        self.running = running
        self.queue = queue
        self.expected = expected
        self.began = False
        self.work = 0.0
        """Seconds by which it made the queue longer."""


class Load:
    """Seconds and tokens; `now` is any clock that only goes forward."""

    __slots__ = (
        "_left_at",
        "_others_at",
        "_pending",
        "_pending_tokens",
        "_service_s",
        "_usual_queue",
        "free_at",
        "free_tokens",
        "pending",
        "reported_at",
        "room_at",
        "running",
    )

    def __init__(self) -> None:
        self.free_at = -inf
        self.room_at = -inf
        """Until then a request would wait for memory."""
        self.running = 0.0
        """Sequences that take part in its steps, by the last report and our own since."""
        self.free_tokens = inf
        self.reported_at: float | None = None
        self._left_at = -inf
        """What was sent until then is in the last report."""
        self._others_at = -inf
        """Until then prompts are before a new one that are not ours, by the last report."""
        self._pending: dict[Sent, None] = {}
        """Sent and without a first token, oldest first."""
        self.pending = 0
        """Our own requests that wait for their first token."""
        self._pending_tokens = 0.0
        self._service_s = SERVICE_S
        self._usual_queue = 0.0

    def queue(self, now: float) -> float:
        """Seconds of prompts and, where memory is short, of answers before a request that is sent now."""
        queue = max(self.free_at - now, 0.0)
        if self.room_at > now:
            queue += self.room_at - now
        if self.reported_at is not None and now - self.reported_at > FRESH_S:
            queue += self.widening(now)
        return queue

    def widening(self, now: float) -> float:
        """What an old report adds: the queue that is usual here, the older the report the more, and a doubt."""
        if self.reported_at is None:
            return 0.0
        old = max(now - self.reported_at - FRESH_S, 0.0)
        return min(WIDENING * old, MAX_WIDENING_S) + self._usual_queue * min(old / FRESH_S, 1.0)

    def hot(self, now: float, tokens: float) -> bool:
        """A request of so many tokens would wait for a while that nobody can tell well, or for long."""
        return (
            self.free_at - now > HOT_QUEUE_S
            or self.room_at > now
            or self.free_tokens < tokens
            or (self.reported_at is None and self.pending >= UNREPORTED_PUSHES)
        )

    def sent(self, sent: Sent, pace: Pace) -> None:
        """A request goes there. The caller sees to `began` and, whatever becomes of it, to `ended`, once."""
        tokens, free_at = sent.tokens, self.free_at
        if self.pending < _MAX_PENDING:
            self._pending[sent] = None
            self.pending += 1
            self._pending_tokens += tokens
        sent.work = work = pace.decode + tokens * pace.drain(self.running)
        self.free_at = (free_at if free_at > sent.at else sent.at) + work
        self.free_tokens -= tokens

    def began(self, sent: Sent, queue: float | None, pace: Pace | None = None, now: float = -inf) -> None:
        """Its first token is here, since `now`; `queue`: how long it waited, where the node says so. `pace`: what is
        still waited for is then known anew: it is no prompt before others any more, whatever was expected of it."""
        sent.began = True
        if queue is not None:
            self._usual_queue += (queue - self._usual_queue) * _WEIGHT
        if sent.at > self._left_at:  # else it is among those that the report counts
            self.running += 1.0
        self._settle(sent)
        if pace is not None and self.free_at > now:
            ours = self.pending * pace.decode + self._pending_tokens * pace.drain(self.running)
            free_at = (self._others_at if self._others_at > now else now) + ours
            if free_at < self.free_at:
                self.free_at = free_at

    def ended(self, sent: Sent, now: float, *, served: bool) -> None:
        """The answer is over; `served`: it came to its end. One that failed teaches nothing: a node that fails fast
        must not look fast."""
        began = sent.began
        if began or sent.at <= self._left_at:
            left = self.running - 1.0
            self.running = left if left > 0.0 else 0.0
        if served:
            self._service_s += (now - sent.at - self._service_s) * _WEIGHT
        self.free_tokens += sent.tokens
        if not began:
            self.free_at -= sent.work  # nobody waits behind it any more
            self._settle(sent)

    def reported(self, told: Occupancy, pace: Pace, now: float, trip: float) -> None:
        """`trip`: the round trip; what was sent within it before `now` cannot be in the report."""
        self.reported_at = now
        self._left_at = left_at = now - trip
        self.running = float(told.running)
        drain = pace.drain(self.running)
        tokens = told.waiting * USUAL_PROMPT_TOKENS if told.prefill_tokens is None else told.prefill_tokens
        self.free_tokens = inf if told.free_tokens is None else float(told.free_tokens)
        # Who waits for memory waits for answers to end: one of `running` does so every service_s / running.
        self.room_at = left_at + told.waiting * self._service_s / max(told.running, 1) if told.waiting else -inf
        late: list[Sent] = []
        for sent in reversed(self._pending):
            if sent.at <= left_at:
                break
            late.append(sent)
        # A report that knows less than what we wait for there was long on its way.
        own = self._pending_tokens - sum([sent.tokens for sent in late])
        self.free_at = left_at + max(tokens, own) * drain
        self._others_at = left_at + max(tokens - own, 0.0) * drain
        for sent in reversed(late):
            self.free_at = max(self.free_at, sent.at) + pace.decode + sent.tokens * drain
            self.free_tokens -= sent.tokens

    def _settle(self, sent: Sent) -> None:
        """Nobody waits for its first token any more."""
        if sent in self._pending:
            del self._pending[sent]
            self.pending -= 1
            self._pending_tokens -= sent.tokens
        if not self.pending:
            self._pending_tokens = 0.0  # no rounding is left
            if self.reported_at is None:
                self.free_at = -inf  # nothing of ours is before it, and of others' we know nothing
