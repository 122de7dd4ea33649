# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from policy.sharing import predictor
from policy.sharing.matching import Guests, Seats
from tests.bench.sharing_day import Guard, beside, run
from tests.bench.sharing_rules import Known, oracle, rules
from tests.bench.sharing_world import MINUTES, Contention, Hosts, Jobs

HEAVY = Contention(np.array([1.0, 0.5, 0.5, 0.5, 0.3]))
FREE = Contention(np.zeros(5))
KINDS = np.array([predictor.profile(0.9, 0.6, 4_000), predictor.profile(0.1, 0.02, 2_000)])


def world(busy: float, count: int = 6, jobs: int = 20) -> tuple[Hosts, Jobs]:
    fleet = Hosts(np.full((count, MINUTES), busy), np.full(count, 8.0), np.arange(count))
    return fleet, Jobs(np.arange(jobs) * 3, np.full(jobs, 30.0), np.arange(jobs) % 2, KINDS)


def test_the_guard_keeps_its_bound_but_for_its_reaction() -> None:
    guard = Guard(bound=0.05, reaction_s=0.0)
    busy, guests = np.linspace(0, 1, 50), np.repeat(KINDS[:1], 50, axis=0)

    now = beside(HEAVY, guard, busy, guests, np.ones(50), np.ones(50))
    late = beside(HEAVY, Guard(reaction_s=6.0), busy, guests, np.ones(50), np.ones(50))

    assert (1 / (1 - now.lost) - 1 <= 0.05 + 1e-6).all()
    assert (late.lost >= now.lost - 1e-12).all()
    assert late.lost.max() > now.lost.max()


def test_jobs_that_disturb_nobody_do_all_their_work() -> None:
    fleet, queue = world(0.0)

    day = run(fleet, queue, FREE, Guard(reached_unharmed=1.0), "least_loaded", seed=1)

    assert day.done == len(queue.work)
    assert np.isclose(day.work, queue.work.sum())
    assert np.isclose(day.memory, 8 / 24 + (queue.memory[queue.kind] * 30).sum() / 6 / 24 / MINUTES)


def test_a_busy_host_takes_no_guest() -> None:
    fleet, queue = world(0.9)

    assert run(fleet, queue, FREE, Guard(), "least_loaded", seed=1).work == 0


@pytest.mark.parametrize("rule", rules(Known(np.array([0.0, 1.0]), KINDS, 1), 1))
def test_no_rule_gives_a_seat_twice_or_memory_that_the_host_needs(rule: str) -> None:
    seats = Seats.of([0, 1, 0], [8.0, 8.0, 2.0])
    guests = Guests.of([0, 1, 0], [4.0, 2.0, 4.0], [0.0, 1.0, 2.0])

    seat = rules(Known(np.array([0.0, 0.5]), KINDS, 1), 1)[rule](
        0, seats, guests, lambda places, kinds: np.ones((len(places), len(kinds)))
    )

    taken = seat[seat >= 0].tolist()
    assert sorted(taken) == sorted(set(taken))
    assert all(guests.memory[guest] <= seats.memory[place] for guest, place in enumerate(seat) if place >= 0)


def test_the_oracle_knows_which_pair_is_slow() -> None:
    seats, guests = Seats.of([0, 0], [8.0, 8.0]), Guests.of([0, 1], [4.0, 4.0], [0.0, 0.0])
    truth = np.array([[0.9, 0.2], [0.3, 0.1]])

    assert oracle(0, seats, guests, lambda places, kinds: truth[np.ix_(places, kinds)]).tolist() == [0, 1]


def test_a_pair_that_was_held_hard_is_remembered_and_comes_last() -> None:
    known = Known(np.array([0.0, 0.5]), KINDS, owners=2)
    known.note(np.array([1]), np.array([0]), np.array([0.1]))
    seats, guests = Seats.of([1, 3], [8.0, 8.0]), Guests.of([0], [4.0], [0.0])

    for rule in ("all", "without_matching", "without_predictor"):
        seat = rules(known, 1)[rule](0, seats, guests, lambda places, kinds: np.ones((len(places), len(kinds))))
        assert seat.tolist() == [1], "beside the other owner, which is as busy"


@pytest.mark.slow
def test_the_guard_keeps_its_bound_by_each_rule() -> None:
    fleet, queue = world(0.5)

    for rule in rules(Known(np.array([0.0]), KINDS, 1), 1):
        assert run(fleet, queue, HEAVY, Guard(), rule, seed=1).slowdown[0] < 0.06
