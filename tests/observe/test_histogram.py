"""A histogram counts as if it had looked at each value and each edge."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.observe.histogram import Histogram
from tests.observe.records import record

EDGES = (0.1, 0.25, 0.5, 1.0)
values = st.lists(st.one_of(st.floats(0.0, 2.0), st.sampled_from(EDGES)), max_size=30)


@given(st.lists(values, max_size=4))
def test_buckets_are_cumulative_and_their_edges_inclusive(batches: list[list[float]]) -> None:
    histogram = Histogram(EDGES)
    for batch in batches:
        histogram.observe(batch)
    seen = [value for batch in batches for value in batch]
    plain = [(str(edge), sum(value <= edge for value in seen)) for edge in EDGES]
    assert histogram.buckets() == [*plain, ("+Inf", len(seen))]
    assert abs(histogram.sum - sum(seen)) < 1e-9


def test_each_bucket_names_the_request_that_it_saw_last() -> None:
    histogram = Histogram(EDGES)
    for batch in ([0.05, 0.3, 0.1], [0.4]):
        histogram.observe_of(batch, [record(request_id=f"r{value}") for value in batch])
    last = [bucket[2].labels["request_id"] if len(bucket) == 3 else None for bucket in histogram.buckets()]
    assert last == ["r0.1", None, "r0.4", None, None]
