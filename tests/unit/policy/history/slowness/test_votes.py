# SPDX-License-Identifier: Apache-2.0
"""What jobs say of GPUs, with one vote for each user."""

from math import log

import pytest

from policy.history.slowness.votes import in_other_jobs, middle_of, votes_of
from topology.calibrate.steps import JobReport, Rank


def run(job: int, user: int, *times: float) -> JobReport:
    ranks = tuple(Rank("n1", place, f"GPU-{place}", own_ms) for place, own_ms in enumerate(times))
    return JobReport(str(job), f"{user}-7f", "compute", "2026-11-30T10:00:00Z", ranks)


def test_a_user_has_one_vote_however_many_runs_report() -> None:
    jobs = [run(job, 1, 200.0, 100.0, 100.0) for job in range(9)] + [
        run(job, job, 100.0, 100.0, 100.0) for job in (90, 91)
    ]

    users = votes_of(jobs)["n1", 0, "GPU-0"]

    assert {user: len(runs) for user, runs in users.items()} == {"1": 9, "90": 1, "91": 1}
    assert middle_of(users) == 0.0


def test_a_vote_is_what_the_score_does_not_say_and_a_gpu_without_a_score_has_none() -> None:
    scores = {("n1", 0, "GPU-0"): log(2.0), ("n1", 1, "GPU-1"): 0.0}

    found = votes_of([run(1, 1, 200.0, 100.0, 500.0), run(2, 1, 100.0)], scores.get)

    assert {where[1]: list(users["1"]) for where, users in found.items()} == {
        0: [pytest.approx(0.0)],
        1: [pytest.approx(0.0)],
    }


def test_other_jobs_tell_of_a_gpu_but_those_of_two_ranks_do_not() -> None:
    jobs = [run(1, 1, 300.0, 100.0, 100.0), run(2, 2, 130.0, 100.0, 100.0), run(3, 3, 900.0, 100.0)]

    assert in_other_jobs(jobs, "1") == {("n1", 0): pytest.approx(1.3), ("n1", 1): 1.0, ("n1", 2): 1.0}
