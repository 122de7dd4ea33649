# SPDX-License-Identifier: Apache-2.0
"""Packed jobs with profiles: whom they are put beside, for how long they wait for that, and what they are told."""

import pickle
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cluster.shared.company import NOBODY_KNOWN
from policy.cluster.shared.tenants import PlannedTenant
from policy.daemon.known.profiles import load_fit
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from policy.request.settings import Settings, Sharing
from policy.request.share import EVERYBODY, Mate, Share
from policy.sharing.neighbours import Neighbours, numbers_of
from policy.sharing.profiles import Measured
from tests.unit.deciding import Decision, decide, values
from tests.unit.policy_world import NOW, reading, running, submit
from tests.unit.share_world import fleet, node, packed, packed_waiting

ME = 1_000
SHARING = Sharing(profiles="/var/lib/berth/profiles", way="time")
"""In turn nothing holds a job to its part of the SMs, so that jobs harm each other most."""
FIT = load_fit()
ALONE = {
    "light": Measured(at=NOW, runs=5, busy=0.1, bandwidth=0.04, memory=2_500.0),
    "heavy": Measured(at=NOW, runs=5, busy=0.95, bandwidth=0.6, memory=6_000.0),
}
KNOWN: dict[Mate, tuple[float, float, float]] = {(ME, name): numbers_of(one) for name, one in ALONE.items()}
WHOLE = {"share": 0, "segment": {"whole": "1"}}


def neighbours(sharing: Sharing = SHARING) -> Neighbours:
    return Neighbours(KNOWN, FIT, least=sharing.least_speed / 100, capped=sharing.way == "mps")


def tracker(nodes: list[NodeFacts], jobs: list[JobFacts], at: float = NOW, sharing: Sharing = SHARING) -> Tracker:
    look = reading(nodes, jobs, at=at)
    made = Tracker(fleet(look, sharing))
    made.neighbours = neighbours(sharing)
    made.update(look)
    return made


def called(name: str, job: JobFacts) -> JobFacts:
    return replace(job, name=name)


def ask(opened: Book, name: str, percent: int = 30, /, **fields: str) -> Decision:
    flags = {"flag.gpu-share": str(percent), "name": name, "tres_per_job": "gres/gpu:1", "gpus": "1"}
    return decide(submit(**{**flags, **fields}), opened, BerthPolicy(), Settings(sharing=SHARING), NOW)


def told(decision: Decision) -> dict[str, str]:
    assert decision.verb == "place", decision.fields
    return values(decision)


TWO_GPUS = [node("n1", used=0xFC, shared=(30, 30))]
OTHERS = running(9, "n1", 0xFC, 9_000)


def two_gpus(first: str, second: str) -> list[JobFacts]:
    """Two shared GPUs with a packed job each; nothing else is free."""
    return [OTHERS, called(first, packed(1, "n1", 0, 30)), called(second, packed(2, "n1", 1, 30))]


# At submission


def test_a_heavy_job_joins_the_light_one_and_is_told_both_speeds() -> None:
    opened = tracker(TWO_GPUS, two_gpus("heavy", "light")).book()

    found = told(ask(opened, "heavy"))

    assert (found["gpus"], found["state"]) == ("1", "placed")
    assert "predicted speeds: it " in found["why"]
    assert "1 place passed over: it, or those there, would not keep 0.80 there" in found["why"]


def test_a_free_gpu_is_opened_rather_than_two_heavy_jobs_put_together() -> None:
    jobs = [called("heavy", packed(1, "n1", 0, 30))]
    opened = tracker([node("n1", shared=(30,))], jobs).book()

    assert told(ask(opened, "heavy"))["gpus"] == "1"
    assert told(ask(opened, "light"))["gpus"] == "0"


def test_of_jobs_that_nobody_measured_there_is_no_opinion() -> None:
    jobs = [called("heavy", packed(1, "n1", 0, 30))]
    opened = tracker([node("n1", shared=(30,))], jobs).book()

    found = told(ask(opened, "new"))

    assert (found["gpus"], "predicted" in found["why"]) == ("0", False)
    assert told(ask(opened, "heavy", uid="77"))["gpus"] == "0", "another user's job of that name is nobody's"


