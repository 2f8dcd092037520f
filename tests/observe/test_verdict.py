"""The sentence is as bad as the worst that is known, and says what to look at."""

from __future__ import annotations

from typing import Any

import pytest

from edgeproxy.observe.verdict import Lately, verdict

QUIET: list[dict[str, Any]] = [{"severity": "page", "burning": False}, {"severity": "ticket", "burning": False}]
PAGE = [{"severity": "page", "burning": True}]
TICKET = [{"severity": "ticket", "burning": True}]


@pytest.mark.parametrize(
    ("ready", "burn", "lately", "mood", "says"),
    [
        (2, QUIET, Lately(100, 99, 0), "good", "Users do not wait; all 2 nodes ready"),
        (1, QUIET, Lately(100, 99, 0), "warn", "1 of 2 nodes down"),
        (2, TICKET, Lately(100, 99, 0), "warn", "Users do not wait"),
        (2, QUIET, Lately(100, 50, 0), "warn", "50% of first tokens in time"),
        (2, QUIET, Lately(90, 90, 10), "warn", "90% of first tokens in time"),
        (2, PAGE, Lately(100, 99, 0), "bad", "burns too fast"),
        (0, QUIET, Lately(100, 99, 0), "bad", "every node is down"),
        (2, QUIET, Lately(), "good", "No requests"),
        (1, QUIET, Lately(), "warn", "No requests"),
    ],
)
def test_the_worst_that_is_known_decides(
    ready: int, burn: list[dict[str, Any]], lately: Lately, mood: str, says: str
) -> None:
    found = verdict(ready, 2, burn, lately, 0.95)
    assert (found.mood, says in found.text) == (mood, True)
