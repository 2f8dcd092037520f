"""A node's code is a label: one of a list, which has all that our own nodes say."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeproxy.protocol.openai.checks import integer_of, number_of
from edgeproxy.protocol.openai.codes import NODE_CODES, node_code
from edgeproxy.protocol.openai.errors import ApiError

ROOT = Path(__file__).parents[3]
Check = Callable[[Any, str, int, int], float]
RAISES = {"ApiError": 2, "invalid": 2, "too_many": 2}
"""What makes an error, and at which place its code is given."""


def codes_of(source: str) -> set[str]:
    found = set[str]()
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in RAISES:
            named = [word.value for word in call.keywords if word.arg == "code"]
            given = [*call.args[RAISES[call.func.id] :][:1], *named]
            found |= {str(one.value) for one in given if isinstance(one, ast.Constant)}
    return found


def test_every_code_of_a_node_is_known() -> None:
    files = [*ROOT.glob("engine/**/*.py"), *ROOT.glob("edgeproxy/protocol/**/*.py")]
    said = set[str]().union(*(codes_of(path.read_text()) for path in files))
    assert len(said) > 10
    assert said <= NODE_CODES


@pytest.mark.parametrize("check", [integer_of, number_of])
@pytest.mark.parametrize("value", [-1, 9])
def test_a_number_out_of_bounds_is_told_by_the_code_that_the_client_got(check: Check, value: int) -> None:
    with pytest.raises(ApiError) as refused:
        check(value, "max_tokens", 1, 8)
    assert node_code(400, {"code": refused.value.code}) == refused.value.code


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"code": "oom_predicted"}, "oom_predicted"),
        (429, {"code": "what a client said"}, "node_429"),
        (429, {"code": 429}, "node_429"),
        (418, None, "node_4xx"),
        (599, [], "node_5xx"),
    ],
)
def test_what_is_not_known_is_told_by_its_status(status: int, error: object, code: str) -> None:
    assert node_code(status, error) == code
