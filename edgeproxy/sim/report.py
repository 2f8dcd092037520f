"""What a comparison is told as: a table, JSON, and a picture of how first tokens are spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import log10

from rich.table import Table

from edgeproxy.sim.result import Summary


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy's run."""

    policy: str
    summary: Summary
    curve: Sequence[float]
    """First-token times in seconds at the shares in `SHARES`."""
    simulated_per_s: float
    """Requests per second of real time."""


SHARES = tuple([i / 200 for i in range(1, 199)] + [0.99, 0.995, 0.999])


def as_json(compared: Sequence[Compared], scenario: dict[str, object]) -> dict[str, object]:
    policies = [
        {"policy": one.policy, **asdict(one.summary), "simulated_per_s": round(one.simulated_per_s)} for one in compared
    ]
    return {"scenario": scenario, "policies": policies}


def table(compared: Sequence[Compared], title: str) -> Table:
    """First tokens in milliseconds; the smallest of a column is bold."""
    shown = Table("policy", title=title, title_justify="left")
    for name in ("mean ms", "p50", "p95", "p99", "hit", "away", "retried", "cut", "failed", "simulated/s"):
        shown.add_column(name, justify="right")
    times = [(s.ttft_mean_s, s.ttft_p50_s, s.ttft_p95_s, s.ttft_p99_s) for s in (one.summary for one in compared)]
    least = [min(column) for column in zip(*times, strict=True)]
    for one, row in zip(compared, times, strict=True):
        s = one.summary
        cells = [_cell(value, value == best) for value, best in zip(row, least, strict=True)]
        shares = [f"{share:.1%}" for share in (s.hit_ratio, s.away, s.retried)]
        shown.add_row(one.policy, *cells, *shares, str(s.cut), str(s.failed), f"{one.simulated_per_s:.0f}")
    return shown


def _cell(seconds: float, bold: bool) -> str:
    text = f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.1f}"
    return f"[bold]{text}[/bold]" if bold else text


WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 60, 170, 44, 50
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#000")


def picture(compared: Sequence[Compared], title: str) -> str:
    """SVG: which share of requests (upwards) has its first token after how many milliseconds (rightwards, log)."""
    times = [max(time, 1e-4) for one in compared for time in one.curve]
    low, high = log10(min(times)), log10(max(times)) + 1e-6
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + wide * (log10(max(seconds, 1e-4)) - low) / (high - low)

    def y(share: float) -> float:
        return TOP + tall * (1 - share)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="14">{escape(title)}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 0.95, 0.99):
        parts.append(f'<path d="M{LEFT} {y(share):.1f}h{wide}" stroke="#ddd"/>')
        if share != 0.99:
            parts.append(f'<text x="{LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for tick in _ticks(low, high):
        parts.append(f'<path d="M{x(tick):.1f} {TOP}v{tall}" stroke="#eee"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick * 1e3:g}</text>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 10}" text-anchor="middle">first token, ms</text>')
    for number, one in enumerate(compared):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x(time):.1f},{y(share):.1f}" for share, time in zip(SHARES, one.curve, strict=True))
        top, left = TOP + 20 * number, WIDTH - RIGHT + 14
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{1.5 if number else 2.5}"/>'
        )
        parts.append(f'<path d="M{left} {top}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{left + 24}" y="{top + 4}">{escape(one.policy)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    ticks = [step * 10.0**decade for decade in range(-4, 4) for step in (1, 2, 5)]
    return [tick for tick in ticks if low <= log10(tick) <= high]
