# SPDX-License-Identifier: Apache-2.0
"""The bounds of the plan in seconds and jobs, as docs and admins know them: each value is written here once more."""

from dataclasses import replace

import numpy as np
import pytest

from policy.placement.berth import BerthPolicy
from policy.plan.jobs.waiting import Present
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.changes import Move, Release
from policy.plan.ledger.claims import Claim, Repeat
from policy.plan.ledger.later_places import expected_end, latest_end, weight, worth_moving
from policy.plan.ledger.ledger import PlanLedger
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.demand import Demand
from policy.request.settings import Settings
from tests.unit.guest_world import guest
from tests.unit.policy.plan.test_plan_crowd import given, picture_of
from tests.unit.policy.plan.test_plan_events import World, full_nodes
from tests.unit.policy_world import NOW, book, node, reading, running, waiting
from tests.unit.share_world import fleet as fleet_to_share
from tests.unit.share_world import node as node_to_share

FULL = 0xFF
HOUR = 3_600


def demand(n: int = 1, k: int = 8, limit: int = HOUR, nodes: int = 4) -> Demand:
    return Demand(n, k, 1, 100, "any", limit, np.ones(nodes, np.bool_))


@pytest.mark.parametrize(
    ("limit", "gain"),
    [(60, 4), (80, 4), (100, 5), (600, 30), (1_200, 60), (86_400, 60)],
)
def test_a_move_to_a_place_that_is_not_free_has_to_gain_a_twentieth_of_the_limit(limit: int, gain: float) -> None:
    """At least 4 s, for an update of a job costs slurmctld as much; a minute is worth it to everybody."""
    assert worth_moving(limit) == gain


@pytest.mark.parametrize(("limit", "later"), [(600, 300), (1_200, 600), (86_400, 600)])
def test_a_job_ends_for_others_sake_by_half_its_limit_later_and_ten_minutes_at_most(limit: int, later: float) -> None:
    assert latest_end(demand(limit=limit), 5_000.0) == 5_000 + later


def test_jobs_are_taken_to_use_half_of_their_time_limits() -> None:
    assert expected_end(demand(), NOW + 100, 1.5, NOW) == NOW + 100 + 2_700
    assert expected_end(demand(), 0.0, 1.5, NOW) == NOW + 2_700


def test_a_place_weighs_what_it_takes_from_each_job_that_waits() -> None:
    """16 of 32 GPUs for 1.5 times half an hour, as three others wait: for each of them half of these 2,700 s."""
    book_ = book(reading([node(f"n{number}") for number in range(4)]))

    assert weight(book_, demand(2), NOW + 100, 1.5, 0) == NOW + 2_800
    assert weight(book_, demand(2), NOW + 100, 1.5, 3) == NOW + 2_800 + 3 * 1_350


@pytest.mark.parametrize(("seconds", "given_up"), [(120, False), (121, True)])
def test_a_place_that_looks_free_is_given_up_after_two_minutes(seconds: int, given_up: bool) -> None:
    plan = Plan(BerthPolicy(), Settings())
    changes = []
    for at in (NOW, NOW + seconds):
        look = reading([node("n1")], [waiting(5, "n1", 0b11)], at=at)
        changes = plan.replan(book(look), look.jobs)

    assert [one.reason for one in changes if isinstance(one, Release)] == (
        ["it did not start in 120 s on a place that looks free"] if given_up else []
    )


def test_room_is_left_for_the_first_forty_jobs_without_gpus() -> None:
    """Each of them needs all cores of a node."""
    nodes = [node(f"n{number}") for number in range(41)]
    alone = replace(waiting(1, "n0", 0), required=(), plan=None, wants_gpus=False, cpus=32, mem=100)
    jobs = [replace(alone, id=number) for number in range(1, 42)]
    look = reading(nodes, jobs)
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(book(look), look.jobs)

    assert [entry.job.id for entry in plan.queue if entry.last.start is None] == [41]


def test_sixteen_gangs_look_for_sooner_places_and_no_more() -> None:
    early, late = ([(f"{name}{number:02}", f"{name}{number:02}x") for number in range(17)] for name in "el")
    gangs = [
        waiting(100 + number, pair[0], FULL, priority=50 - number, required=pair,
                segment={"n": "2", "nodes": ",".join(pair)})
        for number, pair in enumerate(late)
    ]  # fmt: skip
    busy = [
        running(1 + number, pair[0], FULL, 2_000 if pair in early else 20_000, nodes=pair, required=pair)
        for number, pair in enumerate((*early, *late))
    ]
    world = World([node(name, used=FULL) for pair in (*early, *late) for name in pair], [*busy, *gangs])

    assert sorted(change.job.id for change in world.full()) == list(range(100, 116))


