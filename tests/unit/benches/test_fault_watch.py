# SPDX-License-Identifier: Apache-2.0
"""Which jobs a killed slurmctld forgot, by its log: the campaign of faults holds nothing of them against Berth."""

import pytest

from tests.hard.faults.invariants import forgotten_in, in_order

LOG = """\
[t] slurmctld version 26.05.5 started on cluster berth(0)
[t] _slurm_rpc_submit_batch_job: JobId=41 SLUID=s3M5M8D2SVYY00 InitPrio=1 usec=503
[t] _slurm_rpc_submit_batch_job: JobId=42 SLUID=s3M5M8D2SVZ600 InitPrio=1 usec=661
[t] sched: Allocate JobId=41 NodeList=n3 #CPUs=1 Partition=gpu
[t] sched: Allocate JobId=42 NodeList=n3 #CPUs=1 Partition=gpu
[t] sched/backfill: _start_job: Started JobId=43_2(44) in gpu on n4
[t] _slurm_rpc_submit_batch_job: JobId=45 SLUID=s3M5M8D2T2HS00 InitPrio=1 usec=814
[t] _slurm_rpc_submit_batch_job: JobId=47 SLUID=s3M5M8D2T2JS00 InitPrio=1 usec=512
[t] slurmctld version 26.05.5 started on cluster berth(929)
[t] Purged files for defunct batch JobId=47
[t] _slurm_rpc_submit_batch_job: JobId=45 SLUID=s3M5M8D2T3MC00 InitPrio=1 usec=871
[t] sched: Allocate JobId=42 NodeList=n3 #CPUs=1 Partition=gpu
[t] sched: Allocate JobId=43_2(44) NodeList=n1 #CPUs=1 Partition=gpu
[t] sched: Allocate JobId=45 NodeList=n2 #CPUs=2 Partition=gpu
[t] sched: Allocate JobId=45 NodeList=n4 #CPUs=2 Partition=gpu
""".splitlines()


def test_numbers_given_out_again_and_starts_told_again_were_forgotten() -> None:
    assert forgotten_in(LOG) == {42, 44, 45, 47}


def test_two_starts_under_one_slurmctld_are_nothing_that_it_forgot() -> None:
    assert forgotten_in([LOG[0], *LOG[-2:]]) == set()


START = "slurmctld version 26.05.5 started on cluster berth"
RUNS = "sched: Allocate JobId=42 NodeList=n3 #CPUs=1 Partition=gpu"
OTHER = "_slurm_rpc_submit_batch_job: JobId=99 SLUID=s3M5M8D2SVYY00 InitPrio=1 usec=503"
BACK = "_job_requeue_op: requeue JobId=42 per user/system request"


def log_of(*told: tuple[int, str]) -> list[str]:
    return [f"[2026-11-27T02:{at // 60:02}:{at % 60:02}.250] {line}" for at, line in told]


@pytest.mark.parametrize(
    "back",
    [
        BACK,
        "Requeuing JobId=42",
        "requeue job JobId=42 due to failure of node n3",
        "Requeue job JobId=42 due to node failure",
        "preempted JobId=42 has been requeued",
    ],
)
def test_a_start_after_a_job_was_put_back_is_another_one(back: str) -> None:
    assert forgotten_in(log_of((0, START), (5, RUNS), (30, back), (50, OTHER), (90, START), (95, RUNS))) == set()
    assert forgotten_in(log_of((0, START), (5, RUNS), (90, START), (93, back), (95, RUNS))) == set()


def test_a_start_before_and_after_is_forgotten_though_the_job_was_put_back_earlier() -> None:
    told = (0, START), (5, RUNS), (30, BACK), (40, RUNS), (70, OTHER), (90, START), (95, RUNS)
    assert forgotten_in(log_of(*told)) == {42}


def test_a_kill_right_after_a_job_was_put_back_takes_that_along() -> None:
    assert forgotten_in(log_of((0, START), (5, RUNS), (30, BACK), (32, OTHER), (90, START), (95, RUNS))) == {42}


def test_the_number_of_a_forgotten_task_is_given_to_another_job() -> None:
    task = "sched: Allocate JobId=40_3(42) NodeList=n29 #CPUs=1 Partition=gpu"
    another = "_slurm_rpc_submit_batch_job: JobId=42 SLUID=sDTDM8G9CCAH00 InitPrio=1 usec=265"

    assert forgotten_in(log_of((0, START), (5, task), (30, START), (60, another))) == {42}


def test_a_job_that_is_not_among_those_recovered_was_forgotten() -> None:
    task = "sched: Allocate JobId=40_7(42) NodeList=n35 #CPUs=1 Partition=gpu"
    other = "Recovered JobId=40_6(41) Assoc=0"

    assert forgotten_in(log_of((0, START), (5, task), (30, other), (30, START))) == {42}
    assert (
        forgotten_in(log_of((0, START), (5, task), (30, task.replace("sched: Allocate", "Recovered")), (30, START)))
        == set()
    )


def test_a_run_whose_end_was_told_alone_is_forgotten_where_it_starts_again() -> None:
    end = "_job_complete: JobId=42 WEXITSTATUS 1"
    recovered = "Recovered JobId=42 Assoc=0"

    assert forgotten_in(log_of((0, START), (5, end), (30, recovered), (30, START), (31, RUNS))) == {42}


def test_a_run_that_ends_under_another_slurmctld_is_one_run() -> None:
    end = "_job_complete: JobId=42 WEXITSTATUS 0"
    recovered = "Recovered JobId=42 Assoc=0"

    assert forgotten_in(log_of((0, START), (5, RUNS), (30, recovered), (30, START), (31, end))) == set()


@pytest.mark.parametrize(
    "said",
    [
        "error: find_job: could not find JobId=42 SLUID=s5N1M8G9Z0R300 by SLUID but could by job_id",
        "prolog_complete: invalid JobId=42 SLUID=s5N1M8G9Z0S400",
        "error: Orphan JobId=42 SLUID=s5N1M8G9Z0S400 StepId=42.batch reported on node n51",
    ],
)
def test_a_run_that_slurmctld_does_not_know_was_forgotten(said: str) -> None:
    assert forgotten_in(log_of((0, START), (5, said))) == {42}


def test_the_logs_of_two_controllers_are_read_in_the_order_of_their_times() -> None:
    primary = [*log_of((0, START), (5, RUNS)), "cluster: slurmctld ended with status 137", *log_of((90, START))]
    backup = log_of((30, START), (35, RUNS))

    merged = in_order([primary, backup])

    assert [line.endswith(RUNS) for line in merged] == [False, True, False, False, True, False]
    assert forgotten_in(merged) == {42}
