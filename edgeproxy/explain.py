"""A routing decision for people: asked of a running proxy's admin listener, told as a small table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

_REASONS = {
    "pinned": "the client asked for this region",
    "home": "the home region's best node",
    "faster": "another region was forecast to answer clearly sooner than the home region",
    "failover": "no node of the home region was fit",
    "session": "it served the session before, and that costs little",
    "standby": "only standby nodes were fit",
    "least-bad": "no node was fit; this one was the least bad",
    "none": "no node could be asked",
}
_HEDGES = {
    "won": "sent to a second node too, because the first was late; the second answered",
    "lost": "sent to a second node too, because the first was late, which then answered all the same",
    "failed": "sent to a second node too, because the first was late; the second failed",
    "abandoned": "sent to a second node too, because the first was late; the client left",
}
_TERMS = ("network", "queue", "prefill", "decode", "total")
TIMEOUT_S = 10.0


class ExplainError(RuntimeError):
    """The decision cannot be told; the message names the thing, the cause and the remedy."""


def explained(admin: str, request_id: str) -> str:
    """`admin`: base URL of the admin listener. Raises ExplainError."""
    try:
        answer = httpx.get(f"{admin}/admin/decisions/{quote(request_id, safe='')}", timeout=TIMEOUT_S)
        found = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ExplainError(
            f"{admin} gives no answer ({error}); is the proxy running, and its admin listener?"
        ) from None
    if answer.status_code == 404:
        raise ExplainError(f"{request_id}: no decision is kept; only those of the last 1,000 requests are")
    if answer.status_code != 200:
        raise ExplainError(f"{admin} answers {answer.status_code}: {found.get('error', {}).get('message', '')}")
    return render(found)


def render(found: Mapping[str, Any]) -> str:
    """`found`: an entry of /admin/decisions."""
    lines = [
        f"{found['request_id']}: {found['model']}, prompt of about {found['prompt_tokens']} tokens",
        f"  {found['reason']}: {_REASONS.get(found['reason'], '')}",
        "",
        f"  {'forecast, ms':24}" + "".join(f"{term:>10}" for term in _TERMS) + f"{'cached':>10}",
    ]
    for name, option in (("chosen", found["chosen"]), ("runner-up", found["runner_up"])):
        if option is not None:
            numbers = "".join(f"{option[term + '_s'] * 1e3:10.1f}" for term in _TERMS)
            lines.append(f"  {name + ': ' + option['node']:24}{numbers}{option['cached_tokens']:10}")
    lines.append("")
    if found["hold_s"]:
        lines.append(f"  held here for {found['hold_s'] * 1e3:.1f} ms, because every node was hot")
    lines += [f"  failed: {failure}" for failure in found["failures"]]
    if found["hedge"]:
        lines.append(f"  {_HEDGES[found['hedge']]}")
    if found["node"] is not None:
        told = f"attempt {found['attempts']}, status {found['status']}"
        lines.append(f"  answered by {found['node']} in {found['region']}, {told}")
    if found["error_s"] is not None:
        expected, actual = found["expected_s"] * 1e3, found["actual_s"] * 1e3
        lines.append(f"  first token expected after {expected:.1f} ms, came after {actual:.1f} ms")
    return "\n".join(lines)
