"""The page runs under its own policy: nothing inline, nothing from elsewhere, nothing written as markup."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest

from edgeproxy.observe import dashboard
from edgeproxy.observe.dashboard import ASSETS, CHAT, CONTENT_SECURITY_POLICY, IMMUTABLE, PAGE, asset

SCRIPTS = [name for name in ASSETS if name.endswith(".js")]
PUBLISHED = {
    "uplot-1.6.32.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def text(name: str) -> str:
    found = asset(name)
    assert found is not None
    return found.content.decode()


@pytest.mark.parametrize("name", [*ASSETS, *IMMUTABLE])
def test_assets_are_there_with_their_type(name: str) -> None:
    found = asset(name)
    assert found is not None
    assert found.content
    assert found.kind.endswith("; charset=utf-8")


@pytest.mark.parametrize("name", ["__init__.py", "../log.py", "", "INDEX.HTML", "dashboard.js/", "vendor", "index."])
def test_nothing_else_is_served(name: str) -> None:
    assert asset(name) is None


def test_what_is_vendored_is_as_published_and_has_its_licence() -> None:
    vendor = files(dashboard) / "vendor"
    assert set(PUBLISHED) == set(IMMUTABLE)
    for name, expected in PUBLISHED.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == expected
    assert "MIT" in (vendor / "uplot-LICENSE").read_text()


@pytest.mark.parametrize("name", [PAGE, CHAT])
def test_page_has_nothing_inline(name: str) -> None:
    page = text(name)
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)
    assert "<style" not in page
    assert not re.findall(r"\s(?:on\w+|style)\s*=", page)
    assert "javascript:" not in page


@pytest.mark.parametrize("name", ASSETS)
def test_nothing_comes_from_elsewhere(name: str) -> None:
    content = text(name).replace("// ", "").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.findall(r"(?:https?:)?//[a-z]", content.replace('"http" + "://www.w3.org/2000/svg"', ""))
    assert "@import" not in content


@pytest.mark.parametrize("name", [PAGE, CHAT])
def test_page_asks_only_for_files_that_there_are(name: str) -> None:
    asked = re.findall(r'(?:src|href)="/assets/([^"]+)"', text(name))
    assert asked
    assert all(asset(found) is not None for found in asked)


@pytest.mark.parametrize("name", SCRIPTS)
def test_modules_import_what_others_export(name: str) -> None:
    for names, other in re.findall(r'import \{([^}]*)\} from "\./([^"]+)"', text(name)):
        exported = set(re.findall(r"export (?:async )?(?:function\*?|const) (\w+)", text(other)))
        assert {found.strip() for found in names.split(",")} <= exported


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_writes_text_only(name: str) -> None:
    script = text(name)
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert forbidden not in script
    assert 'setAttribute("style"' not in script, "the policy would refuse it"


def test_scripts_ask_for_elements_that_their_page_has() -> None:
    pages = {PAGE: ["dashboard.js", "chart.js", "map.js", "regions.js", "summary.js"], CHAT: ["chat.js"]}
    for page, scripts in pages.items():
        ids = set(re.findall(r'\bid="([^"]+)"', text(page)))
        asked = {found for name in [*scripts, "theme.js"] for found in re.findall(r'byId\("([^"]+)"\)', text(name))}
        assert asked
        assert asked <= ids


def test_tables_can_be_read_aloud() -> None:
    page = text(PAGE)
    assert page.count("<caption>") == page.count("<table>") == 6
    assert page.count("<th ") == page.count('scope="col"')
    assert 'lang="en"' in page
    assert 'aria-live="polite"' in page


def test_every_colour_is_named_for_both_schemes() -> None:
    styles = text("dashboard.css")
    named = dict(re.findall(r"(--[\w-]+): (.+);", styles))
    assert named
    assert all(re.fullmatch(r"light-dark\(#\w{6}, #\w{6}\)", value) for value in named.values())
    scripts = "".join(map(text, SCRIPTS))
    asked = {f"--{name}" for name in re.findall(r'colour\("([\w-]+)"', scripts)}
    used = asked | set(re.findall(r"var\((--[\w-]+)\)", styles))
    assert used <= set(named)


def test_policy_allows_no_more_than_own_files() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == "'self'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
