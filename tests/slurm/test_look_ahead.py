# SPDX-License-Identifier: Apache-2.0
"""Letting others go first, where Slurm starts a pinned job by itself as soon as its GPUs are free."""

from __future__ import annotations

import pytest

from .harness import Slurm
from .test_planner import SLEEP, berth_conf, segment_of

pytestmark = pytest.mark.any_slurm

LONG = str(20 * 60)
"""Minutes: a job without any history is expected to run for 0.3 of its limit."""


def holder(slurm: Slurm, node: str, minutes: int) -> int:
    job = slurm.submit("--gpus=8", "-w", node, "-t", str(minutes), body=SLEEP)
    slurm.wait_state(job, {"RUNNING"})
    return job


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_job_whose_gpus_come_free_lets_a_short_gang_go_first(slurm: Slurm, looks_ahead: bool) -> None:
    """The long job is first in line, pinned to n1. The gang behind it needs n1 too, and is short."""
    with berth_conf(slurm, f"look_ahead = {str(looks_ahead).lower()}"):
        first = holder(slurm, "n1", 5)
        holder(slurm, "n3", 30)
        slurm.settle()
        long = slurm.submit("--gpus=1", "-x", "n2,n4", "-t", LONG, body=SLEEP)
        gang = slurm.submit("-N2", "--gpus-per-node=8", "-x", "n3,n4", "-t", "1", body="sleep 1")
        slurm.passes()
        assert segment_of(slurm, long)["nodes"] == "n1"

        slurm.target.run(["scancel", str(first)], user="root")
        if looks_ahead:
            slurm.finish(gang)
        slurm.wait_state(long, {"RUNNING"})
        assert slurm.state(gang) == ("COMPLETED" if looks_ahead else "PENDING")
        told = slurm.target.bash("svc berthd log", user="root").out.splitlines()
        moves = [line for line in told if f"JobId={long} " in line and "it lets others go first" in line]
        assert ["NodeList=n3" in line for line in moves] == [True] * looks_ahead
        slurm.clear()
