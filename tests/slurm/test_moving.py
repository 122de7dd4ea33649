# SPDX-License-Identifier: Apache-2.0
"""A running job is moved on a real Slurm: it is told to save, requeued and started elsewhere, and loses nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from topology.scores import Score, encode

from .harness import Slurm, until
from .nodes import berth_conf
from .test_guests import all_nodes
from .test_planner import SLEEP, segment_of

pytestmark = pytest.mark.any_slurm

SCORES = "/etc/slurm/berth/moving.csv"

# Counts up in a loop, saves on its signal, and says from where it goes on; then it leaves or stays.
WORKS = """
log={shared}/work.$SLURM_JOB_ID saved={shared}/saved.$SLURM_JOB_ID
n=$(cat $saved 2>/dev/null || echo 0)
echo "start $SLURMD_NODENAME $n" >>$log
trap 'echo $n >$saved; echo "saved $n" >>$log; {then}' USR1
until [ -e {shared}/enough.$SLURM_JOB_ID ]; do n=$((n + 1)); sleep 0.2 & wait $!; done
echo "done $n" >>$log
"""
LEAVES, STAYS = "exit 75", "exec sleep 600"
CONF = '[moving]\nenabled = true\ngrace = {grace}\nrestart = 5\nafter = "0:02"\nper_job = 1\n'


@contextmanager
def in_the_way(
    slurm: Slurm, grace: int, then: str, *options: str, step: bool = False
) -> Iterator[tuple[int, int, str, str]]:
    """Returns a movable job of one GPU, a gang that waits for its whole node, the job's node, and the other node."""
    with berth_conf(slurm, CONF.format(grace=grace)):
        nodes = all_nodes(slurm)
        others = {node: filler(slurm, node, 8) for node in nodes[1:]}
        body = WORKS.format(shared=slurm.shared, then=then)
        words = ["--gpus=1", "-n1", "--mem=10", "-t", "30", *options]
        if step:
            body = f"srun bash -s <<'END'\n{body}\nEND"
        else:
            words.append("--signal=B:USR1@60")
        job = slurm.submit(*words, body=body)
        slurm.wait_state(job, {"RUNNING"})
        assert slurm.show(job)["NodeList"] == nodes[0]
        slurm.target.run(["scancel", str(others[nodes[1]])], user="root")
        slurm.wait_state(others[nodes[1]], {"CANCELLED"})
        filler(slurm, nodes[1], 7)
        slurm.settle()
        gang = slurm.submit("-N1", "--gpus=8", "-t", "10", body=SLEEP)
        yield job, gang, nodes[0], nodes[1]


def filler(slurm: Slurm, node: str, gpus: int) -> int:
    job = slurm.submit(f"--gpus={gpus}", "-w", node, "-n1", "--mem=10", "-t", "30", body=SLEEP)
    slurm.wait_state(job, {"RUNNING"})
    return job


def work(slurm: Slurm, job: int) -> list[str]:
    """Returns what the job wrote of its runs."""
    return slurm.target.bash(f"cat {slurm.shared}/work.{job}", user="root", check=False).out.splitlines()


def runs_again(slurm: Slurm, job: int, seconds: float = 60.0) -> list[str]:
    """Waits until it was started a second time; what it wrote."""

    def twice() -> list[str] | None:
        lines = work(slurm, job)
        return lines if sum(line.startswith("start") for line in lines) == 2 else None

    return until(f"job {job} to run again", twice, seconds)


def ends_well(slurm: Slurm, job: int) -> None:
    slurm.target.bash(f"touch {slurm.shared}/enough.{job}", user="root")
    slurm.finish(job)
    assert slurm.show(job)["Restarts"] == "1"


def assert_nothing_lost(lines: list[str], first: str, second: str) -> None:
    """Checks that the job goes on where it saved, on the other node."""
    saved = next(line.split()[1] for line in lines if line.startswith("saved"))
    starts = [line.split()[1:] for line in lines if line.startswith("start")]
    assert starts == [[first, "0"], [second, saved]]
    assert int(saved) > 0


def test_a_job_saves_leaves_and_goes_on_elsewhere_and_the_gang_starts(slurm: Slurm) -> None:
    with in_the_way(slurm, 5, STAYS, "--movable=0:30") as (job, gang, here, there):
        slurm.wait_state(gang, {"RUNNING"}, 60)
        assert slurm.show(gang)["NodeList"] == here
        assert_nothing_lost(runs_again(slurm, job), here, there)
        record, values = slurm.show(job), segment_of(slurm, job)
        assert (record["NodeList"], record["TresPerNode"]) == (there, "gres/gpu:g7:1,gres/seat:g7:1")
        assert not {"move_until", "move_to"} & values.keys()
        told = slurm.target.run(["berth", "why", "-v", str(job)], user="alice").out
        assert re.search(r"moved on\s+once while it ran", told)
        assert "room was made" in slurm.target.run(["berth", "why", "-v", str(gang)], user="alice").out
        until("berthd to count the move", lambda: int(slurm.berthd_status()["moves"]) == 1)
        ends_well(slurm, job)


@pytest.mark.hard
def test_who_leaves_by_itself_is_run_again_without_waiting_for_the_grace(slurm: Slurm) -> None:
    with in_the_way(slurm, 100, LEAVES, "--movable=0:30") as (job, gang, here, there):
        slurm.wait_state(gang, {"RUNNING"}, 60)
        assert_nothing_lost(runs_again(slurm, job), here, there)
        ends_well(slurm, job)


