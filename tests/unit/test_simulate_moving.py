"""berthd's own moving of running jobs, played beside the simulated slurmctld."""

import pytest

from policy.placement.berth import BerthPolicy
from policy.settings import Moving, Settings
from policy.simulate.jobs import Job
from policy.simulate.pinned import PinnedSettings, Submission, run
from policy.simulate.result import Outcome
from policy.simulate.world import Layout, build

RULES = Moving(enabled=True, grace=30, restart=30, after=60)


def play(movable: float | None, rules: Moving = RULES) -> Outcome:
    """Two nodes of four GPUs: at 400 a job of one GPU is on one of them, and one of three on the other."""
    jobs = [
        Submission(Job("filler", 4, 0, 100, limit=120)),
        Submission(Job("first", 1, 1, 5_000, limit=10_000), movable=movable),
        Submission(Job("mate", 3, 2, 298, limit=300, nodes=1)),
        Submission(Job("second", 3, 200, 9_000, limit=10_000, nodes=1)),
        Submission(Job("gang", 4, 400, 600, limit=1_000, nodes=1)),
    ]
    return run(jobs, build(Layout(2, 4)), BerthPolicy(), PinnedSettings(site=Settings(moving=rules)))


def test_a_movable_job_makes_room_and_goes_on_where_it_was() -> None:
    moved = play(100.0)
    runs = [one for one in moved.stretches if one.job == "first"]

    assert moved.moves == 1
    assert 490 <= moved.starts["gang"] <= 650
    assert [one.gpus[0] // 4 for one in runs] in ([0, 1], [1, 0])
    # All its work, what the move costs it, and nothing else; it is run again at once.
    assert sum(one.end - one.start for one in runs) == pytest.approx(5_000 + 100, abs=1)
    assert runs[1].start - runs[0].end < 10


def test_nobody_moves_who_did_not_say_so() -> None:
    assert play(None).moves == 0
    assert play(None).starts["gang"] > 5_000
    assert play(100.0, Moving()).moves == 0


def test_no_gpu_serves_two_while_jobs_move() -> None:
    held = sorted((one.start, one.end, gpu) for one in play(100.0).stretches for gpu in one.gpus)
    for start, end, gpu in held:
        others = [other for other in held if other[2] == gpu and other != (start, end, gpu)]
        assert all(other[1] <= start or other[0] >= end for other in others)
