"""`edgeproxy check` tells what is in force: what an operator wrote, and what the defaults make of the rest."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from edgeproxy.cli import main

EVERYTHING = """
listen: {http: "127.0.0.1:8080", https: "127.0.0.1:8443"}
hosts: [api.example.org]
budget_ms: 200
budgets: {big: 400}
objective: 0.99
traces_to: http://127.0.0.1:4318/v1/traces
limits: {attempts: 2, hedge_share: 0.01}
fallbacks: {big: small}
regions:
  near:
    location: [52.4, 4.9]
    price_per_hour: 0.9
    nodes:
      - {url: "http://127.0.0.1:8101", models: [small], launch: {source: small.gguf, threads: 2}}
      - {url: "https://10.0.0.7:8443", kind: vllm, models: [big], names: {big: org/Big-7B}, standby: true,
         price_per_hour: 2.5, api_key_env: NODE_KEY, continue_final_message: true}
  far:
    relay: {delay_ms: 40}
    nodes: [{url: "http://127.0.0.1:8102", kind: openai, models: ["any-*"]}]
"""


def checked(folder: Path, text: str, monkey_key: str = "k") -> str:
    path = folder / "regions.yaml"
    path.write_text(text)
    told = CliRunner().invoke(main, ["check", "--config", str(path)], env={"NODE_KEY": monkey_key})
    assert told.exit_code == 0, told.output
    return told.output


def test_what_is_written_is_told(tmp_path: Path) -> None:
    told = checked(tmp_path, EVERYTHING)
    for line in (
        "http       127.0.0.1:8080",
        "https      127.0.0.1:8443 (HTTP/1.1, HTTP/2, HTTP/3), a development certificate",
        "admin      none: no metrics and no dashboard",
        "hosts      api.example.org",
        "traces     http://127.0.0.1:4318/v1/traces",
        "objective  0.99 of",
        "attempts 2",
        "hedge_share 0.01",
        "region near at 52.4, 4.9",
        "region far behind a relay that adds 40 ms",
        "near-1: native at http://127.0.0.1:8101\n",
        "started by the proxy: small.gguf, threads 2",
        "near-2: vllm at https://10.0.0.7:8443, standby",
        "serves big (there org/Big-7B)",
        "      serves small\n      costs 0.9 an hour\n",
        "costs 2.5 an hour",
        "key from $NODE_KEY",
        "goes on with other nodes' streams",
        "model big\n    nodes near-2; budget of a first token 400 ms\n    falls back to small",
        "model small\n    nodes near-1; budget of a first token 200 ms\n",
        "model any-*",
    ):
        assert line in told, f"{line!r} is not in\n{told}"


def test_defaults_are_told_too(tmp_path: Path) -> None:
    told = checked(tmp_path, "regions: {near: {nodes: [{url: 'http://127.0.0.1:8101', models: [m]}]}}\n")
    for line in ("body_bytes 8388608", "attempts 3", "first_byte_s 120", "stall_s 60", "resume_after_s 10"):
        assert line in told
    assert "keys       none; loopback only" in told
    assert "budget of a first token 150 ms" in told
    assert "standby" not in told and "falls back" not in told
    assert "costs" not in told


def test_no_secret_is_told(tmp_path: Path) -> None:
    assert "sesame" not in checked(tmp_path, EVERYTHING, "sesame")
