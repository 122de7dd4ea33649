# SPDX-License-Identifier: Apache-2.0
"""Jobs that let others go first in the simulated queue: they do so where it helps, and every job still ends."""

from random import Random

import pytest

from policy.placement.berth import BerthPolicy
from policy.simulate.jobs import TraceJob
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from policy.simulate.world import Layout, build
from tests.bench.paper import worlds
from tests.bench.paper.rolled import RolledWorld

FLEET = build(Layout(nodes=4, gpus_per_node=4, nodes_per_leaf=2))


def play(jobs: list[TraceJob], *, roll_out: bool) -> SimulationOutcome:
    world = RolledWorld if roll_out else SlurmWorld
    return worlds.play(world, jobs, FLEET, BerthPolicy(), SlurmSettings(pinned=True))


def learned() -> list[TraceJob]:
    """Jobs that ended, so that one knows: small jobs run long, gangs do not."""
    small = [TraceJob(f"small-{at}", gpus=1, submit=at, work=20_000, name="small") for at in range(4)]
    gangs = [
        TraceJob(f"gang-{gpus}-{at}", gpus=gpus, submit=21_000 + at, work=60, name="gang")
        for gpus in (12, 16)
        for at in range(4)
    ]
    return small + gangs


def test_a_long_small_job_waits_for_a_gang_that_is_nearly_there() -> None:
    jobs = [
        *learned(),
        TraceJob("blocks", gpus=12, submit=30_000, work=60, name="gang"),
        TraceJob("gang", gpus=16, submit=30_010, work=60, name="gang"),
        TraceJob("small", gpus=1, submit=30_020, work=20_000, name="small"),
    ]
    greedy, rolled = play(jobs, roll_out=False), play(jobs, roll_out=True)
    assert greedy.starts["small"] == 30_020
    assert greedy.starts["gang"] >= 50_000
    assert rolled.starts["gang"] < 30_100
    assert rolled.starts["small"] < 30_200


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limited", [False, True])
def test_every_job_ends_and_none_starts_twice(seed: int, limited: bool) -> None:
    draws, at, jobs = Random(seed), 0.0, []
    for number in range(60):
        at += draws.expovariate(1 / 60)
        work = draws.lognormvariate(5, 1.5)
        limit = 3 * work if limited else None
        jobs.append(TraceJob(str(number), gpus=draws.choice((1, 1, 2, 4, 8, 16)), submit=at, work=work, limit=limit))
    outcome = play(jobs, roll_out=True)
    assert set(outcome.ends) == {job.id for job in jobs}
    assert len(outcome.stretches) == len(jobs)
    assert all(outcome.starts[job.id] >= job.submit for job in jobs)
