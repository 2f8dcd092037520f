"""The listeners together: what clients are told of HTTP/3, and a restart that refuses nobody."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgeproxy.client.httpx import AsyncClient
from edgeproxy.config import Address, Listen
from edgeproxy.listeners import Listeners, StartError
from edgeproxy.wire.certificates import Certificates
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.inherited import Inherited
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate
from tests.fake_node import FakeNode
from tests.wire.apps import echo
from tests.wire.raw import PATIENCE_S, RawClient

ANY = Address("127.0.0.1", 0)


def handed(*sockets: socket.socket) -> Inherited:
    return Inherited([socket.socket(fileno=os.dup(sock.fileno())) for sock in sockets])


def bound(kind: socket.SocketKind = socket.SOCK_STREAM, port: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", port))
    return sock


def address_of(sock: socket.socket) -> Address:
    return Address(*sock.getsockname())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> DevCertificate:
    return make_dev_certificate(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def over_tls(certificate: DevCertificate) -> AsyncIterator[tuple[Listeners, RawClient]]:
    tcp = bound()
    udp = bound(socket.SOCK_DGRAM, address_of(tcp).port)
    listeners = Listeners(Limits(), handed(tcp, udp))
    certificates = Certificates(certificate.certificate, certificate.key)
    await listeners.start(Listen(None, address_of(tcp), None), echo, echo, certificates)
    context = ssl.create_default_context(cafile=str(certificate.ca))
    client = await RawClient.connect(address_of(tcp).port, context)
    try:
        yield listeners, client
    finally:
        await client.close()
        await listeners.drain(0, asyncio.Event())
        tcp.close()
        udp.close()


async def alt_svc(client: RawClient) -> str | None:
    client.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
    return (await client.answer())["alt-svc"]


async def test_http3_is_told_of_until_it_is_withdrawn(certificate: DevCertificate) -> None:
    async with over_tls(certificate) as (listeners, client):
        assert (await alt_svc(client) or "").startswith('h3=":')
        listeners.withdraw()
        assert await alt_svc(client) == "clear"


async def test_http3_is_still_told_of_where_another_process_goes_on_with_it(certificate: DevCertificate) -> None:
    async with over_tls(certificate) as (listeners, client):
        assert listeners._quic is not None
        endpoint = listeners._quic._endpoint
        assert endpoint is not None
        assert endpoint._transport is not None
        own = endpoint._transport.get_extra_info("socket")
        successor = QuicListener(echo, Limits(), certificate=certificate.certificate, key=certificate.key, state={})
        await successor.start(socket.socket(fileno=os.dup(own.fileno())))
        listeners.withdraw()
        assert (await alt_svc(client) or "").startswith('h3=":')
        await successor.drain(0)


async def test_who_has_come_over_http3_is_told_too_when_it_is_withdrawn(certificate: DevCertificate) -> None:
    async with over_tls(certificate) as (listeners, _):
        assert listeners._quic is not None
        url = f"https://127.0.0.1:{listeners._quic.port}/"
        async with AsyncClient(verify=certificate.ca, only=True) as http:
            assert "alt-svc" not in (await http.get(url)).headers
            listeners.withdraw()
            assert (await http.get(url)).headers["alt-svc"] == "clear"


async def test_http3_is_not_told_of_where_its_socket_is_gone(certificate: DevCertificate) -> None:
    async with over_tls(certificate) as (listeners, client):
        assert listeners._quic is not None
        listeners._quic.close()
        assert await alt_svc(client) == "clear"


async def test_a_socket_that_nothing_listens_on_is_an_error() -> None:
    with bound() as used, bound() as unused:
        used.listen()
        listeners = Listeners(Limits(), handed(used, unused))
        with pytest.raises(StartError, match=str(address_of(unused).port)):
            await listeners.start(Listen(address_of(used), None, None), echo, echo, None)
        await listeners.drain(0, asyncio.Event())


async def test_a_restart_on_the_same_socket_refuses_nobody() -> None:
    """Clients come without a pause, each on a new connection, while one generation of listeners follows another."""
    with bound() as sock:
        sock.listen(1024)
        where, answers, stop = address_of(sock), asyncio.Semaphore(0), asyncio.Event()

        async def keep_asking() -> None:
            while not stop.is_set():
                client = await RawClient.connect(where.port)
                client.write(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
                assert (await client.answer()).body == b"GET / "
                answers.release()
                await client.close()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(keep_asking())
            for _ in range(5):
                listeners = Listeners(Limits(), handed(sock))
                await listeners.start(Listen(where, None, None), echo, echo, None)
                async with asyncio.timeout(PATIENCE_S):
                    for _ in range(20):
                        await answers.acquire()
                await listeners.drain(10, asyncio.Event())
                await asyncio.sleep(0)  # nobody accepts now; whoever comes waits in the queue
            listeners = Listeners(Limits(), handed(sock))
            await listeners.start(Listen(where, None, None), echo, echo, None)
            stop.set()
        await listeners.drain(10, asyncio.Event())


def test_sockets_meant_for_another_process_are_left_alone() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "PATH": "/"}
    assert Inherited.from_environment(environment, os.getpid()).close() == []
    assert environment == {"PATH": "/"}


async def test_a_proxy_serves_on_the_sockets_that_it_is_started_with(tmp_path: Path) -> None:
    async with FakeNode() as node:
        await serves_on_what_it_was_given(node, tmp_path)


async def serves_on_what_it_was_given(node: FakeNode, tmp_path: Path) -> None:
    with bound() as sock:
        sock.listen()
        where = address_of(sock)
        config = tmp_path / "regions.yaml"
        nodes = f"regions: {{here: {{nodes: [{{url: '{node.url}', models: [ok]}}]}}}}"
        config.write_text(f"listen: {{http: '{where}'}}\n{nodes}\n")
        script = 'exec 3<&"$0"; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
        serve = [sys.executable, "-m", "edgeproxy", "serve", "--config", str(config), "--state", str(tmp_path)]
        # The connection is there before the proxy: it waits in the socket's queue.
        client = await RawClient.connect(where.port)
        client.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, str(sock.fileno()), *serve, pass_fds=[sock.fileno()], stderr=subprocess.PIPE
        )
        try:
            assert (await client.answer()).status == 200
        finally:
            await client.close()
            process.terminate()
            async with asyncio.timeout(PATIENCE_S):
                await process.communicate()
    assert process.returncode == 0
