# SPDX-License-Identifier: Apache-2.0
"""Guests get the seats that suit them and their hosts, alone and several at a time."""

import time
from dataclasses import replace

import pytest

from policy.daemon.known.matcher import ProcessMatcher
from policy.formats.plan_fields import GPU_MEM
from policy.formats.slurm_facts import JobText
from policy.placement.berth import BerthPolicy
from policy.plan.answer.told import moved
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.guests import choosing
from policy.plan.queue.wait_reasons import why
from policy.request.settings import Sharing
from policy.sharing.matching import Matching, match
from policy.sharing.profiles import ProfileKey
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.company_world import FULL, World, guest, hosts, store, where
from tests.unit.guest_world import NOW, fleet, host, node, reading, running
from tests.unit.guest_world import guest as seated_guest

HEAVY, HALF, LIGHT = (ProfileKey("ann", "lab", name) for name in ("heavy", "half", "light"))


def test_a_guest_goes_beside_the_host_that_is_promised_its_speed() -> None:
    nodes, jobs = hosts("heavy", "half")
    given = World(nodes, [*jobs, guest(10, "light")]).seats()

    assert where(given) == {10: "n2"}
    assert "predicted speeds: its host 1.00, it 0." in given[10].berth.why


def test_a_heavy_guest_goes_where_its_host_most_likely_bears_it_and_is_told_so() -> None:
    nodes, jobs = hosts("half", "light")
    given = World(nodes, [*jobs, guest(10, "heavy")]).seats()

    assert where(given) == {10: "n2"}
    assert "not promised 0.95, so its guard watches, and the guest moves if it suffers" in given[10].berth.why


def test_of_several_guests_the_heavy_one_goes_beside_the_light_host_whoever_is_first_in_line() -> None:
    nodes, jobs = hosts("half", "light")
    world = World(nodes, [*jobs, guest(10, "light"), guest(11, "heavy")])

    assert world.seats() == {}, "they are matched first"
    assert where(world.seats()) == {10: "n1", 11: "n2"}
    assert len(world.asked) == 1


def test_nobody_waits_long_for_a_matching_that_does_not_come() -> None:
    nodes, jobs = hosts("half", "light")
    world = World(nodes, [*jobs, guest(10, "light"), guest(11, "heavy")], answers=False)

    assert world.seats() == {}
    world.at = NOW + choosing.WAITS_FOR_MATCH
    assert sorted(where(world.seats())) == [10, 11]


def test_slurms_order_says_who_gets_a_seat_where_there_are_too_few() -> None:
    nodes, jobs = hosts("half")
    world = World(nodes, [*jobs, *[guest(number, "light") for number in (10, 11, 12)]])
    world.seats()

    assert where(world.seats()) == {10: "n1"}


def test_a_seat_that_comes_free_between_two_passes_is_judged_by_its_own_host() -> None:
    nodes, jobs = hosts("light", "heavy", "half")
    last = seated_guest(90, "n3", 0)
    known = store()
    for other in ("one", "two"):
        known.trial(HALF, ProfileKey("ann", "lab", other), (1.0, 1.0), NOW)
    free_later = [*nodes[:2], replace(nodes[2], seats_used=FULL)]
    world = World(free_later, [*jobs, last, guest(10, "half")], tries=False, known=known)
    assert world.seats() == {}, "neither is promised its speed"

    look = reading(world.nodes, world.jobs)
    tracker = Tracker(fleet(look, Sharing()))
    tracker.update(look)
    world.plan.replan(tracker.book(), look.jobs)
    assert tracker.end(90, "n3") == {2}
    changed = world.plan.freed(tracker, {2}, look.jobs)

    assert changed is not None
    assert where({one.job.id: one for one in changed if isinstance(one, Move)}) == {10: "n3"}


def test_an_owner_that_ends_frees_the_seats_of_its_own_gpus_but_not_its_guests() -> None:
    nodes = [node("n1", used=0b1111_1111, seats_used=0b1111_1111)]
    jobs = [host(1, "n1", 0b0000_0011), running(2, "n1", 0b1111_1100, 9_000), seated_guest(3, "n1", 0)]
    tracker = Tracker(fleet(look := reading(nodes, jobs), Sharing()))
    tracker.update(look)

    assert tracker.end(1, "n1") == {0}

    left = tracker._nodes[0]
    assert left is not None
    assert (left.gpus_used, left.seats_used) == (0b1111_1100, 0b1111_1101), "the guest on GPU 0 stays"


