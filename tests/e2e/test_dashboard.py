"""The dashboard in a real browser, over real traffic: what it shows is what the metrics say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.browser import PROGRAM, Browser, browser
from tests.e2e.deployment import MODEL, Deployment, wait_until

pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as found:
        yield found


def ask(deployment: Deployment) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, "stream": True}
    assert httpx.post(f"{deployment.base_url}/chat/completions", json=body, timeout=60).status_code == 200


def metric(deployment: Deployment, name: str, **labels: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{deployment.admin}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def text(page: Browser, selector: str) -> str:
    return str(page.ask(f"document.querySelector({selector!r})?.textContent ?? ''"))


def test_what_is_shown_is_what_the_metrics_say(deployment: Deployment, page: Browser) -> None:
    ask(deployment)
    page.open(f"http://127.0.0.1:{deployment.admin}/dashboard")
    wait_until(lambda: text(page, "#live") == "live", 30, deployment)
    ask(deployment)
    total = int(metric(deployment, "edgeproxy_requests_by_protocol_total", protocol="h1"))
    shown = "[...document.querySelectorAll('#protocols tr')].find((row) => row.cells[0].textContent === 'h1')"
    wait_until(lambda: page.ask(f"{shown}?.cells[1].textContent") == str(total), 30, deployment)
    rows = page.ask(
        "[...document.querySelectorAll('#nodes tr')].map((row) => [...row.cells].map((one) => one.textContent))"
    )
    assert [row[1] for row in rows] == ["near-1", "far-1"]
    assert all(metric(deployment, "edgeproxy_node_ready", node=row[1]) == (row[2] == "ready") for row in rows)
    answers = int(metric(deployment, "edgeproxy_first_token_seconds_count"))
    wait_until(lambda: f"{answers} answered" in text(page, "#tiles .tile:nth-child(4)"), 30, deployment)
    body = {"model": "nobody-serves-it", "messages": [{"role": "user", "content": "?"}]}
    assert httpx.post(f"{deployment.base_url}/chat/completions", json=body).status_code == 404
    refused = int(metric(deployment, "edgeproxy_errors_total", code="model_not_found"))
    code = "[...document.querySelectorAll('#codes tr')].find((row) => row.cells[0].textContent === 'model_not_found')"
    wait_until(lambda: page.ask(f"{code}?.cells[1].textContent") == str(refused), 30, deployment)
    assert page.ask("document.querySelectorAll('#tiles .tile').length") == 7
    assert page.ask("document.querySelector('#chart canvas').width") > 0
    assert page.errors == []


def test_a_request_opens_with_its_terms_and_what_the_choice_knew(deployment: Deployment, page: Browser) -> None:
    ask(deployment)
    page.open(f"http://127.0.0.1:{deployment.admin}/dashboard")
    wait_until(lambda: bool(page.ask("document.querySelector('#recent button') !== null")), 30, deployment)
    page.ask("document.querySelector('#recent button').click()")
    wait_until(lambda: "runner-up" in text(page, "#details-body"), 30, deployment)
    terms = page.ask("[...document.querySelectorAll('.waterfall th')].map((one) => one.textContent)")
    assert {"edge", "prefill", "first decode"} <= set(terms)
    assert page.errors == []


def test_a_request_fits_a_phone_and_the_nodes_a_laptop(deployment: Deployment, page: Browser) -> None:
    ask(deployment)
    for width, place in ((360, "#details"), (1280, ".nodes")):
        page.open(f"http://127.0.0.1:{deployment.admin}/dashboard", width=width)
        wait_until(lambda: bool(page.ask("document.querySelector('#recent button') !== null")), 30, deployment)
        page.ask("document.querySelector('#recent button').click()")
        wait_until(lambda: "runner-up" in text(page, "#details-body"), 30, deployment)
        shown = f"document.querySelector('{place}')"
        assert page.ask(f"{shown}.scrollWidth <= {shown}.clientWidth"), place


def test_the_chat_answers_and_says_where_the_time_went(deployment: Deployment, page: Browser) -> None:
    page.open(f"http://127.0.0.1:{deployment.admin}/dashboard/chat")
    wait_until(lambda: bool(page.ask("document.querySelector('#model')?.value")), 30, deployment)
    page.ask("document.getElementById('region').value = 'far'")
    page.ask("document.getElementById('text').value = 'What is the capital of France?'")
    page.ask("document.getElementById('ask').requestSubmit()")
    wait_until(lambda: "runner-up" in text(page, "#where"), 60, deployment)
    assert text(page, ".turn.assistant .words")  # sampled: what it says is left to chance
    assert "region far" in text(page, "#timing")
    assert page.errors == []


def test_a_turn_that_fails_says_why_and_is_no_part_of_the_conversation(deployment: Deployment, page: Browser) -> None:
    page.open(f"http://127.0.0.1:{deployment.admin}/dashboard/chat/")
    wait_until(lambda: bool(page.ask("document.querySelector('#model')?.value")), 30, deployment)
    page.ask("document.getElementById('text').value = 'Hello?'")
    page.ask("document.getElementById('length').value = 99999")
    enter = "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true})"
    page.ask(f"document.getElementById('text').dispatchEvent({enter}); 0")
    assert page.ask("document.getElementById('length').validity.rangeOverflow")
    assert page.ask("document.querySelectorAll('.turn').length") == 0, "the form's own check holds it back"
    page.ask("document.getElementById('length').removeAttribute('max')")
    page.ask("document.getElementById('ask').requestSubmit()")
    wait_until(lambda: "400" in text(page, ".turn.assistant .bad"), 30, deployment)
    wait_until(lambda: "status 400" in text(page, "#where"), 30, deployment)
    assert "not part of the conversation" in text(page, ".turn.assistant .bad")
    assert text(page, ".turn.assistant .words") == ""
    assert page.ask("document.getElementById('text').value") == "Hello?", "it can be sent again"
    page.ask("document.getElementById('length').value = 4")
    page.ask("document.getElementById('ask').requestSubmit()")
    wait_until(lambda: "runner-up" in text(page, "#where"), 60, deployment)
    assert not page.ask("document.getElementById('send').disabled")


def test_a_stopped_answer_has_its_waterfall_and_a_long_chat_keeps_the_page_short(
    deployment: Deployment, page: Browser
) -> None:
    page.open(f"http://127.0.0.1:{deployment.admin}/dashboard/chat", width=360, height=800)
    wait_until(lambda: bool(page.ask("document.querySelector('#model')?.value")), 30, deployment)
    page.ask("document.getElementById('length').value = 1024")
    page.ask("document.getElementById('text').value = 'Tell a very long story. ' + 'word '.repeat(600)")
    page.ask("document.getElementById('ask').requestSubmit()")
    wait_until(lambda: "First word here" in text(page, "#timing"), 60, deployment)
    page.ask("document.getElementById('stop').click()")
    wait_until(lambda: text(page, "#timing") == "Stopped.", 30, deployment)
    wait_until(lambda: "prefill" in text(page, "#where .waterfall"), 30, deployment)
    assert "the client left before the end" in text(page, "#where")
    assert page.ask("document.documentElement.scrollWidth") <= 360, "with the waterfall, too"
    assert page.ask("document.documentElement.scrollHeight") < 4 * 800
    talk = "document.getElementById('talk')"
    assert page.ask(f"{talk}.scrollHeight > {talk}.clientHeight"), "it was long"
    assert page.ask(f"{talk}.scrollHeight - {talk}.scrollTop - {talk}.clientHeight") < 2, "its end is what is seen"
    page.ask("document.getElementById('text').value = 'Hi'; document.getElementById('length').value = 2")
    page.ask("document.getElementById('ask').requestSubmit()")
    assert text(page, "#timing") == "Waiting for the first word…"
    wait_until(lambda: "First word here" in text(page, "#timing"), 60, deployment)
    told_early = "404"  # a record is asked for until it is written
    assert [error for error in page.errors if told_early not in error] == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_violation(deployment: Deployment, page: Browser, dark: bool) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    ask(deployment)
    for path, there in (("/dashboard", "#recent button"), ("/dashboard/chat", "#model option")):
        page.open(f"http://127.0.0.1:{deployment.admin}{path}", dark=dark)
        shown = f"document.querySelector('{there}') !== null"
        wait_until(partial(page.ask, shown), 30, deployment)
        page.ask(f"{axe};0")
        found = json.loads(page.ask("axe.run().then((found) => JSON.stringify([found.violations, found.passes]))"))
        violations, passes = found
        assert len(passes) > 10, "it ran"
        assert [(one["id"], one["nodes"]) for one in violations if one["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_a_phone(deployment: Deployment, page: Browser, dark: bool) -> None:
    for path in ("/dashboard", "/dashboard/chat"):
        page.open(f"http://127.0.0.1:{deployment.admin}{path}", dark=dark, width=390, height=800)
        wait_until(lambda: page.ask("document.readyState") == "complete", 30, deployment)
        assert page.ask("document.documentElement.scrollWidth") <= 390
    assert page.errors == []
