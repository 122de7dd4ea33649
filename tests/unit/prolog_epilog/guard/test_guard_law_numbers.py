# SPDX-License-Identifier: Apache-2.0
"""What the guard's law, its slope and its baseline answer in cases that can be reckoned by hand."""

from math import e

import pytest

from prolog_epilog.guard.decide import aimd
from prolog_epilog.guard.decide.aimd import FeedForwardAimd, SlopeFit
from prolog_epilog.guard.decide.law import GuardReading
from prolog_epilog.guard.measure.baseline import Baseline, ChangeDetector
from prolog_epilog.guard.measure.signals import HostBeat
from tests.unit.prolog_epilog.guard.test_guard_baseline import learned, noisy

BEGAN = 100.0
ALLOWED = 0.92 * 0.05 / 1.05
"""The share of its speed that a host may lose: 5 % of slowdown, less 8 % of that."""
FIRST = ALLOWED * 10 / (10 + 1.5 * 0.4) / (0.2 + 2 * 0.06)
"""The first duty: the window of 10 s outlives a burst to 2.5 times that is felt for 0.4 s; the slope is 0.2 +- 0.06."""


def began(*, service: bool = False, base_error: float = 0.0) -> tuple[FeedForwardAimd, float]:
    law = FeedForwardAimd(0.05, 0.2, service=service)
    return law, law.duty(GuardReading(BEGAN, None, 0.5, base_error, 0.01, 0.0))


def after(law: FeedForwardAimd, seconds: float, duty: float, took: float | None = None, noise: float = 0.01) -> float:
    """The duty that follows, a tenth of a second after a step of usually 0.5 s took so long, or without a step."""
    now = BEGAN + seconds
    beat = None if took is None else HostBeat(now - 0.1, 1, took)
    return law.duty(GuardReading(now, beat, 0.5, 0.0, noise, duty))


def test_a_slope_starts_at_what_was_predicted_and_moves_by_the_weight_of_beats() -> None:
    fit = SlopeFit(0.3, 0.1)
    assert fit.slope == pytest.approx(0.3)
    assert fit.error == pytest.approx(0.1)

    fit.add(0.5, 0.05, 0.05)  # a slope of 0.1, known to 0.1 as well
    assert fit.slope == pytest.approx(0.2)
    assert fit.error == pytest.approx(0.1 / 2**0.5)


def test_what_fades_is_known_less_well_and_stays_what_it_was() -> None:
    fit = SlopeFit(0.3, 0.1)
    fit.fade(0.25)

    assert fit.slope == pytest.approx(0.3)
    assert fit.error == pytest.approx(0.2)


def test_a_slope_of_which_nothing_is_known_is_none_with_an_error_of_ten() -> None:
    assert SlopeFit().slope == 0.0
    assert SlopeFit().error == pytest.approx(10.0)
    lower = SlopeFit()
    lower.add(0.5, -0.3, 0.01)
    assert lower.slope == 0.0, "a guest makes no host faster"


def test_the_first_duty_spends_the_bound_with_a_reserve_for_error_and_bursts() -> None:
    assert began()[1] == pytest.approx(FIRST)


@pytest.mark.parametrize(("base_error", "duty"), [(0.01, FIRST * (ALLOWED - 0.01) / ALLOWED), (0.04, 0.2 * FIRST)])
def test_what_the_baseline_may_hide_is_not_given_away_but_a_fifth_of_the_bound_is(
    base_error: float, duty: float
) -> None:
    """The fifth is so little that the guest may have it up to one standard error of the slope, by a step of 0.05."""
    given = began(base_error=base_error)[1]

    assert given == pytest.approx(duty * (0.32 / 0.26 if base_error > 0.03 else 1.0))


def test_the_duty_is_raised_again_after_a_second_and_to_one_error_of_the_slope() -> None:
    law, duty = began()

    assert after(law, 0.99, duty) == duty
    assert after(law, 1.0, duty) == pytest.approx(FIRST * 0.32 / 0.26, rel=1e-3)


def test_an_alarm_halves_the_duty() -> None:
    """The step takes 6 % longer: four standard deviations more than the slope says."""
    law, duty = began()

    assert after(law, 1.1, duty, took=0.53) == pytest.approx(duty / 2)


def test_the_mean_of_four_steps_is_half_as_noisy_as_one() -> None:
    law, duty = began()
    beat = HostBeat(BEGAN + 1.0, 4, 4 * 0.53)

    assert law.duty(GuardReading(BEGAN + 1.1, beat, 0.5, 0.0, 0.02, duty)) == pytest.approx(duty / 2)


@pytest.mark.parametrize(
    ("took", "closed"),
    [
        (0.75, 8.14),  # a third of the speed lost for 1.25 s of 10
        (1.5, 8.0),  # two thirds for 2 s: the window has 8 s left
    ],
)
def test_after_a_great_loss_the_guest_rests_until_the_window_has_it_back(took: float, closed: float) -> None:
    law, duty = began()

    assert after(law, 1.1, duty, took=took) == 0.0
    assert after(law, 1.1 + closed - 0.05, 0.0) == 0.0
    assert after(law, 1.1 + closed + 0.05, 0.0) > 0.0


@pytest.mark.parametrize(("took", "late"), [(0.5 * 1.28, False), (0.5 * 1.29, True)])
def test_a_request_beyond_the_p99_of_noise_costs_a_services_guest_duty(took: float, late: bool) -> None:
    """The bound of 5 % and 2.33 standard deviations of 10 % are 28.3 %."""
    duties = []
    for service in (False, True):
        law, duty = began(service=service)
        duties.append(after(law, 1.1, duty, took=took, noise=0.1))

    assert (duties[1] < 0.9 * duties[0]) is late
    assert late or duties[1] == duties[0]