def test_a_node_that_two_gangs_gather_is_kept_for_the_first_of_them() -> None:
    """n1 is free. Slurm starts nothing there that is not over when the first gang begins, so nor does the plan."""
    gangs = [
        waiting(50 + number, "n1", FULL, priority=50 - number, limit=5_000, required=pair,
                segment={"n": "2", "nodes": ",".join(pair)})
        for number, pair in enumerate([("n1", "n2"), ("n1", "n3")])
    ]  # fmt: skip
    busy = [running(2, "n2", FULL, 2_000), running(3, "n3", FULL, 9_000), running(4, "n4", FULL, 20_000)]
    alone = waiting(60, "n4", FULL, priority=9, limit=4_000)
    world = World([node("n1"), *(node(f"n{place}", used=FULL) for place in (2, 3, 4))], [*busy, *gangs, alone])
    changes = world.full()

    assert world.plan.book is not None
    cluster = world.plan.book.cluster
    assert cluster.hole_until[cluster.fleet.index["n1"]] == NOW + 2_000
    assert [change for change in changes if change.job.id == 60] == []


@pytest.mark.parametrize(("ends_in", "place"), [(360, "n1"), (359, "n3")])
def test_a_job_of_six_minutes_fits_on_gathered_nodes_that_come_free_in_six(ends_in: float, place: str) -> None:
    gang = waiting(
        50, "n1", FULL, required=("n1", "n2"), submitted=int(NOW) - 100,
        segment={"n": "2", "nodes": "n1,n2", "level": "leaf"},
    )  # fmt: skip
    busy = [running(2, "n2", FULL, ends_in), running(3, "n3", FULL, 300), running(4, "n4", FULL, 50_000)]
    tracker, jobs = picture_of([node("n1"), *(node(f"n{number}", used=FULL) for number in (2, 3, 4))], [*busy, gang])
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(tracker.book(), jobs)

    assert plan.book is not None
    assert given(plan.book, "1", minutes=6) == (place,)


@pytest.mark.parametrize(("apart", "place"), [(600, "n3"), (601, "n1")])
def test_a_job_on_one_node_waits_ten_minutes_at_most_to_leave_the_nodes_of_a_gang_alone(
    apart: float, place: str
) -> None:
    gang = running(1, "n1", FULL, 600, nodes=("n1", "n2"), required=("n1", "n2"))
    jobs = [gang, running(2, "n3", FULL, 600 + apart), running(3, "n4", FULL, 50_000)]
    tracker, _ = picture_of([node(f"n{number}", used=FULL) for number in range(1, 5)], jobs)

    assert given(tracker.book(), "8") == (place,)


@pytest.mark.parametrize(("part_ends", "place"), [(699, "n1"), (701, "n2")])
def test_a_small_job_opens_a_whole_node_that_comes_free_ten_minutes_sooner(part_ends: float, place: str) -> None:
    jobs = [running(1, "n1", 0x0F, part_ends), running(2, "n1", 0xF0, 9_000), running(3, "n2", FULL, 100)]
    tracker, _ = picture_of(full_nodes(2), jobs)

    assert given(tracker.book(), "2") == (place,)


@pytest.mark.parametrize(("dearer", "place"), [(1.0098, "n2"), (1.0102, "n1")])
def test_an_owner_takes_a_place_that_is_one_percent_dearer_to_spare_a_guest(dearer: float, place: str) -> None:
    """A guest sits on a GPU of n1, whose GPUs are linked better; all GPUs of n2 are a little slower."""
    look = reading([node_to_share("n1"), node_to_share("n2")], [guest(1, "n1", 7)])
    scores = np.full((2, 8), 1.5)
    scores[1] *= dearer
    tracker = Tracker(replace(fleet_to_share(look, None, {"n1": "h100"}), scores={"compute": scores, "": scores}))
    tracker.update(look)

    assert given(tracker.book(), "8") == (place,)


def test_the_claim_of_a_job_with_another_limit_begins_at_the_same_time() -> None:
    assert Claim((1,), 3, 1, 100, 50.0, 60.0).lasting(100.0) == Claim((1,), 3, 1, 100, 50.0, 150.0)


def test_a_new_place_is_told_with_its_reason() -> None:
    look = reading([node("n1"), node("n2", used=FULL)], [running(2, "n2", FULL, 3_000), waiting(5, "n2", 0b11)])
    [move] = Plan(BerthPolicy(), Settings()).replan(book(look), look.jobs)

    assert isinstance(move, Move)
    assert move.reason == "it can start there now"


