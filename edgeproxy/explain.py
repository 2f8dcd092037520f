"""A routing decision for people: asked of a running proxy's admin listener, told as a small table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any
from urllib.parse import quote

import httpx

from edgeproxy.admin_key import authorization, refused
from edgeproxy.observe.known import OVER_BUDGET

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
_LATE = "_late"
"""How the reasons end for which a stream breaks off that has begun."""
_TERMS = ("network", "queue", "prefill", "decode", "total")
_ACTUAL = ("rtt_s", "queue_s", "prefill_s", "first_s")
"""What was measured of the terms, in their order. The total has more in it: the proxy's own work and the node's."""
_ELSEWHERE = "Of another deployment name the file (--config, or EDGEPROXY_CONFIG) or the admin listener (--admin)."
TIMEOUT_S = 10.0


class ExplainError(RuntimeError):
    """The decision cannot be told; the message names the thing, the cause and the remedy."""


def explained(admin: str, request_id: str | None, key: str | None = None) -> str:
    """`admin`: base URL of the admin listener, `key`: for one on another machine; `request_id`: None for the last
    request. Raises ExplainError."""
    which = "?limit=1" if request_id is None else f"/{quote(request_id, safe='')}"
    try:
        answer = httpx.get(f"{admin}/admin/decisions{which}", headers=authorization(key), timeout=TIMEOUT_S)
        if (told := refused(admin, answer.status_code, key)) is not None:
            raise ExplainError(told)
        found = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ExplainError(
            f"{admin} gives no answer ({error}); is the proxy running, and its admin listener? {_ELSEWHERE}"
        ) from None
    if answer.status_code == 404:
        raise ExplainError(
            f"{request_id}: {admin} keeps no such decision, only those of the last 1,000 requests that were answered, "
            f"and as many that failed or were refused. {_ELSEWHERE}"
        )
    if answer.status_code != 200:
        raise ExplainError(f"{admin} answers {answer.status_code}: {found.get('error', {}).get('message', '')}")
    if request_id is not None:
        return render(found)
    if not found["decisions"]:
        raise ExplainError(
            f"no request has come to {admin} since it was started, none at least that was routed. {_ELSEWHERE}"
        )
    return render(found["decisions"][0])


def render(found: Mapping[str, Any]) -> str:
    """`found`: an entry of /admin/decisions."""
    lines = [
        f"{found['request_id']}: {found['model']}, prompt of about {found['prompt_tokens']} tokens",
        f"  {found['reason']}: {_REASONS.get(found['reason'], '')}",
        "",
        f"  {'ms':30}" + "".join(f"{term:>10}" for term in _TERMS) + f"{'cached':>10}",
    ]
    for name, option in (("chosen", found["chosen"]), ("runner-up", found["runner_up"])):
        if option is not None:
            terms = [option[f"{term}_s"] for term in _TERMS]
            lines.append(_row(f"forecast, {name}: {option['node']}", terms, f"{option['cached_tokens']:10}"))
    if found["actual_s"] is not None:
        actual = found["actual"]
        terms = [*(actual[name] for name in _ACTUAL), found["actual_s"]]
        lines.append(_row(f"came: {found['node']}", terms, ""))
    return "\n".join([*lines, "", *(f"  {line}" for line in _course(found))])


def _row(label: str, seconds: Sequence[float | None], cached: str) -> str:
    return f"  {label:30}" + "".join("         -" if s is None else f"{s * 1e3:10.1f}" for s in seconds) + cached


def _course(found: Mapping[str, Any]) -> Iterator[str]:
    """What came of it, in the order in which it happened."""
    if found["hold_s"]:
        yield f"held here for {found['hold_s'] * 1e3:.1f} ms, because every node was hot"
    failures = list(found["failures"])
    before = list(takewhile(lambda failure: not failure.endswith(_LATE), failures))
    for failure in before:
        yield _failed(failure)
    if found["hedge"]:
        yield _HEDGES[found["hedge"]]
    yield _answer(found, before)
    for failure in failures[len(before) :]:
        yield f"{'broke off' if failure.endswith(_LATE) else 'failed'}: {failure}"
    if found["resumed_on"]:
        yield f"resumed on {', then on '.join(found['resumed_on'])}"
    if found["client_gone"] and found["first_token_s"] is not None:
        yield "the client left before the end of its answer"
    if found["error_s"] is not None:
        expected, actual = found["expected_s"] * 1e3, found["actual_s"] * 1e3
        yield f"first token after {actual:.1f} ms; half of those with such a forecast come within {expected:.1f} ms"


def _failed(failure: str) -> str:
    node, _, reason = failure.rpartition(": ")
    if reason == OVER_BUDGET:
        return f"refused by {node}, as the client asked: its own budget cannot be met there"
    return f"failed: {failure}"


def _answer(found: Mapping[str, Any], failed: Sequence[str]) -> str:
    """`failed`: attempts that did before any of it was there."""
    status = f"status {found['status']}" + (f", {found['code']}" if found["code"] else "")
    if found["client_gone"] and found["first_token_s"] is None:
        return f"the client left before anything was answered; it waited for {found['node'] or 'a node'}"
    if found["node"] is None or len(failed) >= found["attempts"]:
        return f"no node answered well; the client was told {status}"
    after = " after that" if failed else ""
    return f"answered by {found['node']} in {found['region']}{after}, attempt {found['attempts']}, {status}"
