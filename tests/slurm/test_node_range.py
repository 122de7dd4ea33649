# SPDX-License-Identifier: Apache-2.0
"""A job of `-N 1-4` runs on as many nodes as on plain Slurm: on a place of Berth's, or on Slurm's.

The reference is the same request in the partition that Berth does not touch, on the same nodes.
"""

from __future__ import annotations

from functools import partial

import pytest

from . import test_spreading
from .harness import Slurm
from .test_spreading import BODY, cancel, leave, segment_of, take

# Slurm may choose other nodes than Berth.
SHAPE = ("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "AllocTRES")
shape, plain_shape = (partial(one, keys=SHAPE) for one in (test_spreading.shape, test_spreading.plain_shape))


@pytest.mark.parametrize("free", [(8, 8, 8, 8), (3, 1, 8, 0)])
@pytest.mark.parametrize(
    "options",
    [
        ("-N1-4", "--gres=gpu:2"),
        ("-N1-2", "--gpus-per-node=2"),
        ("-N2-3", "--gres=gpu:1", "-n4"),
        ("-N2-4", "--gres=gpu:1", "-c2", "--mem=500"),
        ("-N1-4", "--gpus=2"),
        ("-N2-4", "--gpus=4"),
    ],
    ids=" ".join,
)
def test_it_has_as_many_nodes_as_on_plain_slurm(slurm: Slurm, options: tuple[str, ...], free: tuple[int, ...]) -> None:
    leave(slurm, *free)
    expected = plain_shape(slurm, *options)
    slurm.settle()

    job = slurm.submit(*options, body=BODY)

    found = segment_of(slurm, job)["state"]
    assert (shape(slurm, job), found) == (expected, "placed" if free[3] else found)


def test_with_tasks_on_each_node_it_is_slurms(slurm: Slurm) -> None:
    # Slurm counts two tasks on two nodes, and beside a pin four.
    options = ("-N1-2", "--gres=gpu:2", "--ntasks-per-node=2")
    expected = plain_shape(slurm, *options)

    job = slurm.submit(*options, body=BODY)

    assert segment_of(slurm, job)["state"] == "passed"
    assert shape(slurm, job) == expected


def test_its_place_on_fewer_nodes_than_it_may_have_is_told(slurm: Slurm) -> None:
    leave(slurm, 8, 0, 8, 0)

    job = slurm.submit("-N1-4", "--gres=gpu:2", body=BODY)

    found = segment_of(slurm, job)
    assert (found["state"], found["nodes"], found["was"]) == ("placed", "n1,n3", "min_nodes:1;max_nodes:4")
    assert "n[1,3] GPUs" in slurm.target.run(["berth", "why", str(job)]).out


def test_a_job_that_waits_is_slurms_and_starts_on_what_comes_free(slurm: Slurm) -> None:
    leave(slurm, 2, 0, 0, 0)
    last = take(slurm, 2)
    job = slurm.submit("-N1-4", "--gres=gpu:2", body=BODY)
    assert segment_of(slurm, job)["state"] == "passed"
    assert "range of 1 to 4 nodes" in slurm.target.run(["berth", "why", str(job)]).out

    cancel(slurm, last)

    assert shape(slurm, job)["NumNodes"] == "1"


def test_a_requeued_job_whose_nodes_are_taken_starts_on_fewer(slurm: Slurm) -> None:
    leave(slurm, 8, 8, 0, 0)
    job = slurm.submit("-N1-4", "--gres=gpu:2", body=BODY)
    assert shape(slurm, job)["NumNodes"] == "2"

    slurm.target.run(["scontrol", "requeuehold", str(job)], user="root")
    slurm.wait_state(job, {"PENDING"})
    slurm.hold_gpus("n2", range(8))
    # Slurm lets a requeued job wait for a minute or two.
    slurm.target.run(["scontrol", "release", str(job)], user="root")
    slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")

    assert shape(slurm, job)["NumNodes"] == "1"


def test_a_pinned_job_that_cannot_start_there_is_given_back_with_its_range(slurm: Slurm) -> None:
    slurm.settle()
    job = slurm.submit("-N2-4", "--gres=gpu:2", body=BODY)
    slurm.wait_state(job, {"RUNNING"})
    assert segment_of(slurm, job)["n"] == "4"

    slurm.target.run(["scontrol", "requeuehold", str(job)], user="root")
    slurm.wait_state(job, {"PENDING"})
    slurm.target.run(["berth", "release", str(job)], user="root")

    record = slurm.show(job)
    assert (record["ReqNodeList"], record["TresPerNode"], record["NumNodes"]) == ("(null)", "gres/gpu:2", "2-4")
    slurm.hold_gpus("n3", range(8))
    # Slurm lets a requeued job wait for a minute or two.
    slurm.target.run(["scontrol", "release", str(job)], user="root")
    slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")
    # Of three nodes that are free Slurm takes two or three.
    assert shape(slurm, job)["NumNodes"] in {"2", "3"}
