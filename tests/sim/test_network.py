from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from edgeproxy.sim.network import SPREAD, WITHIN_S, network


def test_the_packaged_table_has_every_region_and_distances_that_can_be() -> None:
    net = network(len(SPREAD))
    assert list(net.names) == SPREAD
    for a, row in enumerate(net.rtt_s):
        assert row[a] == WITHIN_S
        assert all(0.005 <= rtt <= 0.4 for b, rtt in enumerate(row) if b != a)
        assert all(abs(rtt - net.rtt_s[b][a]) <= 0.015 for b, rtt in enumerate(row))


def test_jitter_only_adds() -> None:
    net, rng = network(2, jitter=0.1), Random(1)
    trips = [net.trip(0, 1, rng) for _ in range(500)]
    assert min(trips) >= net.rtt_s[0][1]
    assert sum(trips) / 500 == pytest.approx(1.1 * net.rtt_s[0][1], rel=0.02)
    assert network(2, jitter=0.0).trip(0, 1, rng) == net.rtt_s[0][1]


def test_a_table_of_ones_own_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "rtt.csv"
    path.write_text("# mine\nsource,here,there\nhere,,80\nthere,90,\n")
    net = network(2, path)
    assert list(net.names) == ["here", "there"]
    assert net.rtt_s == [[WITHIN_S, 0.08], [0.09, WITHIN_S]]
    with pytest.raises(ValueError, match="3 regions are asked for and 2"):
        network(3, path)


@pytest.mark.parametrize("text", ["", "source,a,b\na,,x\nb,1,\n", "source,a,b\na,,-1\nb,1,\n", "a,b\n1,2\n"])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rtt.csv"
    path.write_text(text)
    with pytest.raises(ValueError):
        network(2, path)
