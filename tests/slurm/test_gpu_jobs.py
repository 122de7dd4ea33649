# SPDX-License-Identifier: Apache-2.0
"""The files in which monitoring programs look which jobs are on which GPU, by Slurm's own Prologs and Epilogs."""

from __future__ import annotations

import pytest

from .harness import Slurm, until
from .nodes import assert_nothing_left, berth_conf, let_go, nodes_of, waiting_body

pytestmark = pytest.mark.any_slurm

NODE = "n2"
KEYS = '[node]\njobs_for_dcgm = "/run/dcgm-jobs"\njobs_for_jobstats = "/run/gpustat"'


def listed(slurm: Slurm, folder: str) -> dict[str, list[str]]:
    """File names, and the lines of each."""
    found: dict[str, list[str]] = {}
    show = f"cd {folder} 2>/dev/null && grep -H . -- *"
    for line in nodes_of(slurm)[NODE].bash(show, check=False).splitlines():
        name, _, text = line.partition(":")
        found.setdefault(name, []).append(text)
    return found


def on_gpus(slurm: Slurm) -> dict[str, int]:
    """Returns by job the number of GPUs whose file for dcgm-exporter names it."""
    jobs = [job for lines in listed(slurm, "/run/dcgm-jobs").values() for job in lines]
    return {job: jobs.count(job) for job in jobs}


def uuids_of(slurm: Slurm, job: int) -> set[str]:
    """The GPUs that a job is listed on for jobstats."""
    files = listed(slurm, "/run/gpustat").items()
    return {name for name, lines in files if name.startswith("GPU-") and str(job) in {one.split()[0] for one in lines}}


def test_whole_packed_and_plain_jobs_are_listed_and_leave_nothing(slurm: Slurm) -> None:
    with berth_conf(slurm, KEYS):
        whole = slurm.submit("-w", NODE, "-n1", "--gpus=3", body=waiting_body())
        plain = slurm.submit("-w", NODE, "-n1", "-p", "plain", "--gres=gpu:2", body=waiting_body())
        packed = [slurm.submit("-w", NODE, "-n1", "--gpu-share=30", body=waiting_body()) for _ in range(2)]
        jobs = [whole, plain, *packed]
        for job in jobs:
            slurm.wait_state(job, {"RUNNING"})
        wanted = {str(whole): 3, str(plain): 2, **{str(job): 1 for job in packed}}

        until("all jobs to be listed", lambda: on_gpus(slurm) == wanted)
        # A Prolog writes its files one after the other.
        until("and for jobstats", lambda: {str(job): len(uuids_of(slurm, job)) for job in jobs} == wanted)

        uuids = [name for name in listed(slurm, "/run/gpustat") if name.startswith("GPU-")]
        assert len(uuids) == len(listed(slurm, "/run/dcgm-jobs"))
        assert uuids_of(slurm, whole).isdisjoint(uuids_of(slurm, plain))
        let_go(slurm, *jobs)
        for job in jobs:
            slurm.finish(job)
        until("no job to be listed", lambda: not listed(slurm, "/run/dcgm-jobs") and not listed(slurm, "/run/gpustat"))
    assert_nothing_left(slurm, NODE)
