# SPDX-License-Identifier: Apache-2.0
"""Reservations of GPUs, as a number and by type: what they take is kept, and no more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from containers.cluster import PREFIX

from .conftest import OWN, cluster
from .harness import Slurm, until
from .target import Container
from .test_reservations import SLEEP, nodes_of, reserved, running

VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A cluster whose accounting counts GPUs: only such a Slurm reserves them."""
    if OWN:
        pytest.skip("the machine's own Slurm may not count GPUs")
    version = str(request.param)
    cluster("up", "--slurm", version, "--profile", "accounting")
    try:
        yield Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
    finally:
        if not os.environ.get("BERTH_TEST_KEEP"):
            cluster("down", "--slurm", version)


def test_counted_gpus_are_kept_and_the_others_are_given(slurm: Slurm) -> None:
    with reserved(slurm, "Users=bob", "TresPerNode=gres/gpu=4", "Nodes=n2", "Flags=ignore_jobs"):
        wide = slurm.submit("-w", "n2", "--gres=gpu:8", body=SLEEP)
        jobs = [slurm.submit("-w", "n2", "--gres=gpu:1", body=SLEEP) for _ in range(6)]
        until("four to run", lambda: running(slurm, jobs) == 4 or None)
        inside = slurm.submit("--reservation=r", "-w", "n2", "--gpus=4", body=SLEEP, user="bob")
        assert nodes_of(slurm, inside) == "n2"
        slurm.passes()
        assert running(slurm, jobs) == 4
        assert slurm.state(wide) == "PENDING"


def test_gpus_reserved_by_type_are_kept_and_the_others_are_given(slurm: Slurm) -> None:
    types = ",".join(f"gres/gpu:g{gpu}:1" for gpu in range(4))
    with reserved(slurm, "Users=bob", f"TresPerNode={types}", "Nodes=n2", "Flags=ignore_jobs"):
        jobs = [slurm.submit("-w", "n2", "--gres=gpu:1", body=SLEEP) for _ in range(6)]
        until("four to run", lambda: running(slurm, jobs) == 4 or None)
        slurm.passes()
        [used] = re.findall(r"GresUsed=(\S+)", slurm.target.run(["scontrol", "show", "node", "n2", "-d"]).out)
        held = re.findall(r"gpu:g(\d):1\(", used)
        assert sorted(set(held)) == ["4", "5", "6", "7"]
