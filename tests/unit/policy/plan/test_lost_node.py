# SPDX-License-Identifier: Apache-2.0
"""A job on several nodes that Slurm requeues as one was lost: the others are kept for it, for a while."""

from dataclasses import replace
from typing import cast

import pytest

from policy.formats.slurm_facts import JobFacts, NodeFacts, Reservation
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.lost_node import KEPT_FOR
from policy.plan.opinions.opinion import Reason
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from policy.request.settings import Settings
from tests.unit.policy_world import NOW, book, fleet, node, reading, running, waiting

PLACED = NOW - 3_600
OTHER = running(1, "n3", 0xFF, 3_000)
POLICY = BerthPolicy()


def gang(
    requeued: float = NOW - 5, names: str = "n1,n2", number: int = 5, gpus: int = 0xFF, **changes: object
) -> JobFacts:
    """A job that ran on n1 and n2."""
    more = cast("dict[str, str]", changes.pop("more", {}))
    segment = {"n": "2", "nodes": names, "at": str(int(PLACED)), "state": "placed", **more}
    facts = {"required": tuple(names.split(",")), "count": 2, "submitted": int(requeued), **changes}
    return waiting(number, "n1", gpus, segment=segment, **facts)


def behind(on: str = "n3", **changes: object) -> JobFacts:
    """A job on one node that is pinned to a node in use."""
    return waiting(6, on, 0xFF, **{"priority": 9, **changes})


def nodes_of(jobs: tuple[JobFacts, ...], up: str) -> list[NodeFacts]:
    busy = {name for job in jobs for name in job.nodes}
    return [
        node(name, up=name in up, lost=name not in up, used=0xFF if name in busy else 0)
        for name in ("n1", "n2", "n3", *(("n4", "n5") if "n4" in up else ()))
    ]


def replan(*jobs: JobFacts, up: str = "n1,n3", plan: Plan | None = None, **look: object) -> dict[int, Change]:
    seen = reading(nodes_of(jobs, up), [*jobs], **look)
    return {change.job.id: change for change in (plan or Plan(POLICY, Settings())).replan(book(seen), seen.jobs)}


def place(change: Change | None) -> tuple[tuple[str, ...], float] | None:
    assert change is None or isinstance(change, Move)
    return None if change is None else (tuple(change.berth.names), change.start)


def test_no_other_job_gets_the_node_that_is_left() -> None:
    assert replan(gang(), behind(), OTHER) == {}


@pytest.mark.parametrize("first", [20, 1], ids=["before the other", "after it"])
def test_a_job_that_was_to_follow_it_there_goes_elsewhere(first: int) -> None:
    """Slurm would start it on its pin as soon as the node is free."""
    moves = replan(gang(priority=first), behind("n1"), OTHER)

    assert place(moves.pop(6)) == (("n3",), NOW + 3_000)
    assert moves == {}


@pytest.mark.parametrize(
    ("up", "requeued", "k", "pinned"),
    [
        ("n1,n3", True, "8", None),
        ("n1,n3", True, "4", ("n1",)),
        ("n1,n2,n3", True, "8", ("n1",)),
        ("n1,n3", False, "8", ("n1",)),
    ],
    ids=["lost", "a part of each", "requeued by a user", "not requeued"],
)
def test_nor_does_another_job_get_it_while_the_job_ends_there(
    up: str, requeued: bool, k: str, pinned: tuple[str, ...] | None
) -> None:
    jobs = replace(gang(more={"k": k}), state="COMPLETING", nodes=()), behind(), OTHER
    seen = reading(nodes_of(jobs, up), [*jobs])
    tracker = Tracker(fleet(seen))
    tracker.update(seen, lambda job: requeued and job == 5)

    found = [place(one) for one in Plan(POLICY, Settings()).replan(tracker.book(), seen.jobs)]

    assert found == ([] if pinned is None else [(pinned, 0.0)])


@pytest.mark.parametrize(("expedited", "kept"), [(True, True), (False, False)])
def test_for_a_drained_node_it_keeps_the_other_only_where_slurm_calls_the_node_at_fault(
    expedited: bool, kept: bool
) -> None:
    """An admin may drain a node of a job that its user requeues."""
    seen = reading(
        [node("n1"), node("n2", up=False), node("n3", used=0xFF)], [gang(expedited=expedited), behind(), OTHER]
    )

    moves = Plan(POLICY, Settings()).replan(book(seen), seen.jobs)

    assert ([change.job.id for change in moves] == []) is kept


def test_it_keeps_the_node_until_slurm_lets_it_begin() -> None:
    """Without `--requeue=expedite` it may begin two minutes later, and Slurm gives no reason after an update."""
    for reason in ("BeginTime", "None"):
        assert replan(gang(reason=reason, begin=int(NOW) + 115), behind(), OTHER) == {}


@pytest.mark.parametrize(
    "job",
    [
        gang(NOW - KEPT_FOR),
        gang(more={"at": str(int(NOW) - 7)}),
        gang(reason="JobHeldUser", priority=0),
        gang(reason="Dependency"),
        gang(reason="BeginTime", begin=int(NOW) + KEPT_FOR),
        gang(het=5),
        gang(more={"share": "50", "gpu_mem": "1000"}, share=50),
        gang(more={"was": "min_nodes:1;max_nodes:2"}),
    ],
    ids=["after a while", "if it has not run", "held", "depends", "begins later", "component", "share", "range"],
)
def test_another_job_gets_it(job: JobFacts) -> None:
    assert place(replan(job, behind(), OTHER)[6]) == (("n1",), 0.0)


