"""One sentence for who looks for ten seconds: do users wait?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple


class Lately(NamedTuple):
    """Of the last five minutes."""

    answered: int = 0
    """First tokens."""
    within: int = 0
    """Those within their budget."""
    failed: int = 0
    """Requests that should have had one."""

    @property
    def share(self) -> float | None:
        """Within the budget, of all; None where nothing was asked."""
        total = self.answered + self.failed
        return self.within / total if total else None


class Verdict(NamedTuple):
    mood: Literal["good", "warn", "bad"]
    text: str


def verdict(ready: int, nodes: int, burn: Sequence[Mapping[str, Any]], lately: Lately, objective: float) -> Verdict:
    """`ready` of so many `nodes`; `burn` as `Burn.view` tells it."""
    if not ready:
        return Verdict("bad", "Nobody is served: every node is down")
    fleet = f"all {nodes} nodes ready" if ready == nodes else f"{nodes - ready} of {nodes} nodes down"
    burning = {pair["severity"] for pair in burn if pair["burning"]}
    if "page" in burning:
        return Verdict("bad", f"Users wait: the budget burns too fast; {fleet}")
    if lately.share is None:
        return Verdict("good" if ready == nodes else "warn", f"No requests in five minutes; {fleet}")
    if lately.share < objective:
        return Verdict("warn", f"Some users wait: {lately.share:.0%} of first tokens in time; {fleet}")
    return Verdict("good" if ready == nodes and not burning else "warn", f"Users do not wait; {fleet}")
