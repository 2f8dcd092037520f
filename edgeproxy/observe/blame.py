"""Why users wait, of late: the term in which late requests lose their time, and the region in which they do.

A term is to blame for what it takes of late requests beyond what it takes of those in time: a prefill that is long in
all of them makes none of them late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

Record = Mapping[str, Any]

LABELS: Final = {
    "client": "client round trip",
    "edge": "the proxy itself",
    "hold": "held here, all nodes being hot",
    "failover": "failed attempts",
    "rtt": "region round trip",
    "parse": "parsing",
    "queue": "queues",
    "prefill": "prefill",
    "first": "first decode",
    "unexplained": "what the node does not explain",
    "relay": "relay",
}
"""As the dashboard names the budget's terms, in a sentence."""
_OUTSIDE = frozenset({"client", "edge", "relay"})
"""Terms that no region has a part in."""
GAVE_UP: Final = "clients that gave up waiting"
"""In place of a code: they are told none."""
LEAST = 5
"""Fewer late requests, or failed ones, are chance."""
_SHARE = 0.6
"""Of the late ones, so many in one region are that region's..."""
_LIFT = 1.2
"""...if they are more frequent there than among all."""


class Blame(NamedTuple):
    term: str | None = None
    """None where too few are late."""
    region: str | None = None
    """None where no region stands out, or none has a part in it."""
    code: str | None = None
    """Of the errors the most frequent; None where too few failed."""
    cold: bool = False
    """It is prefill, and of prompts of which nothing was cached, while others were."""
    refusal: str | None = None
    """The most frequent code of those refused for what they asked; None where they are few."""


def blame(answered: Iterable[Record], failed: Iterable[Record], since: float, refused: Iterable[Record] = ()) -> Blame:
    """All as they are logged; `failed`: those that the objective counts. `since`: Unix seconds."""
    answered = [record for record in answered if record["time"] >= since and record["wait_s"] is not None]
    late = [record for record in answered if record["wait_s"] > record["budget_s"]]
    code, refusal = _most(_codes(failed, since)), _most(_codes(refused, since))
    if len(late) < LEAST:
        return Blame(code=code, refusal=refusal)
    term = _term(late, [record for record in answered if record["wait_s"] <= record["budget_s"]])
    region = None if term in _OUTSIDE else _region(late, answered)
    return Blame(term, region, code, term == "prefill" and _cold(late, answered), refusal)


def _term(late: Sequence[Record], others: Sequence[Record]) -> str:
    return max(LABELS, key=lambda term: _mean(late, term) - _mean(others, term))


def _region(late: Sequence[Record], answered: Sequence[Record]) -> str | None:
    found, every = (Counter(record["region"] for record in records) for records in (late, answered))
    ((region, count),) = found.most_common(1)
    share = count / len(late)
    alone = len(every) == 1
    return region if share >= _SHARE and (alone or share > _LIFT * every[region] / len(answered)) else None


def _cold(late: Sequence[Record], answered: Sequence[Record]) -> bool:
    of_late, of_all = (sum([one["cached_tokens"] == 0 for one in some]) / len(some) for some in (late, answered))
    return bool(of_late >= _SHARE and of_late > _LIFT * of_all)


def _mean(records: Sequence[Record], term: str) -> float:
    field = f"{term}_s"
    return sum([record[field] or 0.0 for record in records]) / len(records) if records else 0.0


def _codes(records: Iterable[Record], since: float) -> Iterable[str]:
    for record in records:
        if record["time"] >= since:
            code = GAVE_UP if record["client_gone"] else record["code"]
            if code is not None:
                yield code


def _most(codes: Iterable[str]) -> str | None:
    for code, count in Counter(codes).most_common(1):
        if count >= LEAST:
            return code
    return None
