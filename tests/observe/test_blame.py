"""What late requests lose their time in beyond the others, and where, is what is blamed."""

from __future__ import annotations

from typing import Any

import pytest

from edgeproxy.observe.blame import LABELS, Blame, blame
from edgeproxy.routing.budget import Ledger
from tests.observe.records import record

NOW = 1_760_000_000.0
SINCE = NOW - 300


def late(count: int = 10, region: str = "near", **terms: float) -> list[dict[str, Any]]:
    return [record(time=NOW, region=region, first_token_s=sum(terms.values()), **terms) for _ in range(count)]


def quick(count: int = 10, region: str = "near", cached_tokens: int = 0) -> list[dict[str, Any]]:
    shown = record(time=NOW, region=region, first_token_s=0.1, rtt_s=0.001, prefill_s=0.09, cached_tokens=cached_tokens)
    return [shown for _ in range(count)]


def failed(count: int, code: str) -> list[dict[str, Any]]:
    return [record(time=NOW, first_token_s=None, status=429, code=code) for _ in range(count)]


def test_every_term_of_the_budget_has_a_name() -> None:
    assert {*LABELS} == {*Ledger._fields} - {"total"}


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (quick() + late(rtt_s=0.1, prefill_s=0.09, region="far"), Blame("rtt", "far")),
        (quick() + late(rtt_s=0.001, prefill_s=0.6), Blame("prefill", "near")),
        (quick(cached_tokens=40) + late(prefill_s=0.6), Blame("prefill", "near", cold=True)),
        (quick(region="far") + late(rtt_s=0.001, queue_s=0.3), Blame("queue", "near")),
        (late(queue_s=0.3) + late(queue_s=0.3, region="far"), Blame("queue")),
        (quick() + late(client_s=0.3, prefill_s=0.09), Blame("client")),
        (quick() + late(4, prefill_s=0.6), Blame()),
        (quick(), Blame()),
        ([], Blame()),
    ],
)
def test_the_term_that_late_ones_lose_beyond_the_others(records: list[dict[str, Any]], found: Blame) -> None:
    assert blame(records, [], SINCE) == found


def test_of_those_that_failed_the_most_frequent_code_is_told_unless_they_are_few() -> None:
    some = failed(6, "queue_full") + failed(5, "no_node")
    assert blame(quick(), some, SINCE) == Blame(code="queue_full")
    assert blame(quick(), failed(4, "queue_full"), SINCE) == Blame()


def test_clients_that_gave_up_are_told_as_that_and_refusals_apart_from_failures() -> None:
    gone = [record(time=NOW, first_token_s=None, status=502, client_gone=True, total_s=9.0) for _ in range(6)]
    refused = failed(7, "model_not_found")
    assert blame(quick(), gone, SINCE, refused) == Blame(code="clients that gave up waiting", refusal="model_not_found")
    assert blame(quick(), [], SINCE, refused[:4]) == Blame()


def test_what_is_long_ago_is_not_blamed() -> None:
    old = [{**one, "time": SINCE - 1} for one in late(queue_s=0.3)]
    failures = [{**one, "time": SINCE - 1} for one in failed(9, "no_node")]
    assert blame(old + quick(), failures, SINCE) == Blame()
