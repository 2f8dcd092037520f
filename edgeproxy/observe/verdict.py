"""One sentence for who looks for ten seconds: do users wait, for what, and which region is to blame?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from edgeproxy.observe.blame import LABELS, Blame
from edgeproxy.observe.fleet import NodeView

_NAMED = 3
"""So many nodes that are down are named."""
_FEW = 20
"""A percentage of fewer sounds like more than is known."""
_FARTHER_S, _FARTHER = 0.02, 2.0
"""A region is farther away than it was when its round trip is so much, and so many times, its least of five minutes."""


Mood = Literal["good", "warn", "bad"]


class Lately(NamedTuple):
    """Of the last five minutes."""

    answered: int = 0
    """First tokens."""
    within: int = 0
    """Those within their budget."""
    failed: int = 0
    """Requests that should have had one."""
    untimed: int = 0
    """Answered, and nobody tells when the first token came: not streamed, by a node that tells nothing of it."""
    refused: int = 0
    """For what they asked."""
    left: int = 0
    """By their clients, not known to have been late."""

    @property
    def share(self) -> float | None:
        """Within the budget, of those that count; None where there are none."""
        total = self.answered + self.failed
        return self.within / total if total else None

    @property
    def nobody(self) -> bool:
        """Was served in time, of so many that it is no chance."""
        return not self.within and self.answered + self.failed >= _FEW


class Verdict(NamedTuple):
    mood: Mood
    text: str


def verdict(
    nodes: Sequence[NodeView],
    burn: Sequence[Mapping[str, Any]],
    lately: Lately,
    objective: float,
    found: Blame | None = None,
    broken: str | None = None,
) -> Verdict:
    """`burn` as `Burn.view` tells it. `found`: what is to blame where users wait. `broken`: why the operator's files
    cannot be used."""
    told = _of_users(nodes, burn, lately, objective, found or Blame())
    if broken is None:
        return told
    mood: Mood = "warn" if told.mood == "good" else told.mood
    why = " ".join(broken.split())
    return Verdict(mood, f"{told.text}; the files on disk cannot be used, older ones are in force: {why}")


def _of_users(
    nodes: Sequence[NodeView], burn: Sequence[Mapping[str, Any]], lately: Lately, objective: float, found: Blame
) -> Verdict:
    if not any(node.ready for node in nodes):
        return Verdict("bad", "Nobody is served: every node is down")
    whole = all(node.ready for node in nodes)
    parts, refusals = [_readiness(nodes), *_distances(nodes)], list(_refusals(lately, found))
    burning = {pair["severity"] for pair in burn if pair["state"] == "burning"}
    paged = "page" in burning
    if paged or (lately.share is not None and lately.share < objective):
        reasons = _reasons(lately, found)
        causes = reasons + parts if whole else parts + reasons
        text = "; ".join([_trouble(lately, paged), *causes, *refusals])
        return Verdict("bad" if paged or lately.nobody else "warn", text)
    well = whole and not burning and not refusals and len(parts) == 1
    return Verdict("good" if well else "warn", "; ".join([_head(lately), *parts, *refusals]))


def _head(lately: Lately) -> str:
    """Where nobody waits, as far as is known."""
    if lately.share is not None:
        return "Users do not wait"
    if lately.untimed:
        return f"{_count(lately.untimed)} answered in five minutes, none of which tells when its first token came"
    if lately.refused:
        return "Nothing but refusals in five minutes"
    return "No requests in five minutes" if not lately.left else "No request stayed for its answer in five minutes"


def _refusals(lately: Lately, found: Blame) -> Iterable[str]:
    """Where they are most of what comes: nobody waits then, and yet something is wrong, there or here."""
    others = lately.answered + lately.failed + lately.untimed
    if lately.refused > others and (lately.refused >= _FEW or not others):
        cause = "" if found.refusal is None else f", mostly {found.refusal}"
        yield f"{_count(lately.refused)} refused for what they ask{cause}"


def _count(requests: int) -> str:
    return f"{requests:,} request{'' if requests == 1 else 's'}"


def _trouble(lately: Lately, paged: bool) -> str:
    some = "" if paged or lately.nobody else "Some "
    if _refused(lately):
        failed = _of(lately.failed, lately.answered + lately.failed)
        return f"{some}users get no answer: {failed} refused, failed or given up".capitalize()
    told = "the budget burns too fast, " if paged else ""
    within = _of(lately.within, lately.answered + lately.failed, " of")
    return f"{some}users wait: {told}{within} first tokens in time".capitalize()


def _of(count: int, total: int, of: str = "") -> str:
    """A share; of a few, who they are a share of is told too."""
    return f"{count} of {total}" if total < _FEW else f"{count / total:.0%}{of}"


def _reasons(lately: Lately, found: Blame) -> list[str]:
    """What is lost in the rest of a fleet is the effect of what is down: that is said first then."""
    if _refused(lately):
        return [] if found.code is None else [f"mostly {found.code}"]
    if found.term is None:
        return []
    cold = " of prompts that were not cached" if found.cold else ""
    return [f"mostly {LABELS[found.term]}{cold}" + (f", in {found.region}" if found.region is not None else "")]


def _refused(lately: Lately) -> bool:
    """Rather than late."""
    return lately.failed > lately.answered - lately.within


def _readiness(nodes: Sequence[NodeView]) -> str:
    down = [node for node in nodes if not node.ready]
    if not down:
        return f"all {len(nodes)} nodes ready" if len(nodes) > 1 else "the one node ready"
    alive = {node.region for node in nodes if node.ready}
    lost = [region for region in dict.fromkeys(node.region for node in down) if region not in alive]
    regions = f"no node of {', '.join(lost)} left: " if lost else ""
    names = f" ({', '.join(node.name for node in down)})" if len(down) <= _NAMED else ""
    return f"{regions}{len(down)} of {len(nodes)} nodes down{names}"


def _distances(nodes: Sequence[NodeView]) -> Iterable[str]:
    """Of regions that are suddenly farther away, by their nearest node."""
    for region in dict.fromkeys(node.region for node in nodes):
        here = [node for node in nodes if node.region == region and node.ready]
        now = min((node.rtt_s for node in here if node.rtt_s is not None), default=None)
        least = min((node.rtt_min_s for node in here if node.rtt_min_s is not None), default=None)
        if now is not None and least is not None and now > max(_FARTHER * least, least + _FARTHER_S):
            yield f"{region} is {now * 1e3:.0f} ms away, {least * 1e3:.0f} ms a few minutes ago"
