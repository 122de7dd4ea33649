# SPDX-License-Identifier: Apache-2.0
"""Jobs that list several partitions: placed in one that can start them, and planned anew when it no longer can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .harness import Slurm, seen
from .test_planner import PLANNED_WITHIN, SLACK, fill, moved, segment_of

pytestmark = pytest.mark.any_slurm


@contextmanager
def partition(slurm: Slurm, name: str, nodes: str, *more: str) -> Iterator[None]:
    """Makes a partition for a time; Slurm removes it only when no job uses it."""
    words = [f"PartitionName={name}", f"Nodes={nodes}", "MaxTime=INFINITE", "State=UP", *more]
    slurm.target.run(["scontrol", "create", *words], user="root")
    try:
        slurm.passes()  # berthd has to have seen it
        yield
    finally:
        slurm.clear()
        slurm.target.run(["scontrol", "delete", f"PartitionName={name}"], user="root")


def test_a_job_of_a_partition_that_goes_down_starts_on_its_place_in_the_other(slurm: Slurm) -> None:
    with partition(slurm, "left", "n1"):
        [first] = fill(slurm, "n1", minutes=5)
        [second] = fill(slurm, "n4", minutes=30)
        # berthd reads partitions seldom.
        slurm.passes()
        job = slurm.submit("--gpus=4", "-p", "left,other")
        assert segment_of(slurm, job)["nodes"] == "n1"

        began = time.monotonic()
        slurm.target.run(["scontrol", "update", "PartitionName=left", "State=DOWN"], user="root")
        assert moved(slurm, job, "n4", began) < PLANNED_WITHIN + SLACK
        # That its former place comes free is nothing to it.
        slurm.target.run(["scancel", str(first)], user="root")
        slurm.passes()
        assert (slurm.state(job), segment_of(slurm, job)["nodes"]) == ("PENDING", "n4")
        slurm.target.run(["scancel", str(second)], user="root")

        [probe] = seen(slurm.finish(job))
        assert (probe.node, len(probe.gpus)) == ("n4", 4)
        assert slurm.show(job)["Partition"] == "other"


def test_slurm_calls_no_job_impossible_because_its_place_is_in_another_partition(slurm: Slurm) -> None:
    with partition(slurm, "left", "n1"):
        fill(slurm, "n1", minutes=5)
        fill(slurm, "n4", minutes=30)
        job = slurm.submit("--gpus=4", "-p", "left,other")
        assert segment_of(slurm, job)["nodes"] == "n1"
        slurm.target.bash("pkill -STOP -f policy.daemon", user="root")
        try:
            # Now Slurm tries it in the other partition alone.
            slurm.target.run(["scontrol", "update", "PartitionName=left", "State=DOWN"], user="root")
            reasons = set()
            for _ in range(3):
                # A job that starts shows that Slurm was through the queue once more.
                slurm.finish(slurm.submit("-p", "plain", "-n1", "--mem=10", body="true"))
                reasons.add(slurm.show(job)["Reason"])
            assert "BadConstraints" not in reasons
        finally:
            slurm.target.bash("pkill -CONT -f policy.daemon", user="root")


def test_a_job_that_comes_when_a_partition_is_down_starts_in_the_other(slurm: Slurm) -> None:
    with partition(slurm, "left", "n1"):
        slurm.target.run(["scontrol", "update", "PartitionName=left", "State=DOWN"], user="root")
        slurm.passes()

        [probe] = seen(slurm.finish(slurm.submit("--gpus=4", "-p", "left,other")))

        assert probe.node == "n4"


@pytest.mark.parametrize("tier", [1, 5])
def test_a_partition_that_does_not_admit_the_users_group_does_not_cost_him_the_job(slurm: Slurm, tier: int) -> None:
    with partition(slurm, "left", "n[1-2]", "AllowGroups=root", f"PriorityTier={tier}"):
        [probe] = seen(slurm.finish(slurm.submit("--gpus=4", "-p", "left,other")))

        assert probe.node == "n4"


@pytest.mark.parametrize("tier", [1, 5])
def test_of_restricted_partitions_each_user_is_placed_in_his_own(slurm: Slurm, tier: int) -> None:
    """Only slurmctld knows who may use a partition, and says so in the submission."""
    with (
        partition(slurm, "left", "n1", "AllowGroups=bob", f"PriorityTier={tier}"),
        partition(slurm, "right", "n2", "AllowGroups=alice"),
    ):
        for user, node in (("alice", "n2"), ("bob", "n1")):
            job = slurm.submit("--gpus=4", "-p", "left,right", user=user)
            assert segment_of(slurm, job)["nodes"] == node
            [probe] = seen(slurm.finish(job))
            assert (probe.node, len(probe.gpus)) == (node, 4)


def test_a_job_waits_for_its_own_partition_though_another_of_its_list_is_free(slurm: Slurm) -> None:
    with (
        partition(slurm, "left", "n1", "AllowGroups=bob"),
        partition(slurm, "right", "n2", "AllowGroups=alice"),
    ):
        [holder] = fill(slurm, "n2", minutes=5)
        job = slurm.submit("--gpus=4", "-p", "left,right")
        slurm.passes(4)
        segment = segment_of(slurm, job)
        assert (segment["nodes"], segment["shut"], segment["pins"]) == ("n2", "left", "0")
        slurm.target.run(["scancel", str(holder)], user="root")

        [probe] = seen(slurm.finish(job))
        assert (probe.node, len(probe.gpus)) == ("n2", 4)


def test_a_job_on_two_nodes_has_both_in_one_partition(slurm: Slurm) -> None:
    with partition(slurm, "left", "n1"), partition(slurm, "right", "n[2-3]"):
        job = slurm.submit("--gpus-per-node=4", "-N2", "-p", "left,right")

        assert segment_of(slurm, job)["nodes"] == "n2,n3"
        slurm.finish(job)
        assert (slurm.show(job)["Partition"], slurm.show(job)["NodeList"]) == ("right", "n[2-3]")


def test_a_job_of_a_higher_tier_is_planned_before_one_of_a_higher_priority(slurm: Slurm) -> None:
    with partition(slurm, "urgent", "n4", "PriorityTier=5"):
        [holder] = fill(slurm, "n4", minutes=5)
        earlier = slurm.submit("--gpus=8", "-p", "other")
        # Long enough for the other's start to be in another second.
        later = slurm.submit("--gpus=8", "-p", "urgent", body="sleep 3")
        slurm.target.run(["scontrol", "update", f"JobId={earlier}", "Priority=1000000"], user="root")
        slurm.passes()
        slurm.target.run(["scancel", str(holder)], user="root")

        slurm.finish(later)
        slurm.finish(earlier)
        starts = [slurm.show(job)["StartTime"] for job in (later, earlier)]
        assert starts == sorted(starts)
        assert starts[0] != starts[1]
