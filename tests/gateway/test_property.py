"""Any split of the upstream's bytes gives the client the same bytes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from random import Random
from time import monotonic
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.config import GatewayLimits
from edgeproxy.observe.log import Log
from edgeproxy.upstream.h1 import Pool, UpstreamError
from edgeproxy.upstream.node import Fleet, Node
from tests.fake_exchange import DONE, FINISH, ROLE, STREAM, WORDS, error_body
from tests.gateway.drive import Exchange, ask, chat, config

CUT = None
"""In place of a piece: the node dies."""


class ScriptedResponse:
    status = 200

    def __init__(self, pieces: list[bytes | None]) -> None:
        self.headers = [(b"content-type", b"text/event-stream")]
        self.fields = dict(self.headers)
        self.sent_at = self.first_byte_at = self.heard_at = monotonic()
        self.closed = False
        self._pieces = pieces

    async def read(self) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if piece is CUT:
            raise UpstreamError("body", "near-1", "cut")
        return piece

    def close(self) -> None:
        self.closed = True


class ScriptedPool:
    """Answers with the same pieces whoever asks."""

    full = False

    def __init__(self, pieces: Iterable[bytes | None]) -> None:
        self._pieces = [piece for piece in pieces if piece != b""]
        self.given: list[ScriptedResponse] = []

    async def request(self, *_: object) -> ScriptedResponse:
        self.given.append(ScriptedResponse(list(self._pieces)))
        return self.given[-1]

    def close(self) -> None:
        pass


async def through(pieces: Iterable[bytes | None]) -> Exchange:
    pool = ScriptedPool(pieces)
    settings = config("http://127.0.0.1:1", "http://127.0.0.1:1", GatewayLimits())
    node = Node(settings.regions[0].nodes[0], "near", cast(Pool, pool))
    node.up(0.0)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        app, *_ = build(settings, Fleet([node]), Keys(), Log(sink), Random(1), started=1)
        reply = await ask(app, chat("ok", stream=True))
    finally:
        os.close(sink)
    assert all(response.closed for response in pool.given)
    assert node.in_flight == 0
    return reply


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    return [data[start:end] for start, end in itertools.pairwise(places)]


streams = st.sampled_from(
    [
        STREAM,
        STREAM.replace(b"\n", b"\r\n"),
        STREAM.replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" + STREAM,
        b": hello\n" + STREAM.replace(b"\n\n", b"\n\n: between\n\n"),
        STREAM.replace(b"data: ", b"id: 7\nevent: x\ndata:"),
        STREAM.removesuffix(b"\n"),
        STREAM.removesuffix(b"\n\n"),
        STREAM.removesuffix(DONE),
        ROLE + WORDS[0] + b"data: " + error_body("out of luck", "server_error") + b"\n\n",
        STREAM + b": afterwards\n\n",
    ]
)


@given(streams, st.sets(st.integers(1, len(STREAM) * 2), max_size=30))
@example(STREAM, set(range(len(STREAM))))
@example(STREAM.replace(b"\n", b"\r\n"), set(range(len(STREAM) * 2)))
async def test_any_split_gives_the_same_bytes(stream: bytes, cuts: set[int]) -> None:
    reply = await through(split(stream, cuts))
    assert (reply.status, reply.body) == (200, stream)


@given(st.integers(1, len(STREAM) - 1), st.sets(st.integers(1, len(STREAM)), max_size=8))
async def test_death_at_any_byte_leaves_whole_events_and_one_error(at: int, cuts: set[int]) -> None:
    reply = await through([*split(STREAM[:at], cuts), CUT])
    if reply.status == 502:
        assert at < len(ROLE + WORDS[0]), "content had come"
        return
    assert at >= len(ROLE + WORDS[0])
    assert reply.status == 200
    ended = at >= len(STREAM) - len(DONE)
    whole = STREAM[: STREAM.rfind(b"\n\n", 0, at) + 2]
    assert reply.body.startswith(whole)
    rest = reply.body[len(whole) :]
    if ended:
        assert rest == b"", "after its finish nothing is missing that a client would miss"
    else:
        assert rest.startswith(b'data: {"error"')
        assert rest.count(b"\n\n") == 1
        assert reply.events()[-1]["error"]["code"] == "upstream_failed"


def test_the_stream_under_test_has_what_can_be_cut() -> None:
    assert "🌍".encode() in STREAM
    assert STREAM.endswith(FINISH + DONE)
