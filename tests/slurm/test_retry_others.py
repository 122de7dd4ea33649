# SPDX-License-Identifier: Apache-2.0
"""Failed jobs that a site's own Epilog or service puts back into the queue, on a real Slurm: Berth steps back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .harness import Slurm, until
from .nodes import berth_conf
from .test_planner import segment_of
from .test_retry import LOST, given_up

pytestmark = pytest.mark.any_slurm

FOLDER = "/etc/slurm/recovery"
ONCE = """#!/bin/bash
# Runs a job that failed once more, as a site's own Epilog may do.
if /usr/bin/scontrol show job "$SLURM_JOB_ID" | grep -q 'Restarts=0 .*ExitCode=1:0'; then
    /usr/bin/scontrol requeue "$SLURM_JOB_ID"
fi
"""
SERVICE = """
while sleep 0.1; do
    for job in $(squeue -h -u alice -t F -o %A); do
        scontrol requeue $job
    done
done
"""
"""A recovery service, which knows failed jobs by their state."""
ASKED = '{"APS": {"auto_resume_mode": "requeue",  "max_requeue_times": 1}}; auto_requeue=1 "quoted"  a=b\\c'
"""A comment as NVIDIA Mission Control's job recovery and a site's own service read it, with what a parser may spoil."""
LEFT = ASKED.replace("auto_requeue=1", "auto_requeue=0")
IN_JOB = """
for round in 1 2; do
    srun --kill-on-bad-exit=1 bash -c 'echo "NCCL communicator was aborted: Connection reset by peer" >&2; exit 1'
done
srun bash -c '
for try in 1 2 3; do
    bash -c "echo began >>$1/run.$SLURM_JOB_ID; [ $try = 3 ] || kill -KILL \\$\\$" && break
done' _ %s
"""
"""A launcher that begins ranks again inside the job, in new steps and in one, as nvidia-resiliency-ext does."""


@pytest.fixture
def epilog(slurm: Slurm) -> Iterator[Slurm]:
    script = f"mkdir -p {FOLDER}; cat >{FOLDER}/once <<'END'\n{ONCE}END\nchmod 755 {FOLDER}/once"
    slurm.target.bash(script, user="root")
    with berth_conf(slurm, f'\n[node]\nchain_epilog = ["{FOLDER}/once"]'):
        yield slurm
    slurm.target.bash(f"rm -r {FOLDER}", user="root")


@contextmanager
def recovery(slurm: Slurm) -> Iterator[None]:
    """Runs the service."""
    process = slurm.target.popen(f"echo $$ >/tmp/recovery.pid\n{SERVICE}", user="root")
    try:
        yield
    finally:
        slurm.target.bash("kill $(cat /tmp/recovery.pid)", user="root")
        process.communicate(timeout=30)


def runs(slurm: Slurm, job: int) -> list[str]:
    """Returns a line for each beginning and each good end of the job."""
    return slurm.target.bash(f"cat {slurm.shared}/run.{job}", user="root").out.split()


def body(slurm: Slurm, second: str) -> str:
    """A job whose first run fails; of each run it writes a line."""
    note = f">>{slurm.shared}/run.$SLURM_JOB_ID"
    return f"echo began {note}; [ ${{SLURM_RESTART_COUNT:-0}} != 0 ] || {{ {LOST}; }}; {second}; echo ended {note}"


def user_comment(slurm: Slurm, job: int) -> str:
    """Returns the job's comment, exact to the byte."""
    text = slurm.target.run(["scontrol", "show", "job", str(job), "--json"], user="root").out
    found: str = json.loads(text)["jobs"][0]["comment"]
    return found


def leavings(slurm: Slurm, job: int) -> int:
    """Returns how often berthd left the job to the system that its comment names."""
    log = slurm.target.bash("svc berthd log", user="root").out
    return len(re.findall(rf"JobId={job} is not tried again: its comment leaves that to another system", log))


