# SPDX-License-Identifier: Apache-2.0
"""Plays a trace in the simulated Slurm, with the policy that chooses places plugged in.

    >>> from policy.placement.slurm_like import SlurmPolicy
    >>> from policy.simulate.jobs import TraceJob
    >>> from policy.simulate.world import Layout, build
    >>> first = TraceJob("1", gpus=8, submit=0, work=600, limit=900)
    >>> jobs = [first, TraceJob("2", gpus=4, submit=60, work=600, limit=900)]
    >>> outcome = run(jobs, build(Layout(nodes=1, gpus_per_node=8)), SlurmPolicy())
    >>> outcome.starts["2"], outcome.ends["2"]
    (600.0, 1200.0)

A placement policy chooses at the moment at which a job starts. With `berthd` each GPU job has a place from its
submission on, as on a real cluster: berthd's `decide` gives it, and berthd's `Plan` moves it, each only by what it can
know by then.

    >>> from policy.placement.berth import BerthPolicy
    >>> outcome = run(jobs, build(Layout(nodes=1, gpus_per_node=8)), BerthPolicy(), SlurmSettings(berthd=True))
    >>> outcome.starts["2"], outcome.extra["unplanned"]
    (600.0, 0)
"""

from collections.abc import Sequence
from time import perf_counter

from policy.cluster.fleet import Fleet
from policy.placement.base import Policy
from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.berthd.beside import BesideSlurm
from policy.simulate.jobs import TraceJob
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.slurm.world import SlurmWorld


def run(
    jobs: Sequence[TraceJob], fleet: Fleet, policy: Policy, settings: SlurmSettings | None = None
) -> SimulationOutcome:
    """Plays a trace; the same input gives the same outcome, but for `wall_s`."""
    began = perf_counter()
    settings = settings or SlurmSettings()
    # What berthd leaves to Slurm is placed as plain Slurm places it.
    world = SlurmWorld(jobs, fleet, SlurmPolicy() if settings.berthd else policy, settings)
    if settings.berthd:
        world.planner = BesideSlurm(world, policy)
    world.play()
    return world.outcome(policy.name, began)
