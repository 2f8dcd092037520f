"""An admin key opens a listener on another machine, and is told to nobody."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from edgeproxy.admin_key import ENVIRONMENT, AdminKeyError, admin_key
from edgeproxy.cli import main
from edgeproxy.top import top
from tests.test_top import STATE

KEY = "ek_right"


class _Guarded(BaseHTTPRequestHandler):
    """An admin listener as another machine meets it."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if self.headers["authorization"] == f"Bearer {KEY}" else 401)
        self.end_headers()
        self.wfile.write(b"data: " + orjson.dumps({**STATE, "recent": []}) + b"\n\n")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Guarded)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_top_shows_what_the_key_opens_and_ends_with_a_line(listener: str) -> None:
    out = io.StringIO()
    top(listener, Console(file=out, width=100), key=KEY, once=True)
    assert "Users do not wait" in out.getvalue() and out.getvalue().endswith("\n")


@pytest.mark.parametrize("command", [["top", "--once"], ["explain", "r-1"]])
@pytest.mark.parametrize(("key", "told"), [(None, "it wants a key"), ("ek_wrong", "it does not take this key")])
def test_who_has_no_key_is_told_where_one_goes_and_no_key_is_told(
    listener: str, command: list[str], key: str | None, told: str
) -> None:
    given = {ENVIRONMENT: key}
    found = CliRunner().invoke(main, [*command, "--admin", listener], env=given)
    assert found.exit_code == 1
    for words in ("401", told, ENVIRONMENT, "--admin-key-file"):
        assert words in found.output
    assert "ek_" not in found.output


def test_a_file_goes_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    assert admin_key(path, {ENVIRONMENT: "ek_other"}) == KEY
    assert admin_key(None, {ENVIRONMENT: f" {KEY} "}) == KEY
    assert admin_key(None, {}) is admin_key(None, {ENVIRONMENT: ""}) is None


@pytest.mark.parametrize("content", ["", "ek_one\nek_two", "ek_" + "x" * 600, "ek_\u00e4", "ek_\x01"])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(AdminKeyError, match=r"key: holds no key") as caught:
        admin_key(path, {})
    assert "ek_" not in str(caught.value)
    if content:
        with pytest.raises(AdminKeyError, match=ENVIRONMENT) as caught:
            admin_key(None, {ENVIRONMENT: content})
        assert "ek_" not in str(caught.value)
    with pytest.raises(AdminKeyError, match=r"cannot be read \(No such file"):
        admin_key(tmp_path / "none", {})


def test_a_key_in_the_address_is_refused_and_not_repeated() -> None:
    found = CliRunner().invoke(main, ["top", "--admin", "http://me:ek_secret@192.0.2.2:9080"])
    assert found.exit_code == 2 and "ek_secret" not in found.output and ENVIRONMENT in found.output
