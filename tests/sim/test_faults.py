from __future__ import annotations

from math import inf

import pytest

from edgeproxy.sim.faults import FLAPS, FaultError, Outage, herds, outages

REGIONS = ["near", "far"]


def test_a_place_is_a_region_or_one_of_its_nodes() -> None:
    assert outages(["far=10-20", "near/1=5-"], [], REGIONS, 3) == [
        Outage(range(3, 6), 10.0, 20.0),
        Outage((1,), 5.0, inf),
    ]


def test_a_flap_is_so_long_up_and_so_long_dead() -> None:
    found = outages([], ["near/0=4"], REGIONS, 3)
    assert [(outage.start, outage.end) for outage in found[:2]] == [(4.0, 8.0), (12.0, 16.0)]
    assert len(found) == FLAPS


def test_a_herd_has_a_size_and_an_instant() -> None:
    assert herds(["500@60", "3@0.5"]) == [(60.0, 500), (0.5, 3)]


@pytest.mark.parametrize(
    "text", ["mars=1-2", "far=2-1", "far=x-2", "far/3=1-2", "far/x=1-2", "far", "far=-1-2", "=1-2"]
)
def test_an_outage_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(FaultError, match=text.replace("/", ".")):
        outages([text], [], REGIONS, 3)


@pytest.mark.parametrize("text", ["far=0", "far=x", "mars=3"])
def test_a_flap_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(FaultError):
        outages([], [text], REGIONS, 3)


@pytest.mark.parametrize("text", ["x@1", "5@x", "5", "@3"])
def test_a_herd_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(FaultError):
        herds([text])