def test_a_pass_changes_no_more_pins_than_the_site_allows() -> None:
    jobs = [running(1, "n1", FULL, 3_000), *(waiting(5 + number, "n1", 0b1) for number in range(4))]
    look = reading([node("n1", used=FULL), node("n2")], jobs)

    assert len(Plan(BerthPolicy(), Settings(most_moves=3)).replan(book(look), look.jobs)) == 3


def test_tasks_of_an_array_are_told_that_their_places_are_free_now() -> None:
    array = waiting(50, "n1", 0b1111, state="ARRAY", array=50, tasks="1-3")
    look = reading([node("n1"), node("n2", used=0x0F)], [running(1, "n2", 0x0F, 9_000), array])
    changes = Plan(BerthPolicy(), Settings()).replan(book(look), look.jobs)

    assert [(one.task, one.start) for one in changes if isinstance(one, Move)] == [(2, 0.0), (3, 0.0)]


@pytest.mark.parametrize(("left", "moved"), [(0, []), (0b1, [6])])
def test_a_node_that_becomes_empty_between_passes_is_left_to_the_gang_that_gathers(left: int, moved: list[int]) -> None:
    """One on which a job is left is of no use to the gang, so that a small job behind it takes what is free there."""
    gang = waiting(5, "n1", FULL, priority=9, required=("n1", "n2"), segment={"n": "2", "nodes": "n1,n2"})
    jobs = [running(number, f"n{number}", FULL, 3_000) for number in (1, 2)]
    jobs += [running(3, "n3", FULL & ~left, 9_000), *([running(4, "n3", left, 9_000)] if left else [])]
    world = World(full_nodes(3), [*jobs, gang, waiting(6, "n1", 0b11, priority=1)])
    world.full()

    changes = world.end(3)
    assert changes is not None
    assert [one.job.id for one in changes if isinstance(one, Move)] == moved


def test_where_a_pinned_job_waits_is_the_last_choice_among_equal_nodes() -> None:
    """Slurm's main pass takes the nodes of a waiting pin away from jobs behind it."""
    jobs = [running(1, "n1", 0x0F, 600), running(2, "n2", 0x0F, 600)]
    look = reading([node("n1", used=0x0F), node("n2", used=0x0F)], [*jobs, waiting(5, "n1", FULL)])
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(book(look), look.jobs)

    assert plan.book is not None
    assert given(plan.book, "2", minutes=5) == ("n2",)


def test_a_job_whose_segment_cannot_be_read_is_given_back_to_slurm() -> None:
    look = reading([node("n1")], [waiting(5, "n1", 0b11, segment={"k": "two"})])
    [change] = Plan(BerthPolicy(), Settings()).replan(book(look), look.jobs)

    assert isinstance(change, Release)
    assert change.reason.startswith("its segment cannot be read: ")


def start_after(job: int, nodes: int, before: float, now: float, at: float = NOW) -> float:
    """Where a job was to start in so many seconds and its place now comes free in others: when it is to start."""
    opened = book(reading(full_nodes(2), at=at))
    names = ("n1", "n2")[:nodes]
    segment = {"n": str(nodes), "nodes": ",".join(names)}
    entry = Reader(opened.fleet).read(waiting(job, "n1", FULL, required=names, segment=segment), at)
    entry.last.claimed = Repeat(entry.nodes, at + before, (), ())
    ledger = PlanLedger(opened, BerthPolicy(), 1)
    walk = Plan(BerthPolicy(), Settings())._walk(ledger, (), (), Present(), frozenset())
    return walk._about_as_before(entry, at + now) - at


@pytest.mark.parametrize(("now", "start"), [(400, 500), (509, 500), (511, 511)])
def test_a_gang_keeps_its_start_unless_its_place_comes_free_later_by_two_percent(now: float, start: float) -> None:
    assert start_after(5, 2, 500, now) == start
    assert start_after(5, 1, 500, now) == now, "what one node holds moves no other's timeline"


@pytest.mark.parametrize(("before", "start"), [(60, 50), (61, 61)])
def test_a_gang_that_is_to_start_within_a_minute_starts_when_its_place_is_free(before: float, start: float) -> None:
    assert start_after(5, 2, before, 50) == start


def test_each_gangs_start_is_found_anew_now_and_then_and_never_those_of_all_at_once() -> None:
    anew = [{second for second in range(60) if start_after(job, 2, 500, 400, NOW + second) == 400} for job in (5, 6)]

    assert all(1 < len(seconds) < 10 for seconds in anew)
    assert anew[0].isdisjoint(anew[1])