def start_now(slurm: Slurm, job: int) -> None:
    """Starts a requeued job without the pause that Slurm gives it, but for the second in which it ended.

    In that second its node takes no other run of it: "Job credential revoked".
    """
    slurm.passes(2)

    def started() -> bool:
        slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root", check=False)
        return slurm.show(job)["Restarts"] == "1" and slurm.state(job) not in {"PENDING", "COMPLETING"}

    until(f"job {job} to run again", started, 120, 1.0)


def test_what_an_epilog_requeues_is_noted_and_its_run_is_left_alone(epilog: Slurm) -> None:
    job = epilog.submit("--gpus=1", "--retry=auto", body=body(epilog, "sleep 20"))

    until("it to be noted", lambda: segment_of(epilog, job).get("by_others") == "1", 120)
    start_now(epilog, job)

    assert segment_of(epilog, job)["fail"] == "mpi_runtime_failure"
    epilog.wait_state(job, {"COMPLETED"}, 180)
    assert runs(epilog, job) == ["began", "began", "ended"]
    assert epilog.show(job)["Restarts"] == "1"


def test_what_fails_again_is_left_to_the_epilog_that_requeued_it(epilog: Slurm) -> None:
    job = epilog.submit("--gpus=1", "--retry=auto", body=body(epilog, LOST))

    until("it to be noted", lambda: segment_of(epilog, job).get("by_others") == "1", 120)
    start_now(epilog, job)

    until("berthd to leave it", lambda: "others put it back" in (given_up(epilog, job) or ""), 180)
    epilog.passes(3)
    assert (epilog.state(job), epilog.show(job)["Restarts"]) == ("FAILED", "1")


def test_a_recovery_service_and_berth_start_no_run_that_the_other_ends(slurm: Slurm) -> None:
    with recovery(slurm):
        job = slurm.submit("--gpus=1", "--retry=auto", body=body(slurm, "sleep 20"))
        start_now(slurm, job)
        slurm.wait_state(job, {"COMPLETED"}, 180)

    assert runs(slurm, job) == ["began", "began", "ended"]
    assert slurm.show(job)["Restarts"] == "1"


def test_a_job_that_a_comment_gives_to_another_system_waits_for_it_and_keeps_the_comment(slurm: Slurm) -> None:
    """The other system comes later than Berth, and holds the job, rewrites its comment and excludes a node first."""
    job = slurm.submit("--gpus=1", "--retry=auto", f"--comment={ASKED}", body=body(slurm, LOST))
    first = until("its place", lambda: segment_of(slurm, job).get("nodes"))

    until("berthd to leave it", lambda: leavings(slurm, job) == 1, 120)
    slurm.passes(3)
    assert (slurm.state(job), slurm.show(job)["Restarts"]) == ("FAILED", "0")
    assert user_comment(slurm, job) == ASKED
    slurm.target.run(["scontrol", "requeuehold", str(job)], user="root")
    slurm.target.run(["scontrol", "update", f"JobId={job}", f"Comment={LEFT}", f"ExcNodeList={first}"], user="root")
    slurm.target.run(["scontrol", "release", str(job)], user="root")
    start_now(slurm, job)

    until("berthd to leave it again", lambda: leavings(slurm, job) == 2, 180)
    slurm.passes(3)
    assert (slurm.state(job), slurm.show(job)["Restarts"]) == ("FAILED", "1")
    assert runs(slurm, job) == ["began", "began"]
    assert segment_of(slurm, job)["nodes"] != first
    assert user_comment(slurm, job) == LEFT


def test_ranks_that_begin_again_inside_a_job_are_no_failure_of_it(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "--retry=auto", f"--comment={ASKED}", body=IN_JOB % slurm.shared)

    slurm.wait_state(job, {"COMPLETED"}, 180)
    slurm.passes(3)

    assert runs(slurm, job) == ["began"] * 3
    assert slurm.show(job)["Restarts"] == "0"
    assert user_comment(slurm, job) == ASKED
    assert f"JobId={job} failed" not in slurm.target.bash("svc berthd log", user="root").out
