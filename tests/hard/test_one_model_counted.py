# SPDX-License-Identifier: Apache-2.0
"""Where all nodes are of one model that the site counts, a job starts on several nodes with its licences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from containers.cluster import PREFIX
from tests.slurm.harness import Slurm, until
from tests.slurm.target import Container
from tests.slurm.test_spreading import cancel, leave, take

from .test_models_counted import CLUSTER, RESTART, VERSIONS

pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]

ONE_MODEL = r"""
sed -i -E 's/^(NodeName=n[0-9] Feature=\w+)/\1,hall/; s/^(Licenses=.*)/\1,berth_hall:32/' /etc/slurm/slurm.conf
"""


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    version = str(request.param)
    try:
        subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version], check=True)
        site = Slurm(version, Container(f"{PREFIX}{version.replace('.', '')}-ctl"))
        site.target.bash(ONE_MODEL + RESTART, user="root")
        site.target.bash("svc berthd restart", user="root")
        until("the model", lambda: "hall" in site.target.run(["sinfo", "-h", "-o", "%f"]).out or None)
        site.clear()
        yield site
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version], check=True)


@pytest.mark.parametrize("options", ["--gpus=4", "--gpus=4 -n4", "--gpus-per-task=1 -n4", "--gpus=4 -N2"])
def test_it_holds_as_many_licences_as_gpus(slurm: Slurm, options: str) -> None:
    slurm.clear()
    leave(slurm, 3, 1, 0, 0)
    job = slurm.submit(*options.split(), body="exec sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    assert (slurm.show(job)["NumNodes"], slurm.show(job)["Licenses"]) == ("2", "berth_hall:4")
    cancel(slurm, job)

    last = take(slurm, 4)
    waits = slurm.submit(*options.split(), body="exec sleep 300")
    assert (slurm.state(waits), slurm.show(waits)["Licenses"]) == ("PENDING", "berth_hall:4")
    cancel(slurm, last)

    slurm.wait_state(waits, {"RUNNING"})
    assert (slurm.show(waits)["NumNodes"], slurm.show(waits)["Licenses"]) == ("2", "berth_hall:4")
