# SPDX-License-Identifier: Apache-2.0
"""Shares, guests and churn on the cluster with NVIDIA's own control program of MPS in place of the simulated one.

A stub stands for the server, which alone needs a GPU. Debian's packages are fetched at the first run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path

import pytest

from tests.all import ROOT
from tests.real.control_program import STUB
from tests.real.packages import DEBIANS, unpacked
from tests.slurm.nodes import NAMES
from tests.slurm.target import Container

CLUSTER = ROOT / "containers" / "cluster.py"
PREFIX = os.environ.get("BERTH_CLUSTER_PREFIX") or "berth"
VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
PAIRS = list(product(VERSIONS, DEBIANS) if os.environ.get("BERTH_FULL_MATRIX") else zip(VERSIONS, cycle(DEBIANS)))
"""Each version of Slurm with one driver, or with each."""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(5_400)]

TESTS = ("tests/slurm/test_shares.py", "tests/slurm/test_guests.py")
NOT_WITH_IT = {
    "two_users_of_a_site_that_opted_in": "drivers 535 and 550 have no server for several users",
}
"""Tests that need what these control programs do not have, by a part of their names."""


_MEND = """
chmod 755 /etc/berth-fake
for i in nvidia-cuda-mps-control nvidia-cuda-mps-server; do
    [ ! -e /root/$i.before ] || mv -f /root/$i.before /usr/bin/$i
done
"""


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def controller(request: pytest.FixtureRequest) -> Iterator[str]:
    """The controller of a cluster whose nodes have a driver's control program, with the stub beside it."""
    version, driver = request.param
    found = unpacked(driver)
    if isinstance(found, str):
        pytest.skip(f"NVIDIA's {driver} cannot be had: {found}")
    name = f"{PREFIX}{version.replace('.', '')}"
    # A cluster that is up stays up.
    up = subprocess.run(["docker", "inspect", f"{name}-ctl"], capture_output=True, check=False).returncode == 0
    if not up:
        subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version], check=True)
    programs = {"nvidia-cuda-mps-control": found / "usr/bin/nvidia-cuda-mps-control", STUB.name: STUB}
    nodes = [f"{name}-{node}" for node in NAMES]
    try:
        for node in nodes:
            _install(node, programs)
        yield f"{name}-ctl"
    finally:
        for node in nodes:
            Container(node).bash(_MEND, user="root")
        if not up:
            subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


def _install(node: str, programs: dict[str, Path]) -> None:
    target = Container(node)
    for name, source in programs.items():
        target.bash(f"[ -e /root/{name}.before ] || mv /usr/bin/{name} /root/{name}.before", user="root")
        subprocess.run(["docker", "cp", "-q", "-L", str(source), f"{node}:/usr/bin/{name}"], check=True)
        target.bash(f"chown root: /usr/bin/{name} && chmod 755 /usr/bin/{name}", user="root")
    # Programs tell NVML of themselves: the daemon, which is root's, does not know them.
    target.bash(
        "cd /etc/berth-fake && touch machine.lock machine.live && chmod 666 machine.l* && chmod 777 .", user="root"
    )


def _run(controller: str, *words: str) -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-ra", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"BERTH_TEST_SLURM": controller}, check=False)
    assert done.returncode == 0


def test_the_nodes_have_it(controller: str) -> None:
    words = ["srun", "-w", "n1", "-n1", "--gpu-share=30", "fake-cuda-app", "alloc=64"]
    shown = Container(controller).run(words).out
    assert '"mps": true' in shown
    assert '"percent": 30.0' in shown
    node = Container(controller.removesuffix("ctl") + "n1")
    assert node.bash("head -c 4 /usr/bin/nvidia-cuda-mps-control", user="root").out.endswith("ELF")


def test_shares_and_guests(controller: str) -> None:
    _run(controller, *TESTS, "-k", " and ".join(f"not {name}" for name in NOT_WITH_IT))


def test_churn(controller: str) -> None:
    _run(controller, "tests/hard/test_churn.py", "-s")
