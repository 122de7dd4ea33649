# SPDX-License-Identifier: Apache-2.0
"""The larger test clusters: 64 nodes, and one with a database. Too long for every run: `make test-hard`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import PREFIX
from policy.formats import segment
from tests.slurm.harness import Slurm, until
from tests.slurm.target import Container

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]


def started(version: str, profile: str) -> Iterator[Slurm]:
    subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version, "--profile", profile], check=True)
    try:
        yield Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


def configured(version: str, profile: str, turn_on: str) -> Iterator[Slurm]:
    """Starts a cluster, on which root runs `turn_on` before its first job."""
    for slurm in started(version, profile):
        slurm.target.bash(turn_on, user="root")
        slurm.clear()
        slurm.passes()
        yield slurm


@pytest.fixture(params=VERSIONS)
def scale(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from started(str(request.param), "scale")


@pytest.fixture(params=VERSIONS)
def accounting(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from started(str(request.param), "accounting")


def test_a_burst_on_64_nodes_is_placed_without_one_gpu_given_twice(scale: Slurm) -> None:
    script = """
    for i in $(seq 64); do
        sbatch --parsable --gpus=4 -t 5 --mem=50 -o /dev/null --wrap 'sleep 20'
    done
    """
    jobs = [int(word) for word in scale.target.bash(script, timeout=300).out.split()]
    places = [segment.fields(scale.comment(job)) or {} for job in jobs]

    taken = [(place["nodes"], gpu) for place in places for gpu in place["gpus"].split(",")]
    assert {place["state"] for place in places} == {"placed"}
    assert len(set(taken)) == len(taken) == 256
    running = ["squeue", "-h", "-t", "running"]
    until("all 64 jobs to run", lambda: len(scale.target.run(running).out.split("\n")) > 64 or None, 60)


def test_multi_node_jobs_get_one_set_on_every_node(scale: Slurm) -> None:
    job = scale.submit("-N4", "--gpus-per-node=4", "-C", "v100", body="srun -n4 -N4 bash -c 'echo $SLURMD_NODENAME'")

    place = segment.fields(scale.comment(job)) or {}
    assert (place["n"], place["k"]) == ("4", "4")
    assert len(set(place["nodes"].split(","))) == 4
    assert float(place["gbps"]) > 0
    assert len(set(scale.finish(job).split())) == 4


def test_the_database_counts_berths_gpus_as_gpus(accounting: Slurm) -> None:
    job = accounting.submit("--gpus=2", "-C", "h100")
    accounting.finish(job)

    words = ["sacct", "-n", "-P", "-X", "-j", str(job), "-o", "AllocTRES"]
    tres = until("the job in sacct", lambda: accounting.target.run(words, user="root").out.strip() or None)
    assert "gres/gpu=2" in tres
    assert "gres/seat=2" in tres


def test_every_machine_is_known_on_64_nodes(scale: Slurm) -> None:
    text = scale.target.run(["berth", "topo", "show", "n1", "n64", "--json"], user="root").out

    shown = json.loads(text)
    assert len(json.dumps(shown)) > 100
    assert len(scale.machines) == 64
