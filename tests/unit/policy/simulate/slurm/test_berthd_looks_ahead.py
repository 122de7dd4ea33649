# SPDX-License-Identifier: Apache-2.0
"""berthd with `look_ahead` beside a simulated Slurm that starts a pinned job by itself as soon as its GPUs are free."""

import pytest

from policy.placement.berth import BerthPolicy
from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.world import Layout, build

FLEET = build(Layout(nodes=3, gpus_per_node=8))
JOBS = [
    TraceJob("first", gpus=16, nodes=2, submit=0, work=100, limit=300),
    TraceJob("other", gpus=8, submit=1, work=10_000, limit=20_000),
    TraceJob("long", gpus=1, submit=10, work=5_000, limit=72_000),
    TraceJob("gang", gpus=16, nodes=2, submit=20, work=20, limit=60),
]
"""The long job is pinned to a node of the first one. The gang behind it needs both, and is soon done."""


def played(delays: Delays | None, *, look_ahead: bool = True) -> SimulationOutcome:
    site = Settings(look_ahead=look_ahead)
    return run(JOBS, FLEET, BerthPolicy(), SlurmSettings(berthd=True, site=site, delays=delays))


@pytest.mark.parametrize("delays", [None, Delays(), Delays(epilog=0.0)], ids=["instant", "timed", "no rest of Epilog"])
def test_a_job_whose_gpus_come_free_is_moved_before_slurm_starts_it(delays: Delays | None) -> None:
    outcome = played(delays)
    assert outcome.ends["first"] <= outcome.starts["gang"] < outcome.ends["first"] + 2
    assert outcome.starts["long"] > outcome.starts["gang"]


def test_without_it_the_job_starts() -> None:
    outcome = played(Delays(), look_ahead=False)
    assert outcome.ends["first"] <= outcome.starts["long"] < outcome.starts["gang"]