def test_a_job_held_to_a_small_part_of_the_sms_harms_little() -> None:
    sharing = replace(SHARING, way="mps")
    jobs = [called("heavy", packed(1, "n1", 0, 30))]
    opened = tracker([node("n1", shared=(30,))], jobs, sharing=sharing).book()

    assert told(ask(opened, "heavy", 10))["gpus"] == "0"


def test_what_company_costs_is_weighed_against_room() -> None:
    # The fuller GPU would be taken for the room's sake; its job loses more by company than room is worth.
    jobs = [
        OTHERS,
        called("heavy", packed(1, "n1", 0, 60)),
        called("light", packed(2, "n1", 1, 30)),
    ]
    opened = tracker([node("n1", used=0xFC, shared=(60, 30))], jobs).book()

    assert told(ask(opened, "new", 40))["gpus"] == "0"
    assert told(ask(opened, "heavy", 40))["gpus"] == "1"


def test_a_job_with_bad_company_only_waits_and_gets_its_place_when_that_ends() -> None:
    opened = tracker(TWO_GPUS, two_gpus("heavy", "heavy")).book()

    found = told(ask(opened, "heavy"))

    assert (found["state"], found["whole"], found["start"]) == ("waiting", "1", str(int(NOW) + 1_000))
    assert told(ask(opened, "light"))["state"] == "placed"


def test_where_nobody_waits_for_company_the_least_bad_is_taken() -> None:
    sharing = replace(SHARING, company_wait=0)
    opened = tracker(TWO_GPUS, two_gpus("heavy", "heavy"), sharing=sharing).book()

    found = told(ask(opened, "heavy"))

    assert found["state"] == "placed"
    assert "no better company came free in time" in found["why"]


ON_TWO_NODES = {"tres_per_job": "gres/gpu:2", "gpus": "2", "min_nodes": "2", "max_nodes": "2", "num_tasks": "2"}


def two_nodes(first: str, second: str) -> tuple[list[NodeFacts], list[JobFacts]]:
    """Two nodes, on each of which two GPUs have a packed job and nothing else is free."""
    nodes = [node(name, used=0xFC, shared=(30, 30)) for name in ("n1", "n2")]
    jobs = [running(90 + place, one.name, 0xFC, 9_000) for place, one in enumerate(nodes)]
    for place, one in enumerate(nodes):
        jobs.append(called(first, packed(1 + 2 * place, one.name, 0, 30)))
        jobs.append(called(second, packed(2 + 2 * place, one.name, 1, 30)))
    return nodes, jobs


def test_on_several_nodes_a_job_joins_those_that_bear_it_on_each() -> None:
    opened = tracker(*two_nodes("heavy", "light")).book()

    found = told(ask(opened, "heavy", **ON_TWO_NODES))

    assert (found["nodes"], found["gpus"], found["state"]) == ("n1,n2", "1", "placed")


def test_on_several_nodes_too_bad_company_only_is_waited_for() -> None:
    opened = tracker(*two_nodes("heavy", "heavy")).book()

    found = told(ask(opened, "heavy", **ON_TWO_NODES))

    assert (found["state"], found["start"]) == ("waiting", str(int(NOW) + 1_000))
    assert told(ask(opened, "light", **ON_TWO_NODES))["state"] == "placed"


def test_on_several_nodes_nobody_waits_for_company_where_the_site_says_so() -> None:
    sharing = replace(SHARING, company_wait=0)
    opened = tracker(*two_nodes("heavy", "heavy"), sharing=sharing).book()

    assert told(ask(opened, "heavy", **ON_TWO_NODES))["state"] == "placed"


# Waiting


def replan(jobs: list[JobFacts], at: float = NOW, plan: Plan | None = None) -> list[Change]:
    made = tracker(TWO_GPUS, jobs, at)
    return (plan or Plan(BerthPolicy(), Settings(sharing=SHARING))).replan(made.book(), jobs)


def heavy_waits(**changes: object) -> JobFacts:
    return called("heavy", packed_waiting(5, "n1", 0, 30, **{"submitted": int(NOW), **WHOLE, **changes}))


def test_a_waiting_job_moves_to_where_its_company_bears_it() -> None:
    [move] = replan([*two_gpus("heavy", "light"), heavy_waits()])

    assert isinstance(move, Move)
    assert (move.berth.gpus, move.start, "predicted speeds" in move.berth.why) == ((1,), 0.0, True)


