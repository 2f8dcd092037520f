"""One tenant's hundred requests cost another no more than a turn; virtual time, no clock."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from engine.executor.base import Limits
from engine.fairness import DECODE_WEIGHT, PRIORITY_TOKENS, TENANTS, Shares
from tests.engine.scheduling import Bench

LIMITS = Limits(slots=3, blocks=60, step_tokens=32, context=320, vocab=1000)


def test_who_was_served_least_comes_first_and_who_comes_late_starts_where_the_others_stand() -> None:
    shares = Shares()
    shares.came(b"a")
    shares.prefilled(b"a", 100)
    shares.decoded(b"a", 10)
    assert shares.standing(b"a", 0) == 100 + 10 * DECODE_WEIGHT
    shares.came(b"b")
    assert shares.standing(b"b", 0) == shares.standing(b"a", 0), "nothing is saved up by staying away"
    shares.decoded(b"b", 1)
    assert shares.standing(b"a", 0) < shares.standing(b"b", 0)
    assert shares.standing(b"a", 1) == shares.standing(b"a", 0) + PRIORITY_TOKENS


def test_who_leaves_and_comes_back_has_not_lost_its_debt() -> None:
    shares = Shares()
    shares.came(b"a")
    shares.came(b"b")
    shares.prefilled(b"a", 5000)
    shares.went(b"a")
    shares.came(b"a")
    assert shares.standing(b"a", 0) == 5000
    assert shares.standing(b"b", 0) == 0


def test_who_comes_when_nobody_is_there_starts_where_the_last_one_stood() -> None:
    shares = Shares()
    shares.came(b"a")
    shares.prefilled(b"a", 500)
    shares.went(b"a")
    shares.came(b"b")
    assert shares.standing(b"b", 0) == 500


def test_counters_of_those_who_left_are_bounded() -> None:
    shares = Shares()
    for number in range(3 * TENANTS):
        shares.came(number.to_bytes(4))
        shares.went(number.to_bytes(4))
    assert len(shares) <= TENANTS + 1


@given(
    flood=st.integers(10, 60),
    prompt=st.integers(1, 100),
    max_tokens=st.integers(1, 40),
    turns=st.integers(1, 4),
)
@settings(deadline=None, max_examples=40)
def test_a_flood_delays_another_tenant_by_no_more_than_a_place_that_gets_free(
    flood: int, prompt: int, max_tokens: int, turns: int
) -> None:
    bench = Bench(LIMITS, quantum_s=1e6, queue=200)
    for number in range(flood):
        bench.add(f"a{number}", [number % 1000] * prompt, max_tokens, salt=b"flood")
    for turn in range(turns):
        steps = len(bench.executor.plans) + 5
        bench.run(until=lambda steps=steps: len(bench.executor.plans) >= steps)  # type: ignore[misc]
        name = f"b{turn}"
        before = sum(bool(bench.finishes(other)) for other in bench.requests if other.startswith("a"))
        bench.add(name, [turn] * 20, 4, salt=b"other")
        bench.run(until=lambda name=name: bool(bench.steps(name)))  # type: ignore[misc]
        ended = sum(bool(bench.finishes(other)) for other in bench.requests if other.startswith("a")) - before
        assert ended <= 2 * LIMITS.slots, "it did not wait for those that came before it"
    bench.run()


@given(
    seed=st.integers(0, 10**6),
    many=st.integers(4, 30),
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=3, max_size=3),
)
@settings(deadline=None, max_examples=25)
def test_tenants_that_always_have_something_waiting_get_as_much(
    seed: int, many: int, lengths: list[tuple[int, int]]
) -> None:
    """However many requests each has, and of whatever lengths."""
    rng = random.Random(seed)
    bench = Bench(LIMITS, quantum_s=1e6, queue=1000)
    tenants = [b"a", b"b", b"c"]
    served: Counter[bytes] = Counter()
    number = 0
    for _ in range(200):
        waiting = Counter(request.salt for name, request in bench.requests.items() if not bench.finishes(name))
        for index, (tenant, (prompt, max_tokens)) in enumerate(zip(tenants, lengths, strict=True)):
            for _ in range(many * (index + 1) - waiting[tenant]):
                number += 1
                tokens = [rng.randrange(1000) for _ in range(prompt)]
                bench.add(f"{number}", tokens, max_tokens, salt=tenant)
        while bench.submit():
            pass
        bench.collect()
    for name, request in bench.requests.items():
        if bench.deltas[name]:
            served[request.salt] += len(request.prompt) + DECODE_WEIGHT * len(bench.tokens(name))
    worst = max(prompt + DECODE_WEIGHT * max_tokens for prompt, max_tokens in lengths)
    assert max(served.values()) - min(served[tenant] for tenant in tenants) <= (2 * LIMITS.slots + 1) * worst


def test_of_a_full_queue_the_tenant_that_fills_it_makes_room() -> None:
    bench = Bench(LIMITS, queue=4)
    for number in range(7):
        bench.add(f"a{number}", 20, 100, salt=b"flood")
    with pytest.raises(ApiError, match="slots_full"):
        bench.add("a7", 20, 100, salt=b"flood")
    for name in ("b0", "b1"):
        bench.add(name, 20, 100, salt=b"other")
    assert bench.refused == ["a6", "a5"], "the last to have come"
    with pytest.raises(ApiError, match="slots_full"):
        bench.add("b2", 20, 100, salt=b"other")
    bench.run()
    assert all(bench.finishes(name) for name in bench.requests)


def test_priority_counts_among_tenants_too() -> None:
    bench = Bench(Limits(slots=1, blocks=60, step_tokens=32, context=320, vocab=1000))
    bench.add("running", 10, 20, salt=b"x")
    bench.add("a", 10, 2, salt=b"a")
    bench.add("b", 10, 2, salt=b"b", priority=-1)
    bench.run()
    assert list(bench.deltas) == ["running", "b", "a"]
