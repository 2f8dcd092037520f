from __future__ import annotations

import json

import pytest

from engine import bench
from engine.executor.base import Limits
from engine.startup import ModelOptions
from tests.engine.fake_executor import FakeExecutor

LIMITS = Limits(slots=16, blocks=256, step_tokens=128, context=2048, vocab=1000)


def quiet(done: int, total: int) -> None:
    pass


def test_its_plans_keep_the_executors_contract_and_every_case_is_measured() -> None:
    executor = FakeExecutor(built_for=LIMITS)
    results = list(bench.measure(executor, 2))
    assert [result.name for result in results] == [
        "prefill 512",
        "prefill 1800",
        "decode, 1 stream",
        "decode, 8 streams",
        "decode, 16 streams",
        "decode at 1800",
        "prompt, 1792 of 1814 in the pool",
    ]
    assert all(0 < result.least <= result.tokens_per_s <= result.most for result in results)
    assert executor.plans


def test_prompts_that_the_model_has_no_room_for_are_left_out() -> None:
    small = Limits(slots=16, blocks=256, step_tokens=128, context=600, vocab=1000)
    names = [result.name for result in bench.measure(FakeExecutor(built_for=small), 1)]
    assert names[0] == "prefill 512"
    assert "prefill 1800" not in names


@pytest.mark.parametrize("as_json", [True, False])
def test_json_for_machines_and_a_table_for_people(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = FakeExecutor(built_for=LIMITS)
    given: list[ModelOptions] = []

    def open_executor(image: None, options: ModelOptions) -> FakeExecutor:
        given.append(options)
        return executor

    monkeypatch.setattr("engine.startup.open_image", lambda options, progress: None)
    monkeypatch.setattr("engine.startup.open_executor", open_executor)
    said: list[str] = []
    monkeypatch.setenv("COLUMNS", "60")
    bench.run(ModelOptions("x", threads=1, kv_tokens=16, slots=1), quiet, 1, as_json, said.append)
    assert given[0].slots >= 16
    assert given[0].kv_tokens >= 1832, "room for every case"
    assert said[0].endswith(f"measured with --kv-tokens {given[0].kv_tokens} --slots 16")
    assert [line.partition(":")[0] for line in said[1:3]] == ["prefill 512", "prefill 1800"]
    assert len(said) == 1 + 7
    out = capsys.readouterr().out
    if as_json:
        found = json.loads(out)
        assert (found["runs"], found["threads"], found["numerics"]) == (1, 1, executor.numerics)
        assert len(found["results"]) == 7
        assert (found["kv_tokens"], found["slots"]) == (given[0].kv_tokens, 16)
    else:
        assert out.splitlines()[0].endswith("1 threads, medians of 1")
        assert "decode, 16 streams" in out


def test_what_has_room_is_measured_as_asked_for() -> None:
    said: list[str] = []
    options = ModelOptions("x", threads=1, kv_tokens=8192, slots=16)
    assert bench._with_room(options, said.append) == options
    assert not said
