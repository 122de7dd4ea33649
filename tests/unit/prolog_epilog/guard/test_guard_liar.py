# SPDX-License-Identifier: Apache-2.0
"""A guest that says what its guard wants to hear: its gate's answers are checked against what host and device show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from prolog_epilog.guard.decide.decider import Action, Decider, Do, GuestState
from prolog_epilog.guard.measure.signals import DeviceSample, HostBeat
from prolog_epilog.node import cgroups, freezer
from prolog_epilog.settings.guard_keys import GuardSettings
from tests.bench.guard.laws.fixed import Fixed
from tests.unit.guard_world import Program, World

pytestmark = pytest.mark.slow

GUEST, HOST, OWNER = 7, 107, 108


def hard(*values: float | str) -> ParameterSet:
    """A case of simulated minutes like another that `make test` runs."""
    return pytest.param(*values, marks=pytest.mark.hard)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(cgroups, "job_of", made.job_of)
    yield made
    made.close()


# Beside a host.


@pytest.mark.parametrize(
    ("step", "harm", "within_s"),
    [
        (0.1, 0.15, 10),
        hard(0.1, 0.5, 25),
        hard(0.4, 0.15, 10),
        hard(0.4, 0.5, 25),
        hard(2.0, 0.15, 55),
        (2.0, 0.5, 45),
    ],
)
def test_a_guest_that_lies_about_its_gate_is_the_freezers_soon_and_for_good(
    world: World, step: float, harm: float, within_s: float
) -> None:
    world.harm = harm
    host = world.comes(HOST, "guaranteed", step=step)
    world.seconds(70)
    lying(world)

    assert world.seconds(within_s + 1, until=lambda: by_freezer(world)) <= within_s
    world.seconds(5)
    guest = world.programs[GUEST]
    before = guest.done
    speeds = [speed(world, host, 10.0) for _ in range(10)]

    assert min(speeds) >= 0.949
    assert sum(speeds) / 10 >= 0.95
    assert world.seat.decider.baseline.step == pytest.approx(step, rel=0.01)
    assert by_freezer(world)
    assert (guest.done - before) * 0.2 / 100.0 >= 0.8 * 0.04 / harm, "it has its share, and no more"
    (said,) = [said for said in world.said if "held by the freezer" in said]
    assert said.startswith(f"job {GUEST} ")


@pytest.mark.parametrize(("step", "within_s"), [hard(0.1, 25), (0.4, 25), hard(2.0, 95)])
def test_a_liar_that_was_there_first_does_not_become_its_hosts_baseline(
    world: World, step: float, within_s: float
) -> None:
    world.harm = 0.5
    lying(world)
    world.seconds(20)
    host = world.comes(HOST, "guaranteed", step=step)

    assert world.seconds(within_s + 1, until=lambda: by_freezer(world)) <= within_s
    assert min(speed(world, host, 60.0) for _ in range(3)) >= 0.95
    assert world.seat.decider.baseline.step == pytest.approx(step, rel=0.01)


def test_until_it_is_found_out_the_measurements_under_the_freezer_bound_its_harm(world: World) -> None:
    world.harm = 0.5
    host = world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(70)
    lying(world)

    assert speed(world, host, 20.0) >= 0.9


def test_a_liar_under_whom_the_host_has_changed_is_found_out_all_the_same(world: World) -> None:
    world.harm = 0.5
    host = world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(70)
    lying(world)
    world.seconds(3)
    host.step = 0.6
    assert world.seconds(90, until=lambda: by_freezer(world)) < 60

    assert min(speed(world, host, 60.0) for _ in range(3)) >= 0.95
    assert world.seat.decider.baseline.step == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize(
    ("first", "step", "harm", "seconds", "share"),
    [("host", 0.4, 0.5, 200, 0.080), ("guest", 0.4, 0.5, 200, 0.080), hard("host", 1.0, 0.3, 700, 0.131)],
)
def test_an_honest_guest_keeps_its_gate_and_the_share_that_it_had_without_such_measurements(
    world: World, first: str, step: float, harm: float, seconds: float, share: float
) -> None:
    world.harm = harm
    jobs = [(HOST, "guaranteed", step), (GUEST, "opportunistic", 0.2)]
    for job, tier, its_step in jobs if first == "host" else reversed(jobs):
        world.comes(job, tier, step=its_step)
        world.seconds(80)
    host, guest = world.programs[HOST], world.programs[GUEST]
    before, frozen, began = guest.done, 0, world.now

    while world.now < began + seconds:
        world.tick()
        frozen += guest.frozen

    # A pause every five minutes.
    assert (frozen > 0) is (seconds > 300)
    assert frozen <= 0.02 * 10 * seconds
    assert (guest.done - before) * 0.2 / seconds >= 0.99 * share
    assert not by_freezer(world)
    assert not any("held by the freezer" in said for said in world.said)
    assert speed(world, host, 60.0) >= 0.95


def test_a_host_that_became_slower_by_itself_costs_no_honest_guest_its_gate(world: World) -> None:
    world.harm = 0.2
    host = world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(70)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    for step in (0.8, 0.4, 0.7, 0.4, 1.2):
        world.seconds(40)
        host.step = step
    world.seconds(60)

    assert world.seat.decider.baseline.step == pytest.approx(1.2, rel=0.02)
    assert guest.order().duty > 100
    assert not by_freezer(world)


def test_a_host_that_stalls_now_and_then_costs_no_honest_guest_its_gate(world: World) -> None:
    world.harm = 0.2
    host = world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(70)
    world.comes(GUEST, "opportunistic", step=0.2)
    for _ in range(30):
        world.seconds(8)
        host.step = 1.2
        world.seconds(4)
        host.step = 0.4

    assert not by_freezer(world)


@pytest.mark.parametrize("step", [hard(0.4), 0.6, hard(0.8), hard(2.0)])
def test_a_guest_without_a_gate_keeps_the_bound_in_the_freezers_turns(world: World, step: float) -> None:
    world.harm = 0.5
    host = world.comes(HOST, "guaranteed", step=step)
    world.seconds(70)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    guest.obeys = False
    world.seconds(30)
    before = guest.done

    # Each step of the host meets a whole turn of the guest's or none, and not the mean of all.
    assert min(speed(world, host, 10.0) for _ in range(10)) >= 0.949
    assert (guest.done - before) * 0.2 / 100.0 >= 0.06


def test_a_guest_that_another_of_its_gpus_holds_is_not_blamed_for_its_silence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = world.comes(GUEST, "opportunistic", step=30.0)
    world.seconds(4)
    guest.obeys = False
    monkeypatch.setattr(freezer, "is_frozen", lambda *_: True)
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(10)

    assert not by_freezer(world)


# What the decider makes of it.


class Beside:
    """A decider with a guest, told of a host's steps of a second: how long, beside whom."""

    def __init__(self) -> None:
        self.now = 0.0
        self.decider = Decider(GuardSettings(), Fixed(0.2), Fixed(0.2), 0.0)
        self.steps(60, 1.0, None)
        self.decider.guest_arrives(self.now)
        self.steps(1, 1.0, None)

    def steps(self, count: int, step: float, held_since: float | None) -> list[Action]:
        done: list[Action] = []
        for _ in range(count):
            self.now += step
            device = DeviceSample(self.now, 0.3, 0.2, 1.0, memory=0.4)
            done += self.decider.tick(self.now, HostBeat(self.now, 1, step), device, GuestState(held_since=held_since))
        return done