def test_idle_gpus_come_first_and_need_no_matching() -> None:
    nodes, jobs = hosts("half")
    world = World([*nodes, node("n2")], [*jobs, guest(10, "heavy"), guest(11, "light")])

    assert where(world.seats()) == {10: "n2", 11: "n2"}
    assert world.asked == []


def test_the_heavy_one_of_two_guests_gets_the_last_idle_gpu() -> None:
    _, jobs = hosts("half")
    idle = [one for one in jobs if one.id != 101] + [seated_guest(90 + gpu, "n1", gpu) for gpu in range(2, 8)]
    there = [node("n1", used=0b1, seats_used=0xFC, cpus_used=7)]
    world = World(there, [*idle, guest(10, "light"), guest(11, "heavy")])
    world.seats()
    given = world.seats()

    assert {job: move.berth.gpus for job, move in given.items()} == {10: (0,), 11: (1,)}


def test_where_the_site_does_not_try_a_guest_waits_and_knows_why() -> None:
    nodes, jobs = hosts("heavy")
    world = World(nodes, [*jobs, guest(10, "heavy")], tries=False)

    assert world.seats() == {}
    [entry] = [entry for entry in world.plan.queue if entry.job.id == 10]
    assert world.plan.book is not None
    reason = why(entry, world.plan.book, world.plan.book, BerthPolicy())
    assert reason is not None
    assert "1 seats are free, and no host there is known to bear this guest" in reason.text


def test_a_job_that_nobody_measured_is_left_to_the_guard_or_waits_as_the_site_says() -> None:
    nodes, jobs = hosts("half")
    given = World(nodes, [*jobs, guest(10, "never seen")]).seats()
    assert "it was never measured alone, so a guard watches" in given[10].berth.why
    assert World(nodes, [*jobs, guest(10, "never seen")], tries=False).seats() == {}


@pytest.mark.parametrize("what", ["harmed", "fault"])
def test_a_pair_that_failed_is_not_tried_again(what: str) -> None:
    nodes, jobs = hosts("half")
    known = store()
    if what == "harmed":
        known.trial(HALF, LIGHT, (0.85, 0.7), at=NOW)
    else:
        known.fault(LIGHT, HALF, at=NOW)

    assert World(nodes, [*jobs, guest(10, "light")], known=known).seats() == {}
    assert where(World(nodes, [*jobs, guest(10, "half")], known=known).seats()) == {10: "n1"}


def test_what_a_trial_showed_goes_before_the_prediction() -> None:
    nodes, jobs = hosts("half")
    known = store()
    known.trial(HALF, HEAVY, (0.98, 0.55), at=NOW)

    given = World(nodes, [*jobs, guest(10, "heavy")], known=known, tries=False).seats()

    assert "measured beside each other: its host 0.98, it 0.55 of what each does alone" in given[10].berth.why


@pytest.mark.parametrize(("kept", "node"), [(0.55, "n1"), (0.2, "n2")])
def test_a_seat_where_the_guard_held_such_guests_hard_comes_before_no_other(kept: float, node: str) -> None:
    nodes, jobs = hosts("half", "light")
    known = store()
    known.trial(HALF, HEAVY, (0.98, kept), at=NOW)
    world = World(nodes, [*jobs, guest(10, "heavy")], known=known)

    assert where(world.seats()) == {10: node}

    world = World(nodes, [*jobs, guest(10, "heavy"), guest(11, "light")], known=known)
    world.seats()
    assert where(world.seats())[10] == node, "so it is where guests are matched together"


def measured_hosts(runs: float) -> World:
    """A heavy host of 12,288 MiB and a light one of 2,000, which do not say so."""
    nodes, jobs = hosts("heavy", "light")
    known = store()
    for key, peak in ((HEAVY, 12_287.2), (LIGHT, 2_000.0)):
        known.measured[key] = replace(known.measured[key], peak=peak, peaks=runs, newest=NOW)
    return World(nodes, [replace(job, plan=job.known.without(GPU_MEM)) for job in jobs], known=known)


