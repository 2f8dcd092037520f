from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from edgeproxy.sim.steps import Recording, StepTimes, recorded
from tests.sim.small import recording, step_s


def test_a_recorded_step_takes_its_median_and_others_lie_on_the_line_between_and_beyond() -> None:
    times = StepTimes(recording())
    assert times.seconds(16, 48, 100) == pytest.approx(step_s(16, 48))
    assert times.seconds(7, 300, 2000) == pytest.approx(step_s(7, 300))
    assert times.seconds(32, 1024, 9000) == pytest.approx(step_s(32, 1024))


def test_context_counts_by_the_line_between_those_recorded() -> None:
    cells = {cell: [seconds[0] * (1 + cell[2] / 4096)] for cell, seconds in recording().steps.items()}
    times = StepTimes(Recording("", cells))
    assert times.seconds(1, 48, 1024) == pytest.approx(1.25 * step_s(1, 48))
    assert times.seconds(1, 48, 8192) == pytest.approx(3 * step_s(1, 48))


def test_noise_has_the_recorded_mean_and_shrinks_with_the_number_of_steps() -> None:
    times = StepTimes(recording((1.0, 1.0, 1.0, 1.6)))
    rng = Random(1)
    one, many = ([times.noise(steps, rng) for _ in range(4000)] for steps in (1, 100))
    assert fmean(one) == pytest.approx(1.15, rel=0.02)
    assert fmean(many) == pytest.approx(1.15, rel=0.01)
    assert max(many) - min(many) == pytest.approx((max(one) - min(one)) / 10)


def test_the_packaged_recording_is_of_a_node_and_more_work_takes_longer() -> None:
    recording = recorded()
    assert "native" in recording.source
    times = StepTimes(recording)
    assert times.seconds(0, 512, 32) > times.seconds(0, 128, 32) > times.seconds(0, 16, 32) > 0
    assert times.seconds(16, 0, 512) > times.seconds(1, 0, 512) > 0
    assert times.seconds(16, 0, 2048) > times.seconds(16, 0, 32)
    # Batching pays, or it would be no model of a node.
    assert times.seconds(16, 0, 512) < 16 * times.seconds(1, 0, 512)


@pytest.mark.parametrize("text", ["", "{}", '{"steps": [{"rows": 1}]}', "[1]"])
def test_what_is_no_recording_is_named_with_the_remedy(text: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"steps\.json.*record_steps"):
        recorded(path)


def test_a_recording_with_holes_is_refused() -> None:
    cells = dict(recording().steps)
    del cells[16, 48, 0]
    with pytest.raises(ValueError, match="lacks 3 combinations"):
        StepTimes(Recording("", cells))
