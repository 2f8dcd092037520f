from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from edgeproxy.sim.workload import Demand, Entry, Trace, read, requests

EVEN = Demand([1.0] * 4, 1.0, swing=0.0)


def mooncake(path: Path, entries: list[tuple[int, int, int, list[int]]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, entry, strict=True))) + "\n" for entry in entries))
    return path


def conversations() -> Trace:
    """Forty of them, ten turns each, all with one system prompt."""
    turns = [(turn, talk) for turn in range(1, 11) for talk in range(40)]
    return Trace(
        [
            Entry(float(number), 512 * (turn + 1), 10, (0, *(talk * 100 + i for i in range(1, turn + 1))))
            for number, (turn, talk) in enumerate(turns)
        ],
        512,
    )


def test_both_public_formats_are_read(tmp_path: Path) -> None:
    jsonl = mooncake(tmp_path / "a.jsonl", [(0, 600, 5, [0, 1]), (1500, 40, 2, [0])])
    assert read(jsonl).entries == [Entry(0.0, 600, 5, (0, 1)), Entry(1.5, 40, 2, (0,))]
    csv = tmp_path / "b.csv"
    csv.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.6805900,396,109\n"
    )
    assert read(csv).entries == [Entry(0.0, 374, 44, ()), Entry(2.0, 396, 109, ())]


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", "{}"), ("a.jsonl", ""), ("a.csv", "x,y\n1,2\n"), ("a.csv", "")])
def test_what_is_no_trace_is_named(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=name):
        read(path)


def test_lengths_fit_the_context_and_sharing_stays() -> None:
    trace = conversations()
    fitted = trace.fitted(1024)
    assert all(entry.prompt + entry.output <= 1024 and entry.prompt >= 1 <= entry.output for entry in fitted.entries)
    for before, after in zip(trace.entries, fitted.entries, strict=True):
        assert after.blocks == before.blocks[: len(after.blocks)]
        assert abs(len(after.blocks) * fitted.block_tokens - after.prompt) <= 1.1 * fitted.block_tokens + 1
    assert trace.fitted(1 << 20).entries == trace.entries


def test_a_conversation_stays_with_its_proxy_and_strangers_do_not_follow() -> None:
    homes: dict[int, set[int]] = {}
    for request in requests(conversations(), EVEN, 400, Random(1)):
        homes.setdefault(request.asked.blocks[1] // 100, set()).add(request.origin)
    assert all(len(found) == 1 for found in homes.values())
    assert len(set.union(*homes.values())) == 4


def test_a_trace_is_repeated_in_order_with_fresh_conversations() -> None:
    found = list(requests(conversations(), EVEN, 1000, Random(1)))
    assert all(one.asked.at <= two.asked.at for one, two in pairwise(found))
    rounds = [{b for r in found[start : start + 400] for b in r.asked.blocks[1:]} for start in (0, 400, 800)]
    assert not rounds[0] & rounds[1] and not rounds[1] & rounds[2]
    assert {request.asked.blocks[0] for request in found} == {0}


def test_demand_follows_weights_and_the_time_of_day() -> None:
    trace = Trace([Entry(i * 0.01, 10, 1, ()) for i in range(20_000)], 512)
    skewed = Counter(r.origin for r in requests(trace, Demand([3.0, 1.0], 1.0, swing=0.0), 20_000, Random(1)))
    assert skewed[0] / 20_000 == pytest.approx(0.75, abs=0.02)
    swinging = list(requests(trace, Demand([1.0, 1.0], 1.0, swing=0.9), 20_000, Random(1)))
    morning = Counter(r.origin for r in swinging[:10_000])
    evening = Counter(r.origin for r in swinging[10_000:])
    assert morning[0] > 2 * morning[1]
    assert evening[1] > 2 * evening[0]


def test_stretching_slows_arrivals_and_a_herd_comes_at_one_instant() -> None:
    trace = conversations()
    calm = list(requests(trace, Demand([1.0], 3.0), 100, Random(1)))
    assert calm[-1].asked.at == pytest.approx(3 * trace.entries[99].at)
    herd = list(islice(requests(trace, Demand([1.0] * 4, 1.0, herds=[(50.0, 30)]), 200, Random(1)), 200))
    assert Counter(r.asked.at for r in herd)[50.0] >= 30
    assert all(one.asked.at <= two.asked.at for one, two in pairwise(herd))
