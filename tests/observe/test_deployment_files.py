"""Dashboards and alerts ask only for metrics that there are, and every alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeproxy.observe.fleet import NodeView
from edgeproxy.observe.metrics import Metrics
from edgeproxy.protocol.node.instruments import GAP_BUCKETS, Durations, Gpu, Instruments, Link
from edgeproxy.protocol.node.report import NodeReport, NodeState

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DASHBOARDS = sorted((DOCKER / "grafana" / "dashboards").glob("*.json"))
ALERTS = DOCKER / "prometheus" / "alerts.yaml"
METRIC = re.compile(r"\b(?:edgeproxy|engine|gen_ai)_\w+\b")
LABELS = {"gen_ai_request_model"}


def documented() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    found = set[str]()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE):
        found |= {f"{name}{end}" for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))}
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_there_are_two_dashboards_each_with_its_own_name() -> None:
    assert len(DASHBOARDS) == 2
    assert len({dashboard(path)["uid"] for path in DASHBOARDS}) == 2


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_are_told_apart_and_ask_for_metrics_that_there_are(path: Path) -> None:
    panels = dashboard(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    assert all(panel["description"] for panel in panels), "what it shows, for who sees it first"
    asked = {name for panel in panels for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert asked - LABELS
    assert asked - LABELS <= documented()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_lie_on_one_another(path: Path) -> None:
    taken = set[tuple[int, int]]()
    for panel in dashboard(path)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_the_data_source_is_the_viewers_to_choose(path: Path) -> None:
    found = dashboard(path)
    assert found["id"] is None
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in found["panels"])


def test_alerts_ask_for_metrics_that_there_are() -> None:
    asked = {name for rule in rules() for name in METRIC.findall(rule["expr"])}
    assert asked
    assert asked <= documented()


def test_dashboards_and_alerts_need_nothing_but_the_proxy() -> None:
    """Nodes have a token, of each start another where nobody names one: none is needed for what is shown."""
    gpu = Gpu(failed=False, link=Link(4, 8), possible=Link(5, 16))
    given = {field.name: 1.0 for field in fields(Instruments)}
    gap = Durations((0,) * GAP_BUCKETS, 0.0)
    instruments = Instruments(**{**given, "sleeping": False, "gpu": gpu, "gap": gap})  # type: ignore[arg-type]
    report = NodeReport(NodeState.READY, "m", "n", 1, 2, 3000, 100, 50, 0, 16, 1000.0, 1.0, 1, 0.0)
    node = NodeView("a", "near", True, "", "closed", 0, 0.01, ("m",), report=report, instruments=instruments)
    lines = Metrics("1", lambda: [node]).exposition()[0].decode().splitlines()
    told = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    panels = dashboard(DOCKER / "grafana" / "dashboards" / "nodes.json")["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [rule["expr"] for rule in rules() if rule["alert"].startswith(("Node", "Gpu", "Kv", "Step"))]
    assert {name for expression in asked for name in METRIC.findall(expression)} <= told
    files = "".join(path.read_text() for path in (ALERTS, *DASHBOARDS))
    assert not re.findall(r"\bengine_\w+", files)


def test_every_alert_has_its_line_in_the_runbook_and_no_other_has() -> None:
    titles = re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert titles == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (Debian: apt-get install prometheus)")
def test_promtool_finds_no_fault() -> None:
    for verb, path in (("rules", ALERTS), ("config", DOCKER / "prometheus" / "prometheus.yaml")):
        subprocess.run(["promtool", "check", verb, str(path)], check=True, capture_output=True, timeout=60)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here (Debian: apt-get install prometheus)")
def test_panels_ask_what_prometheus_can_read_and_tell_proxies_apart(tmp_path: Path) -> None:
    asked = [
        target["expr"] for path in DASHBOARDS for panel in dashboard(path)["panels"] for target in panel["targets"]
    ]
    for expression in asked:
        by_instance = re.findall(r'\b(?:edgeproxy|gen_ai_server)_\w+(?=\{instance=~"\$instance")', expression)
        assert by_instance == re.findall(r"\b(?:edgeproxy|gen_ai_server)_\w+", expression), expression
    read = [one.replace("$__rate_interval", "1m").replace("$instance", ".*") for one in asked]
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(read)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    found = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr
