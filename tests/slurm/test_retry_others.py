"""Failed jobs that a site's own Epilog or service puts back into the queue, on a real Slurm: Berth steps back."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
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


def start_now(slurm: Slurm, job: int) -> None:
    """Starts a requeued job without the pause that Slurm gives it."""

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
