from __future__ import annotations

import numpy as np
import pytest

from policy.sharing import predictor
from tests.bench.sharing_day import Guard, LeastLoaded, Matched, beside, run
from tests.bench.sharing_world import MINUTES, Contention, Hosts, Jobs

HEAVY = Contention(np.array([1.0, 0.5, 0.5, 0.5, 0.3]))
FREE = Contention(np.zeros(5))
KINDS = np.array([predictor.profile(0.9, 0.6, 4_000), predictor.profile(0.1, 0.02, 2_000)])


def world(busy: float, count: int = 6, jobs: int = 20) -> tuple[Hosts, Jobs]:
    fleet = Hosts(np.full((count, MINUTES), busy), np.full(count, 8.0))
    return fleet, Jobs(np.arange(jobs) * 3, np.full(jobs, 30.0), np.arange(jobs) % 2, KINDS)


def test_the_guard_keeps_its_bound_but_for_its_reaction() -> None:
    guard = Guard(bound=0.05, reaction_s=0.0)
    busy, guests = np.linspace(0, 1, 50), np.repeat(KINDS[:1], 50, axis=0)

    now = beside(HEAVY, guard, busy, guests, np.ones(50), np.ones(50))
    late = beside(HEAVY, Guard(reaction_s=6.0), busy, guests, np.ones(50), np.ones(50))

    assert (1 / (1 - now.lost) - 1 <= 0.05 + 1e-6).all()
    assert (late.lost >= now.lost - 1e-12).all()
    assert late.lost.max() > now.lost.max()


@pytest.mark.slow
def test_without_a_guard_hosts_suffer_more_and_guests_less() -> None:
    fleet, queue = world(0.5)

    guarded = run(fleet, queue, HEAVY, Guard(), Matched(KINDS, Guard()), seed=1)
    free = run(fleet, queue, HEAVY, None, LeastLoaded(), seed=1)

    assert guarded.slowdown[0] < 0.06 < free.slowdown[0]


def test_jobs_that_disturb_nobody_do_all_their_work() -> None:
    fleet, queue = world(0.0)

    day = run(fleet, queue, FREE, None, LeastLoaded(), seed=1)

    assert day.done == len(queue.work)
    assert np.isclose(day.work, queue.work.sum())
    assert np.isclose(day.memory, 8 / 24 + (queue.memory[queue.kind] * 30).sum() / 6 / 24 / MINUTES)


def test_a_busy_host_takes_no_guest() -> None:
    fleet, queue = world(0.9)

    assert run(fleet, queue, FREE, None, LeastLoaded(), seed=1).work == 0
