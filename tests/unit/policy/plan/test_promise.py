# SPDX-License-Identifier: Apache-2.0
"""The start that plain Slurm would plan for each waiting job."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policy.plan.jobs.promise import PlainJob, Promise, plain_starts

NODES, GPUS = 3, 4
JOBS = st.lists(st.tuples(st.integers(1, NODES), st.integers(1, GPUS), st.integers(1, 50)), min_size=1, max_size=8)
ENDS = st.lists(st.integers(1, 60), min_size=NODES, max_size=NODES)


@given(ENDS, JOBS)
def test_no_moment_of_the_plan_holds_more_gpus_than_there_are(
    ends: list[int], drawn: list[tuple[int, int, int]]
) -> None:
    jobs = [PlainJob(number, *one) for number, one in enumerate(drawn)]
    starts = plain_starts(0.0, [0] * NODES, [(end, (node,), GPUS) for node, end in enumerate(ends)], jobs)
    assert starts.keys() == {job.number for job in jobs}
    for at in starts.values():
        running = [job for job in jobs if starts[job.number] <= at < starts[job.number] + job.limit]
        free = sum(GPUS for end in ends if end <= at)
        assert sum(job.nodes * job.gpus for job in running) <= free


@given(ENDS, JOBS)
def test_a_job_behind_others_puts_none_of_them_off(ends: list[int], drawn: list[tuple[int, int, int]]) -> None:
    jobs = [PlainJob(number, *one) for number, one in enumerate(drawn)]
    busy = [(float(end), (node,), GPUS) for node, end in enumerate(ends)]
    before, after = (plain_starts(0.0, [0] * NODES, busy, some) for some in (jobs[:-1], jobs))
    assert {number: after[number] for number in before} == before


def test_a_job_that_fits_nowhere_gets_no_promise_and_one_that_runs_for_ever_frees_nothing() -> None:
    able = np.array([True, False])
    jobs = [PlainJob(1, 1, 4, 10.0, able), PlainJob(2, 1, 4, 10.0), PlainJob(3, 3, 1, 10.0)]
    assert plain_starts(5.0, [0, 0], [(float("inf"), (0,), 4), (9.0, (1,), 4)], jobs) == {2: 9.0}


def test_a_gang_is_promised_the_first_time_at_which_a_block_of_topology_block_has_room() -> None:
    gang = PlainJob(1, 2, 4, 10.0, group=np.array([0, 0, 1, 1]))
    ends = [(70.0, (1,), 4), (50.0, (3,), 4)]
    assert plain_starts(0.0, [4, 0, 4, 0], ends, [gang, PlainJob(2, 1, 4, 100.0)]) == {1: 50.0, 2: 0.0}
    assert plain_starts(0.0, [4, 0, 4, 0], ends, [replace(gang, group=None)]) == {1: 0.0}


@given(ENDS, JOBS)
def test_one_block_of_all_nodes_promises_as_no_block_does(ends: list[int], drawn: list[tuple[int, int, int]]) -> None:
    jobs = [PlainJob(number, *one) for number, one in enumerate(drawn)]
    joined = [replace(job, group=np.zeros(NODES, np.int64)) for job in jobs]
    busy = [(float(end), (node,), GPUS) for node, end in enumerate(ends)]
    assert plain_starts(0.0, [0] * NODES, busy, joined) == plain_starts(0.0, [0] * NODES, busy, jobs)


def test_the_slack_is_a_part_of_the_promised_wait_and_of_the_expected_run() -> None:
    assert Promise.made(at=100.0, start=300.0, expected=1_000.0).latest == 300.0 + 0.05 * (200.0 + 1_000.0)


def test_no_job_is_promised_a_start_from_which_it_would_run_into_a_reservation() -> None:
    """Both nodes are taken for maintenance from 30 to 50, and a GPU of the first from 60 on for a course."""
    taken = [(30.0, 50.0, (0, 1), (4, 4)), (60.0, 90.0, (0,), (1,))]
    jobs = [PlainJob(1, 2, 4, 40.0), PlainJob(2, 1, 4, 30.0), PlainJob(3, 1, 4, 40.0), PlainJob(4, 1, 3, 30.0)]
    assert plain_starts(0.0, [4, 4], [], jobs, taken) == {1: 90.0, 2: 0.0, 3: 50.0, 4: 0.0}
