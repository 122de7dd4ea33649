# SPDX-License-Identifier: Apache-2.0
"""A host's step time alone: learned, kept clean of stalls, followed when it changes; and changes told from noise."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolog_epilog.guard.measure.baseline import Baseline, ChangeDetector
from prolog_epilog.guard.measure.signals import HostBeat, work_beat


def learned(steps: list[float], baseline: Baseline | None = None, at: float = 0.0) -> Baseline:
    baseline = baseline or Baseline()
    for step in steps:
        at += step
        baseline.add(HostBeat(at, 1, step))
    return baseline


def noisy(count: int, step: float = 1.0, noise: float = 0.02, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [step * (1.0 + draw.gauss(0.0, noise)) for _ in range(count)]


def test_mean_and_noise_are_found() -> None:
    baseline = learned(noisy(200))

    assert baseline.step == pytest.approx(1.0, abs=0.005)
    assert baseline.noise == pytest.approx(0.02, rel=0.2)
    assert baseline.error == pytest.approx(0.02 / 200**0.5, rel=0.3)


def test_several_steps_in_one_beat_tell_the_same_noise() -> None:
    baseline, steps = Baseline(), noisy(400)
    for first in range(0, 400, 4):
        baseline.add(HostBeat(float(first), 4, sum(steps[first : first + 4])))

    assert baseline.noise == pytest.approx(0.02, rel=0.2)


def test_eight_steps_make_a_baseline_and_seven_do_not() -> None:
    assert not learned([1.0] * 7).known
    assert learned([1.0] * 8).known


def test_a_host_with_long_steps_is_taken_with_three() -> None:
    assert not learned([12.0] * 2).known
    assert learned([12.0] * 3).known


def test_a_stalled_step_does_not_lift_the_baseline() -> None:
    baseline = learned([*noisy(30), 4.0, *noisy(5, seed=2)])

    assert baseline.step == pytest.approx(1.0, abs=0.01)


def test_a_host_that_changed_its_step_is_followed() -> None:
    baseline = learned(noisy(50))
    learned(noisy(20, step=2.0), baseline, at=100.0)

    assert baseline.step == pytest.approx(2.0, abs=0.05)


def test_old_steps_fade() -> None:
    baseline = learned(noisy(50))
    learned(noisy(50, step=1.05, seed=3), baseline, at=3600.0)

    assert baseline.step == pytest.approx(1.05, abs=0.01)


def test_chance_alarms_about_as_often_as_asked() -> None:
    detector, draw = ChangeDetector(1.0, 8.0, beats=300.0), random.Random(5)
    alarms = 0
    for _ in range(60_000):
        if detector.alarm(draw.gauss(0.0, 1.0)):
            alarms += 1
            detector.reset()

    assert 100 <= alarms <= 400  # 200 asked


@pytest.mark.parametrize(("shift", "beats"), [(8.0, 1), (4.0, 2), (2.5, 5)])
def test_a_change_is_seen_within_few_beats(shift: float, beats: int) -> None:
    detector = ChangeDetector(1.0, 8.0, beats=1000.0)

    assert any(detector.alarm(shift) for _ in range(beats))


@given(st.lists(st.floats(-50.0, 0.99), max_size=200))
def test_what_stays_below_the_slack_never_alarms(residuals: list[float]) -> None:
    detector = ChangeDetector(1.0, 8.0)

    assert not any(detector.alarm(residual) for residual in residuals)
    assert detector.quiet


def test_work_counts_as_steps_of_a_unit() -> None:
    beat = work_beat(10.0, 1.0, done=2500, unit=1000)

    assert beat == HostBeat(10.0, 2, 0.8)
    assert work_beat(10.0, 1.0, done=999, unit=1000) is None
