"""Several addresses of one name: each has a short start before the next, and the first that connects is taken.

As RFC 8305 has it. Who is slower is cancelled, and closed where it has connected all the same.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from itertools import chain, zip_longest
from typing import Any, Protocol, TypeVar

STAGGER_S = 0.25
"""Between the beginnings of two attempts, unless one fails before (RFC 8305 section 5)."""
ADDRESSES = 8
"""Of one name are tried at most: who answers for the name may tell any number."""

SocketAddress = tuple[Any, ...]


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


async def addresses(host: str, port: int) -> list[SocketAddress]:
    """For datagrams: in the system's order of preference (RFC 6724), the families by turns (RFC 8305 section 4). Raises
    OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    families = dict[int, list[SocketAddress]]()
    for family, *_, address in found:
        families.setdefault(family, []).append(address)
    by_turns = chain.from_iterable(zip_longest(*families.values()))
    return [address for address in by_turns if address is not None][:ADDRESSES]


async def first_of(targets: Iterable[SocketAddress], connect: Callable[[SocketAddress], Coroutine[Any, Any, C]]) -> C:
    """The connection to the first of `targets` that is there. Raises OSError, with every cause, where none is."""
    waiting, running = deque(targets), dict[asyncio.Task[C], SocketAddress]()
    failures = list[tuple[SocketAddress, OSError]]()
    try:
        while waiting or running:
            if waiting:
                target = waiting.popleft()
                running[asyncio.create_task(connect(target))] = target
            stagger = STAGGER_S if waiting else None
            done, _ = await asyncio.wait(running, timeout=stagger, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    connection = task.result()
                except OSError as error:
                    failures.append((running.pop(task), error))
                else:
                    del running[task]
                    return connection
    finally:
        for task in running:
            task.add_done_callback(_ended)
            task.cancel()
    raise _failure(failures)


def _ended(task: asyncio.Task[C]) -> None:
    """Of one that nobody waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _failure(failures: list[tuple[SocketAddress, OSError]]) -> OSError:
    if len(failures) == 1:
        return failures[0][1]
    return ConnectionError("; ".join(f"{address[0]}: {error}" for address, error in failures) or "it has no address")
