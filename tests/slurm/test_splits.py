# SPDX-License-Identifier: Apache-2.0
"""A job that says how near its GPUs must be, and not on how many nodes, may be split over nodes by its pin.

It gets what Slurm itself gives a job that it spreads over so many nodes: one task on each, with the CPUs of a task.
"""

from __future__ import annotations

import pytest

from policy.formats import segment as segments
from tests.told import Segment

from .harness import Slurm, until

SHAPE = ("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "MinMemoryNode", "AllocTRES")
BODY = "srun bash -c 'echo $SLURMD_NODENAME $SLURM_NTASKS'; exec sleep 300"
ON_TWO = ("-x", "n3,n4", "-c", "2", "--mem=300")


def fill(slurm: Slurm, *nodes: str) -> list[int]:
    """Leaves GPU 7 free on each of these nodes."""
    return [slurm.hold_gpus(node, range(7)) for node in nodes]


def shape(slurm: Slurm, job: int) -> dict[str, str]:
    slurm.wait_state(job, {"RUNNING"})
    record = slurm.show(job)
    return {key: record.get(key, "") for key in SHAPE}


def segment_of(slurm: Slurm, job: int) -> Segment:
    return Segment(segments.fields(slurm.comment(job)) or {}, job)


def plain_shape(slurm: Slurm, *options: str) -> dict[str, str]:
    """Returns the shape that Slurm gives the same job when Slurm spreads it."""
    job = slurm.submit("-p", "plain", "--gpus=2", *options, body=BODY)
    try:
        return shape(slurm, job)
    finally:
        slurm.target.run(["scancel", str(job)], user="root")
        until("its GPUs to be free", lambda: slurm.state(job) == "CANCELLED" or None)
        slurm.settle()


@pytest.mark.parametrize("options", [("-x", "n3,n4"), ON_TWO, ("-x", "n3,n4", "--mem-per-gpu=200")])
def test_a_job_is_split_over_nodes_as_slurm_would_spread_it(slurm: Slurm, options: tuple[str, ...]) -> None:
    fill(slurm, "n1", "n2")
    expected = plain_shape(slurm, *options)

    job = slurm.submit("--gpus=2", "--locality=any", *options, body=BODY)

    assert shape(slurm, job) == expected
    found = segment_of(slurm, job)
    assert (found["nodes"], found["gpus"], found["n"], found["k"]) == ("n1,n2", "7", "2", "1")
    assert "on 2 nodes" in found["why"]


def test_a_waiting_job_is_split_when_gpus_come_free_on_two_nodes(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2")
    expected = plain_shape(slurm, *ON_TWO)
    last = [slurm.hold_gpus(node, [7]) for node in ("n1", "n2")]
    job = slurm.submit("--gpus=2", "--locality=any", *ON_TWO, body=BODY)
    assert segment_of(slurm, job)["n"] == "1"

    for one in last:
        slurm.target.run(["scancel", str(one)], user="root")

    assert shape(slurm, job) == expected
    found = segment_of(slurm, job)
    assert (found["nodes"], found["n"], found["k"]) == ("n1,n2", "2", "1")
    assert "it can start now on 2 nodes" in found["why"]


def test_a_job_that_waited_for_one_node_is_split_when_its_wait_ends(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2")
    job = slurm.submit("--gpus=2", "--locality=node@0:04", "-x", "n3,n4", body=BODY)
    assert segment_of(slurm, job)["n"] == "1"

    assert shape(slurm, job)["NumNodes"] == "2"
    assert "its wait for one node has ended" in segment_of(slurm, job)["why"]


@pytest.mark.any_slurm
def test_a_split_job_that_is_released_asks_as_its_user_did(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2")
    job = slurm.submit("--gpus=2", "--locality=any", "-x", "n3,n4", "--begin=now+600", "-c", "2", body=BODY)
    assert (segment_of(slurm, job)["n"], slurm.show(job)["NumNodes"]) == ("2", "2-2")
    slurm.berthd("stop")
    slurm.target.run(["berth", "release", str(job)], user="root")

    record = slurm.show(job)
    assert (record["ReqNodeList"], record.get("TresPerNode", "")) == ("(null)", "")
    assert (record["TresPerJob"], record["NumNodes"], record["NumCPUs"], record["NumTasks"]) == (
        "gres/gpu:2",
        "1",
        "2",
        "1",
    )
