# SPDX-License-Identifier: Apache-2.0
"""Moving running jobs in the simulation of Slurm's scheduling."""

import numpy as np
import pytest

from policy.placement.berth import BerthPolicy
from policy.request.settings import RelocationRules, Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.result import SimulationOutcome
from policy.simulate.world import Layout, build
from tests.bench.paper import worlds
from tests.bench.paper.moved import MovingSettings, MovingWorld

RULES = RelocationRules(enabled=True, grace=30, restart=30, after=60)

# Two nodes of four GPUs. At 400 one job of one GPU is on one of them, and one of three on the other.
JOBS = [
    TraceJob("filler", 4, 0, 100, limit=100),
    TraceJob("first", 1, 1, 5_000, limit=10_000),
    TraceJob("mate", 3, 2, 298, limit=298, nodes=1),
    TraceJob("second", 3, 200, 9_000, limit=10_000, nodes=1),
    TraceJob("gang", 4, 400, 600, limit=1_000, nodes=1),
]


def play(moving: RelocationRules, movable: dict[str, float]) -> SimulationOutcome:
    settings = MovingSettings(pinned=True, site=Settings(moving=moving), movable=movable)
    return worlds.play(MovingWorld, JOBS, build(Layout(2, 4)), BerthPolicy(), settings)


def test_a_movable_job_makes_room_for_a_gang_and_pays_what_it_said() -> None:
    moved = play(RULES, {"first": 100.0})

    assert moved.extra["moved"] == 1
    assert 460 <= moved.starts["gang"] <= 600
    # Its COST and the restart; nothing of what it had done is lost.
    assert moved.ends["first"] == pytest.approx(1 + 5_000 + 100 + 30)
    # The gang's GPUs stood idle until the other had left.
    assert moved.ends["gang"] == pytest.approx(moved.starts["gang"] + 600 + 60)
    assert [one.gpus[0] // 4 for one in moved.stretches if one.job == "first"] in ([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("rules", "movable"),
    [
        (RULES, {}),
        (RULES, {"first": 50_000.0}),
    ],
)
def test_nobody_moves_who_did_not_say_so_or_is_too_dear(rules: RelocationRules, movable: dict[str, float]) -> None:
    stayed = play(rules, movable)
    assert stayed.extra.get("moved", 0) == 0
    assert stayed.starts["gang"] == pytest.approx(5_001)


@pytest.mark.parametrize(("usual", "moves"), [(2_900.0, 0), (9_000.0, 1)])
@pytest.mark.parametrize("limit", [None, 90_000.0])
def test_a_job_leaves_a_slow_gpu_if_jobs_like_it_run_for_long_whatever_its_limit(
    usual: float, moves: int, limit: float | None
) -> None:
    before = [TraceJob(f"before-{n}", 1, n * 30_000, usual, limit=limit, user="ann", name="train") for n in range(12)]
    at = 400_000.0
    there = TraceJob("there", 1, at - 10, 3_000, limit=limit, user="bob", name="short")
    suffers = TraceJob("suffers", 1, at, usual, limit=limit, user="ann", name="train")
    on = build(Layout(2, 1), {"compute": np.array([[1.3], [1.0]])})
    settings = MovingSettings(pinned=True, site=Settings(moving=RULES), movable={"suffers": 100.0})

    played = worlds.play(MovingWorld, [*before, there, suffers], on, BerthPolicy(), settings)

    assert played.extra["moved"] == moves
    assert played.ends["suffers"] < at + (10_000 if moves else 3_780)
