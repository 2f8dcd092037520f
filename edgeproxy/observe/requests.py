"""What requests cost, as histograms and counters: by the conventions of OpenTelemetry for generative AI where there are
any (gen_ai.server.*), by the budget's terms where there are none.

Records come some at a time and are taken a field at a time, so that the loops over them are the interpreter's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter, le
from typing import Any, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from edgeproxy.observe.histogram import Histogram
from edgeproxy.observe.known import CODES, PROTOCOLS, with_zeros
from edgeproxy.routing.budget import BUDGET_S, Ledger

FIRST_TOKEN_EDGES = (
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, BUDGET_S, 0.2, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""OpenTelemetry's have none at the budget, so that the share within it could not be computed."""
TERM_EDGES = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, BUDGET_S, 0.25, 0.5, 1.0, 2.5, 10.0)
PER_TOKEN_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
MOST_BUDGETS = 16
"""Edges of the operator's making: every one is a series of each histogram."""
TERMS = tuple(name for name in Ledger._fields if name != "total")


Record = Mapping[str, Any]
K = TypeVar("K")


class Requests:
    """`add` records of requests, as they are logged. Labels: what the configuration names, or short lists."""

    def __init__(self, budgets: Iterable[float] = ()) -> None:
        """`budgets`: of the operator, in seconds, those that matter most first. Each is an edge, so that the share
        within it can be computed."""
        found = list(dict.fromkeys(budgets))[:MOST_BUDGETS]
        self._edges = tuple(sorted({*FIRST_TOKEN_EDGES, *found}))
        term_edges = tuple(sorted({*TERM_EDGES, *found}))
        self._terms = {name: Histogram(term_edges) for name in TERMS}
        self._fields = tuple((f"{name}_s", histogram) for name, histogram in self._terms.items())
        self._waits: dict[str, Histogram] = {}
        self._first: dict[str, Histogram] = {}
        self._per_token: dict[str, Histogram] = {}
        self._duration: dict[str, Histogram] = {}
        self._tokens: dict[tuple[str, str], int] = {}
        self._budget = {"within": 0, "over": 0}
        self.protocols: dict[str, int] = {}
        self.codes: dict[str, int] = {}

    def add(self, records: Sequence[Record]) -> None:
        tally(self.protocols, column(records, "protocol"))
        tally(self.codes, known(records, "code"))
        answered = having(records, "first_token_s")
        if not answered:
            return
        within = sum(map(le, column(answered, "wait_s"), column(answered, "budget_s")))
        self._budget["within"] += within
        self._budget["over"] += len(answered) - within
        for field, histogram in self._fields:
            histogram.observe(known(answered, field))
        for region, found in by("region", answered):
            _of(self._waits, region, self._edges).observe_of(column(found, "wait_s"), found)
        for model, found in by("model", answered):
            self._of_model(model, found)

    def _of_model(self, model: str, records: Sequence[Record]) -> None:
        firsts, totals, written = (column(records, name) for name in ("first_token_s", "total_s", "completion_tokens"))
        _of(self._first, model, self._edges).observe_of(firsts, records)
        _of(self._duration, model, DURATION_EDGES).observe(totals)
        per_token = [
            (total - first) / (tokens - 1)
            for first, total, tokens in zip(firsts, totals, written, strict=True)
            if tokens is not None and tokens > 1
        ]
        if per_token:
            _of(self._per_token, model, PER_TOKEN_EDGES).observe(per_token)
        for field, kind in (("completion_tokens", "output"), ("prompt_tokens", "input"), ("cached_tokens", "cached")):
            tokens = sum(known(records, field))
            if tokens:
                self._tokens[model, kind] = self._tokens.get((model, kind), 0) + tokens

    def families(self, regions: Iterable[str] = ()) -> Iterator[Metric]:
        """`regions`: those that are configured, told of before anything was answered there."""
        waits = {**{region: Histogram(self._edges) for region in regions}, **self._waits}
        yield _histograms(
            "edgeproxy_first_token_seconds", "What users wait: client's round trip included", "region", waits
        )
        yield _histograms("edgeproxy_term_seconds", "The terms of first tokens' latency budgets", "term", self._terms)
        model = "gen_ai_request_model"
        yield _histograms("gen_ai_server_time_to_first_token_seconds", "As this server sees it", model, self._first)
        yield _histograms(
            "gen_ai_server_time_per_output_token_seconds", "Of tokens after the first", model, self._per_token
        )
        yield _histograms("gen_ai_server_request_duration_seconds", "To the end of the answer", model, self._duration)
        tokens = CounterMetricFamily("edgeproxy_tokens", "Tokens, as nodes count them", labels=["model", "kind"])
        for labels, count in self._tokens.items():
            tokens.add_metric(labels, count)
        yield tokens
        yield _counts(
            "edgeproxy_budget", "First tokens by whether they came within their budget", "outcome", self._budget
        )
        protocols, codes = with_zeros(self.protocols, PROTOCOLS), with_zeros(self.codes, CODES)
        yield _counts("edgeproxy_requests_by_protocol", "Chat requests by their protocol", "protocol", protocols)
        yield _counts("edgeproxy_errors", "Chat requests refused or failed, by the error's code", "code", codes)


def tally(counts: dict[K, int], keys: Iterable[K]) -> None:
    """Counts the keys as well."""
    for key, count in Counter(keys).items():
        counts[key] = counts.get(key, 0) + count


def column(records: Sequence[Record], field: str) -> list[Any]:
    return list(map(itemgetter(field), records))


def known(records: Sequence[Record], field: str) -> list[Any]:
    """The field's values, as far as there are any."""
    values = column(records, field)
    return [value for value in values if value is not None] if None in values else values


def having(records: Sequence[Record], field: str) -> Sequence[Record]:
    """Those in which the field has a value."""
    return [record for record in records if record[field] is not None] if None in column(records, field) else records


def by(field: str, records: Sequence[Record]) -> Iterable[tuple[str, Sequence[Record]]]:
    """Those that have it, by its value: a few at most, and nearly always one."""
    values = dict.fromkeys(column(records, field))
    if len(values) == 1 and None not in values:
        return [(next(iter(values)), records)]
    return [(value, [one for one in records if one[field] == value]) for value in values if value is not None]


def _of(found: dict[str, Histogram], label: str, edges: tuple[float, ...]) -> Histogram:
    histogram = found.get(label)
    if histogram is None:
        histogram = found[label] = Histogram(edges)
    return histogram


def _histograms(name: str, text: str, label: str, found: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in found.items():
        family.add_metric([value], histogram.buckets(), histogram.sum)
    return family


def _counts(name: str, text: str, label: str, found: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in found.items():
        family.add_metric([value], count)
    return family