@pytest.mark.parametrize(("late", "at_risk"), [(0.0, 0.4), (1.5, 5.2), (3.0, 10.0), (60.0, 10.0)])
def test_once_half_of_the_late_requests_are_used_up_a_burst_may_last_a_window_and_still_keep_the_bound(
    late: float, at_risk: float
) -> None:
    """6 s of requests in 600 may be late. After 1.5 s a burst lasts half the way from 0.4 s to the window of 10."""
    law = FeedForwardAimd(0.05, 0.2, service=True)
    law._late = late

    duty = law.duty(GuardReading(BEGAN, None, 0.5, 0.0, 0.01, 0.0))

    assert duty == pytest.approx(ALLOWED * 10 / (10 + 1.5 * at_risk) / 0.32)


def test_a_change_detector_is_quiet_until_something_adds_up_and_when_it_is_reset() -> None:
    detector = ChangeDetector(0.5, 8.0)
    quiet = [detector.quiet]
    for residual in (0.5, 0.6):
        assert not detector.alarm(residual)
        quiet.append(detector.quiet)
    detector.reset()

    assert [*quiet, detector.quiet] == [True, True, False, True]


def test_the_threshold_is_siegmunds_and_at_least_one() -> None:
    """With a slack of 0.5 and a false alarm in 10,000 beats, it is log(5,000) - 1.166 = 7.351."""
    assert not ChangeDetector(0.5, 9.0).alarm(7.85)
    assert ChangeDetector(0.5, 9.0).alarm(7.86)
    assert not ChangeDetector(0.5, 9.0, beats=0.0).alarm(1.5)
    assert ChangeDetector(0.5, 9.0, beats=0.0).alarm(1.51)
    assert not ChangeDetector(0.5, 7.0).alarm(100.0), "no beat counts more than the largest"


@pytest.mark.parametrize(("step", "known"), [(10.0, True), (9.9, False)])
def test_three_steps_in_thirty_seconds_are_a_baseline(step: float, known: bool) -> None:
    assert learned([step] * 3).known is known


@pytest.mark.parametrize(("count", "step"), [(7, 1.0), (8, 2.0)])
def test_eight_long_steps_in_a_row_are_a_new_baseline(count: int, step: float) -> None:
    assert learned([1.0] * 10 + [2.0] * count).step == pytest.approx(step)


@pytest.mark.parametrize(("steps", "enters"), [(1, True), (4, False)])
def test_the_mean_of_several_steps_is_an_outlier_sooner(steps: int, enters: bool) -> None:
    """Six times the least noise, 0.3 %, are 1.8 % for one step and 0.9 % for the mean of four."""
    baseline = learned([1.0] * 8)
    baseline.add(HostBeat(20.0, steps, steps * 1.012))

    assert (baseline.step > 1.001) is enters


def test_noise_is_relative_to_the_step_and_that_of_old_steps_fades() -> None:
    assert learned(noisy(100, step=10.0)).noise == pytest.approx(0.02, rel=0.3)

    baseline = learned(noisy(50, noise=0.04))
    learned(noisy(50, noise=0.02, seed=3), baseline, at=3_600.0)
    assert baseline.noise == pytest.approx(0.02, rel=0.2)


def test_before_noise_is_measured_it_is_guessed_and_nothing_is_steadier_than_the_floor() -> None:
    """Four beats behind the mean measure it, and a little more as the first ones fade."""
    assert Baseline().noise == 0.03
    assert learned([1.0] * 5).noise == 0.03
    assert learned([1.0] * 6).noise == 0.003
    assert learned([1.0] * 9).error == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize(("times", "alarm"), [(1.02, 110.0), (0.98, 14_400.0)])
def test_false_alarms_are_rare_for_a_host_that_its_largest_burst_would_not_harm(
    times: float, alarm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst harms if it brings the slope, with two of its errors, beyond the bound at the duty of now."""
    asked: list[float] = []
    monkeypatch.setattr(ChangeDetector, "alarm_once_in", lambda _, beats: asked.append(beats))
    monkeypatch.setattr(aimd, "LARGEST_BURST", times * ALLOWED / (FIRST * (0.2 + 2 * 0.06)))
    law = FeedForwardAimd(0.05, 0.2)
    duty = law.duty(GuardReading(BEGAN, None, 0.5, 0.0, 0.01, 0.0))
    asked.clear()

    after(law, 1.0, duty, 0.5)

    assert asked == [alarm]


@pytest.mark.parametrize(("peak", "growth"), [(0.22, 1.2), (0.5, 2.5), (1.8, 4.0)])
def test_a_burst_may_come_again_that_was_seen_but_never_none_and_no_larger_one_than_there_are(
    peak: float, growth: float
) -> None:
    law, _ = began()  # with a slope of 0.2
    law._peak = peak

    assert law._growth(BEGAN) == pytest.approx(growth)


def test_where_a_burst_was_seen_and_nothing_is_left_of_it_the_largest_may_come() -> None:
    law, _ = began()
    law._peak, law._fit = 0.5, SlopeFit()

    assert law._growth(BEGAN) == 4.0


def test_a_burst_is_forgotten_to_one_eth_in_the_time_of_its_memory() -> None:
    memory = 600.0
    law, duty = began()
    law._peak = 0.5
    for seconds in (0.5 * memory, memory):
        after(law, seconds, duty, took=0.5 / (1.0 - 0.2 * duty))

    assert law._peak == pytest.approx(0.5 / e)
