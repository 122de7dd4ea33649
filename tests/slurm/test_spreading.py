# SPDX-License-Identifier: Apache-2.0
"""A job with only `--gpus=N` starts as soon as N GPUs are free over several nodes, in the form that Slurm gives it.

The reference is the same request in the partition that Berth does not touch, on the same nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from policy.formats import segment as segments
from tests.told import Segment

from .harness import Slurm, until

# Half of them on each release in `make test`, all on both in `make test-hard`: ten seconds each, most of them waiting.
pytestmark = pytest.mark.any_slurm

SHAPE = ("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "NodeList", "AllocTRES")
BODY = "srun bash -c 'echo $SLURMD_NODENAME $SLURM_NTASKS'; exec sleep 300"
NODES = ("n1", "n2", "n3", "n4")
FREE = [(3, 1, 0, 0), (2, 2, 0, 0), (1, 1, 1, 1), (1, 2, 3, 0)]


def leave(slurm: Slurm, *free: int) -> list[int]:
    """Leaves so many GPUs free on each node, of other positions on each."""
    held = []
    for number, (node, count) in enumerate(zip(NODES, free, strict=True)):
        taken = sorted((place + 2 * number) % 8 for place in range(8 - count))
        held += [slurm.hold_gpus(node, taken)] if taken else []
    return held


def cancel(slurm: Slurm, job: int) -> None:
    slurm.target.run(["scancel", str(job)], user="root")
    until("its GPUs to be free", lambda: slurm.state(job) == "CANCELLED" or None)
    slurm.settle()


def shape(slurm: Slurm, job: int, keys: Sequence[str] = SHAPE) -> dict[str, str]:
    slurm.wait_state(job, {"RUNNING"})
    record = slurm.show(job)
    return {key: record.get(key, "") for key in keys}


def plain_shape(slurm: Slurm, *options: str, keys: Sequence[str] = SHAPE) -> dict[str, str]:
    """Returns the shape that Slurm gives the same job."""
    job = slurm.submit("-p", "plain", *options, body=BODY)
    try:
        return shape(slurm, job, keys)
    finally:
        cancel(slurm, job)


def take(slurm: Slurm, gpus: int) -> int:
    """Takes what is left, and waits until berthd knows it."""
    job = slurm.submit("-p", "plain", f"--gpus={gpus}", body="exec sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    return job


def segment_of(slurm: Slurm, job: int) -> Segment:
    return Segment(segments.fields(slurm.comment(job)) or {}, job)


@pytest.mark.parametrize("free", FREE)
def test_it_starts_at_once_where_no_node_has_all_its_gpus(slurm: Slurm, free: tuple[int, ...]) -> None:
    leave(slurm, *free)
    expected = plain_shape(slurm, "--gpus=4")

    job = slurm.submit("--gpus=4", body=BODY)

    assert shape(slurm, job) == expected
    assert "BERTH-107" in segment_of(slurm, job)["why"]


@pytest.mark.parametrize(
    "options",
    [
        ("-c", "3"),
        ("--mem=300",),
        ("--cpus-per-gpu=2",),
        ("--mem-per-gpu=200",),
        ("-x", "n3"),
    ],
)
def test_its_cpus_and_memory_are_those_that_slurm_gives(slurm: Slurm, options: tuple[str, ...]) -> None:
    leave(slurm, 3, 1, 3, 0)
    expected = plain_shape(slurm, "--gpus=4", *options)

    assert shape(slurm, slurm.submit("--gpus=4", *options, body=BODY)) == expected


def test_more_gpus_than_a_node_has_start_on_parts_of_nodes(slurm: Slurm) -> None:
    leave(slurm, 8, 5, 3, 2)
    expected = plain_shape(slurm, "--gpus=16")

    assert shape(slurm, slurm.submit("--gpus=16", body=BODY)) == expected


@pytest.mark.parametrize("options", [("--gpus=4",), ("--gpus=4", "-c", "3"), ("--gpus=4", "--mem-per-gpu=200")])
def test_a_job_that_waits_starts_when_gpus_come_free_on_two_nodes(slurm: Slurm, options: tuple[str, ...]) -> None:
    leave(slurm, 3, 1, 0, 0)
    expected = plain_shape(slurm, *options)
    last = take(slurm, 4)
    job = slurm.submit(*options, body=BODY)
    assert segment_of(slurm, job)["state"] == "waiting"

    cancel(slurm, last)

    assert shape(slurm, job) == expected


def test_a_gang_that_waits_starts_with_gpus_of_each_node(slurm: Slurm) -> None:
    leave(slurm, 2, 2, 0, 0)
    expected = plain_shape(slurm, "-N2", "--gres=gpu:2")
    last = take(slurm, 4)
    job = slurm.submit("-N2", "--gres=gpu:2", body=BODY)
    assert segment_of(slurm, job)["state"] == "waiting"

    cancel(slurm, last)

    assert shape(slurm, job) == expected


def test_sixteen_gpus_that_wait_start_on_parts_of_nodes(slurm: Slurm) -> None:
    leave(slurm, 8, 5, 3, 0)
    expected = plain_shape(slurm, "--gpus=16")
    last = take(slurm, 16)
    job = slurm.submit("--gpus=16", body=BODY)
    assert segment_of(slurm, job)["n"] == "2"

    cancel(slurm, last)

    assert shape(slurm, job) == expected


def test_a_job_that_wants_one_node_waits_for_one(slurm: Slurm) -> None:
    leave(slurm, 3, 1, 0, 0)
    jobs = [slurm.submit("--gpus=4", *options, body=BODY) for options in (("-N1",), ("--locality=node@60",))]

    assert [segment_of(slurm, job)["state"] for job in jobs] == ["waiting", "waiting"]


STEP = "srun {} -t5 bash -c 'echo $SLURMD_NODENAME $SLURM_NTASKS' | sort"


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_srun_runs_the_tasks_that_it_has_on_plain_slurm(slurm: Slurm, *, waits: bool) -> None:
    leave(slurm, 3, 1, 0, 0)
    expected = slurm.target.bash(STEP.format("-p plain --gpus=4")).out
    slurm.settle()
    last = take(slurm, 4) if waits else 0
    running = slurm.target.popen(STEP.format("-J theirs --gpus=4"))
    if waits:
        until("srun to wait", lambda: slurm.target.bash("squeue -h -n theirs -t PD").out or None)
        cancel(slurm, last)

    assert [line for line in running.communicate(timeout=60)[0].splitlines() if line.startswith("n")] == (
        expected.splitlines()
    )


def test_a_job_that_is_released_asks_as_its_user_did(slurm: Slurm) -> None:
    leave(slurm, 3, 0, 0, 0)
    job = slurm.submit("--gpus=4", "-c", "2", body=BODY)
    assert slurm.show(job)["NumNodes"] == "1-1"
    slurm.target.run(["berth", "release", str(job)], user="root")

    record = slurm.show(job)
    assert (record["ReqNodeList"], record.get("TresPerNode", ""), record["TresPerJob"]) == ("(null)", "", "gres/gpu:4")
    assert (record["NumNodes"], record["NumCPUs"], record["NumTasks"]) == ("1", "2", "1")
