"""What is told at 0 from the start is what the code can say, and all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from edgeproxy.gateway.account import Hedge
from edgeproxy.observe.known import CODES, FAILURES, HEDGES, REASONS
from edgeproxy.protocol.openai.codes import NODE_CODES
from edgeproxy.routing.choose import Reason
from edgeproxy.upstream.response import Phase

ROOM = Path(__file__).parents[2] / "edgeproxy"


def test_reasons_for_which_nodes_fail_are_those_of_the_code() -> None:
    gateway = "".join((ROOM / "gateway" / f"{name}.py").read_text() for name in ("attempt", "relay", "pump"))
    said = set(re.findall(r'(?:Failed|Broken)\("(\w+)"', gateway)) | set(re.findall(r'_ended\("(\w+)"', gateway))
    said |= {"stalled_late", "status_3xx", "status_5xx", *get_args(Phase)}
    assert said == set(FAILURES)


def test_choices_and_second_copies_are_told_by_their_own_lists() -> None:
    assert (set(REASONS), set(HEDGES)) == (set(get_args(Reason)), set(get_args(Hedge)))


def test_codes_are_such_as_are_given() -> None:
    gateway = "".join(path.read_text() for path in (ROOM / "gateway").glob("*.py"))
    assert [code for code in CODES if code not in NODE_CODES and f'"{code}"' not in gateway] == []
