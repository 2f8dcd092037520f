"""`scripts/sim`: what routing policies would do to a trace of requests, in no time and without a machine."""

from __future__ import annotations

import gc
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from edgeproxy.sim.node import NodeLimits
from edgeproxy.sim.policies.catalog import POLICIES, chosen
from edgeproxy.sim.report import SHARES, Compared, as_json, picture, table
from edgeproxy.sim.result import quantile
from edgeproxy.sim.run import Run
from edgeproxy.sim.scenario import LOADS, Options, Scenario

_above = click.FloatRange(min=0, min_open=True)
_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_count = click.IntRange(min=1)


def _load(_: click.Context, __: click.Parameter, value: str) -> tuple[float, float]:
    if value in LOADS:
        return LOADS[value]
    try:
        load = float(value)
    except ValueError:
        load = 0.0
    if not 0 < load < 10:
        raise click.BadParameter(f"{value!r} is neither a share as 0.5 nor one of {', '.join(LOADS)}")
    return load, 0.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--trace", type=_file, required=True, help="Mooncake .jsonl or Azure LLM .csv.")
@click.option("--regions", type=_count, default=8)
@click.option("--nodes", type=_count, default=2, help="Of each region.")
@click.option("--policies", default="all", help=f"all, or of {', '.join(POLICIES)}, with commas between.")
@click.option("--requests", type=_count, help="The trace is repeated as often as it takes.  [default: those it has]")
@click.option(
    "--load", default="0.5", callback=_load, help=f"Share of the fleet's capacity without reuse, or {', '.join(LOADS)}."
)
@click.option("--skew", type=click.FloatRange(0, 1), help="Share of requests that come to the first region alone.")
@click.option("--swing", type=click.FloatRange(0, 1), default=0.5, help="How far demand rises and falls over the day.")
@click.option("--speed", type=_above, default=8.0, help="Of nodes, in times of the machine that was recorded.")
@click.option("--spread", type=click.FloatRange(min=1), default=1.5, help="Nodes are so much faster or slower.")
@click.option("--context", type=click.IntRange(min=2), default=8192, help="Lengths are scaled down to fit it.")
@click.option("--slots", type=_count, default=16, help="Requests that a node runs at the same time.")
@click.option("--kv-tokens", type=_count, default=65536, help="KV memory of a node.")
@click.option("--queue", type=_count, default=256, help="Requests that wait at a node before it refuses.")
@click.option("--report-s", type=_above, default=1.0, help="Between reports of a node's load.")
@click.option("--stale-s", type=click.FloatRange(min=0), default=0.0, help="So much later are they heard of.")
@click.option("--jitter", type=click.FloatRange(min=0), default=0.05, help="Mean of what a trip takes longer.")
@click.option("--fail", multiple=True, metavar="PLACE=FROM-UNTIL", help="PLACE (REGION or REGION/NODE) is dead.")
@click.option("--flap", multiple=True, metavar="PLACE=SECONDS", help="PLACE is so long up, so long dead, and again.")
@click.option("--herd", multiple=True, metavar="COUNT@SECOND", help="So many requests at one instant.")
@click.option("--rtt", type=_file, help="CSV of round trips in ms.  [default: 17 regions of Azure, June 2025]")
@click.option("--steps", type=_file, help="Recording of step times.  [default: the packaged one]")
@click.option("--seed", type=int, default=1)
@click.option("--jobs", type=_count, default=1, help="Policies that are run side by side, a process each.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="- for stdout.")
@click.option("--picture", "picture_path", type=click.Path(dir_okay=False, path_type=Path), help="An SVG.")
def main(
    policies: str,
    load: tuple[float, float],
    skew: float | None,
    slots: int,
    kv_tokens: int,
    queue: int,
    jobs: int,
    json_path: Path | None,
    picture_path: Path | None,
    **rest: Any,
) -> None:
    """Replay a trace against a fleet of regions under each policy, on a virtual clock.

    Nodes take the step times of a recorded native node. Policies see their own sends, answers and late reports only.

    Example: scripts/sim --trace conversation.jsonl --regions 8 --load heavy --json out.json --picture out.svg
    """
    limits = NodeLimits(slots=slots, kv_tokens=kv_tokens, queue=queue)
    if rest["context"] > kv_tokens:
        raise click.BadParameter(f"a request of {rest['context']} tokens needs as many --kv-tokens, not {kv_tokens}")
    options = Options(**rest, load=load[0], skew=load[1] if skew is None else skew, limits=limits)
    try:
        names = chosen(policies)
        scenario = Scenario(options)
        if jobs > 1:
            with ProcessPoolExecutor(jobs) as pool:
                compared = list(pool.map(compare, names, repeat(scenario)))
        else:
            compared = [compare(name, scenario) for name in names]
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    title = (
        f"{options.trace.name}, {scenario.count} requests at {scenario.rate:.1f}/s, {options.regions} regions of "
        f"{options.nodes}, load {options.load:g}" + (f", skew {options.skew:g}" if options.skew else "")
    )
    if json_path is not None:
        told = {**asdict(options), "rate": scenario.rate, "recording": scenario.source}
        text = json.dumps(as_json(compared, told), indent=1, default=str) + "\n"
        _write(json_path, text)
    if picture_path is not None:
        _write(picture_path, picture(compared, title))
    Console(stderr="-" in map(str, (json_path, picture_path)), width=None if sys.stdout.isatty() else 120).print(
        table(compared, title)
    )


def compare(name: str, scenario: Scenario) -> Compared:
    """One policy through the whole scenario. Raises ValueError where nothing was answered."""
    run = Run(scenario.plan, POLICIES[name])
    gc.disable()  # millions of small objects, and no cycles among them
    try:
        began = time.perf_counter()
        result = run.run(scenario.requests())
        took = time.perf_counter() - began
    finally:
        gc.enable()
    ordered = sorted(result.ttfts)
    summary = result.summary(ordered)
    return Compared(name, summary, [quantile(ordered, share) for share in SHARES], scenario.count / took)


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        click.echo(text, nl=False)
    else:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
