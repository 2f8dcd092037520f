"""How a stream outlives its node: what a native node tells of it on the way, and what the next one is told.

Asked by `x-edge-stream` (with the node token), a node puts a comment line before each event of a stream that carries
new tokens, and one where tokens gave no text yet:

    :e seed=17 max=256 chars=0 ids=504,3575      the first one: what the node chose, or the client had asked for
    :e chars=12 ids=282                          `chars` characters of content were in the events before this line

The proxy keeps and removes them. When the node dies, another one of equal numerics gets the client's body with a
`resume` object added. It replays the tokens, samples on from there, and sends only what the client has not got.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

STREAM_HEADER = b"x-edge-stream"
FIELD = "resume"
MAX_IDS = 2**17
_NOTE = re.compile(rb":e (?:seed=(\d{1,20}) max=(\d{1,10}) )?chars=(\d{1,10}) ids=((?:\d{1,10}(?:,\d{1,10})*)?)\r?\n?")
_MARK = b":e "


class Note(NamedTuple):
    """One comment line."""

    seed: int | None
    max_tokens: int | None
    chars: int
    ids: bytes
    """Decimal, separated by commas."""


def is_note(line: bytes) -> bool:
    return line.startswith(_MARK)


def encode_note(chars: int, ids: Sequence[int], opening: tuple[int, int] | None = None) -> bytes:
    """`opening`: the seed and the most tokens to sample, on a stream's first line."""
    begin = b"" if opening is None else b"seed=%d max=%d " % opening
    return b"%b%bchars=%d ids=%b\n" % (_MARK, begin, chars, ",".join(map(str, ids)).encode())


def count_ids(notes: bytes | bytearray) -> int:
    """Tokens that whole notes tell of, at next to no cost: none of them is read."""
    return notes.count(b",") + notes.count(b"ids=") - notes.count(b"ids=\n")


def decode_note(line: bytes) -> Note | None:
    """None for a line that no sound node sends."""
    found = _NOTE.fullmatch(line)
    if found is None:
        return None
    seed, most, chars, ids = found.groups()
    return Note(None if seed is None else int(seed), None if most is None else int(most), int(chars), ids)


class Resume(NamedTuple):
    """A stream as far as the client has it."""

    id: str
    created: int
    """Unix seconds; both as in the chunks sent so far."""
    numerics: str
    """Only a node that computes bit for bit alike continues it exactly."""
    seed: int
    max_tokens: int
    """Of the whole completion, the tokens below included."""
    ids: tuple[int, ...]
    """Sampled so far, whether the client has seen their text or not."""
    chars: int
    """Characters of content that the client has got."""
    finished: bool = False
    """The client has got the finish reason: only what follows it is missing."""


def with_resume(body: bytes, resume: Resume) -> bytes:
    """The client's body with the field added. Last in the object, so that it counts, whatever stood there before."""
    return b"%b,%b:%b}" % (body.rstrip()[:-1].rstrip(), orjson.dumps(FIELD), orjson.dumps(resume._asdict()))


def decode_resume(value: Any) -> Resume:
    """Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("is not an object")
    ids = value.get("ids")
    if not isinstance(ids, list) or len(ids) > MAX_IDS or not all(_whole(item, 2**32) for item in ids):
        raise ValueError(f"needs `ids`, at most {MAX_IDS} token ids")
    for name, most in (("created", 2**63), ("seed", 2**64), ("max_tokens", 2**31), ("chars", 2**31)):
        if not _whole(value.get(name), most):
            raise ValueError(f"needs `{name}`, a whole number from 0 to {most - 1}")
    if not value["max_tokens"]:
        raise ValueError("needs `max_tokens`, at least 1")
    for name in ("id", "numerics"):
        if not isinstance(value.get(name), str) or len(value[name]) > 256:
            raise ValueError(f"needs `{name}`, a string of at most 256 characters")
    if not isinstance(value.get("finished", False), bool):
        raise ValueError("has a `finished` that is neither true nor false")
    return Resume(
        id=value["id"],
        created=value["created"],
        numerics=value["numerics"],
        seed=value["seed"],
        max_tokens=value["max_tokens"],
        ids=tuple(ids),
        chars=value["chars"],
        finished=value.get("finished", False),
    )


def _whole(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end
