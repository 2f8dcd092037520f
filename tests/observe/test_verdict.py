"""The sentence is as bad as the worst that is known, and says for what users wait and where to look."""

from __future__ import annotations

from typing import Any

import pytest

from edgeproxy.observe.blame import Blame
from edgeproxy.observe.fleet import NodeView
from edgeproxy.observe.verdict import Lately, verdict

QUIET: list[dict[str, Any]] = [{"severity": "page", "state": "ok"}, {"severity": "ticket", "state": "ok"}]
PAGE = [{"severity": "page", "state": "burning"}]
TICKET = [{"severity": "ticket", "state": "burning"}]
WELL, LATE = Lately(100, 99, 0), Lately(100, 50, 0)


def node(name: str, region: str = "near", *, ready: bool = True, **more: Any) -> NodeView:
    found: dict[str, Any] = {"trouble": "", "breaker": "closed", "in_flight": 0, "rtt_s": 0.001, "models": ("m",)}
    return NodeView(name=name, region=region, ready=ready, **{**found, **more})


BOTH = [node("a"), node("b", "far")]
ONE_DOWN = [node("a"), node("b", ready=False), node("c", "far")]
REGION_DOWN = [node("a", ready=False), node("b", "far")]
FARTHER = [node("a", rtt_s=0.221, rtt_min_s=0.001), node("b", "far", rtt_s=0.09, rtt_min_s=0.08)]


@pytest.mark.parametrize(
    ("nodes", "burn", "lately", "mood", "says"),
    [
        (BOTH, QUIET, WELL, "good", "Users do not wait; all 2 nodes ready"),
        (BOTH[:1], QUIET, WELL, "good", "Users do not wait; the one node ready"),
        (ONE_DOWN, QUIET, WELL, "warn", "Users do not wait; 1 of 3 nodes down (b)"),
        (REGION_DOWN, QUIET, WELL, "warn", "Users do not wait; no node of near left: 1 of 2 nodes down (a)"),
        (BOTH, TICKET, WELL, "warn", "Users do not wait; all 2 nodes ready"),
        (BOTH, QUIET, LATE, "warn", "Some users wait: 50% of first tokens in time; all 2 nodes ready"),
        (
            BOTH,
            QUIET,
            Lately(90, 90, 10),
            "warn",
            "Some users get no answer: 10% refused, failed or given up; all 2 nodes ready",
        ),
        (
            BOTH,
            PAGE,
            LATE,
            "bad",
            "Users wait: the budget burns too fast, 50% of first tokens in time; all 2 nodes ready",
        ),
        (
            BOTH,
            QUIET,
            Lately(3, 3, 1),
            "warn",
            "Some users get no answer: 1 of 4 refused, failed or given up; all 2 nodes ready",
        ),
        (BOTH, QUIET, Lately(30, 0, 0), "bad", "Users wait: 0% of first tokens in time; all 2 nodes ready"),
        (BOTH, QUIET, Lately(1, 0, 0), "warn", "Some users wait: 0 of 1 first tokens in time; all 2 nodes ready"),
        (
            BOTH,
            PAGE,
            Lately(0, 0, 30),
            "bad",
            "Users get no answer: 100% refused, failed or given up; all 2 nodes ready",
        ),
        ([node("a", ready=False)], QUIET, WELL, "bad", "Nobody is served: every node is down"),
        (
            BOTH,
            QUIET,
            Lately(refused=1200),
            "warn",
            "Nothing but refusals in five minutes; all 2 nodes ready; 1,200 requests refused for what they ask",
        ),
        (
            BOTH,
            QUIET,
            WELL._replace(refused=1200),
            "warn",
            "Users do not wait; all 2 nodes ready; 1,200 requests refused for what they ask",
        ),
        (BOTH, QUIET, WELL._replace(refused=99), "good", "Users do not wait; all 2 nodes ready"),
        (
            BOTH,
            QUIET,
            Lately(untimed=7),
            "good",
            "7 requests answered in five minutes, none of which tells when its first token came; all 2 nodes ready",
        ),
        (BOTH, QUIET, Lately(left=2), "good", "No request stayed for its answer in five minutes; all 2 nodes ready"),
        (BOTH, QUIET, Lately(), "good", "No requests in five minutes; all 2 nodes ready"),
        (ONE_DOWN, QUIET, Lately(), "warn", "No requests in five minutes; 1 of 3 nodes down (b)"),
        (
            FARTHER,
            QUIET,
            WELL,
            "warn",
            "Users do not wait; all 2 nodes ready; near is 221 ms away, 1 ms a few minutes ago",
        ),
    ],
)
def test_the_worst_that_is_known_decides(
    nodes: list[NodeView], burn: list[dict[str, Any]], lately: Lately, mood: str, says: str
) -> None:
    assert verdict(nodes, burn, lately, 0.95) == (mood, says)


@pytest.mark.parametrize(
    ("lately", "found", "says"),
    [
        (LATE, Blame("prefill", "near"), "50% of first tokens in time; mostly prefill, in near; all"),
        (LATE, Blame("prefill", None, cold=True), "in time; mostly prefill of prompts that were not cached; all"),
        (LATE, Blame("client"), "50% of first tokens in time; mostly client round trip; all"),
        (LATE, Blame("queue", "near", "queue_full"), "mostly queues, in near; all"),
        (
            Lately(50, 50, 50),
            Blame("queue", "near", "queue_full"),
            "50% refused, failed or given up; mostly queue_full; all",
        ),
        (LATE, Blame(), "50% of first tokens in time; all"),
        (
            Lately(refused=9),
            Blame(refusal="model_not_found"),
            "9 requests refused for what they ask, mostly model_not_",
        ),
        (WELL, Blame("prefill", "near"), "Users do not wait; all"),
    ],
)
def test_who_waits_is_told_for_what_and_where(lately: Lately, found: Blame, says: str) -> None:
    assert says in verdict(BOTH, QUIET, lately, 0.95, found).text


def test_what_is_down_comes_before_what_that_does_to_the_rest() -> None:
    text = verdict(REGION_DOWN, QUIET, LATE, 0.95, Blame("prefill", "far")).text
    assert text.endswith("; no node of near left: 1 of 2 nodes down (a); mostly prefill, in far")


def test_many_nodes_that_are_down_are_counted_and_not_named() -> None:
    nodes = [node(f"n-{number}", ready=number == 0) for number in range(8)]
    assert verdict(nodes, QUIET, WELL, 0.95).text.endswith("; 7 of 8 nodes down")


@pytest.mark.parametrize(("lately", "mood"), [(WELL, "warn"), (LATE, "warn")])
def test_files_that_cannot_be_used_are_told_whatever_else_there_is(lately: Lately, mood: str) -> None:
    whole = verdict(BOTH, QUIET, lately, 0.95)
    found = verdict(BOTH, QUIET, lately, 0.95, broken="mine.yaml: unknown key 'budgt_ms'")
    assert found.mood == mood
    assert found.text.startswith(whole.text)
    assert found.text.endswith("older ones are in force: mine.yaml: unknown key 'budgt_ms'")


def test_files_that_cannot_be_used_make_nothing_better() -> None:
    assert verdict([node("a", ready=False)], QUIET, WELL, 0.95, broken="x").mood == "bad"
