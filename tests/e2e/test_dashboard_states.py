"""What the dashboard says in each state a fleet can be in, and to whom: by map, keyboard, and without colours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from random import Random
from time import monotonic
from typing import Any

import pytest

from edgeproxy.gateway.account import Account, Call
from edgeproxy.routing.choose import Decision, Wanted, choose
from edgeproxy.upstream.node import Fleet
from tests.e2e.browser import PROGRAM, Browser, browser
from tests.e2e.panel import Panel, until

pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found
        assert found.errors == []


def answered(account: Account, fleet: Fleet, count: int, budget: float = 0.15) -> None:
    took = 0.1
    found = choose(fleet.nodes, Wanted(100.0), fleet.home, monotonic(), Random(1))
    assert isinstance(found, Decision)
    for number in range(count):
        now = monotonic()
        call = Call(b"a-%d" % number, now - took, "h2", 0.002)
        call.model, call.budget_s, call.choice = "ok", budget, found.noted()
        call.status, call.attempts, call.node, call.region, call.rtt_s = 200, 1, "near-1", "near", 0.01
        call.sent_at, call.first_at, call.terms = now - took + 0.0005, now, {"queue": took / 4, "prefill": took / 2}
        account.close(call, now)


def refused(account: Account, count: int) -> None:
    for number in range(count):
        now = monotonic()
        call = Call(b"r-%d" % number, now - 0.001, "h1", None)
        call.status, call.code = 404, "model_not_found"
        account.close(call, now)


def text(page: Browser, selector: str) -> str:
    return str(page.ask(f"document.querySelector({selector!r})?.textContent ?? ''"))


def shown(page: Browser, url: str) -> None:
    page.open(url)
    until(partial(page.ask, "document.getElementById('live')?.textContent === 'live'"))


async def nothing_comes(account: Account, fleet: Fleet, stop: threading.Event) -> None: ...


async def refusals_alone(account: Account, fleet: Fleet, stop: threading.Event) -> None:
    refused(account, 1200)


async def a_region_dies(account: Account, fleet: Fleet, stop: threading.Event) -> None:
    answered(account, fleet, 30)
    fleet.nodes[1].down("could not be reached: Connection refused")


async def all_die(account: Account, fleet: Fleet, stop: threading.Event) -> None:
    for node in fleet.nodes:
        node.down("could not be reached: Connection refused")


@pytest.mark.parametrize(
    ("arrange", "verdict", "requests", "state"),
    [
        (nothing_comes, "No requests in five minutes; all 2 nodes ready", "0 /snone, last 5 min", "ready"),
        (
            refusals_alone,
            "Nothing but refusals in five minutes; all 2 nodes ready; "
            "1,200 requests refused for what they ask, mostly model_not_found",
            "4.00 /s0 answered, 1,200 refused, last 5 min",
            "ready",
        ),
        (
            a_region_dies,
            "Users do not wait; no node of far left: 1 of 2 nodes down (far-1)",
            "0.10 /s30 answered, last 5 min",
            "down: could not be reached: Connection refused",
        ),
        (
            all_die,
            "Nobody is served: every node is down",
            "0 /snone, last 5 min",
            "down: could not be reached: Connection refused",
        ),
    ],
    ids=["no requests", "refusals alone", "a dead region", "nobody left"],
)
def test_the_page_says_what_is_the_case(page: Browser, arrange: Any, verdict: str, requests: str, state: str) -> None:
    with Panel(arrange) as panel:
        shown(page, panel.url)
        assert text(page, "#verdict") == verdict
        assert text(page, "#tiles .tile:nth-child(4)") == f"requests{requests}"
        assert text(page, "#nodes tr:nth-child(2) td:nth-child(3)") == state
        assert page.ask("document.getElementById('map-section').hidden"), "no region has a location"
        assert page.ask("document.querySelector('#chart canvas').width > 0")


async def a_loop_of_refusals(account: Account, fleet: Fleet, stop: threading.Event) -> None:
    answered(account, fleet, 20)
    answered(account, fleet, 5, budget=0.4)
    refused(account, 500)


def test_refusals_in_a_loop_leave_room_for_who_is_served_and_budgets_are_told_as_they_are(page: Browser) -> None:
    with Panel(a_loop_of_refusals) as panel:
        shown(page, panel.url)
        rows = page.ask("[...document.querySelectorAll('#recent tr')].map((one) => one.cells[2].textContent)")
        assert rows == ["404 model_not_found"] * 8 + ["200"] * 25
        assert text(page, "#budget") == "budgets of 150 ms to 400 ms go"
        assert text(page, "#chart .u-legend").count("budget") == 2


async def one_budget_beyond_all_bounds(account: Account, fleet: Fleet, stop: threading.Event) -> None:
    answered(account, fleet, 20)
    answered(account, fleet, 1, budget=3600.0)


def test_the_charts_axis_ends_where_first_tokens_do(page: Browser) -> None:
    with Panel(one_budget_beyond_all_bounds) as panel:
        shown(page, panel.url)
        assert text(page, "#budget") == "budgets of 150 ms to 3600 s go"
        drawn = page.ask("import('/assets/chart.js').then((chart) => chart.ends(0.001, 3600))")
        assert drawn == [0.001, 100]
        bars = page.ask("[...document.querySelectorAll('#recent .bar')].map((one) => one.querySelector('b') !== null)")
        assert sorted(bars) == [False, *[True] * 20], "a mark beyond the bar is not drawn"
        widths = "[...document.querySelectorAll('#examples .bar i')].map((one) => one.getBoundingClientRect().width)"
        assert max(page.ask(widths)) > 10, "what is spent of the largest can be seen"


def failed_over(answering: str) -> Any:
    async def arrange(account: Account, fleet: Fleet, stop: threading.Event) -> None:
        now, found = monotonic(), choose(fleet.nodes, Wanted(100.0), fleet.home, monotonic(), Random(1))
        assert isinstance(found, Decision)
        call = Call(b"a-0", now - 12.0, "h2", 0.002)
        call.model, call.choice, call.status, call.attempts = "ok", found.noted(), 200, 2
        call.node, call.region, call.failures, call.lost_s = answering, "far", ("near-1: cut",), 0.4
        call.sent_at, call.first_at, call.expected_s, call.shown_s = now - 11.5, now, 11.0, 11.5
        account.close(call, now)

    return arrange


@pytest.mark.parametrize(("answering", "actual"), [("far-1", ["", "11.5 s"]), ("far-2", ["", "", "11.5 s"])])
def test_what_came_stands_with_the_node_that_answered(page: Browser, answering: str, actual: list[str]) -> None:
    with Panel(failed_over(answering)) as panel:
        shown(page, panel.url)
        page.ask("document.querySelector('#recent button').click()")
        until(partial(page.ask, "document.querySelectorAll('#details[open] table').length === 2"))
        cells = "[...document.querySelectorAll('#details table:last-of-type tr:last-child td')]"
        assert page.ask(f"{cells}.slice(1).map((one) => one.textContent.replace(/\\W$/, ''))") == actual
        names = "[...document.querySelectorAll('#details table:last-of-type tbody tr:first-child td')]"
        assert page.ask(f"{names}.map((one) => one.textContent)").index(answering) == len(actual)
        assert f"answered by {answering} in far" in text(page, "#details-body")
        assert "failed: near-1: cut" in text(page, "#details-body")


async def patterns_alone(account: Account, fleet: Fleet, stop: threading.Event) -> None: ...


@pytest.mark.parametrize(("models", "kind", "value"), [(("smol*",), "INPUT", ""), (("a", "b"), "SELECT", "a")])
def test_a_model_that_only_a_pattern_names_can_be_written(
    page: Browser, models: tuple[str, ...], kind: str, value: str
) -> None:
    with Panel(patterns_alone, models=models) as panel:
        page.open(f"{panel.url}/chat")
        until(partial(page.ask, "document.querySelector('#model[placeholder], #model option') !== null"))
        model = page.ask("(({ tagName, value }) => [tagName, value])(document.getElementById('model'))")
        assert model == [kind, value]
        assert page.ask("document.getElementById('model').labels.length") == 1


def test_regions_stand_on_the_map_where_they_are_and_say_without_colour_how_they_are(page: Browser) -> None:
    with Panel(a_region_dies, {"near": (50.1, 8.7), "far": (-33.9, 151.2)}) as panel:
        for width in (1280, 360):
            page.open(panel.url, width=width)
            until(partial(page.ask, "document.querySelectorAll('#map circle').length === 2"))
            at = "(one) => [one.cx.baseVal.value, one.cy.baseVal.value]"
            marks = page.ask(f"[...document.querySelectorAll('#map circle')].map({at})")
            (east, south), (farther_east, farther_south) = marks
            assert farther_east > east and farther_south > south
            assert page.ask("[...document.querySelectorAll('#map text')].map((one) => one.textContent)") == [
                "near 10.0 ms",
                "far down",
            ]
            inside = """(() => { const frame = document.querySelector('#map svg').getBoundingClientRect();
              return [...document.querySelectorAll('#map text')].map((one) => one.getBoundingClientRect())
                .every((one) => one.left >= frame.left && one.right <= frame.right && one.height >= 11); })()"""
            assert page.ask(inside), f"names can be read at {width}"


def test_terms_are_told_apart_where_the_system_forces_its_colours(page: Browser) -> None:
    with Panel(a_region_dies, {"near": (50.1, 8.7)}) as panel:
        shown(page, panel.url)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "forced-colors", "value": "active"}])
        assert page.ask("matchMedia('(forced-colors: active)').matches")
        terms = "[...document.querySelectorAll('#examples .bar:first-of-type i')]"
        colours = page.ask(f"{terms}.map((one) => getComputedStyle(one).backgroundColor)")
        assert len(colours) > 2 and len(set(colours[:3])) == 3
        colour = "(one) => getComputedStyle(one, '::before').backgroundColor"
        assert len(set(page.ask(f"[...document.querySelectorAll('#legend li')].map({colour})"))) > 8
        ground = page.ask("getComputedStyle(document.body).backgroundColor")
        assert page.ask("getComputedStyle(document.querySelector('#map text')).fill") != ground
        page.call("Emulation.setEmulatedMedia", features=[])


def press(page: Browser, key: str, code: int) -> None:
    named: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    if key == "Enter":
        named["text"] = "\r"
    page.call("Input.dispatchKeyEvent", type="keyDown", **named)
    page.call("Input.dispatchKeyEvent", type="keyUp", **named)


FOCUSED = """(() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const name = one.id || one.getAttribute('aria-label') || one.textContent.trim();
  return [one.tagName, name, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0];
})()"""


def test_the_keyboard_reaches_everything_sees_where_it_is_and_comes_back_from_a_request(page: Browser) -> None:
    with Panel(a_region_dies) as panel:
        shown(page, panel.url)
        walk = list[tuple[str, str, bool]]()
        while not walk or not walk[-1][1].startswith("request a-"):
            press(page, "Tab", 9)
            walk.append(tuple(page.ask(FOCUSED)))
            assert len(walk) < 40, walk
        named = [name for _, name, _ in walk]
        wanted = [
            "Dashboard",
            "Chat",
            "Metrics",
            "theme",
            "The same as a table",
            "Nodes by region",
            "Requests, a row each",
        ]
        assert [name for name in named if name in wanted] == wanted
        assert all(seen for _, _, seen in walk), walk
        press(page, "Enter", 13)
        until(partial(page.ask, "document.querySelector('#details[open] .waterfall') !== null"))
        assert page.ask("document.getElementById('details').contains(document.activeElement)")
        press(page, "Escape", 27)
        until(partial(page.ask, "!document.getElementById('details').open"))
        assert page.ask(FOCUSED)[1] == named[-1], "back where it was"
