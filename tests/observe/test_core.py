from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.observe.core import SCHEDSTAT, core_families


def test_what_the_kernel_counts_is_told_in_seconds(tmp_path: Path) -> None:
    found = tmp_path / "schedstat"
    found.write_text("4500000000 250000000 7\n")
    told = {sample.name: sample.value for family in core_families(found) for sample in family.samples}
    assert told == {"edgeproxy_core_seconds_total": 4.5, "edgeproxy_core_wait_seconds_total": 0.25}


@pytest.mark.parametrize("text", ["", "many", "1"])
def test_where_it_does_not_count_nothing_is_told(tmp_path: Path, text: str) -> None:
    found = tmp_path / "schedstat"
    assert list(core_families(found)) == []
    found.write_text(text)
    assert list(core_families(found)) == []


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel keeps no such count")
def test_what_ran_is_seen() -> None:
    assert all(sample.value >= 0 for family in core_families() for sample in family.samples)
