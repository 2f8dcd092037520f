"""A node alone: its times can be told by hand, and a queue of one server is the one of the textbook."""

from __future__ import annotations

from random import Random

import pytest

from edgeproxy.sim.clock import Clock
from edgeproxy.sim.node import Job, Node, NodeLimits
from tests.sim.small import limits, rest_s, step_s, times


class Bench:
    """A node and what it said: name -> when."""

    def __init__(self, limits: NodeLimits = NodeLimits(), speed: float = 1.0) -> None:  # noqa: B008
        self.clock = Clock()
        self.firsts: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.node: Node[str] = Node(self.clock, times(), speed, limits, 16, None, self._first, self._done)

    def job(self, name: str, at: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> Job[str]:
        job = Job(name, prompt, output, blocks)
        self.clock.at(at, self.node.submit, job)
        return job

    def _first(self, job: Job[str]) -> None:
        assert job.owner not in self.firsts
        self.firsts[job.owner] = self.clock.now

    def _done(self, job: Job[str]) -> None:
        assert job.owner not in self.ends
        self.ends[job.owner] = self.clock.now


def test_a_request_alone_takes_whole_chunks_and_then_a_step_a_token() -> None:
    bench = Bench()
    bench.job("a", 1.0, 300, 11)
    bench.clock.run()
    assert bench.firsts["a"] == pytest.approx(1.0 + 2 * step_s(0, 128) + rest_s(44))
    assert bench.ends["a"] - bench.firsts["a"] == pytest.approx(10 * step_s(1, 0))


def test_a_faster_node_takes_less_in_proportion() -> None:
    slow, fast = Bench(), Bench(speed=2.0)
    for bench in (slow, fast):
        bench.job("a", 0.0, 40, 11)
        bench.clock.run()
    assert fast.ends["a"] == pytest.approx(slow.ends["a"] / 2)


def test_who_decodes_goes_on_beside_a_prompt_and_both_slow_down() -> None:
    bench = Bench()
    bench.job("a", 0.0, 16, 200)
    bench.job("b", 0.1, 480, 2)
    bench.clock.run()
    # At 7,600 prompt tokens a second a quantum of 10 ms is 76: seven chunks beside one row, from the step it joins.
    work = 6 * step_s(1, 76) + step_s(1, 24)
    assert 0.0 <= bench.firsts["b"] - 0.1 - work <= 3 * step_s(1, 0)
    alone = rest_s(16) + 199 * step_s(1, 0)
    assert bench.ends["a"] == pytest.approx(alone + work - 7 * step_s(1, 0) + step_s(2, 0) - step_s(1, 0))


def test_a_short_prompt_overtakes_a_long_one_that_still_gets_its_share() -> None:
    bench = Bench()
    bench.job("long", 0.0, 4800, 1)
    for number in range(8):
        bench.job(f"short{number}", 0.2, 48, 1)
    bench.clock.run()
    assert max(at for name, at in bench.firsts.items() if name != "long") < bench.firsts["long"]


def test_beyond_the_slots_requests_wait_in_order() -> None:
    bench = Bench(limits(slots=2))
    for name in "abcd":
        bench.job(name, 0.0, 48, 30)
    bench.clock.run()
    assert sorted(bench.ends, key=bench.ends.__getitem__)[:2] == ["a", "b"]
    assert bench.firsts["c"] > min(bench.ends.values())


def test_memory_bounds_who_runs_and_a_full_queue_refuses() -> None:
    bench = Bench(limits(kv_tokens=300, queue=1))
    answers: list[bool] = []
    for name in "abc":
        bench.clock.at(0.0, lambda name=name: answers.append(bench.node.submit(Job(name, 200, 50, ()))))
    bench.clock.run()
    assert answers == [True, True, False]
    assert bench.firsts["b"] > bench.ends["a"]


def test_a_prefix_held_is_not_computed_again_but_for_the_last_token() -> None:
    bench = Bench()
    blocks = tuple(range(1, 21))
    first = bench.job("a", 0.0, 320, 1, blocks)
    again = bench.job("b", 1.0, 320, 1, blocks)
    bench.clock.run()
    assert (first.cached, again.cached) == (0, 319)
    assert bench.firsts["b"] - 1.0 == pytest.approx(rest_s(1))


def test_what_was_not_used_for_longest_is_evicted_first() -> None:
    bench = Bench(limits(kv_tokens=16 * 31))
    prompts = {
        name: tuple(range(start, start + 10)) for name, start in (("a", 100), ("b", 200), ("c", 300), ("d", 400))
    }
    for at, name in enumerate("abcad"):
        bench.job(f"{name}{at}", float(at), 160, 1, prompts[name])
    bench.clock.run()
    held = {name: bench.node.cache.peek(blocks) for name, blocks in prompts.items()}
    assert held == {"a": 10, "b": 0, "c": 10, "d": 10}


def test_failure_empties_the_node_and_hands_everything_back() -> None:
    bench = Bench(limits(slots=2))
    for name in "abc":
        bench.job(name, 0.0, 48, 1000, (1, 2, 3))
    lost: list[str] = []
    bench.clock.at(1.0, lambda: lost.extend(job.owner for job in bench.node.fail()))
    bench.clock.run()
    assert sorted(lost) == ["a", "b", "c"]
    assert not bench.ends
    report = bench.node.report()
    assert (report.running, report.waiting, report.kv_spare, len(bench.node.cache)) == (0, 0, report.kv_tokens, 0)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_slot_and_equal_work_wait_as_m_d_1_does(load: float) -> None:
    """Pollaczek and Khinchine: with Poisson arrivals the mean wait is load * service / (2 * (1 - load))."""
    bench = Bench(limits(slots=1, queue=10_000))
    service, rng, now = step_s(0, 128), Random(5), 0.0
    count = 20_000
    arrivals = {}
    for number in range(count):
        now += rng.expovariate(load / service)
        arrivals[str(number)] = now
        bench.job(str(number), now, 128, 1)
    bench.clock.run()
    waited = sum(bench.firsts[name] - at for name, at in arrivals.items()) / count - service
    assert waited == pytest.approx(load * service / (2 * (1 - load)), rel=0.1)


def test_reports_count_what_is_there_and_what_is_left() -> None:
    bench = Bench(limits(slots=2))
    for name in "abc":
        bench.job(name, 0.0, 4800, 10)
    seen = []
    for at in (0.050, 0.300):
        bench.clock.at(at, lambda: seen.append(bench.node.report()))
    bench.clock.run()
    assert (seen[0].running, seen[0].waiting, seen[0].kv_spare) == (2, 1, 65536 - 2 * 4810)
    done = [3 * 4800 - report.prefill_tokens for report in seen]
    assert 0 < done[0] < 0.050 / step_s(0, 76) * 76 * 1.1
    assert done[1] - done[0] == pytest.approx(0.250 / step_s(0, 76) * 76, abs=2 * 76)


def test_a_copy_runs_apart_and_as_the_original_would() -> None:
    bench = Bench()
    bench.job("a", 0.0, 400, 40, tuple(range(1, 26)))
    bench.job("b", 0.01, 900, 5)
    told: dict[object, float] = {}

    def fork() -> None:
        clock = Clock()
        clock.now = bench.clock.now
        bench.node.copy(clock, lambda job: told.__setitem__(job.owner, clock.now))
        clock.run()

    bench.clock.at(0.02, fork)
    bench.clock.run()
    assert told == pytest.approx(bench.firsts)
