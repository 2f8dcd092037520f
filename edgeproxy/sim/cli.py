"""`scripts/sim`: what a set of regions would do to a stream of requests, in no time and without a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import click

from edgeproxy.sim.fleet import Region, Served, replay


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("regions", nargs=-1, required=True, metavar="NAME=RTT_MS...")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Requests/s."
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True)
@click.option("--noise-ms", type=click.FloatRange(min=0), default=2.0, show_default=True, help="Most added to a probe.")
@click.option(
    "--first-ms", type=click.FloatRange(min=0), default=50.0, show_default=True, help="A node's own first token."
)
@click.option("--dead", multiple=True, metavar="NAME=FROM-UNTIL", help="Seconds in which a region is dead.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(
    regions: tuple[str, ...],
    rate: float,
    seconds: float,
    noise_ms: float,
    first_ms: float,
    dead: tuple[str, ...],
    seed: int,
) -> None:
    """Replay Poisson arrivals through the proxy's own choice of region.

    Example: scripts/sim near=2 mid=30 far=140 --dead near=100-160
    """
    rng = Random(seed)
    outages = dict(_outage(text) for text in dead)
    fleet = [
        Region(name, rtt / 1e3, first_ms / 1e3, noise_ms / 1e3, outages.pop(name, None))
        for name, rtt in map(_region, regions)
    ]
    if outages:
        raise click.BadParameter(f"no region is named {', '.join(outages)}", param_hint="--dead")
    _report(replay(fleet, _arrivals(rate, seconds, rng), rng))


def _report(served: list[Served]) -> None:
    answered = sorted(one.first_token_s for one in served if one.first_token_s is not None)
    click.echo(f"{len(served)} requests, {len(served) - len(answered)} without an answer")
    for region, count in Counter(one.region for one in served if one.region is not None).most_common():
        click.echo(f"  {region:12} {count / len(served):6.1%}")
    retried = sum(one.attempts > 1 for one in served)
    click.echo(f"tried more than one node: {retried}")
    if answered:
        p50, p99 = answered[len(answered) // 2], answered[len(answered) * 99 // 100]
        click.echo(f"first token p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")


def _arrivals(rate: float, seconds: float, rng: Random) -> Iterator[float]:
    now = rng.expovariate(rate)
    while now < seconds:
        yield now
        now += rng.expovariate(rate)


def _region(text: str) -> tuple[str, float]:
    name, _, rtt = text.partition("=")
    return name, _number(rtt, text, "near=2")


def _outage(text: str) -> tuple[str, tuple[float, float]]:
    name, _, span = text.partition("=")
    start, _, end = span.partition("-")
    return name, (_number(start, text, "near=100-160"), _number(end, text, "near=100-160"))


def _number(text: str, whole: str, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise click.BadParameter(f"{whole!r} is not of the form {example}")
    return value


if __name__ == "__main__":
    main()
