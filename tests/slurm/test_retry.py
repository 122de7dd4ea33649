# SPDX-License-Identifier: Apache-2.0
"""Jobs that fail on a real Slurm: classes of failures, further tries, and tries that no user or restart can spoil."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .failing import PYTHON, runs, trains
from .harness import Slurm, until
from .nodes import nodes_of, output
from .test_planner import segment_of

pytestmark = pytest.mark.any_slurm

LOST = 'echo "RuntimeError: NCCL communicator was aborted: Connection reset by peer" >&2; exit 1'

COMMONEST = {
    "syntax_error": f"printf 'def f(:\\n' >/tmp/t.$SLURM_JOB_ID.py; {PYTHON} /tmp/t.$SLURM_JOB_ID.py",
    "incorrect_inputs": "cat /data/imagenet/train.idx",
    "permission_error": "cat /etc/shadow",
    "import_error": f"{PYTHON} -c 'import apex_is_not_here'",
    "cuda_init_failed": trains(1, "BERTH_FAKE_CUDA_INIT=100"),
    "gpu_out_of_memory": trains(8),
    "cpu_out_of_memory": "kill -KILL $$",
    "invalid_mem_access": runs("import ctypes\nctypes.string_at(0)"),
    "gpu_ecc_error": 'echo "CUDA error: uncorrectable ECC error encountered" >&2; exit 1',
    "mpi_runtime_failure": LOST,
}


def failure(slurm: Slurm, job: int, seconds: float = 120.0) -> str:
    """Returns the class of failure that berthd gives a job."""

    def said() -> str | None:
        log = slurm.target.bash("svc berthd log", user="root").out
        found = re.findall(rf"JobId={job} failed: (\w+), ", log)
        return found[-1] if found else None

    return until(f"berthd to look into job {job}", said, seconds)


def failures_by_now(slurm: Slurm) -> int:
    """Failed jobs that berthd counts; it tells its counts once a pass."""
    slurm.passes()
    return int(slurm.berthd_status().get("failed", 0))


def why(slurm: Slurm, job: int) -> dict[str, str]:
    """`berth why`, as its owner reads it."""
    lines = slurm.target.run(["berth", "why", "-v", str(job)], user="alice").out.splitlines()
    return {name: text for name, _, text in (re.sub(r"  +", "  ", line).partition("  ") for line in lines)}


def given_up(slurm: Slurm, job: int) -> str | None:
    """Returns the reason why berthd does not try a job again."""
    log = slurm.target.bash("svc berthd log", user="root").out
    found = re.search(rf"JobId={job} is not tried again: (.*)", log)
    return found[1] if found else None


def next_try(slurm: Slurm, job: int, elsewhere: str) -> None:
    """Starts the next try at once, as its user may, once the job has a place on another node."""
    slurm.wait_state(job, {"PENDING"}, 120)
    until(f"job {job} to be given its time", lambda: "again" in segment_of(slurm, job) or None)
    until(f"job {job} to be given another place", lambda: segment_of(slurm, job)["nodes"] != elsewhere or None)
    slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")


def test_the_commonest_failures_are_told_apart_and_none_is_run_again_unasked(slurm: Slurm) -> None:
    jobs = {name: slurm.submit("--gpus=1", "-n1", "--mem=10", body=body) for name, body in COMMONEST.items()}

    assert {name: failure(slurm, job) for name, job in jobs.items()} == {name: name for name in COMMONEST}
    assert {slurm.state(job) for job in jobs.values()} == {"FAILED"}

    def all_counted() -> bool:
        return {f"failed.{name}" for name in COMMONEST} <= slurm.berthd_status().keys()

    until("berthd to count each class", all_counted)


def test_a_try_goes_elsewhere_and_two_that_fail_alike_on_two_nodes_are_the_jobs_fault(slurm: Slurm) -> None:
    body = f"echo $SLURMD_NODENAME >>{slurm.shared}/run.$SLURM_JOB_ID; {LOST}"
    job = slurm.submit("--gpus=1", "--retry=auto", body=body)
    began, first = time.time(), segment_of(slurm, job)["nodes"]
    next_try(slurm, job, elsewhere=first)
    values, record = segment_of(slurm, job), slurm.show(job)

    assert values["fail"] == "mpi_runtime_failure"
    assert 30 <= int(values["again"]) - began <= 240
    assert values["tried"].endswith(f":{first}")
    assert values["avoids"].startswith(f"{first}@")
    assert record["Restarts"] == "1"
    slurm.wait_state(job, {"FAILED"}, 120)
    assert "it is the job, not the place" in until("berthd to leave it", lambda: given_up(slurm, job), 120)
    ran = slurm.target.bash(f"cat {slurm.shared}/run.{job}", user="root").out.split()
    assert ran[0] == first
    assert len(set(ran)) == 2


def test_a_deterministic_failure_is_not_tried_again_and_its_owner_reads_why(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "--retry=9", body=COMMONEST["import_error"])
    assert failure(slurm, job) == "import_error"
    slurm.passes(3)

    assert slurm.show(job)["Restarts"] == "0"
    shown = why(slurm, job)
    assert shown["failed"].startswith("import_error")
    assert "No module named 'apex_is_not_here'" in shown["known by"]


@pytest.mark.parametrize("words", [["--no-requeue", "--retry=auto"], ["--retry=0"]])
def test_a_user_who_wants_no_other_try_gets_none(slurm: Slurm, words: list[str]) -> None:
    job = slurm.submit("--gpus=1", *words, body=LOST)
    failure(slurm, job)
    slurm.passes(3)

    assert (slurm.state(job), slurm.show(job)["Restarts"]) == ("FAILED", "0")


def test_a_job_that_fails_while_there_is_no_berthd_is_tried_again_when_there_is(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "--retry=auto", body=f"sleep 3; {LOST}")
    slurm.wait_state(job, {"RUNNING"})
    slurm.berthd("stop")
    slurm.wait_state(job, {"FAILED"})
    slurm.berthd("start")

    slurm.wait_state(job, {"PENDING"}, 120)
    until("its segment to say so", lambda: segment_of(slurm, job).get("fail") == "mpi_runtime_failure" or None)


def test_of_an_array_only_the_task_that_failed_is_tried_again(slurm: Slurm) -> None:
    body = f"[ $SLURM_ARRAY_TASK_ID = 2 ] || {{ {LOST}; }}"
    array = slurm.submit("--gpus=1", "--array=1-2", "--retry=auto", "-n1", "--mem=10", body=body)

    def settled() -> dict[str, str] | None:
        states = task_states(slurm, array)
        return states if sorted(states.values()) == ["COMPLETED", "PENDING"] else None

    assert until("one task to wait for its next try", settled, 120)["1"] == "PENDING"


def task_states(slurm: Slurm, array: int) -> dict[str, str]:
    text = slurm.target.run(["squeue", "-h", "-r", "-t", "all", "-j", str(array), "-o", "%K %T"], user="root").out
    return dict(line.split() for line in text.splitlines())


def test_a_job_that_slurm_puts_back_is_noted_and_loses_no_try(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "--retry=1", body="exec sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    slurm.target.run(["scontrol", "requeue", str(job)], user="alice")

    until("it to be noted", lambda: segment_of(slurm, job).get("fail") == "job_preempted" or None)
    assert slurm.state(job) == "PENDING"


@contextmanager
def lost(slurm: Slurm, name: str) -> Iterator[None]:
    """A node that Slurm holds to be down."""
    node = nodes_of(slurm)[name]
    # Else it would register, and be taken back, in the same moment.
    node.bash("svc slurmd pause")
    try:
        # An answer that was on its way when slurmd stood still would end the state DOWN.
        slurm.passes(1)
        for state in ("DRAIN", "DOWN"):
            slurm.target.run(["scontrol", "update", f"NodeName={name}", f"State={state}", "Reason=test"], user="root")
        # On a loaded machine it may end it a moment later all the same.
        slurm.target.bash(
            f"""
            for i in $(seq 20); do
                scontrol show node {name} | grep -q State=DOWN ||
                    scontrol update NodeName={name} State=DOWN Reason=test
                sleep 0.1
            done
            """,
            user="root",
        )
        yield
    finally:
        slurm.target.run(["scancel", "--user=alice"], user="root")
        node.bash("svc slurmd resume")
        # Where its slurmd has registered meanwhile, Slurm has taken it back by itself.
        slurm.target.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"], user="root", check=False)


@contextmanager
def booted(slurm: Slurm, name: str) -> Iterator[None]:
    """A node of which nothing is left but a slurmd that says that it has just booted."""
    node = nodes_of(slurm)[name]
    own = "/usr/local/sbin/slurmd"  # found before Slurm's
    node.bash("svc slurmd stop; pkill -KILL -x slurmstepd; pkill -KILL -f '^sleep 300'", check=False)
    node.bash(
        f"printf '#!/bin/sh\nexec /usr/sbin/slurmd -b \"$@\"\n' >{own}; chmod 755 {own}; svc slurmd start", check=True
    )
    try:
        yield
    finally:
        slurm.target.run(["scancel", "--user=alice"], user="root")
        node.bash(f"rm {own}; svc slurmd restart")


def test_a_job_whose_node_is_lost_is_put_back_by_slurm_and_noted(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "-w", "n3", body="exec sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    slurm.settle()

    with lost(slurm, "n3"):
        until("it to be noted", lambda: segment_of(slurm, job).get("fail") == "mpi_runtime_failure" or None)
        assert "node n3 was lost" in segment_of(slurm, job)["fail_text"]


@pytest.mark.hard
def test_a_node_that_boots_has_lost_its_job_though_slurm_never_calls_it_down(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=1", "-w", "n3", body="exec sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    slurm.settle()
    # A job that began less than some twenty seconds before its node did is to Slurm one that is yet to begin there.
    time.sleep(25)

    with booted(slurm, "n3"):
        until("it to be noted", lambda: segment_of(slurm, job).get("fail"), 90)
        assert segment_of(slurm, job)["fail_text"] == "node n3 booted while it ran"


def test_the_lost_one_of_several_nodes_is_named_though_the_job_still_ends_on_another(slurm: Slurm) -> None:
    job = slurm.submit(
        "-N2", "--gpus-per-node=8", "--locality=any", body="trap 'sleep 3; exit' TERM; echo listens; sleep 300 & wait"
    )  # fmt: skip
    until("the job to listen", lambda: "listens" in output(slurm, job))
    slurm.settle()
    second = slurm.target.bash(f"scontrol show hostnames $(squeue -h -j {job} -o %N) | tail -n 1").out.strip()

    with lost(slurm, second):
        until("it to be noted", lambda: segment_of(slurm, job).get("fail"))
        assert f"node {second} was lost" in segment_of(slurm, job)["fail_text"]


def test_no_log_is_read_that_its_user_could_not_read(slurm: Slurm) -> None:
    """A log that became a link to root's file, or a pipe, is no log."""
    link = slurm.submit(
        "--gpus=1", "-n1", "--mem=10", "-o", "/home/tests/link.%j",
        body='rm /home/tests/link.$SLURM_JOB_ID; ln -s /etc/shadow /home/tests/link.$SLURM_JOB_ID; exit 3',
    )  # fmt: skip
    pipe = slurm.submit(
        "--gpus=1", "-n1", "--mem=10", "-o", "/home/tests/pipe.%j",
        body="rm /home/tests/pipe.$SLURM_JOB_ID; mkfifo /home/tests/pipe.$SLURM_JOB_ID; exit 3",
    )  # fmt: skip

    assert [failure(slurm, job) for job in (link, pipe)] == ["no_signature", "no_signature"]


def test_the_epilog_does_not_wait_and_leaves_nothing_behind(slurm: Slurm) -> None:
    nodes = nodes_of(slurm)
    job = slurm.submit("--gpus=1", "-w", "n1", body=LOST)
    failure(slurm, job)

    left = "pgrep -f '[b]erth-epilog'"
    until("nothing of the Epilog's to be left", lambda: not nodes["n1"].bash(left, check=False))


def test_no_user_can_speak_for_a_node(slurm: Slurm) -> None:
    before = failures_by_now(slurm)
    text = "berth/1 failed job=1 node=n1 start=0 class=gpu_ecc_error transient=1 sign=x"
    said = slurm.target.bash(f"exec 3<>/dev/tcp/ctl/6826; printf '%s' '{text}' | munge >&3; timeout 5 cat <&3")

    assert said.out == ""
    assert failures_by_now(slurm) == before
