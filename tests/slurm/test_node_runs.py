# SPDX-License-Identifier: Apache-2.0
"""Jobs that run again, steps that would find no MPS, and victims of a fault whose scripts end at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Slurm, until
from .nodes import assert_nothing_left, guard_said, let_go, nodes_of, output, place, run_again, said, waiting_body
from .test_node_trouble import tell

pytestmark = pytest.mark.hard
"""A minute and more, and the hour-long memory of who brought MPS down has to be wiped: `make test-hard`."""

NODE = "n2"
WORDS = ("-w", NODE, "-n1")
# A step begins where the test says so.
LATER = """
until [ -e /home/tests/go.$SLURM_JOB_ID.$SLURM_RESTART_COUNT ]; do sleep 0.2; done
srun -n1 fake-cuda-app alloc=10
"""


@pytest.fixture
def forgiven(slurm: Slurm) -> Iterator[None]:
    """Clears what berthd and the node remember for an hour, so that later tests do not meet it."""
    yield
    nodes_of(slurm)[NODE].bash("rm -rf /run/berth/culprits")
    slurm.berthd("restart")
    slurm.berthd("start")


def share_file(slurm: Slurm, job: int) -> dict[str, str]:
    lines = nodes_of(slurm)[NODE].bash(f"cat /run/berth/jobs/{job}", check=False).splitlines()[1:]
    return dict(line.split("=", 1) for line in lines)


def test_a_step_that_would_find_no_mps_does_not_start_and_the_job_goes_elsewhere(slurm: Slurm) -> None:
    node = nodes_of(slurm)[NODE]
    with node.broken("svc berth-guard stop", "svc berth-guard start"):
        job = slurm.submit(*WORDS, "--gpu-share=30", body=LATER)
        slurm.wait_state(job, {"RUNNING"})
        until("its share file", lambda: share_file(slurm, job).get("status") == "ok" or None)
        node.bash("pkill -KILL -f 'nvidia-cuda-mps-control -f'; pkill -KILL -f nvidia-cuda-mps-server", check=False)
        let_go(slurm, job)
        until(f"job {job} to be sent elsewhere", lambda: tell(slurm, job).get("degraded") == "1" or None)
    assert "is stopped before it starts: MPS is gone from its GPU on this node" in output(slurm, job)
    assert '"mps": false' not in output(slurm, job)
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_a_job_that_runs_again_has_a_share_of_this_run_and_keeps_it(slurm: Slurm) -> None:
    node = nodes_of(slurm)[NODE]
    job = slurm.submit(*WORDS, "--gpu-share=30", body=waiting_body())
    assert said(slurm, job)["mps"] is True
    first = share_file(slurm, job)
    slurm.target.run(["scontrol", "requeue", str(job)], user="root")
    until("it to be requeued", lambda: slurm.show(job).get("Restarts") == "1" or None)
    run_again(slurm, job)
    until("its second share file", lambda: share_file(slurm, job).get("status") == "ok" or None)
    again = share_file(slurm, job)
    assert int(again["start"]) > int(first["start"])
    assert said(slurm, job)["mps"] is True

    # Slurm repeats an Epilog after a restart of slurmd: of the run before it takes nothing back.
    words = f"SLURMD_NODENAME={NODE} SLURM_JOB_ID={job} SLURM_JOB_UID={again['uid']} SLURM_SCRIPT_CONTEXT=epilog_slurmd"
    node.bash(f"{words} SLURM_JOB_START_TIME={first['start']} /opt/berth/bin/berth-epilog")
    assert share_file(slurm, job) == again
    step = slurm.target.bash(f"srun --jobid={job} --overlap -n1 fake-cuda-app alloc=1", check=False)
    assert '"mps": true' in step.out, step.out + step.err
    let_go(slurm, job)
    slurm.finish(job)
    assert_nothing_left(slurm, NODE)


@pytest.mark.usefixtures("forgiven")
def test_a_victim_whose_script_ends_at_once_is_run_again_and_the_cause_is_not(slurm: Slurm) -> None:
    slurm.hold_gpus(NODE, range(1, 8))
    victim = slurm.submit(*WORDS, "--gpu-share=30", body="exec fake-cuda-app alloc=64 hold=300")
    slurm.wait_state(victim, {"RUNNING"})
    said(slurm, victim, 1)
    bystander = slurm.submit(*WORDS, "--gpu-share=10", body="sleep 20")
    culprit = slurm.submit(*WORDS, "--gpu-share=50", body="exec fake-cuda-app hold=10 fault")
    slurm.wait_state(culprit, {"RUNNING", "FAILED"})
    assert place(slurm, culprit) == place(slurm, victim)
    slurm.wait_state(culprit, {"FAILED"})
    guard_said(slurm, NODE, f"job {victim} lost its GPU by that and is requeued")
    until(f"job {victim} to be requeued", lambda: slurm.show(victim).get("Restarts") == "1" or None)
    run_again(slurm, victim)
    until("it to use its GPU again", lambda: said(slurm, victim, 0).get("mps") or None)
    assert slurm.state(culprit) == "FAILED"
    assert slurm.show(culprit).get("Restarts") == "0"
    slurm.target.run(["scancel", str(victim), str(bystander)])
    slurm.clear()
    assert_nothing_left(slurm, NODE)
