"""What a request cost, term by term: on its answer, in the log, in the metrics and on the dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from time import time
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import orjson

from edgeproxy.gateway.decisions import Decisions
from edgeproxy.gateway.paths import CHAT_PATH
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.outcomes import Outcomes
from edgeproxy.observe.requests import Record
from edgeproxy.observe.trace import Trace, Tracer
from edgeproxy.protocol.node.blocks import Prefix
from edgeproxy.protocol.node.foreign import timings_of
from edgeproxy.protocol.openai.codes import node_code
from edgeproxy.protocol.openai.headers import Headers
from edgeproxy.protocol.openai.sse import DONE, Event
from edgeproxy.routing.budget import BUDGET_S, Ledger, settle
from edgeproxy.routing.choose import Decision
from edgeproxy.upstream.node import Node

UNKNOWN_MODEL = "unknown"
TOGETHER = 32
"""Lines of so many calls are made at once: others wait for it, a quarter of a millisecond or so."""
COUNTED_TOGETHER = 96
"""The same of what is counted of them..."""
COUNTED_WITHIN_S = 1.0
"""...and it is counted apart what ended longer than this after the first: some counts are kept by time."""
Hedge = Literal["won", "lost", "failed", "abandoned"]
"""A second copy answered; the first one did; it failed; the client left."""


class Call:
    """One request, as it goes. Moments are monotonic seconds; None where they have not come.

    What most requests never set is the class's own until then: a request sets a dozen of these, not all fifty.
    """

    path: bytes = CHAT_PATH.encode()
    """What it asks a node for."""
    tenant: str = ""
    disclose: bool = False
    """Whether the client may see timings and topology."""
    timings: bool = False
    """Whether it asked for the ledger beside the usage."""
    model: str = UNKNOWN_MODEL
    """As the configuration names it: what a client calls a model that nobody serves is logged nowhere."""
    stream: bool = False
    to_native: Sequence[tuple[bytes, bytes]] = ()
    """What native nodes are told of the request beside its body."""
    attempts: int = 0
    node: str | None = None
    region: str | None = None
    rtt_s: float | None = None
    """The region's round trip when the request was sent there."""
    lost_s: float = 0.0
    """Spent on attempts that failed, or on waiting before the second copy that answered."""
    sent_at: float | None = None
    """When the request was sent to the node that answered."""
    first_at: float | None = None
    """When the first content was here; for an answer that is not streamed, would have been, by the node's account."""
    handed_at: float | None = None
    """When the first content of a stream had been given to the client's transport."""
    terms: Mapping[str, float] = MappingProxyType({})
    """The node's own (`budget.NODE_TERMS`), in seconds."""
    failures: tuple[str, ...] = ()
    """`node: reason` of each attempt that failed."""
    heard: bool = False
    """The node of the attempt under way has begun to answer."""
    hedge: Hedge | None = None
    """What became of a second copy; None where there was none."""
    resumes: int = 0
    """How often another node went on with its stream..."""
    resumed_on: tuple[str, ...] = ()
    """...and which. Its `node` is the one that its first token came from, to which its times belong."""
    written: int | None = None
    """Tokens of a stream, as far as it came; a usage tells better."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """As the node that answered counted them, where it has said so by its first content."""
    prefix: Prefix | None = None
    """The prompt's KV blocks at that node, where it tells."""
    expected_s: float | None = None
    """The forecast of the node that answered, from sending to the first content..."""
    shown_s: float | None = None
    """...and how long it took."""
    choice: Decision[Node] | None = None
    """Noted."""
    held_s: float = 0.0
    """Waited here because all nodes were hot."""
    budget_s: float = BUDGET_S
    """For its first token, as the operator has it: what the objective is judged by."""
    own_budget_s: float | None = None
    """As the client has it, for this request alone."""
    status: int = 0
    code: str | None = None
    ending: Ending | None = None
    client_gone: bool = False
    trace: Trace | None = None
    """Where traces are collected."""
    node_traces: bool = False
    """The node that answers sends spans of its own."""

    def __init__(self, request_id: bytes, started: float, protocol: str, client_rtt_s: float | None) -> None:
        """`started`: the first byte of the request, as the listener read it; the last, once that has come: how long a
        client takes to send what it asks is no part of the answer's latency."""
        self.request_id = request_id
        self.started = started
        self.protocol = protocol
        self.client_rtt_s = client_rtt_s

    def answered_as(self, copy: Call) -> None:
        """It is a second copy that answers."""
        self.node, self.region, self.rtt_s = copy.node, copy.region, copy.rtt_s
        self.sent_at, self.first_at, self.terms = copy.sent_at, copy.first_at, copy.terms
        self.prompt_tokens, self.cached_tokens, self.prefix = copy.prompt_tokens, copy.cached_tokens, copy.prefix
        self.ending, self.node_traces = copy.ending, copy.node_traces

    def ledger(self) -> Ledger:
        """The budget's terms, as far as they are known by now."""
        return Ledger._make(self.terms_now())

    def terms_now(self) -> tuple[float | None, ...]:
        """The ledger's, where nothing but the values is wanted."""
        sent_at, first_at, handed_at, term = self.sent_at, self.first_at, self.handed_at, self.terms.get
        hold, lost, client, rtt = self.held_s, self.lost_s, self.client_rtt_s, self.rtt_s
        edge = None if sent_at is None else sent_at - self.started - lost - hold
        parse, queue, prefill, first = term("parse"), term("queue"), term("prefill"), term("first")
        if first_at is None:
            return client, rtt, edge, hold or None, lost or None, parse, queue, prefill, first, None, None, None
        if handed_at is None:
            relay, total = None, first_at - self.started
        else:
            relay, total = handed_at - first_at, handed_at - self.started
        here = hold + lost + (edge or 0.0) + (relay or 0.0)
        there = (parse or 0.0) + (queue or 0.0) + (prefill or 0.0) + (first or 0.0)
        rtt, rest = settle(total - here - there, rtt)
        return client, rtt, edge, hold or None, lost or None, parse, queue, prefill, first, relay, rest, total

    def disclosure(self) -> Headers:
        """What those who may know of timings and topology find on their answer."""
        if not self.disclose or self.region is None:
            return []
        timing = self.ledger().server_timing()
        return [
            (b"x-edge-region", self.region.encode()),
            (b"x-edge-attempts", b"%d" % self.attempts),
            *([(b"server-timing", timing)] if timing else []),
        ]


