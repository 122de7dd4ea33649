# SPDX-License-Identifier: Apache-2.0
"""Jobs that cannot start at once: pinned to the place that comes free soonest, and moved when another is better."""

from __future__ import annotations

import pytest

from policy.formats import segment as segments
from tests.told import Segment

from .harness import Slurm, seen, until

pytestmark = pytest.mark.any_slurm

SLEEP = "exec sleep 300"


def segment_of(slurm: Slurm, job: int) -> Segment:
    return Segment(segments.fields(slurm.comment(job)) or {}, job)


def test_a_waiting_job_is_pinned_to_what_comes_free_soonest(slurm: Slurm) -> None:
    long = slurm.submit("--gpus=8", "-C", "h100", "-t", "60", body=SLEEP)
    short = slurm.submit("--gpus=8", "-C", "v100", "-t", "10", body=SLEEP)
    for job in (long, short):
        slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    waiting = slurm.submit("--gpus=8", "-x", "n3,n4")

    segment = segment_of(slurm, waiting)
    assert segment["state"] == "waiting"
    assert segment["nodes"] == "n1"
    slurm.target.run(["scancel", str(short)], user="root")
    assert len(seen(slurm.finish(waiting))[0].gpus) == 8


def test_a_waiting_job_moves_when_it_could_start_elsewhere(slurm: Slurm) -> None:
    long = slurm.submit("--gpus=8", "-C", "h100", "-t", "60", body=SLEEP)
    short = slurm.submit("--gpus=8", "-C", "v100", "-t", "10", body=SLEEP)
    for job in (long, short):
        slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    waiting = slurm.submit("--gpus=8", "-x", "n3,n4")
    assert segment_of(slurm, waiting)["nodes"] == "n1"
    slurm.target.run(["scancel", str(long)], user="root")

    probes = seen(slurm.finish(waiting))
    assert probes[0].node == "n2"
    assert int(segment_of(slurm, waiting)["pins"]) >= 1


def test_a_job_waits_for_nvlink_as_long_as_it_said_and_then_relaxes(slurm: Slurm) -> None:
    """Every bridged pair of n3 has one GPU taken: four are free, none of them linked."""
    machine = slurm.machines["n3"]
    slurm.hold_gpus("n3", [island[0] for island in ([link.a] for link in machine.links)])
    job = slurm.submit("--gpus=2", "-C", "a6000", "--locality=nvlink@0:04")
    assert segment_of(slurm, job)["state"] == "waiting"

    probes = seen(slurm.finish(job, 60))
    assert len(probes[0].gpus) == 2
    segment = segment_of(slurm, job)
    assert segment["level"] == "node"
    assert "NVLink" in segment["why"]


def test_release_gives_a_waiting_job_back_to_slurm(slurm: Slurm) -> None:
    holders = [slurm.submit("--gpus=8", "-w", f"n{i}", "-t", "30", body=SLEEP) for i in (1, 2, 3, 4)]
    for job in holders:
        slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    waiting = slurm.submit("--gpus=2")
    assert slurm.show(waiting)["ReqNodeList"] != "(null)"
    slurm.berthd("stop")
    slurm.target.run(["berth", "release", "--all"], user="root")

    record = slurm.show(waiting)
    assert record["ReqNodeList"] == "(null)"
    assert (record.get("TresPerNode", ""), record["TresPerJob"]) == ("", "gres/gpu:2")
    assert segments.fields(record["AdminComment"]) is not None
    slurm.target.run(["scancel", str(holders[0])], user="root")
    assert len(seen(slurm.finish(waiting))[0].gpus) == 2


def test_a_job_pinned_to_a_drained_node_is_moved(slurm: Slurm) -> None:
    first = slurm.submit("--gpus=8", "-C", "h100", "-t", "30", body=SLEEP)
    second = slurm.submit("--gpus=8", "-C", "v100", "-t", "5", body=SLEEP)
    for job in (first, second):
        slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    waiting = slurm.submit("--gpus=8", "-x", "n3,n4")
    assert segment_of(slurm, waiting)["nodes"] == "n1"
    slurm.target.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=test"], user="root")
    try:
        until("the pin to leave n1", lambda: slurm.show(waiting)["ReqNodeList"] == "n2" or None)
    finally:
        slurm.target.run(["scontrol", "update", "nodename=n1", "state=resume"], user="root")


def test_two_jobs_never_get_the_same_gpu(slurm: Slurm) -> None:
    """Submitted in one burst, before Slurm has shown any of them to berthd."""
    # A node that was just resumed is used from the next look on.
    until("berthd to see all nodes empty", lambda: int(slurm.berthd_status()["empty_nodes"]) == 4 or None)
    script = "for i in $(seq 16); do sbatch --parsable --gpus=2 -t 1 --mem=50 -o /dev/null --wrap 'sleep 4'; done"
    jobs = [int(word) for word in slurm.target.bash(script).out.split()]
    places = [segment_of(slurm, job) for job in jobs]

    taken = [(p["nodes"], gpu) for p in places for gpu in p["gpus"].split(",") if p["state"] == "placed"]
    assert len(taken) == len(set(taken)) == 32
