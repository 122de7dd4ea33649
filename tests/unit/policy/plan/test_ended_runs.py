# SPDX-License-Identifier: Apache-2.0
"""How long a running job is expected to run on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.history.runtime import Prediction
from policy.plan.jobs.ended_runs import EndedRuns, left_of
from tests.unit.policy_world import NOW, running

DAY = 86_400


def job(job_id: int, ran: float, segment: dict[str, str] | None = None) -> JobFacts:
    one = running(job_id, "n1", 0b1, DAY - ran, start=int(NOW - ran), limit=DAY, segment=segment)
    return replace(one, user=7, name="train")


@pytest.mark.parametrize(("ran", "left"), [(0, 3_600), (600, 3_000), (3_700, 10_700), (14_401, 14_401)])
def test_the_median_is_expected_then_the_latest_usual_end_then_as_long_again(ran: float, left: float) -> None:
    assert left_of(Prediction(360.0, 3_600.0, 14_400.0, 0.8), ran) == left


seconds = st.floats(100.0, 1e6)


@given(st.tuples(seconds, seconds, seconds).map(sorted), st.floats(0.0, 1e7), st.floats(1.0, 3.0))
def test_no_job_is_over_before_its_end_and_slower_gpus_never_shorten_it(
    quantiles: list[float], ran: float, stretch: float
) -> None:
    low, median, high = quantiles
    prediction = Prediction(low, median, high, 0.8)
    assert 0.0 <= left_of(prediction, ran, stretch) < float("inf")
    assert left_of(prediction, 0.0, stretch) == pytest.approx(stretch * left_of(prediction, 0.0))


def learned(seconds: float) -> EndedRuns:
    ended = EndedRuns()
    for number in range(30):
        ended.see([job(number, seconds)], {number}, NOW - 1)
        ended.see([], (), NOW)
    return ended


def test_without_history_a_part_of_what_the_limit_leaves_is_expected_and_without_a_limit_nothing() -> None:
    assert 0.2 * DAY < EndedRuns().left(job(1, 400), NOW, 1.0) < 0.7 * DAY
    assert EndedRuns().left(replace(job(1, 400), end=None, limit=None), NOW, 1.0) == 0.0


def test_jobs_like_it_tell_more_than_its_limit() -> None:
    short, long = learned(600), learned(50_000)
    assert short.left(job(99, 60), NOW, 1.0) < 3_000
    assert 20_000 < long.left(job(99, 60), NOW, 1.0) < 80_000
    assert long.left(replace(job(99, 60), end=int(NOW + 100)), NOW, 1.0) == 100.0


def test_neither_a_job_that_waits_again_nor_the_rest_of_a_moved_one_tells_how_long_jobs_run() -> None:
    ended = EndedRuns()
    moved = job(2, 600, segment={"moves": str(int(NOW - 600))})
    for number in range(20):
        ended.see([job(number, 600), moved], {number, 2}, NOW - 1)
        ended.see([], {number}, NOW)
    assert ended.left(job(99, 400), NOW, 1.0) == EndedRuns().left(job(99, 400), NOW, 1.0)


def test_what_a_moved_job_ran_before_its_move_counts() -> None:
    known = learned(10_000)
    fresh = job(99, 60)
    moved = replace(fresh, plan=JobPlan({"moves": str(int(NOW - 9_000))}))
    assert known.left(moved, NOW, 1.0) < known.left(fresh, NOW, 1.0) - 5_000