def test_slow_steps_behind_a_gate_that_is_only_said_to_be_shut_are_nobodys_baseline() -> None:
    story = Beside()
    story.decider.owner_arrives(story.now, Fixed(0.2), tolerates=True, evict_grace_s=0.0)
    story.steps(40, 2.0, None)
    assert not story.decider.baseline.known
    assert story.decider.measures(story.now)

    story.steps(9, 1.0, story.now)

    assert story.decider.baseline.step == pytest.approx(1.0)
    assert not story.decider.measures(story.now), "the gate is open"


def test_a_host_that_falls_silent_is_not_waited_for_with_a_frozen_guest() -> None:
    story = Beside()
    story.decider.owner_arrives(story.now, Fixed(0.2), tolerates=True, evict_grace_s=0.0)
    assert not story.decider.measures(story.now), "it may be minutes before the first step"
    story.steps(1, 1.0, None)

    assert story.decider.measures(story.now + 12.0)
    assert not story.decider.measures(story.now + 14.0)


def test_three_slow_spells_that_end_with_each_freeze_are_the_guests() -> None:
    story = Beside()
    for spell in range(3):
        assert story.decider.duty == 0.2
        story.steps(3, 2.0, None)
        # The baseline is measured anew, and the guest is frozen for that.
        done = story.steps(10, 1.0, story.now)
        assert (Do.FREEZER in [action.do for action in done]) is (spell == 2)

    assert "as fast as alone whenever it is frozen" in next(one.cause for one in done if one.do is Do.FREEZER)


def test_one_good_spell_beside_the_guest_clears_it() -> None:
    story = Beside()
    done = []
    for _ in range(6):
        for _ in range(2):
            done += story.steps(3, 2.0, None)
            done += story.steps(10, 1.0, story.now)
        done += story.steps(5, 1.05, None)

    assert Do.FREEZER not in [action.do for action in done]


def test_nobody_is_accused_where_no_freezer_reaches_the_guest() -> None:
    story = Beside()
    done = []
    for _ in range(6):
        done += story.steps(3, 2.0, None)
        done += story.steps(10, 1.0, float("-inf"))

    assert Do.FREEZER not in [action.do for action in done]


def lying(world: World) -> Program:
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    guest.lies = True
    return guest


def by_freezer(world: World) -> bool:
    return world.seat.held is not None and world.seat.held.by_freezer


def speed(world: World, host: Program, seconds: float) -> float:
    before = host.done
    took = world.seconds(seconds)
    return (host.done - before) * host.step / took
