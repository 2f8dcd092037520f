"""A request's record, as the gateway logs it."""

from __future__ import annotations

from typing import Any

from edgeproxy.routing.budget import Ledger


def record(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "time": 1_760_000_000.0,
        "request_id": "req_1",
        "protocol": "h2",
        "region": "near",
        "node": "near-1",
        "model": "m",
        "reason": "home",
        "stream": True,
        "status": 200,
        "code": None,
        "client_gone": False,
        "attempts": 1,
        "failures": (),
        "prompt_tokens": 50,
        "cached_tokens": 0,
        "completion_tokens": 11,
        "first_token_s": 0.1,
        "total_s": 0.6,
        "budget_s": 0.15,
        "own_budget_s": None,
        "expected_s": None,
        "shown_s": None,
    }
    terms = {f"{name}_s": None for name in Ledger._fields if name != "total"}
    found = {**found, **terms, **changes}
    first, client = found["first_token_s"], found["client_s"] or 0.0
    return {"wait_s": None if first is None else first + client, **found}
