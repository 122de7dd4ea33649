# SPDX-License-Identifier: Apache-2.0
"""Plays a trace in a simulated Slurm with rules of its own."""

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.cluster.fleet import Fleet
    from policy.placement.base import Policy
    from policy.simulate.jobs import TraceJob
    from policy.simulate.result import SimulationOutcome
    from policy.simulate.slurm.settings import SlurmSettings
    from policy.simulate.slurm.world import SlurmWorld


def play(
    kind: "type[SlurmWorld]", jobs: "Sequence[TraceJob]", fleet: "Fleet", policy: "Policy", settings: "SlurmSettings"
) -> "SimulationOutcome":
    """Plays a trace in this kind of world, as `policy.simulate.play` does in the usual one."""
    began = perf_counter()
    world = kind(jobs, fleet, policy, settings)
    world.play()
    return world.outcome(policy.name, began)
