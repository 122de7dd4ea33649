# SPDX-License-Identifier: Apache-2.0
"""A job on two trays loses one: when Slurm starts it again, and who gets the other tray meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hard.test_profiles import VERSIONS, configured
from tests.slurm.harness import Slurm
from tests.slurm.test_blocks import CONF, RESTART

TURN_ON = f"""
printf '{CONF}' > /etc/slurm/topology.conf
echo TopologyPlugin=topology/block >> /etc/slurm/slurm.conf
{RESTART}"""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]


@pytest.fixture(params=VERSIONS)
def blocks(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from configured(str(request.param), "base", TURN_ON)


def test_a_job_that_lost_a_tray_waits_and_one_behind_it_gets_its_other_tray(blocks: Slurm) -> None:
    job = blocks.submit("-N2", "--gpus-per-node=8", "--requeue", body="sleep 300")
    blocks.wait_state(job, {"RUNNING"})
    assert blocks.show(job)["NodeList"] == "n[1-2]"
    others = blocks.submit("-p", "plain", "-N2", "-w", "n[3-4]", "--exclusive", body="sleep 300")
    blocks.wait_state(others, {"RUNNING"})
    behind = blocks.submit("-N1", "--gpus-per-node=8", body="sleep 300")
    blocks.passes()
    assert blocks.state(behind) == "PENDING"

    blocks.target.run(["scontrol", "update", "NodeName=n2", "State=down", "Reason=test"], user="root")

    blocks.wait_state(behind, {"RUNNING"})
    shown = blocks.show(job)
    assert (blocks.show(behind)["NodeList"], shown["JobState"], shown["Reason"]) == ("n1", "PENDING", "BeginTime")
