# SPDX-License-Identifier: Apache-2.0
"""Jobs of GPUs in all that say more than their number start on several nodes as soon as plain Slurm would start them.

They have tasks, GPUs for each task, or a number of nodes, or are tasks of an array. The reference is the same request
in the partition that Berth does not touch, on the same nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from policy.formats import segment as segments

from .harness import PROBE, Slurm, seen, until
from .test_spreading import SHAPE, STEP, cancel, leave, take

# Half of them on each release in `make test`, all on both in `make test-hard`: ten seconds each, most of them waiting.
pytestmark = pytest.mark.any_slurm

BODY = f"srun bash -c '{PROBE}' | sort; echo all; exec sleep 300"


@dataclass(frozen=True)
class Ran:
    """The record of a job that runs, and how many GPUs each task of its step can open."""

    shape: dict[str, str]
    tasks: list[tuple[str, int]]


def ran(slurm: Slurm, job: int) -> Ran:
    slurm.wait_state(job, {"RUNNING"})
    record = slurm.show(job)
    path = f"{slurm.shared}/{job}.out"
    text = until(
        "its step to end",
        lambda: t if "all\n" in (t := slurm.target.bash(f"cat {path}", user="root", check=False).out) else None,
    )
    return Ran({key: record.get(key, "") for key in SHAPE}, sorted((one.node, len(one.gpus)) for one in seen(text)))


def plain(slurm: Slurm, *options: str) -> Ran:
    """Returns what the same job is on plain Slurm."""
    job = slurm.submit("-p", "plain", *options, body=BODY)
    try:
        return ran(slurm, job)
    finally:
        cancel(slurm, job)


def told(slurm: Slurm, job: int) -> dict[str, str]:
    return dict(segments.fields(slurm.comment(job)) or {})


AT_ONCE = [
    ("--gpus=4", "-n", "4"),
    ("--gpus=4", "-n", "3", "-c", "2"),
    ("--gpus=4", "-n", "8", "--mem-per-cpu=100"),
    ("--gpus=4", "-n", "4", "--mem-per-gpu=200"),
    ("--gpus=4", "-N2", "--ntasks-per-node=2"),
    ("--gpus=4", "--ntasks-per-gpu=2"),
    ("--gpus=4", "-n", "4", "--cpus-per-gpu=2"),
    ("--gpus-per-task=1", "-n", "4"),
    ("--gpus-per-task=1", "-n", "4", "-c", "2"),
    ("--gpus=4", "-N2"),
    ("--gpus=4", "-N2", "-n", "4"),
]


@pytest.mark.parametrize("options", AT_ONCE, ids=" ".join)
def test_it_starts_at_once_where_no_node_has_all_its_gpus(slurm: Slurm, options: tuple[str, ...]) -> None:
    leave(slurm, 3, 1, 0, 0)
    expected = plain(slurm, *options)

    job = slurm.submit(*options, body=BODY)

    assert ran(slurm, job) == expected
    assert "it can start now on 2 nodes" in told(slurm, job)["why"]


def test_tasks_said_in_two_ways_start_where_each_node_has_enough(slurm: Slurm) -> None:
    leave(slurm, 3, 2, 0, 0)
    options = ("--gpus=4", "-n", "4", "--ntasks-per-node=2")
    expected = plain(slurm, *options)

    assert ran(slurm, slurm.submit(*options, body=BODY)) == expected


WAITING = [
    ("--gpus=4", "-n", "4"),
    ("--gpus=4", "-n", "4", "-c", "2"),
    ("--gpus-per-task=1", "-n", "4", "-c", "2"),
    ("--gpus=4", "--gpus-per-task=1"),
    ("--gpus=4", "-N2"),
    ("--gpus=4", "-w", "n1,n2"),
]


@pytest.mark.parametrize("options", WAITING, ids=" ".join)
def test_a_job_that_waits_starts_when_gpus_come_free_on_two_nodes(slurm: Slurm, options: tuple[str, ...]) -> None:
    leave(slurm, 3, 1, 0, 0)
    expected = plain(slurm, *options)
    last = take(slurm, 4)
    job = slurm.submit(*options, body=BODY)
    assert told(slurm, job)["state"] == "waiting"

    cancel(slurm, last)

    assert ran(slurm, job) == expected


@pytest.mark.parametrize(
    "options", [("--gpus=4", "-n", "4"), ("--gpus-per-task=1", "-n", "4", "-c", "2")], ids=" ".join
)
def test_one_that_was_given_back_and_pinned_again_runs_as_on_plain_slurm(
    slurm: Slurm, options: tuple[str, ...]
) -> None:
    leave(slurm, 4, 0, 0, 0)
    expected = plain(slurm, *options)
    last = take(slurm, 4)
    job = slurm.submit(*options, body=BODY)
    slurm.berthd("stop")
    slurm.target.run(["berth", "release", "--all", "--for-now"], user="root")
    assert (told(slurm, job)["state"], slurm.show(job)["NumNodes"]) == ("later", "1-4")
    slurm.berthd("start")
    until("it to be pinned again", lambda: told(slurm, job)["state"] == "waiting" or None)

    cancel(slurm, last)

    assert ran(slurm, job) == expected


@pytest.mark.parametrize("options", [("--gpus=3",), ("--gpus-per-task=1", "-n", "3")], ids=" ".join)
def test_each_task_of_an_array_starts_that_plain_slurm_starts(slurm: Slurm, options: tuple[str, ...]) -> None:
    leave(slurm, 2, 2, 1, 1)

    array = slurm.submit(*options, "-a", "1-3", body=BODY)

    until("two tasks to run", lambda: len(states(slurm, array, "RUNNING")) == 2 or None)
    slurm.passes()
    [rest] = states(slurm, array, "PENDING")
    assert told(slurm, rest)["state"] == "waiting"
    slurm.target.run(["scancel", str(states(slurm, array, "RUNNING")[0])], user="root")
    until("the last task to run", lambda: not states(slurm, array, "PENDING") or None)
    assert told(slurm, rest)["pins"] == "0"


def states(slurm: Slurm, array: int, state: str) -> list[int]:
    listed = slurm.target.bash(f"squeue -h -j {array} -t {state} -o %A").out
    return [int(word) for word in listed.split()]


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
@pytest.mark.parametrize("options", ["--gpus=4 -n 4", "--gpus=4 -N2", "--gpus-per-task=1 -n 4"])
def test_srun_runs_the_tasks_that_it_has_on_plain_slurm(slurm: Slurm, options: str, *, waits: bool) -> None:
    leave(slurm, 3, 1, 0, 0)
    expected = slurm.target.bash(STEP.format(f"-p plain {options}")).out
    slurm.settle()
    last = take(slurm, 4) if waits else 0
    running = slurm.target.popen(STEP.format(f"-J theirs {options}"))
    if waits:
        until("srun to wait", lambda: slurm.target.bash("squeue -h -n theirs -t PD").out or None)
        cancel(slurm, last)
    if waits and "per-task" in options:
        # Slurm lets nobody give its step the user's request back.
        slurm.passes()
        assert slurm.target.bash("squeue -h -n theirs -t PD").out
        slurm.target.run(["scancel", "-n", "theirs"], user="root")
        running.communicate(timeout=60)
        return

    assert [line for line in running.communicate(timeout=60)[0].splitlines() if line.startswith("n")] == (
        expected.splitlines()
    )


@pytest.mark.any_slurm
def test_who_wants_more_than_is_free_over_nodes_waits(slurm: Slurm) -> None:
    leave(slurm, 3, 1, 0, 0)
    too_many = [
        ("--gpus=4", "-n", "1"),
        ("--gpus-per-task=2", "-n", "2"),
    ]

    jobs = [slurm.submit(*options, body=BODY) for options in too_many]

    assert [told(slurm, job)["state"] for job in jobs] == ["waiting"] * 2
