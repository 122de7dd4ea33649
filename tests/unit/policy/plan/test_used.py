"""Jobs that end long before their time limits, and what that means to those that wait."""

from dataclasses import replace

import numpy as np
import pytest

from policy.cluster.limits_used import FLOOR, LEAST, MOST, LimitsUsed
from policy.formats.slurm_facts import JobFacts
from policy.placement.berth import BerthPolicy
from policy.plan.book import Book
from policy.plan.plan import Plan
from policy.plan.tracker import SOON, Picture
from policy.request.settings import Settings
from tests.unit import share_world
from tests.unit.policy.plan.test_plan_crowd import FULL, given
from tests.unit.policy_world import NOW, fleet, node, reading, running, waiting
from topology.fabric import Fabric

NODES = [node("n1"), *(node(f"n{number}", used=FULL) for number in (2, 3, 4))]
BUSY = [running(2, "n2", FULL, 500), running(3, "n3", FULL, 300), running(4, "n4", FULL, 50_000)]


def ended(count: int, part: float, **changes: object) -> list[JobFacts]:
    """Jobs without GPUs that ran for 100 s, which were so much of their limits."""
    return [running(100 + one, "n1", 0, 100 / part - 100, cpus=0, **changes) for one in range(count)]


def picture_after(jobs: list[JobFacts], stay: list[JobFacts]) -> Picture:
    """Some jobs have ended between two readings, others run on or wait; leaves are of two nodes."""
    before = reading(NODES, [*jobs, *stay], at=NOW - 1)
    flat = fleet(before)
    leaf = np.arange(len(NODES)) // 2
    fabric = replace(Fabric.flat(flat.names), leaf=leaf, pod=np.zeros(len(NODES), np.int64))
    picture = Picture(replace(flat, fabric=fabric))
    picture.update(before)
    picture.update(reading(NODES, stay))
    return picture


def moments(book: Book, name: str) -> list[float]:
    """In how many seconds something comes free on a node."""
    times = book.cluster.times[book.fleet.index[name]]
    return sorted(set((times[np.isfinite(times)] - NOW).tolist()) - {0.0})


@pytest.mark.parametrize(("part", "place"), [(1.0, "n1"), (0.7, "n3")])
def test_the_nodes_that_a_gang_gathers_are_left_alone_for_as_long_as_jobs_usually_run(part: float, place: str) -> None:
    """n2's job may run for 800 s. If jobs use up their limits, n1 is anybody's until ten minutes before."""
    gang = waiting(
        50, "n1", FULL, required=("n1", "n2"), submitted=int(NOW) - 100, limit=3_600,
        segment={"n": "2", "nodes": "n1,n2", "level": "leaf"},
    )  # fmt: skip
    stay = [running(2, "n2", FULL, 800), running(3, "n3", FULL, 700), BUSY[2], gang]
    picture = picture_after(ended(LEAST, part), stay)
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(picture.book(), stay)

    assert plan.book is not None
    assert given(plan.book, "1", minutes=2) == (place,)


def test_running_jobs_are_expected_to_use_as_much_of_what_is_left_as_others_used() -> None:
    book = picture_after(ended(LEAST, 0.8), BUSY).book()

    assert moments(book, "n2") == pytest.approx([400.0])
    assert moments(book, "n4") == pytest.approx([40_000.0])


def test_where_packed_jobs_are_limits_count() -> None:
    nodes = [share_world.node("n1", used=0xFE, shared=(30,)), share_world.node("n2", used=FULL)]
    stay = [share_world.packed(1, "n1", 0, 30), running(2, "n1", 0xFE, 500), running(3, "n2", FULL, 500)]
    before = reading(nodes, [*stay, *ended(LEAST, 0.8)], at=NOW - 1)
    picture = Picture(share_world.fleet(before))
    picture.update(before)
    picture.update(reading(nodes, stay))

    assert 500.0 in moments(picture.book(), "n1")
    assert moments(picture.book(), "n2") == pytest.approx([400.0])


def test_a_job_at_its_limit_is_not_over_before_it() -> None:
    late = [running(2, "n2", FULL, SOON + 1), running(3, "n3", FULL, SOON - 3)]
    book = picture_after(ended(LEAST, FLOOR), late).book()

    assert moments(book, "n2") == pytest.approx([SOON])
    assert moments(book, "n3") == pytest.approx([SOON])


def test_a_node_that_is_planned_again_by_itself_shows_the_same_as_in_a_whole_pass() -> None:
    picture = picture_after(ended(LEAST, 0.8), BUSY)
    whole, again = picture.book(), picture.book()
    again.cluster.times[:] = 0.0
    picture.put_back(again, range(4))

    assert (again.cluster.times == whole.cluster.times).all()


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(ended(LEAST - 1, 0.8), id="too few"),
        pytest.param(ended(LEAST, 1.0), id="limits used up"),
        pytest.param(ended(LEAST, 0.8, segment={"move_until": "9"}), id="moved by berthd"),
        pytest.param(ended(LEAST, 0.8, guest=True), id="guests"),
        pytest.param(ended(LEAST, 0.8, start=None), id="never started"),
        pytest.param(ended(LEAST, 0.8, end=None), id="without limit"),
    ],
)
def test_limits_count_where_nothing_else_is_known(jobs: list[JobFacts]) -> None:
    assert moments(picture_after(jobs, BUSY).book(), "n2") == pytest.approx([500.0])


def test_nine_tenths_of_the_time_that_jobs_ran_was_within_the_part() -> None:
    used = LimitsUsed()
    for _ in range(LEAST):
        used.learn(ran=600.0, limit=1_000.0)
    for _ in range(2):
        used.learn(ran=1_200.0, limit=1_200.0)

    assert used.part == 1.0  # 2,400 of 20,400 s


def test_a_flood_of_jobs_that_fail_at_once_says_nothing_of_those_that_run() -> None:
    used = LimitsUsed()
    for _ in range(20):
        used.learn(ran=80_000.0, limit=100_000.0)
    for _ in range(MOST - 20):
        used.learn(ran=2.0, limit=100_000.0)

    assert used.part == pytest.approx(0.8)


def test_jobs_are_never_taken_to_use_hardly_anything() -> None:
    used = LimitsUsed()
    for _ in range(LEAST):
        used.learn(ran=0.0, limit=3_600.0)

    assert used.part == FLOOR


def test_a_limit_of_nothing_and_a_clock_that_was_set_back_are_borne() -> None:
    used = LimitsUsed()
    for _ in range(LEAST):
        used.learn(ran=-5.0, limit=0.0)
        used.learn(ran=-5.0, limit=60.0)

    assert used.part == FLOOR
