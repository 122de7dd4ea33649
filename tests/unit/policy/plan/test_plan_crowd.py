# SPDX-License-Identifier: Apache-2.0
"""What a place means to the others: nodes that belong together, and jobs that wait behind."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import OPENS, Book
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, fleet, node, reading, running, submit, waiting
from topology.network.fabric import Fabric

FULL = 0xFF


def picture_of(nodes: list[NodeFacts], jobs: list[JobFacts]) -> tuple[Tracker, list[JobFacts]]:
    """A cluster with leaves of two nodes, all in one pod."""
    look = reading(nodes, jobs)
    flat = fleet(look)
    leaf = np.arange(len(nodes)) // 2
    made = replace(flat, fabric=replace(Fabric.flat(flat.names), leaf=leaf, pod=np.zeros(len(nodes), np.int64)))
    tracker = Tracker(made)
    tracker.update(look)
    return tracker, list(jobs)


def given(book: Book, gpus: str, minutes: int = 60) -> tuple[str, ...]:
    """Where a job that comes now is pinned."""
    request = submit(tres_per_job=f"gres/gpu:{gpus}", time_limit=str(minutes))
    decision = decide(request, book, BerthPolicy(), Settings(), NOW)
    assert decision.claim is not None
    return tuple(book.fleet.names[node] for node in decision.claim.nodes)


def gang_beside(ends_later: float) -> Book:
    """A gang runs on n1 and n2; the job on n3 ends so much later than it."""
    gang = running(1, "n1", FULL, 600, nodes=("n1", "n2"), required=("n1", "n2"))
    jobs = [gang, running(2, "n3", FULL, 600 + ends_later), running(3, "n4", FULL, 50_000)]
    tracker, _ = picture_of([node(f"n{number}", used=FULL) for number in range(1, 5)], jobs)
    return tracker.book()


@pytest.mark.parametrize(("ends_later", "place"), [(300, "n3"), (OPENS + 60, "n1")])
def test_a_job_on_one_node_leaves_the_nodes_of_a_gang_to_the_next_one_if_it_need_not_wait_long_for_others(
    ends_later: float, place: str
) -> None:
    assert given(gang_beside(ends_later), "8") == (place,)


def test_a_part_of_a_node_is_not_kept_from_anything() -> None:
    assert given(gang_beside(300), "2") == ("n1",)


def gang_that_may_move(
    crowd: int, near_in: float, plan: Plan | None = None, far_in: float = 300, others: Sequence[JobFacts] = ()
) -> list[Move]:
    """A gang is pinned across two leaves for soon; one leaf for itself comes free later."""
    gang = waiting(
        50, "n1", FULL, required=("n1", "n3"), submitted=int(NOW) - 5_000, limit=3_600,
        segment={"n": "2", "nodes": "n1,n3", "level": "pod"},
    )  # fmt: skip
    ends = {"n1": far_in, "n2": 50_000, "n3": far_in, "n4": 50_000, "n5": near_in, "n6": near_in}
    jobs = [running(number, name, FULL, seconds) for number, (name, seconds) in enumerate(ends.items(), 1)]
    behind = [waiting(100 + number, "n2", FULL, submitted=int(NOW)) for number in range(crowd)]
    tracker, jobs = picture_of([node(name, used=FULL) for name in ends], [*jobs, gang, *behind, *others])
    found = (plan or Plan(BerthPolicy(), Settings())).replan(tracker.book(), jobs)
    return [one for one in found if isinstance(one, Move) and one.job.id == 50]


def test_a_gang_waits_somewhat_longer_for_a_near_place_when_many_wait_for_its_gpus() -> None:
    assert gang_that_may_move(1, near_in=700) == []
    [move] = gang_that_may_move(60, near_in=700)

    assert (move.berth.names, move.start) == (("n5", "n6"), NOW + 700)
    assert move.reason == "nearer nodes come free soon enough, and 61 jobs wait for room"


def test_only_jobs_that_wait_for_gpus_and_nothing_else_are_a_crowd() -> None:
    held = [waiting(200 + number, "n2", FULL, submitted=int(NOW), reason="Dependency") for number in range(3)]
    cpus = replace(waiting(210, "n2", 0, submitted=int(NOW)), required=(), plan=None, wants_gpus=False)
    [move] = gang_that_may_move(60, near_in=700, others=[*held, cpus])

    assert move.reason == "nearer nodes come free soon enough, and 61 jobs wait for room"


def test_however_many_wait_a_gang_ends_ten_minutes_later_than_it_could_at_most() -> None:
    assert gang_that_may_move(60, near_in=2_000) == []


def test_several_small_delays_are_no_large_one() -> None:
    """Its first end in sight is remembered, wherever it is pinned by then."""
    plan = Plan(BerthPolicy(), Settings())
    assert gang_that_may_move(60, near_in=9_000, plan=plan, far_in=300) == []
    for memory in plan._searched.values():
        memory.looked = 0.0

    assert gang_that_may_move(60, near_in=1_150, plan=plan, far_in=800) == []
    [move] = gang_that_may_move(60, near_in=1_150, far_in=800)
    assert move.berth.names == ("n5", "n6")