def test_it_waits_for_good_company_so_long_and_no_longer() -> None:
    jobs = [*two_gpus("heavy", "heavy"), heavy_waits()]

    assert [change for change in replan(jobs) if isinstance(change, Move) and not change.start] == []
    [move] = replan(jobs, NOW + SHARING.company_wait + 1)
    assert isinstance(move, Move)
    assert move.start == 0.0
    assert "no better company came free in time" in move.berth.why


def test_it_is_told_for_what_it_waits() -> None:
    jobs = [*two_gpus("heavy", "heavy"), heavy_waits()]
    made = tracker(TWO_GPUS, jobs)
    plan = Plan(BerthPolicy(), Settings(sharing=SHARING))
    plan.replan(made.book(), jobs)
    assert plan.book is not None

    reason = why(plan.queue[0], plan.book, made.book(), BerthPolicy())

    assert reason is not None
    assert reason.text == (
        "30 % of GPUs are free only beside packed jobs with which it, or they, would not keep 0.80 of the speed that "
        "each has with its share alone; it waits 600 s more for better company"
    )


def test_two_that_wait_are_not_planned_together_either() -> None:
    nodes = [node("n1", used=0xFE)]
    jobs = [
        running(9, "n1", 0xFE, 9_000),
        called("heavy", packed_waiting(5, "n1", 0, 30, priority=9)),
        called("heavy", packed_waiting(6, "n1", 0, 30, priority=1, submitted=int(NOW))),
    ]
    made = tracker(nodes, jobs)

    changes = Plan(BerthPolicy(), Settings(sharing=SHARING)).replan(made.book(), jobs)

    [move] = [change for change in changes if isinstance(change, Move)]
    assert (move.job.id, move.start > NOW) == (6, True)


# What is known


def tenant(name: str, percent: int = 30) -> PlannedTenant:
    return PlannedTenant(1, percent, 0, EVERYBODY, 0.0, 10.0, (ME, name))


def share(name: str, percent: int = 30) -> Share:
    return Share(percent, mate=(ME, name))


@given(st.lists(st.sampled_from(["heavy", "light", "new"]), max_size=4), st.sampled_from(["heavy", "light"]))
def test_more_company_never_makes_anybody_faster(there: list[str], one: str) -> None:
    everybody = neighbours()
    before = everybody.meeting(share(one), [tenant(name) for name in there])
    after = everybody.meeting(share(one), [tenant(name) for name in (*there, "heavy")])

    assert 0.0 <= after.least <= after.own <= before.own <= 1.0
    assert after.least <= before.least
    assert after.lost >= before.lost >= 0.0


def test_nobody_there_or_nobody_known_is_no_opinion() -> None:
    assert neighbours().meeting(share("heavy"), []) is NOBODY_KNOWN
    assert neighbours().meeting(share("heavy"), [tenant("new")]) is NOBODY_KNOWN
    assert neighbours().meeting(share("new"), [tenant("heavy")]) is NOBODY_KNOWN


def test_it_travels_without_what_was_worked_out_and_takes_that_over_from_the_last_one() -> None:
    old = neighbours()
    said = old.meeting(share("heavy"), [tenant("light")])
    new: Neighbours = pickle.loads(pickle.dumps(old))  # noqa: S301 - our own

    assert len(pickle.dumps(new)) < 2 * len(pickle.dumps(FIT))
    assert new.meeting(share("heavy"), [tenant("light")]) == said
    new.adopt(old)
    assert new.meeting(share("heavy"), [tenant("light")]) is said


@pytest.mark.parametrize("kinds", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_it_stays_quick_and_small_with_many_kinds(kinds: int) -> None:
    known = {
        (user, "job"): (round(user % 50 / 50, 2), round(user % 40 / 50, 2), user % 30 / 10) for user in range(kinds)
    }
    many = Neighbours(known, FIT, least=0.8, capped=False)
    began = time.process_time()
    for user in range(kinds - 1):
        there = [PlannedTenant(1, 30, 0, EVERYBODY, 0.0, 10.0, (user + 1, "job"))]
        many.meeting(Share(30, mate=(user, "job")), there)

    assert time.process_time() - began < 5.0
