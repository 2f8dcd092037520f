"""Sends a request to one node after the other until one shows content, then passes its bytes on untouched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import monotonic

from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.account import Call, Ending, ending_of_stream
from edgeproxy.gateway.answer import Answer, Whole, whole
from edgeproxy.gateway.attempt import Begun, Failed, attempt
from edgeproxy.observe.metrics import Metrics
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import Headers
from edgeproxy.protocol.openai.sse import DONE, SseError, SseParser
from edgeproxy.upstream.h1 import Response, UpstreamError
from edgeproxy.upstream.node import Node

HOLD_OFF_S = 1.0
"""How long a node that answered 429 without Retry-After is left alone."""
MAX_HOLD_OFF_S = 60.0


class Broken(Exception):
    """A stream that had begun did not come to its end. `reason` becomes a label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Relay:
    """Between the nodes and one client: retries while nothing has been said, and no longer."""

    def __init__(self, limits: GatewayLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics

    async def run(self, nodes: Iterator[Node], headers: Headers, body: bytes, answer: Answer, call: Call) -> None:
        """`nodes` in the order in which they are to be tried, `headers` what they get beside their own credentials.

        Raises ClientGone; UpstreamError where nothing but a cut can tell of a failure; every other end is an answer.
        """
        told: Whole | None = None
        for node in islice(nodes, self._limits.attempts):
            call.attempts += 1
            call.node, call.region, call.rtt_s = node.name, node.region, node.rtt.srtt
            node.in_flight += 1
            begun = monotonic()
            node.breaker.started(begun)
            try:
                outcome = await attempt(node, _fields(node, headers, call), body, call, self._limits)
                node.breaker.succeeded(monotonic())
                await self._pass_on(node, outcome, answer, call)
                return
            except Failed as failed:
                self._note(node, failed, call)
                call.lost_s += monotonic() - begun
                if told is None or (failed.busy and told.status != 429):
                    told = failed.answer
            except BaseException:
                node.breaker.abandoned()
                raise
            finally:
                node.in_flight -= 1
        answer.fields += call.disclosure()
        told = told or whole(_no_node())
        call.code = told.code
        await answer.give(told)

    async def _pass_on(self, node: Node, outcome: Whole | Begun, answer: Answer, call: Call) -> None:
        answer.fields += call.disclosure()
        if isinstance(outcome, Whole):
            await answer.give(outcome)
            return
        try:
            await answer.begin(outcome.headers, outcome.held)
            if outcome.parser is None:
                await _copy(outcome.response, answer)
            else:
                call.ending = await self._pump(outcome, outcome.parser, answer)
            await answer.end()
        except Broken as broken:
            node.breaker.failed(monotonic())
            self._metrics.failed(node.name, broken.reason)
            call.code = "upstream_failed"
            call.failures += (f"{node.name}: {broken.reason}",)
            await answer.give(whole(_broken()))
        finally:
            outcome.response.close()

    async def _pump(self, begun: Begun, parser: SseParser, answer: Answer) -> Ending:
        """Passes on whole events only: what a node's death leaves of one is of no use, and would spoil the error that
        follows. Raises Broken."""
        response, recent = begun.response, begun.recent
        heard = monotonic()
        try:
            while data := await response.read():
                events = parser.feed(data)
                if not events:
                    continue
                await answer.write(b"".join([event.raw for event in events]))
                said = [event for event in events if not event.comment]
                if said:
                    recent.extend(said)
                    heard = monotonic()
                elif monotonic() - heard > self._limits.stall_s:
                    raise Broken("stalled_late")
        except SseError as error:
            raise Broken("malformed_late") from error
        except UpstreamError as error:
            ended = ending_of_stream(recent)
            if not ended.finished:
                raise Broken("cut_late") from error
            return ended
        ended = ending_of_stream(recent)
        # A server may leave out the last empty line. Without a word of the end, the tail is what a death left over.
        if not ended.finished and DONE not in parser.tail:
            raise Broken("cut_late")
        if parser.tail:
            await answer.write(parser.tail)
        return ended

    def _note(self, node: Node, failed: Failed, call: Call) -> None:
        now = monotonic()
        name = node.name
        call.failures += (f"{name}: {failed.reason}",)
        self._metrics.failed(name, failed.reason)
        if failed.busy:
            node.breaker.hold_off(min(failed.retry_after_s or HOLD_OFF_S, MAX_HOLD_OFF_S), now)
            node.breaker.succeeded(now)
        else:
            node.breaker.failed(now)
            node.alarm.set()  # to be probed now: whether it is down is the prober's verdict


def _fields(node: Node, headers: Headers, call: Call) -> Headers:
    return [*headers, *node.headers, *call.to_native] if node.native else [*headers, *node.headers]


async def _copy(response: Response, answer: Answer) -> None:
    """Bytes that we do not read: no event can be put between them, so that a cut is passed on as one."""
    while data := await response.read():
        await answer.write(data)


def _no_node() -> ApiError:
    return ApiError(503, "no node serves this model now; try again", "no_node", headers=((b"retry-after", b"1"),))


def _broken() -> ApiError:
    return ApiError(502, "the node broke off in the middle of its answer; send the request again", "upstream_failed")
