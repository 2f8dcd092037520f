"""`check` and `serve` refuse the same deployments, in the same words."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgeproxy.cli import main
from edgeproxy.wire.tls import make_dev_certificate

NODE = "{url: 'http://127.0.0.1:8101', models: [m]}"
SOUND = f"regions: {{near: {{nodes: [{NODE}]}}}}\n"
LAUNCHED = "{url: 'http://127.0.0.1:8101', models: [a, b], launch: {source: a.gguf}}"


def told(folder: Path, command: str, text: str) -> Result:
    path = folder / "regions.yaml"
    path.write_text(text)
    return CliRunner().invoke(main, [command, "--config", str(path)])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("traces_to: http://127.0.0.1:4318/v1/traces\n" + SOUND, "traces need OpenTelemetry"),
        (f"regions: {{near: {{nodes: [{LAUNCHED}]}}}}\n", "is launched with one model and names a, b"),
        ('listen: {http: "0.0.0.0:8080"}\n' + SOUND, "keys"),
        ("keys: absent.yaml\n" + SOUND, "absent.yaml"),
        ("tls: {certificate: absent.pem, key: absent.key}\n" + SOUND, "absent"),
        ("regions: {near: {nodes: [{url: 'http://1.2.3.4', models: [m], api_key_env: NOT_SET}]}}\n", "NOT_SET"),
    ],
)
def test_what_serve_refuses_check_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cause: str
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)  # as without the extra
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    checked, served = told(tmp_path, "check", text), told(tmp_path, "serve", text)
    assert (checked.exit_code, served.exit_code) == (1, 1)
    assert cause in checked.output
    assert checked.output == served.output


def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    output = told(tmp_path, "check", "traces_to: http://127.0.0.1:4318/v1/traces\n" + SOUND).output
    assert "pip install -c constraints.txt opentelemetry-sdk" in output


@pytest.mark.parametrize(("days", "cause"), [(-30, "expired on"), (30, "is valid from"), (0, "")])
def test_dates_that_clients_will_not_take_are_a_warning_and_no_refusal(tmp_path: Path, days: int, cause: str) -> None:
    made = make_dev_certificate(tmp_path / "tls", datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days))
    listen = "listen: {http: '127.0.0.1:8080', https: '127.0.0.1:8443'}\n"
    checked = told(tmp_path, "check", f"{listen}tls: {{certificate: {made.certificate}, key: {made.key}}}\n{SOUND}")
    assert checked.exit_code == 0
    assert ("Warning: clients will refuse the certificate" in checked.output) == bool(cause)
    assert cause in checked.output
