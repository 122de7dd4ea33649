# SPDX-License-Identifier: Apache-2.0
"""The Epilog's notice on a real Slurm: berthd learns of each end, and no Epilog ever fails or waits for long."""

from __future__ import annotations

import pytest

from .harness import Slurm, until

pytestmark = pytest.mark.any_slurm

LOG = "/home/berth-notice.log"
CAP_US = 300_000


def epilogs(slurm: Slurm, job: int, nodes: int) -> list[tuple[str, int, str]]:
    """Node, microseconds and outcome of each Epilog of a job, as berth-notice logged them."""

    def found() -> list[tuple[str, int, str]] | None:
        text = slurm.target.bash(f"cat {LOG} 2>/dev/null", user="root", check=False).out
        lines = [line.split("\t") for line in text.splitlines()]
        mine = [(line[1], int(line[2]), line[3]) for line in lines if line[0] == str(job)]
        return mine if len(mine) >= nodes else None

    return sorted(until(f"{nodes} Epilogs of job {job}", found))


def taken(slurm: Slurm) -> int:
    """The notices that berthd counts: as it last said, at most a pass ago."""
    return int(slurm.berthd_status()["notices"])


def taken_by_now(slurm: Slurm) -> int:
    slurm.passes()
    return taken(slurm)


def assert_all_idle(slurm: Slurm) -> None:
    """Checks that no node was drained: Slurm drains a node if an Epilog fails."""

    def idle() -> bool:
        states = slurm.target.run(["sinfo", "-h", "-N", "-o", "%T"]).out.split()
        return bool(states) and set(states) == {"idle"}

    until("every node to be idle", lambda: idle() or None)


def test_berthd_hears_of_the_end_on_each_node_before_the_epilog_ends(slurm: Slurm) -> None:
    before = taken_by_now(slurm)
    job = slurm.submit("-N2", "--gpus-per-node=1", body="true")
    slurm.finish(job)

    assert {outcome for _, _, outcome in epilogs(slurm, job, 2)} == {"done"}
    until("berthd to count both", lambda: taken(slurm) == before + 2 or None)


def test_the_end_of_a_job_without_gpus_is_told_too(slurm: Slurm) -> None:
    job = slurm.submit("-n1", body="true")
    slurm.finish(job)

    assert [outcome for _, _, outcome in epilogs(slurm, job, 1)] == ["done"]


def test_a_dead_berthd_costs_nothing(slurm: Slurm) -> None:
    slurm.berthd("stop")
    job = slurm.submit("--gpus=1", body="true")
    slurm.finish(job)

    ((_, _, outcome),) = epilogs(slurm, job, 1)
    assert outcome == "unreachable"
    assert_all_idle(slurm)


def test_a_hung_berthd_costs_300_ms(slurm: Slurm) -> None:
    before = taken_by_now(slurm)
    job = slurm.submit("--gpus=1", body="sleep 2")
    slurm.wait_state(job, {"RUNNING"})
    slurm.berthd("pause")
    try:
        slurm.finish(job)
        ((_, microseconds, outcome),) = epilogs(slurm, job, 1)
    finally:
        slurm.berthd("resume")

    until("berthd to count the notice that it found when it woke", lambda: taken(slurm) == before + 1 or None)
    assert outcome == "timeout"
    assert CAP_US - 10_000 <= microseconds < CAP_US + 5_000_000
    assert_all_idle(slurm)


def test_no_user_can_speak_for_an_epilog(slurm: Slurm) -> None:
    before = taken_by_now(slurm)
    said = slurm.target.bash(
        """
        exec 3<>/dev/tcp/ctl/6826
        printf 'berth/1 epilog job=1 node=n1' | munge >&3
        timeout 5 cat <&3
        """
    )

    assert said.out == ""
    assert "uid" in slurm.target.bash("svc berthd log | grep 'a notice from'", user="root").out
    assert taken_by_now(slurm) == before
