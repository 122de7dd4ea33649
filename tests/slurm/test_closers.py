# SPDX-License-Identifier: Apache-2.0
"""Slurm's reasons of pinned jobs that wait, and the jobs that the main pass still starts (docs/decisions/018)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from .harness import Slurm, until

SLEEP = "exec sleep 600"
A_FEW_PASSES = 180
"""Seconds. Reasons and starts come with a main pass, and where backfill rests these may be a minute apart."""
SET = "sed -i 's/bf_interval=[0-9]*/bf_interval={}/' /etc/slurm/slurm.conf; scontrol reconfigure"


@pytest.fixture
def without_backfill(slurm: Slurm) -> Iterator[Slurm]:
    """Stops backfill for ten minutes: the main pass starts all jobs then."""
    if not slurm.can_reconfigure:
        pytest.skip("needs a cluster whose slurm.conf may be changed")
    slurm.target.bash(SET.format(600), user="root")
    slurm.passes()
    yield slurm
    slurm.target.bash(SET.format(2), user="root")


def reasons(slurm: Slurm) -> Counter[str]:
    out = slurm.target.run(["squeue", "-h", "-t", "PD", "-o", "%r"], user="root").out
    return Counter(out.splitlines())


def wait_for_plain_words(slurm: Slurm, jobs: int) -> None:
    plain = Counter(Priority=jobs - 1, Resources=1)
    until(f"{jobs} jobs to wait as on plain Slurm", lambda: reasons(slurm) == plain or None, A_FEW_PASSES)


def fill(slurm: Slurm) -> dict[str, list[int]]:
    """Takes all GPUs, half a node a job; the jobs of each node."""
    jobs = {node: [slurm.submit("--gpus=4", "-w", node, body=SLEEP) for _ in "12"] for node in ("n1", "n2", "n3", "n4")}
    for job in [job for two in jobs.values() for job in two]:
        slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    return jobs


def updates(slurm: Slurm) -> int:
    return int(slurm.berthd_status()["updates"])


@pytest.mark.hard
@pytest.mark.timeout(900)
def test_jobs_behind_a_full_cluster_wait_as_on_plain_slurm(without_backfill: Slurm) -> None:
    """The first has plain Slurm's reason; one that fits beside it starts in the main pass, and nothing elsewhere."""
    slurm = without_backfill
    holders = fill(slurm)
    first = slurm.submit("--gpus=8", body=SLEEP)
    others = [slurm.submit(f"--gpus={1 + number % 4}", body=SLEEP) for number in range(23)]
    wait_for_plain_words(slurm, 24)
    record = slurm.show(first)
    assert record["ReqNodeList"] == "(null)"
    assert record["ExcNodeList"] != "(null)"
    until("berthd to have nothing to write", lambda: _rests(slurm), A_FEW_PASSES)

    freed = "n4" if "nodes=n4 " not in slurm.comment(first) else "n3"
    slurm.target.run(["scancel", str(holders[freed][0])], user="root")
    started = until("a job to start there", lambda: _running(slurm, others), A_FEW_PASSES)
    for job in started:
        record = slurm.show(job)
        assert record["Scheduler"] == "Main"
        assert f"nodes={record['NodeList']} " in slurm.comment(job)
    left = until("four GPUs to be taken", lambda: _left(slurm, others), A_FEW_PASSES)
    wait_for_plain_words(slurm, left + 1)


@pytest.mark.hard
@pytest.mark.timeout(900)
def test_the_first_job_starts_where_it_is_planned_and_the_next_one_waits_as_it_did(without_backfill: Slurm) -> None:
    slurm = without_backfill
    holders = fill(slurm)
    jobs = [slurm.submit("--gpus=4", body=SLEEP) for _ in range(6)]
    wait_for_plain_words(slurm, 6)
    slurm.target.run(["scancel", str(holders["n2"][1])], user="root")
    slurm.wait_state(jobs[0], {"RUNNING"})
    record = slurm.show(jobs[0])
    assert record["NodeList"] == "n2"
    assert "nodes=n2 " in slurm.comment(jobs[0])
    wait_for_plain_words(slurm, 5)


def test_a_job_that_closes_its_partition_is_given_back_whole(slurm: Slurm) -> None:
    fill(slurm)
    jobs = [slurm.submit("--gpus=4", body=SLEEP) for _ in range(3)]
    wait_for_plain_words(slurm, 3)
    slurm.target.run(["scontrol", "update", f"JobId={jobs[0]}", "TimeLimit=7"], user="alice")
    slurm.berthd("stop")
    slurm.target.run(["berth", "release", "--all"], user="root")
    record = slurm.show(jobs[0])
    assert (record["ReqNodeList"], record["ExcNodeList"]) == ("(null)", "(null)")
    assert (record.get("TresPerNode", ""), record["TresPerJob"]) == ("", "gres/gpu:4")


def test_the_owner_of_a_job_that_closes_its_partition_may_change_its_request(slurm: Slurm) -> None:
    fill(slurm)
    jobs = [slurm.submit("--gres=gpu:4", body=SLEEP) for _ in range(3)]
    wait_for_plain_words(slurm, 3)
    change = ["scontrol", "update", f"JobId={jobs[0]}", "Gres=gpu:2"]
    until("the change to be taken", lambda: slurm.target.run(change, check=False).rc == 0 or None)
    until("its new place", lambda: " k=2 " in slurm.comment(jobs[0]) or None)
    wait_for_plain_words(slurm, 3)


def test_the_owner_of_a_job_that_closes_its_partition_may_exclude_nodes(slurm: Slurm) -> None:
    fill(slurm)
    jobs = [slurm.submit("--gres=gpu:4", body=SLEEP) for _ in range(3)]
    wait_for_plain_words(slurm, 3)
    before = slurm.show(jobs[0])["ExcNodeList"]
    slurm.target.run(["scontrol", "update", f"JobId={jobs[0]}", "ExcNodeList="], user="alice")
    until("the list of before", lambda: slurm.show(jobs[0])["ExcNodeList"] == before or None)
    slurm.target.run(["scontrol", "update", f"JobId={jobs[0]}", "ExcNodeList=n1,n2,n3"], user="alice")
    until("its own node", lambda: slurm.show(jobs[0])["ReqNodeList"] == "n4" or None)
    assert "nodes=n4 " in slurm.comment(jobs[0])
    assert slurm.show(jobs[0])["ExcNodeList"] == "n1,n2,n3"


def _running(slurm: Slurm, jobs: list[int]) -> list[int]:
    return [job for job in jobs if slurm.state(job) == "RUNNING"]


def _rests(slurm: Slurm) -> bool | None:
    before = updates(slurm)
    slurm.passes(5)
    return updates(slurm) == before or None


def _left(slurm: Slurm, jobs: list[int]) -> int | None:
    free = int(slurm.berthd_status()["free_gpus"])
    return sum(slurm.state(job) == "PENDING" for job in jobs) if free == 0 else None