def test_no_seat_without_the_memory_that_the_host_was_measured_to_need() -> None:
    world = measured_hosts(3.0)
    world.jobs += [guest(10, "light", segment={"gpu_mem": "8192"})]

    [move] = world.seats().values()

    assert where({10: move}) == {10: "n2"}
    assert move.need == "2:2000"
    text = changes.pin(JobText(10, "PENDING", 0, "", "", "", "gres/gpu:1", ""),
                       Pin(move.berth.names, move.berth.gpus, seats=False, plan=moved(move, NOW)))  # fmt: skip
    assert " need=2:2000]" in text["extra"]
    world.jobs[-1] = guest(11, "light", segment={"gpu_mem": "15360"})
    assert world.seats() == {}


def test_a_host_of_which_too_few_runs_were_measured_has_no_seat() -> None:
    world = measured_hosts(2.0)
    world.jobs += [guest(10, "light")]

    assert world.seats() == {}


def test_thousands_of_profiles_are_matched_in_parts() -> None:
    nodes, jobs = hosts(*["light"] * 30)
    known = store()
    for job in jobs:
        known.measured[ProfileKey("ann", "lab", f"host{job.id}")] = known.measured[LIGHT]
        known.trial(ProfileKey("ann", "lab", f"host{job.id}"), HEAVY, (0.97, 0.5), at=NOW)
    named = [replace(job, name=f"host{job.id}") for job in jobs]
    world = World(nodes, [*named, *[guest(number, "half") for number in range(200, 300)]], known=known)
    world.seats()

    [asked] = world.asked
    assert len(asked.jobs) * asked.tables.guest.shape[0] <= choosing.MOST_PAIRS
    assert len(asked.jobs) == 30, "as many as there are seats"


def test_the_node_is_told_what_the_host_is_predicted_to_lose() -> None:
    nodes, jobs = hosts("light")
    [move] = World(nodes, [*jobs, guest(10, "heavy")]).seats().values()
    values = moved(move, NOW)
    assert 0.0 < float(values.texts["slope"]) < 0.2

    text = JobText(10, "PENDING", 0, "", "", "", "gres/gpu:1", "")
    made = changes.pin(text, Pin(move.berth.names, move.berth.gpus, seats=False, plan=values))
    assert made["extra"].endswith(f"tier=opportunistic way=time slope={values.texts['slope']}]")
    owner = Move(guest(10, "heavy", segment=values.texts), move.berth, 0.0, "GPUs of its own")
    assert "slope" not in moved(owner, NOW).texts


@pytest.mark.slow
def test_the_matchers_own_process_gives_the_same_answer_and_survives_its_own_end() -> None:
    nodes, jobs = hosts("half", "light")
    world = World(nodes, [*jobs, guest(10, "light"), guest(11, "heavy")])
    world.seats()
    [problem] = world.asked
    matcher = ProcessMatcher()
    try:
        for _ in range(2):
            matcher.ask(problem)
            found = _answer(matcher)
            expected = match(problem.seats, problem.guests, problem.tables)
            assert found.seat.tolist() == expected.seat.tolist()
            assert found.value == pytest.approx(expected.value)
            assert matcher._process is not None
            matcher._process.kill()
            matcher._process.wait()
        assert matcher.done() is None
    finally:
        matcher.close()


def _answer(matcher: ProcessMatcher) -> Matching:
    until = time.monotonic() + 60.0
    while (found := matcher.done()) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def test_two_guests_of_one_name_do_not_begin_the_same_trial_at_once() -> None:
    nodes, jobs = hosts("light", "light")
    world = World(nodes, [*jobs, guest(10, "heavy"), guest(11, "heavy")], answers=False)

    given = [set(world.seats()) for _ in range(15)]

    # Nothing that is planned ever happens here, so that the same trial is planned anew while it goes on.
    assert max(map(len, given)) == 1


def test_an_owner_of_a_site_without_trials_has_guests_that_are_promised_only() -> None:
    nodes, jobs = hosts("heavy", "light")
    world = World(nodes, [*jobs, guest(10, "heavy")], trials_a_day=0)

    assert world.seats() == {}
    assert where(World(nodes, [*jobs, guest(10, "heavy")]).seats()) == {10: "n2"}


def test_each_task_of_an_array_is_told_what_its_own_host_needs() -> None:
    world = measured_hosts(3.0)
    world.jobs += [guest(10, "light", tasks="0-1")]

    moves = [one for one in world.one_pass() if isinstance(one, Move)]

    assert {one.task for one in moves} == {0, 1}
    assert {(one.berth.names[0], one.need) for one in moves} <= {("n1", "1:12288"), ("n2", "2:2000")}
