"""What is passed on of a stream does not depend on how its bytes come."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.gateway.answer import Answer
from edgeproxy.gateway.attempt import Begun
from edgeproxy.gateway.pump import Pump, Quiet
from edgeproxy.gateway.transcript import Transcript
from edgeproxy.protocol.openai.sse import DONE, SseParser, encode
from edgeproxy.upstream.response import Response

WORD = encode(b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}')
LAST = encode(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
SAID = WORD + WORD + LAST + encode(DONE)
CHATTER = WORD + LAST + encode(DONE)
COMMENT = b": still here\n\n"


class Reads:
    """A response whose body comes in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._left = iter([*pieces, b""])

    async def read(self) -> bytes:
        return next(self._left)


async def passed(pieces: list[bytes]) -> tuple[bytes, bool]:
    """The bytes that the client gets, and whether the stream is known to have come to its end."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    response = cast(Response, Reads([piece for piece in pieces if piece]))
    begun = Begun(response, [], b"", [], SseParser(), deque(maxlen=4))
    assert begun.parser is not None
    pump = Pump(begun, begun.parser, Transcript(None), Answer(send, b"r"), 60.0)
    ending = await pump.run(Quiet(float("inf"), lambda: False))
    return b"".join(sent), ending.finished


@given(st.sets(st.integers(1, len(SAID + COMMENT + CHATTER) - 1), max_size=6))
async def test_what_stands_behind_the_end_is_left_out_however_it_is_read(cuts: set[int]) -> None:
    whole = SAID + COMMENT + CHATTER
    at = [0, *sorted(cuts), len(whole)]
    got, finished = await passed([whole[start:end] for start, end in pairwise(at)])
    assert finished
    assert got == SAID + COMMENT


async def test_an_end_that_is_read_alone_is_one() -> None:
    got, finished = await passed([WORD, LAST, encode(DONE), WORD, CHATTER])
    assert (got, finished) == (WORD + LAST + encode(DONE), True)
