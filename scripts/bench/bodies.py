#!/usr/bin/env python3
"""How long a body holds the event loop: milliseconds of CPU, in one process and without a network.

    .venv/bin/python scripts/bench/bodies.py [--rounds 3]

`longest` is the longest piece that the proxy reads without giving way, `together` all pieces of the body, `parser`
what it takes to parse the body whole and to write its prompt again (orjson), in one go. Each is the best of the rounds:
other work on the machine lengthens some.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from collections.abc import Iterator
from random import Random

import orjson

from edgeproxy.gateway.reading import careful, grammar, usual


def bodies() -> Iterator[tuple[str, bytes]]:
    yield "a question", chat([message("Say in sixty words how a fox and a dog may come to be friends by a river.")])
    yield "a long conversation", chat([message("word and " * 25)] * 800)
    yield "a megabyte of text", chat([message("word and " * 110_000)])
    yield "20,000 messages of parts", chat([message([{"type": "text", "text": "hello there"}])] * 20_000)
    yield "one text", chat([message("word and " * 900_000)])
    yield "one text of escapes", chat([message('say "so"\n' * 700_000)])
    yield "one text, not ASCII", chat([message("wörd ünd " * 700_000)], ascii_only=False)
    picture = "data:image/png;base64," + base64.b64encode(Random(1).randbytes(2_600_000)).decode()
    yield "two pictures", chat([message([{"type": "image_url", "image_url": {"url": picture}}] * 2)])
    yield "900 tools", chat([message("hi")], tools=[tool()] * 900)
    yield "tokens", b'{"model":"m","prompt":[%b1]}' % (b"12345," * 1_300_000)
    yield "brackets in brackets", b'{"model":"m","messages":[%b[]]}' % (b"[[[[[[]]]]]]," * 20_000)
    yield "256 KiB of brackets", b'{"model":"m","messages":[%b[]]}' % (b"[]," * 87_000)


def chat(messages: list[object], ascii_only: bool = True, **more: object) -> bytes:
    value = {"model": "m", "max_tokens": 64, "messages": messages, **more}
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()


def message(content: object) -> object:
    return {"role": "user", "content": content}


def tool() -> object:
    one = {"type": "string", "description": "one of a few", "enum": ["a", "b", "c"]}
    parameters = {"type": "object", "properties": {f"p{n}": one for n in range(30)}, "required": ["p1"]}
    return {"type": "function", "function": {"name": "f", "description": "does it", "parameters": parameters}}


def pieces(body: bytes) -> list[float]:
    """Seconds of each."""
    times = []
    start = time.thread_time()
    found = usual(body)
    times.append(time.thread_time() - start)
    if found is not None:
        return times
    reading = careful(body)
    while True:
        start = time.thread_time()
        try:
            next(reading)
        except StopIteration:
            return [*times, time.thread_time() - start]
        times.append(time.thread_time() - start)


def parsed(body: bytes) -> float:
    start = time.thread_time()
    value = orjson.loads(body)
    orjson.dumps(value.get("messages", value.get("prompt")))
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    grammar()
    print(f"{'body':28}{'KiB':>8}{'pieces':>8}{'longest':>9}{'together':>10}{'parser':>9}")
    for name, body in bodies():
        rounds = [pieces(body) for _ in range(args.rounds)]
        best = [min(times) * 1e3 for times in zip(*rounds, strict=True)]
        whole = min(parsed(body) for _ in range(args.rounds)) * 1e3
        size, longest = len(body) / 1024, max(best)
        print(f"{name:28}{size:8.1f}{len(best):8}{longest:9.3f}{sum(best):10.3f}{whole:9.3f}")


if __name__ == "__main__":
    main()
