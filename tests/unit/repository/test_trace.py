# SPDX-License-Identifier: Apache-2.0
"""What the trace of a cluster finds in slurmctld's log, and what it lets pass."""

from __future__ import annotations

import pytest

from tests.slurm.trace import ProtocolTrace, wrong_in

USER = 64030


def pin(job: str, place: str, by: int = USER, words: str = "complete ") -> str:
    return (
        f"slurmctld: _update_job: setting extra to own[berth/1 {place}] for JobId={job}\n"
        f"slurmctld: sched: _update_job: setting tres_per_node:gres/gpu:g0:1 for JobId={job}\n"
        f"slurmctld: _slurm_rpc_update_job: {words}JobId={job.partition('(')[0]} uid={by} usec=154\n"
    )


def begins(job: str, nodes: str) -> str:
    return f"[2026-11-28T09:04:49.853] sched: Allocate JobId={job} NodeList={nodes} #CPUs=1 Partition=gpu\n"


def ends(job: str) -> str:
    return f"slurmctld: _job_complete: JobId={job} WEXITSTATUS 0\n"


FIRST = pin("7", "nodes=n[1-2] gpus=0,1") + begins("7", "n[1-2]")


def test_a_life_as_it_should_be() -> None:
    log = FIRST + ends("7") + pin("8", "nodes=n1 gpus=1") + begins("8", "n1")
    trace = ProtocolTrace(USER)
    trace.read(log.splitlines())

    assert (trace.wrong, trace.places, trace.begins) == ([], 2, 2)


def test_a_place_for_a_job_that_runs() -> None:
    [wrong] = wrong_in(FIRST + pin("7", "nodes=n3 gpus=0"), USER)

    assert wrong.startswith("a place was written to JobId=7, which runs: own[berth/1 nodes=n3 gpus=0]")


def test_an_array_whose_task_has_just_started() -> None:
    """As a slurmctld 24.11 logged it, when the rest of an array was changed by a list of its tasks."""
    log = """
slurmctld: sched: Allocate JobId=21_1(23) NodeList=n4 #CPUs=1 Partition=plain
slurmctld: _update_job: setting admin_comment to [berth/1 state=placed id=00 n=1 k=2 asked= why=late] for JobId=21_*
slurmctld: _update_job: setting extra to own[berth/1 nodes=n4 gpus=0,5] for JobId=21_*
slurmctld: sched: _update_job: setting tres_per_node:gres/gpu:g0:1,gres/gpu:g5:1,gres/seat:g0:1 for JobId=21_*
slurmctld: _update_job: setting admin_comment to [berth/1 state=placed id=00 n=1 k=2 asked= why=late] for JobId=21_1(23)
slurmctld: _update_job: setting extra to own[berth/1 nodes=n4 gpus=0,5] for JobId=21_1(23)
slurmctld: _slurm_rpc_update_job: complete JobId=21_[1-3] uid=64030 usec=154
"""
    [wrong] = wrong_in(log, USER)

    assert wrong.startswith("a place was written to JobId=21_1(23), which runs")


def test_a_begin_on_other_nodes() -> None:
    [wrong] = wrong_in(pin("7", "nodes=n1 gpus=0") + begins("7", "n2"), USER)
    assert wrong.startswith("JobId=7 begins elsewhere than on n1: ")


def test_a_task_has_the_place_of_its_array() -> None:
    array = pin("5_*", "nodes=n1 gpus=0")

    assert wrong_in(array + begins("5_1(6)", "n1"), USER) == []
    assert len(wrong_in(array + begins("5_1(6)", "n2"), USER)) == 1


@pytest.mark.parametrize(
    ("place", "wrong"),
    [("nodes=n2 gpus=1,2", 1), ("nodes=n2 gpus=2", 0), ("nodes=n3 gpus=1", 0), ("nodes=n2 gpus=1 share=30", 0)],
)
def test_two_owners_of_a_gpu(place: str, wrong: int) -> None:
    nodes = place.partition(" ")[0].partition("=")[2]
    found = wrong_in(FIRST + pin("8", place) + begins("8", nodes), USER)

    assert len(found) == wrong
    assert all(one.startswith("JobId=8 begins on a GPU of JobId=7, which runs") for one in found)


@pytest.mark.parametrize(
    "between",
    [
        ends("7"),
        "slurmctld: Requeuing JobId=7\n",
        "slurmctld: _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 0\n",
        "[2026-11-28T09:04:49.853] slurmctld version 26.05.3 started on cluster berth(1)\n",
        "slurmctld: _slurm_rpc_update_job: complete JobId=7 uid=0 usec=8\n",
    ],
)
def test_after_an_end_or_what_another_did_nothing_is_known(between: str) -> None:
    assert wrong_in(FIRST + between + pin("7", "nodes=n3 gpus=0"), USER) == []
    assert wrong_in(FIRST + between + pin("8", "nodes=n1 gpus=0") + begins("8", "n1"), USER) == []


def test_a_signal_to_an_array_or_to_a_tasks_number_is_one_to_its_tasks() -> None:
    array = pin("5_*", "nodes=n1 gpus=0") + begins("5_1(6)", "n1")
    late = pin("5_1(6)", "nodes=n2 gpus=0")

    assert len(wrong_in(array + late, USER)) == 1
    for name in ("5", "6", "5_1"):
        assert (
            wrong_in(f"{array}slurmctld: _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={name} uid 0\n{late}", USER) == []
        )


def test_what_others_write_is_no_place() -> None:
    assert wrong_in(FIRST + pin("7", "nodes=n3 gpus=0", by=0), USER) == []


def test_a_refused_update_that_wrote_a_place_all_the_same() -> None:
    assert len(wrong_in(FIRST + pin("7", "nodes=n3 gpus=0", words=""), USER)) == 1
