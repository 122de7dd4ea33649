"""Places that were given to jobs which Slurm has not shown yet, where this machine's clock is set meanwhile."""

from __future__ import annotations

from policy.daemon.answer.held_places import HeldPlaces
from policy.plan.claims import Claim
from tests.unit.policy_world import NOW

NOBODY: frozenset[str] = frozenset()
PLACE = Claim((0,), 0b1, 1, 100, NOW, NOW + 600)
SECONDS = 10.0


def test_a_place_given_after_the_clock_was_set_back_is_kept() -> None:
    held = HeldPlaces(SECONDS)
    held.look(NOBODY, NOW, NOW)

    held.keep("a", "1000", PLACE, NOW - 60)
    # It was read before the clock was set, and comes after it.
    held.look(NOBODY, NOW + 1, NOW - 59)

    assert list(held) == ["a"]


def test_and_no_longer_than_any_other() -> None:
    held = HeldPlaces(SECONDS)
    held.keep("a", "1000", PLACE, NOW)
    held.look(NOBODY, NOW, NOW)
    held.look(NOBODY, NOW - 60, NOW - 60)
    held.keep("b", "1000", PLACE, NOW - 59)
    assert list(held) == ["a", "b"]

    held.look(NOBODY, NOW - 60 + SECONDS + 0.5, NOW - 60 + SECONDS + 0.5)
    assert list(held) == ["b"]
    held.look(NOBODY, NOW - 59 + SECONDS + 0.5, NOW - 59 + SECONDS + 0.5)
    assert list(held) == []
