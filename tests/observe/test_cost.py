"""The cost of 1,000 tokens: what is spent is told once, all of it, and never half of it."""

from __future__ import annotations

from math import isclose
from time import time

from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.observe.cost import Produced, Window, costs
from edgeproxy.observe.fleet import PATTERN_MODEL, NodeView
from edgeproxy.observe.metrics import Metrics
from tests.observe.records import record
from tests.observe.test_metrics import samples

MODELS = ("small", "big", "other")
REGIONS = ("near", "far")


def node(region: str, models: tuple[str, ...], price: float | None, name: str = "n") -> NodeView:
    return NodeView(name, region, True, "", "closed", 0, 0.01, models, price_per_hour=price)


prices = st.floats(0, 1000)
served = st.lists(st.sampled_from(MODELS), min_size=1, max_size=3, unique=True).map(tuple)
priced = st.lists(st.builds(node, st.sampled_from(REGIONS), served, prices), max_size=6)
windows = st.builds(
    Window,
    st.floats(0, 3600),
    st.dictionaries(st.tuples(st.sampled_from(MODELS), st.sampled_from(REGIONS)), st.integers(0, 10**6)),
)


@given(priced, windows)
def test_all_that_working_nodes_cost_is_told_once(nodes: list[NodeView], window: Window) -> None:
    told = sum(cost * window.tokens[place] / 1000 for place, cost in costs(nodes, window).items())
    working = [one for one in nodes if any(window.tokens.get((model, one.region)) for model in one.models)]
    spent = sum((one.price_per_hour or 0) * window.seconds / 3600 for one in working)
    assert isclose(told, spent, rel_tol=1e-9, abs_tol=1e-9)


@given(priced, windows)
def test_a_cost_is_told_only_where_tokens_were_written(nodes: list[NodeView], window: Window) -> None:
    assert all(window.tokens.get(place) for place in costs(nodes, window))


@given(priced, windows, st.sampled_from(REGIONS), served)
def test_a_node_without_a_price_hides_its_models_alone(
    nodes: list[NodeView], window: Window, region: str, models: tuple[str, ...]
) -> None:
    before, after = costs(nodes, window), costs([*nodes, node(region, models, None)], window)
    hidden = {(model, region) for model in models}
    assert after == {place: cost for place, cost in before.items() if place not in hidden}


@given(priced, windows, st.sampled_from(REGIONS), served, prices)
def test_a_further_node_makes_nothing_cheaper(
    nodes: list[NodeView], window: Window, region: str, models: tuple[str, ...], price: float
) -> None:
    before, after = costs(nodes, window), costs([*nodes, node(region, models, price)], window)
    assert all(after[place] >= cost for place, cost in before.items())


def test_an_hour_of_a_node_by_what_it_wrote() -> None:
    window = Window(1800.0, {("m", "near"): 5000})
    assert costs([node("near", ("m",), 2.0), node("far", ("m",), 9.0)], window) == {("m", "near"): 0.2}


def test_models_that_only_patterns_match_are_the_patterns_nodes() -> None:
    window = Window(3600.0, {(PATTERN_MODEL, "near"): 1000, ("any-one", "near"): 1000})
    nodes = [node("near", ("any-*",), 2.0), node("near", ("m",), None)]
    assert costs(nodes, window) == {(PATTERN_MODEL, "near"): 1.0, ("any-one", "near"): 1.0}


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 100)), max_size=40))
def test_the_window_is_an_hour_of_what_there_was(steps: list[tuple[int, int]]) -> None:
    produced, now, added = Produced(1e6), 1e6, list[tuple[float, int]]()
    for step, tokens in steps:
        now += step
        produced.add("m", "near", tokens, now)
        added.append((now, tokens))
    window = produced.window(now)
    assert 0 <= window.seconds <= 3600
    assert window.seconds > 3500 or window.seconds == now - 1e6
    inside = sum(tokens for at, tokens in added if at >= now - window.seconds)
    assert window.tokens.get(("m", "near"), 0) == inside


def test_tokens_of_an_hour_ago_are_forgotten_without_new_ones() -> None:
    produced = Produced(0.0)
    produced.add("m", "near", 10, 100.0)
    assert produced.window(120.0).tokens
    assert not produced.window(4000.0).tokens


def test_price_and_cost_are_scraped() -> None:
    nodes = [node("near", ("m",), 1.8, "near-1"), node("far", ("m",), None, "far-1")]
    metrics = Metrics("1", lambda: nodes)
    assert "edgeproxy_cost_per_1k_tokens" not in {name for name, _ in samples(metrics)}
    now = time()
    for region in ("near", "far", None):
        metrics.recorded([record(time=now, region=region, completion_tokens=500)])
    metrics.recorded([record(time=now, region="near", completion_tokens=None)])
    found = samples(metrics)
    assert found["edgeproxy_node_price_per_hour", (("node", "near-1"), ("region", "near"))] == 1.8
    told = {labels: value for (name, labels), value in found.items() if name == "edgeproxy_cost_per_1k_tokens"}
    ((labels, value),) = told.items()
    assert labels == (("model", "m"), ("region", "near"))
    assert 3.5 <= value <= 3.6
