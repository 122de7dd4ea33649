# SPDX-License-Identifier: Apache-2.0
"""A cluster in the middle of an upgrade of Slurm: slurmctld is of 26.05, the slurmds of two nodes are of 24.11.

Batch jobs only: Slurm's own srun 26.05 cannot start tasks on a node of 24.11, with Berth or without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.cluster import Cluster
from tests.slurm.conftest import cluster
from tests.slurm.target import Container
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
NEW, OLD = "26.05", "24.11"
MIXED = {"n1": NEW, "n2": OLD, "n3": OLD, "n4": NEW}
FILES = ("best_set", "given", "guests", "notice", "packed", "retry", "shares")
"""Tests of tests/slurm: GPUs that tasks open, Prolog and Epilog, shares, guests, retries, words of nodes to berthd."""

pytestmark = [pytest.mark.hard, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def controller() -> Iterator[Container]:
    """Returns the controller of the mixed cluster."""
    one = Cluster(NEW, berth=True)
    try:
        cluster("build", "--slurm", OLD)
        cluster("up", "--slurm", NEW)
        for node in (node for node, release in MIXED.items() if release == OLD):
            replace(f"{one.project}-{node}", Cluster(OLD, berth=True).image)
        made = Container(f"{one.project}-ctl")
        until("nodes of both releases", lambda: releases(made) == MIXED)
        until("idle nodes", lambda: made.run(["sinfo", "-h", "-p", "gpu", "-o", "%D %T"]).out.strip() == "4 idle")
        yield made
    finally:
        cluster("down", "--slurm", NEW)


def replace(name: str, image: str) -> None:
    """Starts a node's container anew from another image, with all else as it was."""
    found = json.loads(subprocess.run(["docker", "inspect", name], check=True, capture_output=True).stdout)[0]
    host, config = found["HostConfig"], found["Config"]
    words = ["--name", name, "--hostname", config["Hostname"], "--network-alias", config["Hostname"]]
    words += [f"--network={host['NetworkMode']}"]
    words += [f"--cap-add={one}" for one in host["CapAdd"]]
    words += [f"--security-opt={one}" for one in host["SecurityOpt"]]
    words += [f"--device-cgroup-rule={one}" for one in host["DeviceCgroupRules"]]
    words += [f"--env={one}" for one in config["Env"]]
    words += [f"--label={key}={value}" for key, value in config["Labels"].items()]
    words += [f"--volume={one['Name']}:{one['Destination']}:nocopy" for one in found["Mounts"]]
    subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)
    subprocess.run(["docker", "run", "--detach", *words, image, *config["Cmd"]], check=True, capture_output=True)


def releases(controller: Container) -> dict[str, str]:
    """Returns the release of each node's slurmd."""
    lines = controller.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %v"]).out.split("\n")
    return {node: version[:5] for node, version in (line.split() for line in lines if line)}


def test_nodes_of_both_releases_serve_the_same_jobs(controller: Container) -> None:
    assert releases(controller) == MIXED
    files = [f"tests/slurm/test_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not hard", *files]
    environment = {**os.environ, "BERTH_TEST_SLURM": controller.name}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-20_000:]
    assert releases(controller) == MIXED


def test_doctor_finds_nothing_wrong(controller: Container) -> None:
    answer = controller.run(["berth", "doctor"], user="root", check=False)

    assert [line for line in answer.out.splitlines() if line.startswith("FAIL") and "fabric" not in line] == []
