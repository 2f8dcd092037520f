"""What is more frequent among the slow is named, the more telling the earlier, and chance is not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from edgeproxy.observe.contrast import LEAST_SLOW, Contrast, Difference, Record, nearest
from tests.observe.records import record

KEPT = 100


def contrast(records: Sequence[Record]) -> list[Difference]:
    found = Contrast(KEPT)
    found.add(records)
    return found.differences()


@pytest.mark.parametrize("piece", [1, 7, 49, 51, 99, 250])
def test_kept_up_to_date_it_is_as_if_counted_anew(piece: int) -> None:
    """However the records come, and however often somebody looks."""
    rng, kept = Random(piece), Contrast(KEPT)
    records = [
        record(
            region=(region := rng.choice(("near", "far"))),
            first_token_s=rng.choice((None, 0.1, 0.1, 0.4 if region == "far" else 0.1)),
            client_s=rng.choice((None, 0.005, 0.2)),
        )
        for _ in range(500)
    ]
    told = 0
    for end in range(piece, len(records) + 1, piece):
        kept.add(records[end - piece : end])
        told += bool(kept.differences())
        assert kept.differences() == contrast(records[max(end - KEPT, 0) : end])
    assert told


def test_the_region_that_is_slow_is_found() -> None:
    fast = [record(region="near") for _ in range(90)]
    slow = [record(region="far", node="far-1", first_token_s=0.4) for _ in range(10)]
    first = contrast([*fast, *slow])[0]
    assert (first.attribute, first.value, first.slow, first.all, first.lift) == ("region", "far", 10, 10, 10.0)
    assert ("model", "m") not in {(one.attribute, one.value) for one in contrast([*fast, *slow])}


def test_long_prompts_and_misses_are_told_apart_from_the_rest() -> None:
    fast = [record(prompt_tokens=100, cached_tokens=90) for _ in range(50)]
    slow = [record(prompt_tokens=2000, cached_tokens=0, first_token_s=1.0) for _ in range(10)]
    named = {(one.attribute, one.value) for one in contrast([*fast, *slow])}
    assert {("prompt tokens", "up to 4,096"), ("cached", "none")} <= named


def test_few_slow_ones_or_only_slow_ones_say_nothing() -> None:
    slow = record(region="far", first_token_s=0.4)
    assert contrast([record() for _ in range(50)] + [slow] * (LEAST_SLOW - 1)) == []
    assert contrast([slow] * 50) == []
    assert contrast([]) == []


def test_requests_without_a_first_token_are_no_contrast() -> None:
    refused = record(first_token_s=None, region=None, node=None, reason=None, status=429)
    assert contrast([refused] * 20 + [record()] * 20) == []


def test_the_request_nearest_to_a_percentile_is_a_real_one() -> None:
    records = [record(request_id=str(number), first_token_s=number / 100) for number in range(1, 11)]
    found = nearest(records, 0.052)
    assert found is not None and found["request_id"] == "5"
    assert nearest(records, None) is None
    assert nearest([record(first_token_s=None)], 0.1) is None
