"""What became of requests: who counts against the objective, and what a page is told."""

from __future__ import annotations

import pytest

from edgeproxy.observe.burn import Burn
from edgeproxy.observe.outcomes import FRESH, RECENT, REFUSED_SHOWN, SHOWN, Outcomes
from tests.observe.records import record

NOW = 1_760_000_000.0


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, (1, 0)),
        ({"first_token_s": 0.151}, (1, 1)),
        ({"first_token_s": 0.151, "budget_s": 1.0}, (1, 0)),
        ({"first_token_s": None, "status": 502}, (1, 1)),
        ({"first_token_s": None, "status": 429}, (1, 1)),
        ({"first_token_s": None, "status": 429, "code": "wait_predicted"}, (1, 1)),
        ({"first_token_s": None, "status": 429, "code": "latency_budget_exceeded"}, (0, 0)),
        ({"first_token_s": 0.151, "own_budget_s": 3600.0}, (1, 1)),
        ({"first_token_s": 0.149, "own_budget_s": 0.001}, (1, 0)),
        ({"first_token_s": None, "status": 400}, (0, 0)),
        ({"first_token_s": None, "status": 404}, (0, 0)),
        ({"first_token_s": None, "status": 502, "client_gone": True, "total_s": 0.1}, (0, 0)),
        ({"first_token_s": None, "status": 502, "client_gone": True, "total_s": 9.0}, (1, 1)),
        ({"first_token_s": None, "status": 502, "client_gone": True, "total_s": 9.0, "stream": False}, (0, 0)),
    ],
)
def test_the_objective_counts_what_is_ours_to_answer(changes: dict[str, object], counted: tuple[int, int]) -> None:
    outcomes = Outcomes(Burn(0.95))
    outcomes.add([record(**changes)])
    assert outcomes.burn.within(5, NOW) == counted


def test_changes_are_told_once_and_a_busy_second_is_cut() -> None:
    outcomes = Outcomes(Burn(0.95))
    for number in range(FRESH + 7):
        outcomes.add([record(request_id=str(number))])
    found = outcomes.changes()
    assert [one["request_id"] for one in found["recent"]] == [str(number) for number in range(7, FRESH + 7)]
    assert outcomes.changes() == {"recent": []}


def test_memory_is_bounded() -> None:
    outcomes = Outcomes(Burn(0.95))
    for number in range(3 * RECENT):
        outcomes.add([record(request_id=str(number))])
    assert outcomes.of(str(2 * RECENT - 1)) is None and outcomes.of(str(2 * RECENT)) is not None
    assert len(outcomes.latest(3 * RECENT)) == SHOWN
    assert outcomes.latest(2)[-1]["request_id"] == str(3 * RECENT - 1)


def test_the_view_has_percentiles_of_five_minutes_and_their_examples() -> None:
    outcomes = Outcomes(Burn(0.95))
    outcomes.add([record(request_id="old", first_token_s=9.0, time=NOW - 1000)])
    for number in range(100):
        outcomes.add([record(request_id=str(number), first_token_s=0.05)])
    view = outcomes.view(0.0, NOW)
    assert view["first_token"]["p95"] == pytest.approx(0.05, rel=0.05)
    assert view["examples"]["p50"]["first_token_s"] == 0.05
    assert [one["count"] for one in view["slices"]] == [1, 100]
    assert view["count"] == 101


def test_what_is_refused_pushes_nothing_out_and_is_blamed_for_nothing() -> None:
    """A client whose model nobody serves comes back in a loop."""
    outcomes = Outcomes(Burn(0.95))
    for number in range(30):
        late = number % 3 == 0
        wait = 0.4 if late else 0.1
        outcomes.add(
            [record(request_id=f"a{number}", first_token_s=wait, prefill_s=wait, region="far" if late else "near")]
        )
    for number in range(6):
        outcomes.add([record(request_id=f"f{number}", first_token_s=None, status=504, code="upstream_failed")])
    before = outcomes.view(0.0, NOW)
    for number in range(RECENT + 200):
        outcomes.add(
            [record(request_id=f"r{number}", first_token_s=None, status=404, code="model_not_found", region=None)]
        )
    after = outcomes.view(0.0, NOW)
    assert before["blame"]["term"] == "prefill" and before["blame"]["code"] == "upstream_failed"
    assert before["contrast"] and before["examples"]["p50"] is not None
    assert [after[name] for name in ("contrast", "examples")] == [before[name] for name in ("contrast", "examples")]
    assert after["blame"] == {**before["blame"], "refusal": "model_not_found"}
    assert outcomes.of("a0") is not None and outcomes.of("f0") is not None and outcomes.of("r0") is None
    assert outcomes.latest(1)[0]["request_id"] == f"r{RECENT + 199}"


def refused(number: int) -> dict[str, object]:
    return record(request_id=f"r{number}", first_token_s=None, status=404, code="model_not_found", region=None)


def test_who_is_refused_in_a_loop_leaves_room_on_the_page_for_who_is_served() -> None:
    outcomes = Outcomes(Burn(0.95))
    for number in range(30):
        outcomes.add([record(request_id=f"a{number}")])
    outcomes.changes()
    for number in range(500):
        outcomes.add([refused(number)])
    shown = [one["request_id"] for one in outcomes.newest()["recent"]]
    last = [f"r{number}" for number in range(500 - REFUSED_SHOWN, 500)]
    assert shown == [*(f"a{number}" for number in range(30)), *last]
    assert [one["request_id"] for one in outcomes.changes()["recent"]] == last, "what came before is not told again"


def test_five_minutes_tell_what_became_of_all_that_came() -> None:
    outcomes = Outcomes(Burn(0.95))
    without: dict[str, object] = {"first_token_s": None}
    for changes in (
        {},
        {"first_token_s": 0.3},
        {**without, "stream": False},
        {**without, "status": 503},
        {**without, "status": 502, "client_gone": True, "total_s": 9.0},
        {**without, "status": 502, "client_gone": True, "total_s": 0.01},
        {**without, "status": 400},
    ):
        outcomes.add([record(**changes)])
    assert outcomes.view(0.0, NOW)["lately"] == {
        "answered": 2,
        "within": 1,
        "failed": 2,
        "untimed": 1,
        "refused": 1,
        "left": 1,
    }


def test_the_budgets_that_first_tokens_were_charged_to_are_told() -> None:
    outcomes = Outcomes(Burn(0.95))
    assert outcomes.view(0.0, NOW)["budgets"] == []
    outcomes.add([record(budget_s=9.0, time=NOW - 1000)])
    for budget in (0.4, 0.137, 0.2):
        outcomes.add([record(budget_s=budget)])
    outcomes.add([record(budget_s=5.0, first_token_s=None, status=404)])
    assert outcomes.view(0.0, NOW)["budgets"] == [0.137, 0.4]


def test_requests_told_of_together_count_when_each_of_them_ended() -> None:
    together, apart = Outcomes(Burn(0.95)), Outcomes(Burn(0.95))
    records = [
        record(request_id=str(number), time=NOW + 7 * number, first_token_s=None if number % 4 == 3 else 0.1 * number)
        | ({"status": 503} if number % 8 == 3 else {})
        for number in range(20)
    ]
    kinds = together.add(records)
    assert kinds == [kind for one in records for kind in apart.add([one])]
    later = NOW + 200
    assert together.view(0.0, later) == apart.view(0.0, later)
    assert together.newest() == apart.newest()
    assert [together.burn.within(minutes, later) for minutes in (1, 2, 5)] == [
        apart.burn.within(minutes, later) for minutes in (1, 2, 5)
    ]
