"""Values of labels that are known before anything has happened. A counter that comes into being at 1 has not risen, as
Prometheus sees it: the first failover would be on no chart and in no alert. So these are told from the start, at 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

K = TypeVar("K")

FAILURES: Final = (
    "busy", "connect", "send", "head", "body", "cut", "cut_late", "error_event", "error_late", "malformed",
    "malformed_late", "silent", "stalled_late", "status_3xx", "status_5xx", "timeout", "unauthorized",
)  # fmt: skip
"""For which a node's attempt fails, or its stream breaks off (`gateway/attempt`, `gateway/pump`)."""
OVER_BUDGET: Final = "over_budget"
"""In a request's record, in place of such a reason: the node refused at once, as the client had asked for where its own
budget cannot be met. That is no failure of the node's, and is counted as none."""
RESUMES: Final = ("exact", "approximate", "failed")
HEDGES: Final = ("won", "lost", "failed", "abandoned")
REASONS: Final = ("pinned", "home", "faster", "failover", "session", "standby", "least-bad", "none")
"""Of a choice (`routing/choose`)."""
PROTOCOLS: Final = ("h1", "h2", "h3")
CODES: Final = (
    "no_node", "upstream_failed", "upstream_malformed", "upstream_unauthorized", "rate_limit_exceeded", "queue_full",
    "slots_full", "wait_predicted", "oom_predicted", "latency_budget_exceeded", "model_not_found", "invalid_api_key",
)  # fmt: skip
"""Those that tell an operator something: what clients may get wrong of a request's fields is told once it is."""


def with_zeros(counts: Mapping[K, int], known: Iterable[K]) -> dict[K, int]:
    return {**dict.fromkeys(known, 0), **counts}
