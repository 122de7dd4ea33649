# SPDX-License-Identifier: Apache-2.0
"""A site's own Prolog and Epilog scripts behind Berth's, as they are: a health check, a GPU reset, job statistics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Slurm, until
from .nodes import CONF, berth_conf, let_go, nodes_of, said, waiting_body

pytestmark = pytest.mark.any_slurm

FOLDER = "/etc/slurm/site"
LOG = "/home/site.log"
NODE = "n1"

# Written as sites write them: by Slurm's variables, with no word about Berth.
HEALTH = f"""#!/bin/bash
# A health check before each job: every GPU of the job has to be there.
for gpu in ${{SLURM_JOB_GPUS//,/ }}; do
    [ -c /dev/nvidia$gpu ] || {{ echo "GPU $gpu is missing" >&2; exit 1; }}
done
[ ! -e /tmp/unhealthy ] || {{ echo "the check fails" >&2; exit 3; }}
[ ! -e /tmp/hangs ] || sleep 60
echo "health $SLURM_JOB_ID gpus=$SLURM_JOB_GPUS cuda=$CUDA_VISIBLE_DEVICES" >>{LOG}
"""
RESET = f"""#!/bin/sh
# Reset the GPUs that the job had.
if [ -n "$CUDA_VISIBLE_DEVICES" ]; then
    IFS=,
    for gpu in $CUDA_VISIBLE_DEVICES; do
        # Daemons and servers alone: berth-guard may just be asking its question.
        echo "reset $SLURM_JOB_ID gpu=$gpu mps=$(pgrep -fc 'nvidia-cuda-mps-(control -f|server)')" >>{LOG}
    done
fi
"""
STATISTICS = f"""#!/usr/bin/python3
import os
job, user, gpus = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_JOB_USER", "GPU_DEVICE_ORDINAL"))
start = "start" if os.environ["SLURM_SCRIPT_CONTEXT"] == "prolog_slurmd" else "stop"
print(start, job, user, f"gpus={{gpus}}", file=open("{LOG}", "a"))
"""
CHAIN = f"""[node]
chain_timeout = 60
chain_prolog = ["{FOLDER}/health", "{FOLDER}/statistics"]
chain_epilog = ["{FOLDER}/statistics", "{FOLDER}/reset"]
"""


@pytest.fixture(scope="module")
def chained(slurm: Slurm) -> Iterator[Slurm]:
    slurm.target.bash(f"mkdir -p {FOLDER}", user="root")
    for name, text in (("health", HEALTH), ("reset", RESET), ("statistics", STATISTICS)):
        slurm.target.run(["tee", f"{FOLDER}/{name}"], user="root", stdin=text)
    slurm.target.bash(f"chmod 755 {FOLDER}/*; : >{LOG}", user="root")
    with berth_conf(slurm, CHAIN):
        yield slurm


def told(slurm: Slurm, job: int) -> list[str]:
    """Returns what the scripts wrote of a job, once its Epilog has ended."""

    def found() -> list[str] | None:
        lines = slurm.target.bash(f"cat {LOG}").out.splitlines()
        mine = [line for line in lines if line.split()[1] == str(job)]
        return mine if any(line.startswith("stop") for line in mine) else None

    until(f"the scripts of job {job}", found)
    until(
        f"the Epilog of job {job} to end",
        lambda: slurm.target.run(["squeue", "-h", "-j", str(job), "-o", "%i"], check=False).out.strip() == "",
    )
    return until(f"the scripts of job {job}", found)


def test_scripts_see_all_gpus_of_a_job_with_whole_ones(chained: Slurm) -> None:
    job = chained.submit("-w", NODE, "--gpus=3", body="true")
    chained.finish(job)

    lines = told(chained, job)
    gpus = lines[0].rpartition("=")[2]
    assert len(gpus.split(",")) == 3
    assert lines[:3] == [
        f"health {job} gpus={gpus} cuda={gpus}",
        f"start {job} alice gpus={gpus}",
        f"stop {job} alice gpus={gpus}",
    ]
    assert lines[3:] == [f"reset {job} gpu={gpu} mps=0" for gpu in gpus.split(",")]


def test_a_job_without_gpus_has_none_for_the_scripts(chained: Slurm) -> None:
    job = chained.submit("-w", NODE, "-n1", "--mem=50", body="true")
    chained.finish(job)

    assert told(chained, job) == [f"health {job} gpus= cuda=", f"start {job} alice gpus=", f"stop {job} alice gpus="]


def test_a_job_that_berth_did_not_place_costs_one_question_and_is_seen_whole(chained: Slurm) -> None:
    job = chained.submit("-p", "plain", "-w", NODE, "-n1", "--gpus=2", body="true")
    chained.finish(job)

    gpus = told(chained, job)[0].rpartition("=")[2]
    assert len(gpus.split(",")) == 2


def test_a_shared_gpu_is_reset_by_its_last_job_alone(chained: Slurm) -> None:
    first, second = (chained.submit("-w", NODE, "-n1", "--gpu-share=40", body=waiting_body()) for _ in range(2))
    for job in (first, second):
        said(chained, job)  # Slurm calls it RUNNING before its Prolog is through
    let_go(chained, first)
    assert not [line for line in told(chained, first) if line.startswith("reset")]
    let_go(chained, second)
    chained.finish(second)

    resets = [line for line in told(chained, second) if line.startswith("reset")]
    assert [line.rpartition(" ")[2] for line in resets] == ["mps=0"]


def wait_for_scripts(slurm: Slurm, seconds: int) -> None:
    """Sets the seconds that Berth waits for the scripts of a site, from the next Prolog on."""
    slurm.target.bash(f"sed -i 's/^chain_timeout = .*/chain_timeout = {seconds}/' {CONF}", user="root")


@pytest.mark.parametrize("trouble", ["unhealthy", "hangs"])
def test_a_script_that_fails_or_hangs_drains_the_node_as_without_berth(chained: Slurm, trouble: str) -> None:
    nodes_of(chained)[NODE].bash(f"touch /tmp/{trouble}")
    if trouble == "hangs":
        wait_for_scripts(chained, 5)
    try:
        job = chained.submit("-w", NODE, "-n1", "--gpu-share=40", body="true")
        until(
            "the node to be drained",
            lambda: "drain" in chained.target.run(["sinfo", "-h", "-n", NODE, "-o", "%T"]).out or None,
        )
        chained.target.run(["scancel", str(job)])
    finally:
        nodes_of(chained)[NODE].bash(f"rm /tmp/{trouble}")
        wait_for_scripts(chained, 60)
        chained.target.run(["scontrol", "update", f"NodeName={NODE}", "State=RESUME"], user="root")
    until("nothing to be shared there", lambda: not nodes_of(chained)[NODE].left() or None)
