# SPDX-License-Identifier: Apache-2.0
"""A job on two trays loses one: when and where Slurm starts it again, and who gets the other tray meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hard.test_profiles import VERSIONS, configured
from tests.slurm.harness import Slurm, until
from tests.slurm.nodes import nodes_of
from tests.slurm.test_blocks import CONF, RESTART
from tests.slurm.test_retry import lost

TURN_ON = f"""
printf '{CONF}' > /etc/slurm/topology.conf
echo TopologyPlugin=topology/block >> /etc/slurm/slurm.conf
scontrol --version | grep -q ' 24' || echo SlurmctldParameters=enable_expedited_requeue >> /etc/slurm/slurm.conf
{RESTART}"""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=VERSIONS)
def module(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from configured(str(request.param), "base", TURN_ON)


@pytest.fixture
def blocks(module: Slurm) -> Iterator[Slurm]:
    yield module
    module.clear()
    module.settle()


def two_jobs(slurm: Slurm, requeue: str, *asked: str) -> tuple[int, int]:
    """A job on n1 and n2 while the others are in use, and a job behind it."""
    others = slurm.submit("-p", "plain", "-N2", "-w", "n[3-4]", "--exclusive", body="sleep 300")
    slurm.wait_state(others, {"RUNNING"})
    job = slurm.submit("-N2", "--gpus-per-node=8", requeue, *asked, body="sleep 300")
    slurm.wait_state(job, {"RUNNING"})
    assert slurm.show(job)["NodeList"] == "n[1-2]"
    behind = slurm.submit("-N1", "--gpus-per-node=8", body="sleep 300")
    slurm.passes()
    assert slurm.state(behind) == "PENDING"
    return job, behind


def back(slurm: Slurm) -> None:
    nodes_of(slurm)["n2"].bash("svc slurmd resume")
    slurm.target.run(["scontrol", "update", "NodeName=n2", "State=RESUME"], user="root", check=False)
    slurm.passes()


def is_requeued(slurm: Slurm, job: int) -> None:
    until("the job to be requeued", lambda: slurm.show(job)["JobState"] in {"PENDING", "EXPEDITING"} or None, 60)


def test_a_job_that_may_begin_two_minutes_later_keeps_its_tray_until_then(blocks: Slurm) -> None:
    job, behind = two_jobs(blocks, "--requeue")

    with lost(blocks, "n2"):
        is_requeued(blocks, job)
        blocks.passes(4)
        assert blocks.state(behind) == "PENDING"
        back(blocks)
        assert {blocks.state(job), blocks.state(behind)} == {"PENDING"}
        blocks.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")

        blocks.wait_state(job, {"RUNNING"})
        assert blocks.show(job)["NodeList"] == "n[1-2]"
        assert blocks.state(behind) == "PENDING"


def test_an_expedited_job_keeps_its_tray_though_berthd_begins_anew_until_the_other_is_back(blocks: Slurm) -> None:
    if blocks.version < (25, 11):
        pytest.skip("Slurm expedites requeued jobs from 25.11 on")
    job, behind = two_jobs(blocks, "--requeue=expedite")

    with lost(blocks, "n2"):
        is_requeued(blocks, job)
        blocks.berthd("stop")
        blocks.berthd("start")
        blocks.passes(4)
        assert blocks.state(behind) == "PENDING"
        back(blocks)

        blocks.wait_state(job, {"RUNNING"})
        assert blocks.show(job)["NodeList"] == "n[1-2]"
        assert blocks.state(behind) == "PENDING"


def test_a_job_in_segments_has_only_what_slurm_keeps(blocks: Slurm) -> None:
    job, behind = two_jobs(blocks, "--requeue", "--group=8")

    with lost(blocks, "n2"):
        is_requeued(blocks, job)
        blocks.wait_state(behind, {"RUNNING"})
        assert blocks.show(behind)["NodeList"] == "n1"
