# SPDX-License-Identifier: Apache-2.0
"""A job on several nodes, and GPUs that are slow for it."""

from dataclasses import replace

import numpy as np
import pytest

from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.base import Policy
from policy.placement.berth import BerthPolicy
from policy.placement.registry import create
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.ends_sooner import EndsSooner
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from policy.request.settings import Settings
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, fleet, memory_of, node, reading, running, submit, waiting
from topology.network.fabric import Fabric

FULL = 0xFF
HOUR = 3_600
SLOW = 1.7
"""Time on GPU 3 of n1; all others are equal."""


def picture_of(
    ends: dict[str, float | None], jobs: list[JobFacts], slow: float = SLOW
) -> tuple[Tracker, list[JobFacts]]:
    """Leaves of two nodes. `ends`: for each node, in how many seconds the job on it reaches its limit; None: free."""
    nodes: list[NodeFacts] = [node(name, used=0 if end is None else FULL) for name, end in ends.items()]
    there = [running(number, name, FULL, end) for number, (name, end) in enumerate(ends.items(), 1) if end is not None]
    look = reading(nodes, [*there, *jobs])
    flat = fleet(look)
    scores = np.ones((len(nodes), 8))
    scores[0, 3] = slow
    leaf = np.arange(len(nodes)) // 2
    fabric = replace(Fabric.flat(flat.names), leaf=leaf, pod=np.zeros(len(nodes), np.int64))
    tracker = Tracker(replace(flat, fabric=fabric, scores={"compute": scores, "": scores}))
    tracker.update(look)
    return tracker, [*there, *jobs]


def given(book: Book, policy: Policy | None = None, settings: Settings | None = None) -> tuple[tuple[str, ...], float]:
    """Where a gang of two nodes that comes now is pinned, and when its place is free; 0 for now."""
    request = submit(tres_per_job="gres/gpu:16", min_nodes="2", max_nodes="2", num_tasks="2")
    decision = decide(request, book, policy or BerthPolicy(), settings or Settings(), NOW)
    assert decision.claim is not None
    start = decision.claim.start
    return tuple(book.fleet.names[node] for node in decision.claim.nodes), 0.0 if start <= NOW else start - NOW


@pytest.mark.parametrize(
    ("faster_in", "place"),
    [
        (600, (("n3", "n4"), 600.0)),  # of half an hour, 21 minutes more on the slow ones
        (1_800, (("n1", "n2"), 0.0)),
    ],
)
def test_a_gang_waits_for_faster_gpus_where_it_is_expected_to_end_sooner(
    faster_in: float, place: tuple[tuple[str, ...], float]
) -> None:
    tracker, _ = picture_of({"n1": None, "n2": None, "n3": faster_in, "n4": faster_in}, [])

    assert given(tracker.book()) == place


def test_gpus_that_are_a_little_slower_are_worth_no_wait() -> None:
    tracker, _ = picture_of({"n1": None, "n2": None, "n3": 10, "n4": 10}, [], slow=1.08)

    assert given(tracker.book()) == (("n1", "n2"), 0.0)


def test_of_places_that_come_free_that_is_taken_where_it_ends_sooner() -> None:
    tracker, _ = picture_of({"n1": 100, "n2": 100, "n3": 700, "n4": 700}, [])

    assert given(tracker.book()) == (("n3", "n4"), 700.0)


@pytest.mark.parametrize(("waiting_jobs", "place"), [(0, (("n1", "n2"), 100.0)), (1, (("n3", "n4"), 1_700.0))])
def test_of_places_that_come_free_that_is_taken_which_holds_up_fewer_jobs_behind(
    waiting_jobs: int, place: tuple[tuple[str, ...], float]
) -> None:
    """On n1 and n2 it would end two minutes sooner, and hold half of all GPUs for 25 minutes more."""
    tracker, _ = picture_of({"n1": 100, "n2": 100, "n3": 1_700, "n4": 1_700}, [])
    book = tracker.book()
    book.cluster = replace(book.cluster, waiting=waiting_jobs)

    assert given(book) == place


