#!/usr/bin/env python3
"""Nodes that take as long as native ones would and compute nothing: the simulator's node on a real clock, behind the
native node's HTTP. So many regions fit on two cores.

    .venv/bin/python scripts/bench/modelled_node.py --ports 8241,8242 --speed 4

A token is four characters of a prompt, a block 16 tokens. Answers carry report, timings, token counts and the prompt's
last block; the feed tells of blocks held and evicted. A stream's tokens come in two events, at the first and the last
one's time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from random import Random
from time import monotonic
from typing import Any, cast

import orjson
from xxhash import xxh3_64_intdigest

from edgeproxy.protocol.node.blocks import PREFIX_HEADER, Prefix
from edgeproxy.protocol.node.report import (
    REPORT_HEADER,
    TIMING_HEADER,
    TOKENS_HEADER,
    NodeReport,
    NodeState,
    encode_tokens,
)
from edgeproxy.sim.clock import Clock
from edgeproxy.sim.kv import PrefixCache
from edgeproxy.sim.node import Job, Node, NodeLimits
from edgeproxy.sim.steps import StepTimes, recorded
from engine.feed import BlockFeed

CHARS = 4
BLOCK = 16
DEFAULT_OUTPUT = 64
_HEAD = b"HTTP/1.1 %d Modelled\r\ncontent-type: %b\r\n%b: %b\r\n%b"
_BUSY = orjson.dumps({"error": {"message": "busy", "type": "rate_limit_error", "param": None, "code": "queue_full"}})


class RealClock:
    """What a node asks of the simulator's clock, by the event loop's."""

    @property
    def now(self) -> float:
        return monotonic()

    def at(self, time: float, action: Callable[..., object], *arguments: Any) -> None:
        asyncio.get_running_loop().call_at(time, action, *arguments)


class ToldCache(PrefixCache):
    """Tells a feed what is held."""

    def __init__(self, feed: BlockFeed) -> None:
        super().__init__()
        self._feed = feed
        self._parents: dict[int, int] = {}

    def add(self, blocks: Sequence[int], room: int) -> None:
        new = [(block, parent) for parent, block in pairwise((0, *blocks)) if block not in self._blocks]
        self._parents.update(new)
        self._tell(True, new)
        super().add(blocks, room)

    def shrink(self, room: int) -> None:
        gone = []
        while len(self._blocks) > max(room, 0):
            block, _ = self._blocks.popitem(last=False)
            gone.append((block, self._parents.pop(block)))
        self._tell(False, gone)

    def _tell(self, added: bool, blocks: list[tuple[int, int]]) -> None:
        self._feed.apply([(added, _key(block), _key(parent)) for block, parent in blocks])


class Asked:
    """One request under way: when its first and its last token are there."""

    def __init__(self) -> None:
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_at = 0.0


class Server:
    """One node's HTTP."""

    def __init__(self, times: StepTimes, speed: float, seed: int) -> None:
        clock = cast(Clock, RealClock())
        self._limits = NodeLimits()
        self._node = Node[Asked](clock, times, speed, self._limits, BLOCK, Random(seed), self._first, self._done)
        self._steps = count(1)
        self._feed = BlockFeed("modelled", f"run{seed}")
        self._node.cache = ToldCache(self._feed)

    def _first(self, job: Job[Asked]) -> None:
        job.owner.first_at = monotonic()
        job.owner.first.set_result(None)

    def _done(self, job: Job[Asked]) -> None:
        job.owner.done.set_result(None)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                method, path, _ = line.split(b" ", 2)
                length, last = 0, b""
                while (field := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = field.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                    last = value.strip() if name.lower() == b"last-event-id" else last
                body = await reader.readexactly(length)
                if method == b"POST":
                    await self._chat(orjson.loads(body), writer)
                elif path == b"/node/v1/events":
                    await self._tell(writer, last.decode())
                else:
                    known = path in (b"/readyz", b"/node/v1/status")
                    self._whole(writer, 200 if known else 404, self._report() if known else b"{}")
        writer.close()

    async def _tell(self, writer: asyncio.StreamWriter, last: str) -> None:
        """The feed, for as long as somebody reads it."""
        fields = b"transfer-encoding: chunked\r\n\r\n"
        writer.write(_HEAD % (200, b"text/event-stream", REPORT_HEADER, self._report(), fields))
        reader = self._feed.reader(last)
        try:
            while event := await reader.next():
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
        finally:
            reader.leave()

    async def _chat(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        text = "\n".join(message["content"] for message in asked["messages"]).encode()
        owner, tokens = Asked(), max(len(text) // CHARS, 1)
        job = Job(owner, tokens, asked.get("max_tokens", DEFAULT_OUTPUT), _blocks(text))
        if not self._node.submit(job):
            self._whole(writer, 429, _BUSY)
            return
        await owner.first
        terms = {"queue": job.started - job.arrived, "prefill": owner.first_at - job.started, "first": 0.0}
        timing = ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in terms.items()).encode()
        told = [(TIMING_HEADER, timing), (TOKENS_HEADER, encode_tokens(tokens, job.cached))]
        if job.blocks:
            told.append((PREFIX_HEADER, Prefix(_key(job.blocks[-1]), len(job.blocks)).encode()))
        told.append((b"transfer-encoding", b"chunked"))
        fields = b"".join(b"%b: %b\r\n" % field for field in told) + b"\r\n"
        writer.write(_HEAD % (200, b"text/event-stream", REPORT_HEADER, self._report(), fields))
        _event(writer, _chunk({"role": "assistant", "content": "word"}, None))
        await owner.done
        usage = {"prompt_tokens": tokens, "completion_tokens": job.output, "total_tokens": tokens + job.output}
        _event(writer, _chunk({"content": " word" * (job.output - 1)}, "stop", usage=usage))
        _event(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        fields = b"content-length: %d\r\n\r\n" % len(body)
        writer.write(_HEAD % (status, b"application/json", REPORT_HEADER, self._report(), fields) + body)

    def _report(self) -> bytes:
        told, total = self._node.report(), self._limits.kv_tokens // BLOCK
        found = NodeReport(
            state=NodeState.READY,
            model="modelled",
            numerics="modelled",
            running=told.running,
            waiting=told.waiting,
            waiting_prefill_tokens=int(told.prefill_tokens),
            kv_blocks_total=total,
            kv_blocks_free=max(told.kv_spare, 0) // BLOCK,
            kv_blocks_evictable=0,
            block_tokens=BLOCK,
            prefill_tokens_per_s=told.prefill_tokens_per_s,
            step_ms=told.step_s * 1e3,
            step_counter=next(self._steps),
            handling_s=0.0,
        )
        return found.encode()


def _key(block: int) -> bytes:
    """Of a block; none for what stands before the first."""
    return block.to_bytes(8, "big") if block else b""


def _blocks(text: bytes) -> list[int]:
    size, key, found = BLOCK * CHARS, 0, list[int]()
    for start in range(0, len(text) - size + 1, size):
        key = xxh3_64_intdigest(text[start : start + size], key)
        found.append(key)
    return found


def _chunk(delta: dict[str, Any], finish: str | None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "modelled"}
    return orjson.dumps(head | {"choices": choices} | more)


def _event(writer: asyncio.StreamWriter, data: bytes) -> None:
    event = b"data: " + data + b"\n\n"
    writer.write(b"%x\r\n%b\r\n" % (len(event), event))


async def run(ports: list[int], speed: float) -> None:
    times = StepTimes(recorded())
    servers = [await asyncio.start_server(Server(times, speed, port).serve, "127.0.0.1", port) for port in ports]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ports", required=True, type=lambda text: [int(port) for port in text.split(",")])
    parser.add_argument("--speed", type=float, default=4.0, help="times as fast as the recording")
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(args.ports, args.speed))


if __name__ == "__main__":
    main()
