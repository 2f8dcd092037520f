"""What a node's refusal says of how the request could succeed, and the same request made smaller."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import orjson

from edgeproxy.gateway.answer import Whole
from edgeproxy.gateway.reading import AT_ONCE_BYTES, LENGTHS, grammar
from edgeproxy.protocol.json_edit import members, set_at_once, set_in_pieces
from edgeproxy.protocol.openai.codes import OWN_BUDGET, node_code

_NULL = b"null"


def fitting_tokens(refused: Whole) -> int | None:
    """`max_tokens_that_fit` of a refusal for want of memory; None where there is none, or nothing fits."""
    if refused.status not in (400, 429):
        return None
    recovery = _recovery(refused)
    fits = None if recovery is None else recovery.get("max_tokens_that_fit")
    return fits if isinstance(fits, int) and not isinstance(fits, bool) and fits > 0 else None


def of_itself_alone(refused: Whole) -> bool:
    """Whether a 429 tells of this request's own budget: a node that says so takes others meanwhile."""
    return b'"%b"' % OWN_BUDGET.encode() in refused.body


def code_of(refused: Whole) -> str:
    """By which it is logged and counted: the proxy's own, or what the node's body says."""
    return refused.code or node_code(refused.status, _error(refused.body))


def with_region(refused: Whole, region: str) -> Whole:
    """Names the region in which the request might succeed. A node knows no regions, so that its proxy fills this in."""
    recovery = _recovery(refused)
    if recovery is None:
        return refused
    value = orjson.loads(refused.body)
    value["error"]["recovery"]["retry_region"] = region
    return refused._replace(body=orjson.dumps(value))


def shortened(body: bytes, tokens: int) -> Generator[None, None, bytes]:
    """The request with room for an answer of so many tokens. Yields between pieces. Raises ApiError 400 where the
    body is nested too deeply to be changed."""
    if len(body) <= AT_ONCE_BYTES:
        texts = {name: bytes(value) for name, value in members(body).items() if name in LENGTHS}
    else:
        found = yield from grammar().members(body)
        texts = {name: body[found[name].value : found[name].end] for name in LENGTHS if name in found}
    name = next((name for name in LENGTHS if texts.get(name, _NULL) != _NULL), LENGTHS[1])
    return (yield from _with_member(body, name, b"%d" % tokens))


def with_model(body: bytes, model: str) -> Generator[None, None, bytes]:
    """The request of another model. Yields and raises as `shortened` does."""
    return _with_member(body, "model", orjson.dumps(model))


def _with_member(body: bytes, name: str, value: bytes) -> Generator[None, None, bytes]:
    if len(body) <= AT_ONCE_BYTES:
        return set_at_once(body, name, value)
    return (yield from set_in_pieces(body, name, value, grammar()))


def _recovery(refused: Whole) -> dict[str, Any] | None:
    if b'"recovery"' not in refused.body:
        return None
    error = _error(refused.body)
    recovery = error.get("recovery") if isinstance(error, dict) else None
    return recovery if isinstance(recovery, dict) else None


def _error(body: bytes) -> object:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value.get("error") if isinstance(value, dict) else None
