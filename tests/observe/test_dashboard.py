"""The page runs under its own policy: nothing inline, nothing from elsewhere, nothing written as markup."""

from __future__ import annotations

import re

import pytest

from edgeproxy.observe.dashboard import ASSETS, CONTENT_SECURITY_POLICY, asset


def text(name: str) -> str:
    found = asset(name)
    assert found is not None
    return found[0].decode()


@pytest.mark.parametrize("name", ASSETS)
def test_assets_are_there_with_their_type(name: str) -> None:
    found = asset(name)
    assert found is not None
    content, kind = found
    assert content
    assert kind.endswith("; charset=utf-8")


@pytest.mark.parametrize("name", ["__init__.py", "../log.py", "", "INDEX.HTML", "dashboard.js/"])
def test_nothing_else_is_served(name: str) -> None:
    assert asset(name) is None


def test_page_has_nothing_inline() -> None:
    page = text("index.html")
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)
    assert "<style" not in page
    assert not re.findall(r"\s(?:on\w+|style)\s*=", page)
    assert "javascript:" not in page


@pytest.mark.parametrize("name", ASSETS)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    assert not re.findall(r"(?:https?:)?//[a-z]", text(name).replace("// ", ""))
    assert "@import" not in text(name)


def test_script_writes_text_only() -> None:
    script = text("dashboard.js")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert forbidden not in script
    assert 'setAttribute("style"' not in script, "the policy would refuse it"


def test_script_asks_for_elements_that_the_page_has() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', text("index.html")))
    asked = set(re.findall(r'byId\("([^"]+)"\)', text("dashboard.js")))
    assert asked
    assert asked <= ids


def test_tables_can_be_read_aloud() -> None:
    page = text("index.html")
    assert page.count("<caption>") == page.count("<table>") == 2
    assert page.count("<th ") == page.count('scope="col"')
    assert 'lang="en"' in page
    assert 'aria-live="polite"' in page


def test_both_colour_schemes_name_the_same_colours() -> None:
    light, dark = re.findall(r":root \{([^}]*)\}", text("dashboard.css"))
    assert re.findall(r"(--\w+):", light) == re.findall(r"(--\w+):", dark)


def test_policy_allows_no_more_than_own_files() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == "'self'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
