"""A plan reads the first nodes by the time at which they come free: it is that of all of them."""

from __future__ import annotations

import numpy as np
import pytest

from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.slurm.backfill import profile
from policy.simulate.slurm.settings import SlurmSettings
from policy.simulate.world import Layout, build


def trace(seed: int) -> list[TraceJob]:
    """Jobs of one node and of several, far more than the cluster holds."""
    draw = np.random.default_rng(seed)
    works = (60.0 * 10 ** draw.uniform(0.5, 2.5, 120)).tolist()
    widths = draw.choice((1, 2, 4, 8, 16, 24), 120).tolist()
    return [
        TraceJob(str(number), width, 20.0 * number, work, limit=work * (1.5 + number % 2))
        for number, (width, work) in enumerate(zip(widths, works, strict=True))
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pinned", [True, False])
def test_the_first_nodes_alone_plan_as_all_do(monkeypatch: pytest.MonkeyPatch, seed: int, pinned: bool) -> None:
    starts = []
    for first in (1, 3, 10**6):
        monkeypatch.setattr(profile, "_FIRST", first)
        outcome = run(trace(seed), build(Layout(6, 8)), SlurmPolicy(), SlurmSettings(pinned=pinned))
        starts.append(outcome.starts)

    assert starts[0] == starts[1] == starts[2]
    assert any(starts[0][job.id] > job.submit for job in trace(seed))


@pytest.mark.parametrize("least", [1, 2, 3, 4, 9])
def test_nodes_of_one_time_stand_by_number(least: int) -> None:
    ready = np.array([5.0, 1.0, 5.0, 1.0, np.inf, 5.0])

    line = profile._first_of(ready, least)

    assert line.nodes.tolist() == [1, 3, 0, 2, 5, 4][: line.nodes.size]
    assert line.nodes.size >= min(least, ready.size)
    assert line.whole == (line.nodes.size == ready.size)