def test_however_many_wait_what_is_free_now_is_taken_where_it_ends_sooner() -> None:
    tracker, _ = picture_of({"n1": None, "n2": None, "n3": 1_600, "n4": 1_600}, [])
    book = tracker.book()
    book.cluster = replace(book.cluster, waiting=9)

    assert given(book) == (("n1", "n2"), 0.0)


def test_a_policy_that_knows_no_scores_waits_for_nothing() -> None:
    tracker, _ = picture_of({"n1": None, "n2": None, "n3": 10, "n4": 10}, [])

    assert given(tracker.book(), create("pinned-random")) == (("n1", "n2"), 0.0)


def test_where_nothing_may_be_pinned_ahead_a_gang_takes_what_is_free() -> None:
    tracker, _ = picture_of({"n1": None, "n2": None, "n3": 10, "n4": 10}, [])

    assert given(tracker.book(), settings=Settings(pin_ahead=False)) == (("n1", "n2"), 0.0)


def gang_at(nodes: tuple[str, ...]) -> JobFacts:
    return waiting(
        50, nodes[0], FULL, required=nodes, submitted=int(NOW) - 100, limit=HOUR,
        segment={"n": "2", "k": "8", "nodes": ",".join(nodes), "level": "leaf"},
    )  # fmt: skip


def replanned(
    plan: Plan, ends: dict[str, float | None], gang: JobFacts, slow: float = SLOW
) -> tuple[list[tuple[tuple[str, ...], float]], str]:
    """Where the gang is moved in a pass, and why it waits after it."""
    tracker, jobs = picture_of(ends, [gang], slow)
    moves = [one for one in plan.replan(tracker.book(), jobs) if isinstance(one, Move) and one.job.id == gang.id]
    [entry] = [entry for entry in plan.queue if entry.job.id == gang.id]
    assert plan.book is not None
    reason = why(entry, plan.book, tracker.book(), BerthPolicy())
    return [(move.berth.names, move.start) for move in moves], reason.text if reason else ""


FREE_BUT_SLOW: dict[str, float | None] = {"n1": None, "n2": None, "n3": 600, "n4": 600}


@pytest.mark.parametrize(("promised", "seconds"), [(False, 2948), (True, 939)])
def test_a_gang_that_is_pinned_to_fast_gpus_leaves_slow_ones_that_come_free_and_says_so(
    promised: bool, seconds: int
) -> None:
    """Its promise is a start at once, and it is expected to run for 0.3 of its limit."""
    plan = Plan(BerthPolicy(), Settings(look_ahead=promised))
    moves, reason = replanned(plan, FREE_BUT_SLOW, gang_at(("n3", "n4")))

    assert moves == []
    assert reason == f"the GPUs that are free are slow for it; it waits {seconds} s more at most for faster ones"


def test_it_waits_no_longer_than_the_slow_ones_would_cost_it() -> None:
    plan, gang = Plan(BerthPolicy(), Settings()), gang_at(("n3", "n4"))
    replanned(plan, FREE_BUT_SLOW, gang)
    memory_of(plan, EndsSooner)[50] = NOW - 2_950

    assert replanned(plan, FREE_BUT_SLOW, gang)[0] == [(("n1", "n2"), 0.0)]


def test_it_takes_the_slow_ones_where_the_fast_ones_come_late() -> None:
    late: dict[str, float | None] = {"n1": None, "n2": None, "n3": 5_000, "n4": 5_000}

    assert replanned(Plan(BerthPolicy(), Settings()), late, gang_at(("n3", "n4")))[0] == [(("n1", "n2"), 0.0)]


