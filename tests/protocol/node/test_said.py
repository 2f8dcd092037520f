"""What a node says of itself is believed only as far as it makes sense, by one rule for reports and instruments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from edgeproxy.protocol.node import instruments, report
from edgeproxy.protocol.node.said import number


@pytest.mark.parametrize("read", [report.decode, instruments.decode])
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b"\xff", b'"' + b"x" * 70_000 + b'"'])
def test_what_is_no_small_json_object_is_refused_by_name(read: Callable[[bytes], object], raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"^node (report|status) "):
        read(raw)


@pytest.mark.parametrize(
    ("value", "read"), [(0, 0.0), (1.5, 1.5), (-1, None), (True, None), ("1", None), (None, None), (float("inf"), None)]
)
def test_a_number_is_finite_and_not_negative(value: object, read: float | None) -> None:
    assert number(value) == read


def test_an_instrument_that_is_odd_is_unknown_and_a_report_with_one_is_none() -> None:
    found = instruments.decode(orjson.dumps({"susi": -1, "kvr": 0.5, "ild_gap": {"count": 1, "p50_us": 8}}))
    assert (found.susi, found.kvr, found.gap_p50_s) == (None, 0.5, 8e-6)
    odd = instruments.decode(orjson.dumps({"gpu": {"fault": None, "link": {"generation": 4}, "link_possible": [5]}}))
    assert odd.gpu == instruments.Gpu(failed=False)
    failed = instruments.decode(orjson.dumps({"gpu": {"fault": "Xid 79", "link": {"generation": 4, "width": 8}}}))
    assert failed.gpu == instruments.Gpu(failed=True, link=instruments.Link(4, 8))
    gaps = {"count": 3, "sum_us": 9, "buckets": {"4": 2, "8388608": 1, "5": 7, "../../x": 1}}
    told = instruments.decode(orjson.dumps({"ild_gap": gaps, "kv_blocks_reused": 4, "busy_s": "long"}))
    assert told.gap == instruments.Durations((0, 0, 2, *([0] * 20), 1), 9e-6), "a bucket is a label: no others"
    assert (told.kv_blocks_reused, told.kv_blocks_computed, told.busy_s) == (4, None, None)
    odd_gaps: list[Any] = [{"buckets": {"4": -1}, "sum_us": 1}, {"buckets": [], "sum_us": 1}, {"buckets": {}}, [], 3]
    for odd_gap in odd_gaps:
        assert instruments.decode(orjson.dumps({"ild_gap": odd_gap})).gap is None
    sound = report.NodeReport(report.NodeState.READY, "m", "n", 0, 0, 0, 1, 1, 0, 16, 1000.0, 1.0, 1, 0.0)
    assert report.decode(sound.encode()) == sound
    with pytest.raises(ValueError, match="step_ms is not a non-negative number"):
        report.decode(sound.encode().replace(b'"step_ms":1.0', b'"step_ms":-1.0'))