class Account:
    """Closes calls. Their lines are made for some at once, with the log's of that moment, and they are counted more at
    a time: the code for it is then read into the processor's caches once. Who looks sees all that have ended."""

    def __init__(self, log: Log, metrics: Metrics, outcomes: Outcomes, tracer: Tracer | None = None) -> None:
        self._log = log
        self.tracer = tracer
        self._metrics = metrics
        self._outcomes = outcomes
        self._decisions = Decisions()
        self._ended: list[tuple[Call, float, float]] = []
        self._uncounted: list[tuple[Record, Decision[Node] | None]] = []
        log.gather(self._tell)

    def close(self, call: Call, now: float) -> None:
        ended = self._ended
        ended.append((call, now, time()))
        if len(ended) == 1:
            self._log.soon()
        elif len(ended) >= TOGETHER:
            self._tell()

    @property
    def metrics(self) -> Metrics:
        self._settle()
        return self._metrics

    @property
    def outcomes(self) -> Outcomes:
        self._settle()
        return self._outcomes

    @property
    def decisions(self) -> Decisions:
        self._settle()
        return self._decisions

    def _settle(self) -> None:
        self._tell()
        self._count()

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        if not ended:
            return
        records = list(starmap(record_of, ended))
        self._log.records(records)
        kept = self._uncounted
        if kept and (len(kept) >= COUNTED_TOGETHER or records[0]["time"] - kept[0][0]["time"] > COUNTED_WITHIN_S):
            self._count()
        self._uncounted += [(record, call.choice) for record, (call, _, _) in zip(records, ended, strict=True)]
        if self.tracer is not None:
            for record, (call, _, _) in zip(records, ended, strict=True):
                if call.trace is not None:
                    self.tracer.end(call.trace, record, told=call.node_traces)

    def _count(self) -> None:
        made, self._uncounted = self._uncounted, []
        if not made:
            return
        records = [record for record, _ in made]
        self._metrics.recorded(records)
        for kind, (record, choice) in zip(self._outcomes.add(records), made, strict=True):
            if choice is not None:
                self._decisions.add(kind, choice, record)


