# SPDX-License-Identifier: Apache-2.0
"""A site's Prolog and Epilog are told of all GPUs of a job, both the same, by whatever way it was placed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .harness import Slurm, seen, until
from .nodes import berth_conf, nodes_of
from .test_guests import occupy

FOLDER = "/home/site-environment"
KEEP = f'#!/bin/sh\nenv -0 >"{FOLDER}/$SLURM_JOB_ID.$SLURMD_NODENAME.${{SLURM_SCRIPT_CONTEXT%_slurmd}}"\n'
VARIABLES = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
Told = dict[tuple[str, str], dict[str, str]]
"""By node and script, what the script was told."""


@pytest.fixture(scope="module")
def folder(slurm: Slurm) -> str:
    slurm.target.bash(f"install -d -m 777 {FOLDER}; rm -f {FOLDER}/*", user="root")
    slurm.target.run(["tee", f"{FOLDER}/keep"], user="root", stdin=KEEP)
    slurm.target.bash(f"chmod 755 {FOLDER}/keep", user="root")
    return FOLDER


@pytest.fixture(scope="module", params=[False, True], ids=["both scripts", "an Epilog alone"])
def chained(request: pytest.FixtureRequest, slurm: Slurm, folder: str) -> Iterator[Slurm]:
    """A site with scripts of its own behind both programs, or only behind the Epilog."""
    lines = [f'chain_epilog = ["{folder}/keep"]', *([] if request.param else [f'chain_prolog = ["{folder}/keep"]'])]
    with berth_conf(slurm, "\n".join(["[node]", *lines])):
        yield slurm


def parts(slurm: Slurm, job: int) -> list[int]:
    """Returns the jobs of an array or of a heterogeneous job."""
    shown = slurm.target.run(["scontrol", "show", "job", str(job), "-o"], user="root").out.splitlines()
    return sorted({int(line.partition("JobId=")[2].split()[0]) for line in shown})


def told(slurm: Slurm, job: int, nodes: int) -> Told:
    """Returns what the scripts of a job were told, once the last Epilog is through."""

    def ended() -> bool:
        names = slurm.target.bash(f"ls {FOLDER}").out.split()
        return sum(name.startswith(f"{job}.") and name.endswith(".epilog") for name in names) == nodes

    until(f"{nodes} Epilogs of job {job}", ended, 90)
    until(f"job {job} to be over", lambda: slurm.state(job) == "COMPLETED" or None, 90)
    found: Told = {}
    for name in slurm.target.bash(f"cd {FOLDER}; ls {job}.*").out.split():
        text = slurm.target.run(["cat", f"{FOLDER}/{name}"], user="root").out
        _, node, script = name.split(".")
        found[node, script] = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return found


def gpus(environment: dict[str, str]) -> tuple[str | None, ...]:
    return tuple(environment.get(name) for name in VARIABLES)


WAYS = {
    "pinned": "-w n1 -n1 --gpus=2",
    "pinned, with an Extra of its own": "-w n1 -n1 --gpus=2 --extra=mine",
    "of a model": "-w n1 -n1 --gres=gpu:v100:3",
    "on two nodes": "-w n1,n2 -N2 -n2 --gpus-per-node=2",
    "an array": "--array=0-1 -w n1 -n1 --gpus=2",
    "heterogeneous": "-w n1 -n1 --gpus=1 : -w n2 -n1 --gpus=2",
    "left to Slurm": "-w n1 -n1 -N1 --sockets-per-node=1 --gpus-per-socket=2",
    "left to Slurm, on two nodes": "-w n1,n2 -N2-3 -n2 --gpus-per-node=2",
    "in a partition that Berth skips": "-p plain -w n1 -n1 --gpus=2",
    "there, on two nodes": "-p plain -w n1,n2 -N2 -n2 --gpus-per-node=3",
    "there, a shard": "-p plain -w n1 -n1 --gres=shard:g0:30",
    "without GPUs": "-w n1 -n1",
}
AWAY = ("pinned", "on two nodes", "an array", "heterogeneous")


def check(slurm: Slurm, way: str, *, away: bool) -> None:
    """Submits a job, and compare what its scripts were told with what it saw itself."""
    with ExitStack() as stack:
        if away:
            slurm.berthd("stop")
            stack.callback(slurm.berthd, "start")
        # Users may not ask for a shard by hand.
        user = "root" if "shard" in way else "alice"
        job = slurm.submit(*WAYS[way].split(), body="srun -l bash /home/tests/probe.sh; sleep 0.5", user=user)
        for one in parts(slurm, job):
            slurm.wait_state(one, {"COMPLETED"}, 120)
            nodes = int(slurm.show(one)["NumNodes"].partition("-")[0])
            found = told(slurm, one, nodes)
            for probe in seen(slurm.target.bash(f"cat {slurm.shared}/{one}.out", user="root", check=False).out):
                wanted = ",".join(map(str, probe.gpus)) or None
                for (node, script), environment in found.items():
                    if node == probe.node:
                        assert gpus(environment) == (wanted,) * 3, f"{script} of job {one} on {node}"


@pytest.mark.parametrize("way", WAYS)
def test_scripts_are_told_all_gpus_of_a_job(chained: Slurm, way: str) -> None:
    check(chained, way, away=False)


@pytest.mark.parametrize("way", AWAY)
def test_scripts_are_told_all_gpus_of_a_job_that_came_while_berthd_was_away(chained: Slurm, way: str) -> None:
    check(chained, way, away=True)


def test_scripts_are_told_all_gpus_of_a_job_that_an_administrator_moved(chained: Slurm) -> None:
    """The job's Extra still names its former GPUs, which another job may use by then."""
    job = chained.submit("-n1", "-w", "n1", "--gpus=1", "--begin=now+600", body="true")
    other = "gres/gpu:g6:1,gres/gpu:g7:1"
    # berthd would give it a place of its own again.
    chained.berthd("stop")
    chained.target.run(["scontrol", "update", f"JobId={job}", f"TresPerNode={other}", "StartTime=now"], user="root")

    for environment in told(chained, job, 1).values():
        assert gpus(environment) == ("6,7",) * 3


def test_scripts_are_told_no_gpu_of_a_guest_and_those_of_a_share_once_it_is_free(chained: Slurm) -> None:
    [owner] = occupy(chained, "guaranteed", "n1")
    guest = chained.submit("-w", "n1", "--gpu-tier=opportunistic", "--gpus=1", body="true")
    for environment in told(chained, guest, 1).values():
        assert gpus(environment) == (None,) * 3
    chained.target.run(["scancel", str(owner)], user="root")

    share = chained.submit("-w", "n2", "-n1", "--gpu-share=40", body="true")
    for environment in told(chained, share, 1).values():
        assert gpus(environment) == (environment["BERTH_GPUS"],) * 3


def test_nothing_is_kept_of_a_job_that_is_over(chained: Slurm) -> None:
    told(chained, chained.submit("-p", "plain", "-w", "n1", "-n1", "--gpus=2", body="true"), 1)

    node = nodes_of(chained)["n1"]
    until("nothing to be kept", lambda: node.bash("ls -A /run/berth/given 2>/dev/null", check=False) == "" or None)