@pytest.mark.hard
def test_the_steps_are_told_where_a_job_names_no_signal(slurm: Slurm) -> None:
    with in_the_way(slurm, 5, STAYS, "--movable=0:30", step=True) as (job, gang, here, there):
        slurm.wait_state(gang, {"RUNNING"}, 60)
        assert_nothing_lost(runs_again(slurm, job), here, there)
        ends_well(slurm, job)


@pytest.mark.hard
def test_nobody_is_moved_who_did_not_say_so_or_must_not_be_requeued(slurm: Slurm) -> None:
    with in_the_way(slurm, 3, STAYS, "--movable=0:30", "--no-requeue") as (job, gang, _, _):
        log = until(
            "berthd to look at it",
            lambda: text if "it stays" in (text := slurm.target.bash("svc berthd log", user="root").out) else None,
        )
        assert f"JobId={job} says --movable and --no-requeue" in log
        assert (slurm.state(job), slurm.state(gang)) == ("RUNNING", "PENDING")
        assert not any(line.startswith("saved") for line in work(slurm, job))


@pytest.mark.hard
@pytest.mark.parametrize("moment", ["grace", "leaving"])
def test_berthd_killed_in_the_middle_loses_nothing(slurm: Slurm, moment: str) -> None:
    with in_the_way(slurm, 6, STAYS, "--movable=0:30") as (job, gang, here, there):
        until("the job to be told", lambda: any("saved" in line for line in work(slurm, job)) or None, 60)
        if moment == "leaving":
            slurm.wait_state(job, {"PENDING", "COMPLETING"}, 60)
        slurm.target.run(["svc", "berthd", "kill"], user="root")
        slurm.berthd("start")
        slurm.wait_state(gang, {"RUNNING"}, 90)
        lines = runs_again(slurm, job, 150)
        saved = [line.split()[1] for line in lines if line.startswith("saved")]
        starts = [line.split()[1:] for line in lines if line.startswith("start")]
        assert starts[0] == [here, "0"]
        assert starts[1][1] == saved[0]
        assert "move_until" not in segment_of(slurm, job)
        assert there
        ends_well(slurm, job)


@contextmanager
def scores(slurm: Slurm, slow: str, score: float) -> Iterator[None]:
    """A calibration of today's by which all GPUs of one node are slow and all others are typical."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3_600))
    table = [
        Score(name, gpu.position, gpu.uuid, "compute", score if name == slow else 1.0, 3, 0.01, at, 0.02)
        for name, machine in slurm.machines.items()
        for gpu in machine.gpus
    ]
    slurm.target.run(["tee", SCORES], user="root", stdin=encode(table))
    with berth_conf(slurm, CONF.format(grace=3)):
        slurm.target.bash(
            rf"sed -i 's|^\[berthd\]$|[berthd]\nscores = \"{SCORES}\"|' /etc/slurm/berth.conf; svc berthd restart",
            user="root",
        )
        slurm.berthd("start")
        yield
    slurm.target.bash(f"rm -f {SCORES}", user="root")


@pytest.mark.hard
def test_a_job_that_suffers_from_slow_gpus_leaves_them_when_better_ones_come_free(slurm: Slurm) -> None:
    here, there, *others = all_nodes(slurm)
    with scores(slurm, here, 1.5):
        better, *_ = [filler(slurm, node, 8) for node in (there, *others)]
        options = ("--gpus=1", "-n1", "--mem=10", "-t", "30", "--signal=B:USR1@60", "--movable=0:05")
        body = WORKS.format(shared=slurm.shared, then=STAYS)
        suffers = slurm.submit(*options, "--app-class=compute", body=body)
        bears_it = slurm.submit(*options, "--app-class=memory", body=body)
        for job in (suffers, bears_it):
            slurm.wait_state(job, {"RUNNING"})
            assert slurm.show(job)["NodeList"] == here
        slurm.target.run(["scancel", str(better)], user="root")

        assert_nothing_lost(runs_again(slurm, suffers, 90), here, there)
        assert "takes 1.50 of the usual time" in slurm.target.bash("svc berthd log", user="root").out
        assert (slurm.show(bears_it)["NodeList"], slurm.show(bears_it)["Restarts"]) == (here, "0")
        ends_well(slurm, suffers)


@pytest.mark.hard
def test_what_is_left_of_a_run_is_learned_from_the_jobs_that_ended(slurm: Slurm) -> None:
    here, there, *others = all_nodes(slurm)
    with scores(slurm, here, 1.5):
        better, *_ = [filler(slurm, node, 8) for node in (there, *others)]
        # Its limit alone leaves 15 minutes to gain in, so it would be moved at once.
        options = ("--gpus=1", "-n1", "--mem=10", "-t", "30", "--signal=B:USR1@60", "--movable=0:05", "-J", "train")
        for _ in range(8):
            slurm.wait_state(slurm.submit(*options, body="sleep 3"), {"COMPLETED"})
        suffers = slurm.submit(*options, body=WORKS.format(shared=slurm.shared, then=STAYS))
        slurm.wait_state(suffers, {"RUNNING"})
        began = time.monotonic()
        slurm.target.run(["scancel", str(better)], user="root")

        # One that has run for longer than all others is expected to run as long again.
        assert_nothing_lost(runs_again(slurm, suffers, 180), here, there)
        assert time.monotonic() - began > 30
        log = slurm.target.bash("svc berthd log", user="root").out
        found = re.search(rf"JobId={suffers} .* for the (\d+) s that it is expected to run yet", log)
        assert found is not None
        assert 30 <= int(found[1]) < 300
        ends_well(slurm, suffers)
