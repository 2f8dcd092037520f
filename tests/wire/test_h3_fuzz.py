"""Whatever octets a peer puts on its streams, only its own connection can suffer."""

from __future__ import annotations

import random
from contextlib import suppress

import pylsqpack
import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import encode_frame

from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, echo, serving
from tests.client.h3_peer import get, post


def frame_soup(rng: random.Random) -> bytes:
    """Frames that mean something, in any order, some of them damaged."""
    block = pylsqpack.Encoder().encode(0, post("/", (b"content-length", b"5")))[1]
    pieces = [
        encode_frame(0x1, block),
        encode_frame(0x0, b"12345"),
        encode_frame(0x0, b""),
        encode_frame(rng.choice([0x2, 0x3, 0x4, 0x5, 0x7, 0xD, 0x21, 0x41]), rng.randbytes(rng.randrange(8))),
        encode_uint_var(rng.choice([0, 1])) + encode_uint_var(rng.randrange(1 << 20)),
        encode_frame(0x1, rng.randbytes(rng.randrange(40))),
    ]
    soup = bytearray(b"".join(rng.choices(pieces, k=rng.randrange(1, 6))))
    for _ in range(rng.choice([0, 0, 1, 3])):
        soup[rng.randrange(len(soup))] = rng.randrange(256)
    return bytes(soup)


async def abuse(edge: Edge, seed: int) -> None:
    rng = random.Random(seed)
    peer = await edge.peer()
    for _ in range(rng.randrange(1, 5)):
        if peer.closed:
            break
        unidirectional = rng.random() < 0.3
        stream = peer.quic.get_next_available_stream_id(is_unidirectional=unidirectional)
        soup = frame_soup(rng)
        peer.raw(stream, (rng.choice([b"\x00", b"\x02", b"\x03", b"\x01", b"\x54"]) if unidirectional else b"") + soup)
        await peer.round_trip()
        if not unidirectional and not peer.closed and rng.random() < 0.5:
            with suppress(ValueError):  # aioquic has forgotten the stream already
                rng.choice([peer.cancel, peer.reset, peer.stop])(stream)
    await peer.round_trip()
    peer.close()


@pytest.mark.parametrize("seeds", [range(25), range(25, 50)], ids=str)
async def test_frame_soup_harms_nobody_else(
    seeds: range, certificate: DevCertificate, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, certificate) as edge:
        bystander = await edge.peer()
        for seed in seeds:
            await abuse(edge, seed)
            assert (await bystander.reply(bystander.request(get()))).status == 200
        await bystander.round_trip()
        assert edge.listener.connections == 1
    assert not [record for record in caplog.records if "failed" in record.message and record.name.endswith("quic")]
