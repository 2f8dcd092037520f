"""A plain HTTP request at a port of TLS: it is told to use https, where others would hear nothing."""

from __future__ import annotations

import asyncio
import socket

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.h1_response import encode_error
from edgeproxy.wire.service import Service

_ASKED = ApiError(
    400,
    "This port speaks TLS, and got a plain HTTP request: write https:// in place of http:// in the URL.",
    "plain_http_on_tls_port",
)
_PIECE = 64 * 1024


def is_plain_request(failure: OSError) -> bool:
    """Whether a handshake failed because the client's first bytes were those of an HTTP request."""
    return getattr(failure, "reason", None) == "HTTP_REQUEST"


async def answer_plainly(sock: socket.socket, service: Service) -> None:
    """The answer, and what the client still sends dropped for a while: unread, it would turn the close into a reset and
    lose the answer (RFC 9112 section 9.6)."""
    left, limits = service.limits.linger_bytes, service.limits
    try:
        sock.setblocking(False)
        sock.send(encode_error(service, _ASKED))
        sock.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(limits.linger_s):
            while left > 0 and (data := await service.loop.sock_recv(sock, _PIECE)):
                left -= len(data)
    except OSError:  # it is gone, or takes its time
        pass