def record_of(call: Call, now: float, time: float) -> dict[str, Any]:
    """Its line in the log. `now`: when it ended, as the call's moments; `time`: the same in Unix seconds."""
    client, rtt, edge, hold, failover, parse, queue, prefill, first, relay, unexplained, total = call.terms_now()
    prompt, cached, written = call.prompt_tokens, call.cached_tokens, call.written
    finish, code, ending = None, call.code, call.ending
    if ending is not None:
        _, finish, usage, failed = ending
        code = code or failed
        if usage is not None:
            counted, found, told = usage
            prompt, cached = prompt if counted is None else counted, cached if found is None else found
            written = written if told is None else told
    record = {
        "event": "request",
        "time": time,
        "request_id": call.request_id.decode("ascii"),
        "tenant": call.tenant,
        "model": call.model,
        "stream": call.stream,
        "protocol": call.protocol,
        "status": call.status,
        "client_gone": call.client_gone,
        "region": call.region,
        "node": call.node,
        "attempts": call.attempts,
        "failures": call.failures,
        "resumes": call.resumes,
        "resumed_on": call.resumed_on,
        "hedge": call.hedge,
        "expected_s": call.expected_s,
        "shown_s": call.shown_s,
        "budget_s": call.budget_s,
        "own_budget_s": call.own_budget_s,
        "code": code,
        "reason": None if call.choice is None else call.choice.reason,
        "client_s": client,
        "rtt_s": rtt,
        "edge_s": edge,
        "hold_s": hold,
        "failover_s": failover,
        "parse_s": parse,
        "queue_s": queue,
        "prefill_s": prefill,
        "first_s": first,
        "relay_s": relay,
        "unexplained_s": unexplained,
        "first_token_s": total,
        "wait_s": None if total is None else total + (client or 0.0),
        "total_s": now - call.started,
        "finish": finish,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "completion_tokens": written,
    }
    if call.trace is not None:
        record["trace_id"] = f"{call.trace.context.trace:032x}"
    return record


Counts = tuple[int | None, int | None, int | None]
"""Tokens of the prompt, how many of them were cached, and tokens of the answer; None where a node does not say."""


class Ending(NamedTuple):
    """What the last events of a stream, or a whole answer, tell of how it ended."""

    finished: bool
    """It said so itself: a finish reason, `[DONE]` or an error."""
    finish: str | None = None
    usage: Counts | None = None
    code: str | None = None
    """Of an error that it ended with, after content."""

    def counts(self) -> tuple[int | None, int | None]:
        """Tokens of the prompt, and how many of them were cached, as far as the usage tells."""
        return (None, None) if self.usage is None else self.usage[:2]


_UNKNOWN = Ending(finished=False)


def ending_of_stream(last: Iterable[Event]) -> Ending:
    finished, finish, usage, code = False, None, None, None
    for event in last:
        if event.data == DONE:
            finished = True
            continue
        try:
            found = ending_of(orjson.loads(event.data))
        except orjson.JSONDecodeError:
            continue
        finished = finished or found.finished
        finish = found.finish or finish
        usage = found.usage or usage
        code = found.code or code
    return Ending(finished, finish, usage, code)


def ending_of(value: object) -> Ending:
    """`value`: a parsed chunk or completion."""
    if not isinstance(value, dict):
        return _UNKNOWN
    finish, choices, error = None, value.get("choices"), value.get("error")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and isinstance(reason := choice.get("finish_reason"), str):
                finish = reason
                break
    usage = value.get("usage")
    counts = _counts(usage, value) if usage and isinstance(usage, dict) else None
    if error:
        return Ending(True, finish, counts, node_code(500, error))
    return Ending(finish is not None, finish, counts)


def _counts(usage: Mapping[str, Any], value: Mapping[str, Any]) -> Counts:
    """`value`: around the usage. Some servers tell of the cached tokens there."""
    prompt, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = None
    if details:
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
    elif "timings" in value and (timed := timings_of(value)) is not None:
        cached = timed.cached
    # A node's word, and so perhaps no number; only numbers are logged.
    return (
        prompt if isinstance(prompt, int) else None,
        cached if isinstance(cached, int) else None,
        written if isinstance(written, int) else None,
    )