def test_a_gang_that_is_pinned_to_gpus_that_are_a_little_faster_starts_on_those_that_are_free() -> None:
    soon: dict[str, float | None] = {"n1": None, "n2": None, "n3": 10, "n4": 10}

    moves, _ = replanned(Plan(BerthPolicy(), Settings()), soon, gang_at(("n3", "n4")), slow=1.08)

    assert moves == [(("n1", "n2"), 0.0)]


@pytest.mark.parametrize(("slow", "moves"), [(SLOW, []), (1.0, [("n1", "n2")])])
def test_what_is_freed_between_two_passes_is_refused_too(slow: float, moves: list[tuple[str, ...]]) -> None:
    """Both nodes come free by one Epilog's notice."""
    plan, gang = Plan(BerthPolicy(), Settings()), gang_at(("n3", "n4"))
    both = running(1, "n1", FULL, 9_000, nodes=("n1", "n2"), required=("n1", "n2"))
    busy: dict[str, float | None] = {"n1": 9_000, "n2": 9_000, "n3": 600, "n4": 600}
    tracker, jobs = picture_of(busy, [gang], slow)
    look = reading([node(name, used=FULL) for name in busy], [both, *jobs[2:]])
    tracker.update(look)
    plan.replan(tracker.book(), look.jobs)

    changes = plan.freed(tracker, tracker.end(1, "n1"), look.jobs)

    assert changes is not None
    assert [one.berth.names for one in changes if isinstance(one, Move)] == moves


def wide(book: Book, policy: Policy | None = None) -> tuple[str, float]:
    """Returns the place of a job on one whole node that comes now, and when that is free; 0 for now."""
    request = submit(tres_per_job="gres/gpu:8", min_nodes="1", max_nodes="1", num_tasks="1")
    decision = decide(request, book, policy or BerthPolicy(), Settings(), NOW)
    assert decision.claim is not None
    start = decision.claim.start
    return book.fleet.names[decision.claim.nodes[0]], 0.0 if start <= NOW else start - NOW


@pytest.mark.parametrize(
    ("slow", "faster_in", "place"),
    [
        (SLOW, 600, ("n2", 600.0)),
        (SLOW, 1_800, ("n1", 0.0)),  # it is expected to end sooner on the slow one
        (1.12, 100, ("n1", 0.0)),  # seven GPUs at full speed would do less work than these eight
    ],
)
def test_a_job_on_one_node_waits_where_slow_gpus_cost_more_than_they_bring(
    slow: float, faster_in: float, place: tuple[str, float]
) -> None:
    tracker, _ = picture_of({"n1": None, "n2": faster_in, "n3": 9_000, "n4": 9_000}, [], slow)

    assert wide(tracker.book()) == place


def on_one_node() -> JobFacts:
    """A job on all GPUs of one node that is pinned to n2."""
    return waiting(
        50, "n2", FULL, required=("n2",), submitted=int(NOW) - 100, limit=HOUR,
        segment={"n": "1", "k": "8", "nodes": "n2", "level": "node"},
    )  # fmt: skip


def test_a_job_on_one_node_waits_no_longer_than_the_slow_gpus_would_cost_it() -> None:
    ends: dict[str, float | None] = {"n1": None, "n2": 600, "n3": 9_000, "n4": 9_000}
    plan, job = Plan(BerthPolicy(), Settings()), on_one_node()
    assert replanned(plan, ends, job)[0] == []

    memory_of(plan, EndsSooner)[50] = NOW - HOUR

    assert replanned(plan, ends, job)[0] == [(("n1",), 0.0)]


def test_a_job_on_one_node_leaves_the_fast_gpus_of_its_pin_for_free_ones_that_bring_more_than_they_cost() -> None:
    ends: dict[str, float | None] = {"n1": None, "n2": 10, "n3": 9_000, "n4": 9_000}

    assert replanned(Plan(BerthPolicy(), Settings()), ends, on_one_node(), slow=1.12)[0] == [(("n1",), 0.0)]
