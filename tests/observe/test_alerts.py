"""Alerts fire for what they are named after, and for nothing else: the rules, as Prometheus evaluates them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from edgeproxy.observe.burn import PAIRS
from tests.observe.test_deployment_files import ALERTS

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: apt-get install prometheus)"
)
NODE = '{node="a", region="near", instance="p:9080", job="edgeproxy"}'
UP = 'up{job="edgeproxy", instance="p:9080"}'


def holds(folder: Path, alert: str, series: dict[str, str], at: str, *, fires: dict[str, str] | None) -> None:
    """`series`: name -> values by the minute, in promtool's notation. `fires`: labels of the one alert that is to fire
    beside its severity; None: none may."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    (rule,) = [rule for rule in rules if rule["alert"] == alert]
    told = {**rule["labels"], **(fires or {})}
    rule["annotations"] = {}  # what is said is no part of when it is
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": at, "alertname": alert, "exp_alerts": [] if fires is None else [{"exp_labels": told}]}
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    command = ["promtool", "test", "rules", str(folder / "test.yaml")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


def of_node() -> dict[str, str]:
    return {"node": "a", "region": "near", "instance": "p:9080", "job": "edgeproxy"}


def burning(rate: float, limit: float, requests: int) -> dict[str, str]:
    told: dict[str, float] = {
        'edgeproxy_budget_burn_ratio{window="1h"}': rate,
        'edgeproxy_budget_burn_ratio{window="5m"}': rate,
        'edgeproxy_budget_burn_limit_ratio{window="1h"}': limit,
        'edgeproxy_budget_window_requests{window="5m"}': requests,
        'edgeproxy_budget_window_least{window="5m"}': 20,
    }
    return {name: f"{value}x20" for name, value in told.items()}


@pytest.mark.parametrize(("requests", "fires"), [(19, None), (20, {"window": "1h"})])
def test_nobody_is_called_for_a_burn_that_rests_on_too_few_requests(
    tmp_path: Path, requests: int, fires: dict[str, str] | None
) -> None:
    holds(tmp_path, "BudgetBurnsFast", burning(20, 14.4, requests), "10m", fires=fires)


@pytest.mark.parametrize("objective", [0.5, 0.8, 0.9])
def test_somebody_is_called_where_nobody_is_served_in_time_however_low_the_objective(
    tmp_path: Path, objective: float
) -> None:
    worst = burning(1 / (1 - objective), PAIRS[0].limit(objective), 30)
    holds(tmp_path, "BudgetBurnsFast", worst, "10m", fires={"window": "1h"})


def test_a_proxy_that_is_gone_calls_somebody_and_one_that_answers_nobody(tmp_path: Path) -> None:
    holds(tmp_path, "ProxyDown", {UP: "1x5 0x10"}, "10m", fires={"job": "edgeproxy", "instance": "p:9080"})
    holds(tmp_path, "ProxyDown", {"other": "1x10"}, "10m", fires={"job": "edgeproxy"})
    holds(tmp_path, "ProxyDown", {UP: "1x10"}, "10m", fires=None)


@pytest.mark.parametrize(("requests", "fires"), [(1, None), (60, {"region": "near"})])
def test_forecasts_drift_by_many_requests_and_not_by_one(
    tmp_path: Path, requests: int, fires: dict[str, str] | None
) -> None:
    name, each = "edgeproxy_forecast_error_ratio", requests / 60
    off = {
        f'{name}_bucket{{region="near", le="0.5"}}': "0x90",
        f'{name}_bucket{{region="near", le="1.0"}}': f"0+{each}x90",
        f'{name}_bucket{{region="near", le="+Inf"}}': f"0+{each}x90",
        f'{name}_count{{region="near"}}': f"0+{each}x90",
    }
    holds(tmp_path, "ForecastDrifts", off, "80m", fires=fires)


def gaps(fast: str, all_of_them: str) -> dict[str, str]:
    within = NODE.removesuffix("}")
    return {
        f'edgeproxy_node_step_gap_seconds_bucket{within}, le="0.000512"}}': fast,
        f'edgeproxy_node_step_gap_seconds_bucket{within}, le="0.008192"}}': all_of_them,
        f'edgeproxy_node_step_gap_seconds_bucket{within}, le="+Inf"}}': all_of_them,
        f"edgeproxy_node_step_gap_seconds_count{NODE}": all_of_them,
    }


def test_gaps_that_grow_after_hours_of_short_ones_are_told_of(tmp_path: Path) -> None:
    grown = gaps("0+1000x90 90000x60", "0+1000x150")
    holds(tmp_path, "StepGapGrows", grown, "85m", fires=None)
    holds(tmp_path, "StepGapGrows", grown, "140m", fires=of_node())


def test_kv_that_is_no_longer_reused_after_days_in_which_it_was_is_told_of(tmp_path: Path) -> None:
    reused, computed = f"edgeproxy_node_kv_blocks_reused_total{NODE}", f"edgeproxy_node_kv_blocks_computed_total{NODE}"
    told = {reused: "0+9000x120 1080000x120", computed: "0+1000x240"}
    holds(tmp_path, "KvNotReused", told, "119m", fires=None)
    holds(tmp_path, "KvNotReused", told, "230m", fires=of_node())


@pytest.mark.parametrize(("busy", "fires"), [("0+60x30", True), ("0+60x5 300x25", False)])
def test_one_uneven_second_before_an_idle_quarter_of_an_hour_is_no_ticket(
    tmp_path: Path, busy: str, fires: bool
) -> None:
    told = {f"edgeproxy_node_susi_ratio{NODE}": "0.5x30", f"edgeproxy_node_busy_seconds_total{NODE}": busy}
    holds(tmp_path, "NodeUneven", told, "25m", fires=of_node() if fires else None)


@pytest.mark.parametrize(("faults", "fires"), [("0+20x40", True), ("0+1x40", False)])
def test_faults_are_those_of_late(tmp_path: Path, faults: str, fires: bool) -> None:
    told = {
        f"edgeproxy_node_page_faults_total{NODE}": faults,
        f"edgeproxy_node_prefilled_tokens_total{NODE}": "0+50x40",
        f"edgeproxy_node_generated_tokens_total{NODE}": "0+50x40",
        f"edgeproxy_node_busy_seconds_total{NODE}": "0+10x40",
    }
    holds(tmp_path, "NodeFaults", told, "35m", fires=of_node() if fires else None)
