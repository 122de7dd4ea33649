# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm places itself: Slurm's backfill keeps the nodes on which it plans to start one."""

from dataclasses import replace

import pytest

from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.policy_world import NOW, book, node, reading, waiting

IN = 600


def left(job_id: int, *planned: str, **changes: object) -> JobFacts:
    """A job in segments, which Slurm plans to start on some nodes."""
    facts = {"required": (), "gpus": None, "planned": planned, "start": int(NOW) + IN, "priority": 2, "count": 1}
    job = waiting(job_id, "n1", 0xFF)
    return replace(job, plan=JobPlan({"state": "passed"}), **{**facts, **changes})  # type: ignore[arg-type]


def replan(*jobs: JobFacts, plan: Plan | None = None, at: float = NOW) -> list[Change]:
    look = reading([node("n1"), node("n2")], [*jobs], at=at)
    return (plan or Plan(BerthPolicy(), Settings())).replan(book(look), look.jobs)


def test_a_job_does_not_wait_on_a_node_that_slurm_keeps_for_one_before_it() -> None:
    [move] = replan(left(3, "n1"), waiting(5, "n1", 0b11))

    assert isinstance(move, Move)
    assert (move.job.id, move.berth.names, move.start) == (5, ("n2",), 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"planned": ()},
        {"start": None},
        {"planned": ("n2",)},
        {"planned": ("gone",)},
        {"reason": "Dependency"},
        {"priority": 0},
    ],
)
def test_it_stays_where_slurm_keeps_nothing_from_it(changes: dict[str, object]) -> None:
    assert replan(left(3, "n1", **changes), waiting(5, "n1", 0b11)) == []


def test_a_job_that_ends_before_stays_there() -> None:
    assert replan(left(3, "n1"), waiting(5, "n1", 0b11, limit=IN)) == []


def test_a_start_that_is_due_is_now() -> None:
    [move] = replan(left(3, "n1", start=int(NOW) - 5), waiting(5, "n1", 0b11, limit=60))

    assert isinstance(move, Move)
    assert move.berth.names == ("n2",)


def test_it_is_no_job_of_berths_plan() -> None:
    plan, ours, slurms = Plan(BerthPolicy(), Settings()), waiting(5, "n2", 0b11), left(3, "n1")
    assert replan(slurms, ours, plan=plan) == []
    assert [entry.job.wants_gpus for entry in plan.queue] == [False, True]
    assert plan.book is not None
    assert plan.book.cluster.waiting == 1


def test_it_closes_no_partition_though_a_list_is_left_from_its_place() -> None:
    plan = Plan(BerthPolicy(), Settings())
    replan(left(3, "n1", closes="367d9ae2"), waiting(5, "n2", 0b11), plan=plan)
    assert [entry.job.closes for entry in plan.queue] == [None, None]


def test_a_notice_plans_only_the_nodes_that_changed() -> None:
    plan, slurms = Plan(BerthPolicy(), Settings()), left(3, "n1")
    replan(slurms, waiting(5, "n2", 0b11), plan=plan)
    before, touched = plan.queue, set[int]()

    again = plan._bring_up_to_date([slurms, before[1].job], touched)

    assert again[0] is before[0]
    assert touched == set()
