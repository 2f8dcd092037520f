"""The simulator's command: what it prints, what it writes, and how it names what it cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from edgeproxy.sim.cli import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    entries = [
        {
            "timestamp": i * 500,
            "input_length": 2000,
            "output_length": 60,
            "hash_ids": [0, *range(i % 25 * 9 + 1, i % 25 * 9 + 4)],
        }
        for i in range(200)
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_every_policy_has_its_row_its_numbers_and_its_curve(trace: Path, tmp_path: Path) -> None:
    out, svg = tmp_path / "out.json", tmp_path / "out.svg"
    result = invoke("--trace", trace, "--regions", 4, "--policies", "all", "--jobs", 2, "--json", out, "--picture", svg)
    assert result.exit_code == 0, result.output
    told = json.loads(out.read_text())
    names = [row["policy"] for row in told["policies"]]
    assert names[0] == "edgeproxy"
    assert len(names) == 8
    for row in told["policies"]:
        assert row["policy"] in result.output
        assert row["requests"] == row["answered"] == 200
        assert 0 < row["ttft_p50_s"] <= row["ttft_p95_s"] <= row["ttft_p99_s"]
        assert row["ttft_mean_s"] > 0 and 0 < row["hit_ratio"] < 1
    assert told["scenario"]["regions"] == 4
    root = ElementTree.fromstring(svg.read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 8


def test_json_alone_goes_to_stdout(trace: Path) -> None:
    result = CliRunner().invoke(main, ["--trace", str(trace), "--policies", "nearest", "--regions", "2", "--json", "-"])
    assert json.loads(result.stdout)["policies"][0]["policy"] == "nearest"


def test_faults_and_named_loads_are_taken(trace: Path) -> None:
    arguments = [
        "--load",
        "skewed",
        "--fail",
        "eastus=1-5",
        "--flap",
        "northeurope/0=2",
        "--herd",
        "20@3",
        "--stale-s",
        "2",
    ]
    result = invoke("--trace", trace, "--regions", 2, "--policies", "edgeproxy", *arguments, "--json", "-")
    told = json.loads(result.stdout)
    assert told["scenario"]["skew"] == 0.5
    assert told["policies"][0]["retried"] > 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--policies", "best"], "no policy is named 'best'"),
        (["--regions", "40"], "40 regions"),
        (["--load", "much"], "light"),
        (["--fail", "mars=1-2"], "no region 'mars'"),
        (["--flap", "eastus=0"], "above zero"),
        (["--herd", "x"], "COUNT@SECOND"),
        (["--kv-tokens", "100"], "--kv-tokens"),
        (["--fail", "eastus=0-", "--regions", "1", "--policies", "nearest"], "no request was answered"),
    ],
)
def test_what_cannot_be_used_is_named(trace: Path, arguments: list[str], word: str) -> None:
    result = invoke("--trace", trace, *arguments)
    assert result.exit_code != 0
    assert "Error" in result.output and word in result.output.replace("\n", " ")


def test_a_trace_is_needed() -> None:
    assert "--trace" in invoke().output