def test_a_job_that_has_not_whole_nodes_keeps_none() -> None:
    assert place(replan(gang(gpus=0x0F), behind(), OTHER)[6]) == (("n1",), 0.0)


def test_a_job_whose_other_node_has_another_job_meanwhile_keeps_none() -> None:
    """It was requeued for another reason, and its own node was lost while it waited."""
    moves = replan(gang(NOW - 300), behind("n1"), OTHER, running(2, "n1", 0xFF, 60))

    found = place(moves.pop(5))
    assert found is not None
    assert found[1] > NOW
    assert moves == {}


def test_a_node_that_is_powered_down_is_not_lost() -> None:
    """Slurm powers it up for the job."""
    rests = gang(reason="BeginTime", begin=int(NOW) + 120)
    seen = reading([node("n1"), node("n2", lost=True), node("n3", used=0xFF)], [rests, behind(), OTHER])

    assert {change.job.id for change in Plan(POLICY, Settings()).replan(book(seen), seen.jobs)} == {6}


def test_it_keeps_both_until_then_if_the_other_is_back_before() -> None:
    plan, rests = Plan(POLICY, Settings()), gang(reason="BeginTime", begin=int(NOW) + 120)
    replan(rests, behind(), OTHER, plan=plan)

    assert replan(rests, behind(), OTHER, up="n1,n2,n3", plan=plan) == {}


def test_it_starts_on_a_spare_node_at_its_turn() -> None:
    assert place(replan(gang(priority=20), behind("n1"))[5]) == (("n1", "n3"), 0.0)


def test_a_job_before_it_in_line_gets_the_spare_node_and_not_its_own() -> None:
    moves = replan(gang(), behind("n1"))

    assert place(moves.pop(6)) == (("n3",), 0.0)
    assert moves == {}


def test_a_job_like_it_before_it_in_line_does_not_hide_its_place() -> None:
    like_it = gang(PLACED, names="n4,n5", number=4, priority=30)
    busy = [running(number, name, 0xFF, 3_000) for number, name in ((2, "n4"), (3, "n5"))]

    moves = replan(like_it, gang(), *busy, up="n1,n3,n4,n5")

    assert place(moves.pop(5)) == (("n1", "n3"), 0.0)
    assert moves == {}


def test_it_starts_where_it_was_when_the_node_is_back() -> None:
    plan = Plan(POLICY, Settings())
    replan(gang(), behind(), OTHER, plan=plan)

    assert 5 not in replan(gang(), behind(), OTHER, up="n1,n2,n3", plan=plan)
    assert {entry.job.id: entry.last.start for entry in plan.queue}[5] == 0.0


def test_a_job_that_was_requeued_without_such_a_loss_waits_for_its_turn() -> None:
    moves = replan(gang(reason="BeginTime", begin=int(NOW) + 120), behind(), OTHER, up="n1,n2,n3")

    found = place(moves[6])
    assert found is not None
    assert found[1] == 0.0


def test_two_jobs_that_lost_nodes_keep_their_own() -> None:
    """Neither gets the node that is kept for the other one."""
    moves = replan(gang(), gang(names="n4,n5", number=7, priority=20), behind("n4"), OTHER, up="n1,n3,n4")

    assert place(moves.pop(6)) == (("n3",), NOW + 3_000)
    assert moves == {}


def test_a_reserved_node_stays_closed_to_it() -> None:
    ours = Reservation(int(NOW) - 1, int(NOW) + 900, ("n1",), "r")

    assert replan(gang(), reservations=(ours,)) == {}


def test_a_site_that_pins_nothing_ahead_keeps_its_pin_too() -> None:
    plan = Plan(POLICY, Settings(pin_ahead=False))

    assert 5 not in replan(gang(), OTHER, plan=plan)


@pytest.mark.parametrize("first", [20, 1], ids=["before the other", "after it"])
def test_a_notice_gives_the_node_to_no_other_job(first: int) -> None:
    jobs = [gang(priority=first), behind(), OTHER]
    seen = reading(nodes_of(tuple(jobs), "n1,n3"), jobs)
    tracker, plan = Tracker(fleet(seen)), Plan(POLICY, Settings())
    tracker.update(seen)
    plan.replan(tracker.book(), seen.jobs)

    for names in ({"n1"}, {"n1", "n3"}):
        places = {tracker.fleet.index[name] for name in names}
        changes = plan.freed(tracker, places, seen.jobs) or []
        assert [change.job.id for change in changes] == []


def reason_of(number: int, *jobs: JobFacts) -> Reason | None:
    seen = reading(nodes_of(jobs, "n1,n3"), [*jobs])
    tracker, plan = Tracker(fleet(seen)), Plan(POLICY, Settings())
    tracker.update(seen)
    plan.replan(tracker.book(), seen.jobs)
    [entry] = [entry for entry in plan.queue if entry.job.id == number]
    assert plan.book is not None
    return why(entry, plan.book, tracker.book(), POLICY, plan.queue)


def test_both_users_read_how_long_it_lasts_and_nothing_of_the_others_job() -> None:
    own, others = (reason_of(number, gang(), behind(), OTHER) for number in (5, 6))

    assert own == Reason(
        "node", f"a node of its place was lost; its other nodes are kept for it for {KEPT_FOR - 5} s more at most", 519
    )
    assert others == Reason(
        "node", f"GPUs that fit are free, and kept for {KEPT_FOR - 5} s more at most for a job that lost a node", 519
    )
    after = reason_of(6, gang(NOW - KEPT_FOR, priority=20), behind(), OTHER)
    assert after is not None
    assert after.number == 513
