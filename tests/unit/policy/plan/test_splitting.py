# SPDX-License-Identifier: Apache-2.0
"""A job that may be split over nodes takes GPUs that are free on several, where it ends sooner so."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.fit import on_fleet
from policy.formats.errors import NotNow
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.base import Policy
from policy.placement.registry import create
from policy.plan.answer.told import moved
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.places import free_now
from policy.plan.ledger.tracker import Tracker, open_book
from policy.plan.opinions.opinion import Reason
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from policy.request.demand import Demand
from policy.request.settings import Settings
from tests.examples import examples
from tests.unit.deciding import Decision, decide, values
from tests.unit.policy_world import NOW, fleet, node, reading, request_of, running, submit, waiting
from topology.network.fabric import Fabric

POLICY = create("berth")
SEVEN, FULL = 0b0111_1111, 0xFF


def fabric(*leaves: int) -> Fabric:
    """Nodes n1, n2 ... on these leaves of one pod."""
    names = tuple(f"n{number}" for number in range(1, len(leaves) + 1))
    nobody = np.full(len(leaves), -1, np.int64)
    pod = np.zeros(len(leaves), np.int64)
    found = tuple(f"leaf{number}" for number in range(max(leaves) + 1))
    return Fabric(names, nobody, np.array(leaves, np.int64), pod, leaves=found, pods=("pod0",))


def opened(look: Reading, *leaves: int) -> Book:
    return open_book(fleet(look, fabric=fabric(*leaves)), look)


def answer(look: Reading, *leaves: int, **fields: str) -> Decision:
    asked = {"tres_per_job": "gres/gpu:2", "min_cpus": "1", "flag.locality": "leaf", **fields}
    return decide(submit(**asked), opened(look, *leaves), POLICY, Settings(), NOW)


def busy(seconds: float, *masks: int) -> Reading:
    """Nodes on which these GPUs are in use for so long."""
    nodes = [node(f"n{number}", used=mask) for number, mask in enumerate(masks, 1)]
    jobs = [running(number, f"n{number}", mask, seconds) for number, mask in enumerate(masks, 1) if mask]
    return reading(nodes, jobs)


def test_one_gpu_on_each_of_two_nodes_of_a_leaf_is_a_place_for_two() -> None:
    decision = answer(busy(3_000, SEVEN, SEVEN), 0, 0)

    assert (decision.fields["nodes"], decision.fields["gpus"]) == ("n1,n2", "7")
    found = values(decision)
    assert (found["state"], found["n"], found["k"], found["level"]) == ("placed", "2", "1", "leaf")
    assert found["splits"] == "1:100,2:100"
    assert "since it ends sooner than on one node later, though 17 % slower" in found["why"]
    assert decision.claim is not None
    assert decision.claim.nodes == (0, 1)


def test_nodes_of_two_leaves_are_no_place_while_a_job_insists_on_one() -> None:
    decision = answer(busy(3_000, SEVEN, SEVEN), 0, 1)

    assert decision.fields["nodes"] in {"n1", "n2"}
    assert values(decision)["state"] == "waiting"


@pytest.mark.parametrize("fields", [{"flag.locality": "node"}, {"min_nodes": "1", "max_nodes": "1"}])
def test_a_job_that_wants_one_node_gets_one(fields: dict[str, str]) -> None:
    assert "," not in answer(busy(3_000, SEVEN, SEVEN), 0, 0, **fields).fields["nodes"]


def test_a_job_without_a_level_keeps_to_one_node() -> None:
    asked = submit(tres_per_job="gres/gpu:2", min_cpus="1")
    decision = decide(asked, opened(busy(3_000, SEVEN, FULL), 0, 0), POLICY, Settings(), NOW)

    assert "," not in decision.fields["nodes"]
    assert "splits" not in values(decision)


def test_a_node_that_is_free_is_better_than_two() -> None:
    decision = answer(busy(3_000, SEVEN, SEVEN, 0), 0, 0, 0)

    assert decision.fields["nodes"] == "n3"


def test_a_place_on_one_node_that_comes_soon_is_better_than_two_nodes_now() -> None:
    """17 % of half an hour is 300 s: a wait of 100 s is shorter, one of 1,000 s is not."""
    assert values(answer(busy(100, SEVEN, SEVEN), 0, 0))["state"] == "waiting"
    assert values(answer(busy(1_000, SEVEN, SEVEN), 0, 0))["state"] == "placed"


def job(name: str = "n1", mask: int = 0b11, **changes: object) -> JobFacts:
    more = {"splits": "1:100,2:100", "insists": "leaf", "wait": "600", **changes.pop("segment", {})}  # type: ignore[dict-item]
    return waiting(9, name, mask, segment=more, **changes)


def replan(look: Reading, *leaves: int, plan: Plan | None = None) -> list[Change]:
    return (plan or Plan(POLICY, Settings())).replan(opened(look, *leaves), look.jobs)


def with_job(look: Reading, one: JobFacts) -> Reading:
    return replace(look, jobs=(*look.jobs, one))


def test_a_waiting_job_takes_gpus_that_come_free_on_two_nodes() -> None:
    look = with_job(busy(3_000, SEVEN, SEVEN), job())

    [move] = replan(look, 0, 0)

    assert isinstance(move, Move)
    assert (move.berth.names, move.berth.gpus, move.start) == (("n1", "n2"), (7,), 0.0)
    assert move.reason == "it can start now on 2 nodes"
    written = moved(move, NOW)
    assert (written.texts["n"], written.texts["k"], written.texts["mem"], written.texts["nodes"]) == (
        "2",
        "1",
        "100",
        "n1,n2",
    )


def test_it_waits_for_one_node_that_comes_soon_and_says_so() -> None:
    look = with_job(busy(100, SEVEN, SEVEN), job())
    plan = Plan(POLICY, Settings())

    assert replan(look, 0, 0, plan=plan) == []
    reason = reason_of(look, plan, 0, 0)
    assert (reason.kind, reason.number) == ("locality", 512)
    assert "GPUs are free on more nodes; it waits" in reason.text


def test_it_waits_for_its_level_and_then_takes_the_nearest_nodes() -> None:
    insists = with_job(busy(3_000, SEVEN, SEVEN), job(submitted=int(NOW) - 100))
    plan = Plan(POLICY, Settings())
    assert replan(insists, 0, 1, plan=plan) == []
    assert reason_of(insists, plan, 0, 1).text == "it waits 500 s more for GPUs that share one leaf level"

    [move] = replan(with_job(busy(3_000, SEVEN, SEVEN), job(submitted=int(NOW) - 700)), 0, 1)

    assert isinstance(move, Move)
    assert (move.berth.names, move.berth.level) == (("n1", "n2"), "pod")
    assert "its wait for one leaf has ended, the nearest nodes will do" in move.reason


def test_a_job_on_two_nodes_may_come_back_to_one() -> None:
    """It was to start on two nodes, which others took meanwhile; one node is free."""
    two = job(mask=0b1000_0000, required=("n1", "n2"), segment={"n": "2", "k": "1", "nodes": "n1,n2", "gpus": "7"})
    look = with_job(busy(3_000, FULL, FULL, 0), two)

    [move] = replan(look, 0, 0, 0)

    assert isinstance(move, Move)
    assert move.berth.names == ("n3",)
    assert moved(move, NOW).texts["n"] == "1"


def test_a_job_whose_pin_was_just_written_counts_on_its_new_nodes() -> None:
    """Slurm shows the change later; the plan must not give the same GPUs to the next job in the meantime."""
    other = waiting(10, "n1", 0b11, segment={"splits": "1:100,2:100", "insists": "leaf", "wait": "600"})
    look = with_job(with_job(busy(3_000, SEVEN, SEVEN), job()), other)

    changes = replan(look, 0, 0)

    assert [change.job.id for change in changes if isinstance(change, Move)] == [9]


def test_what_is_fragmented_names_all_splits() -> None:
    look = with_job(busy(3_000, SEVEN, 0b1011_1111), job(submitted=int(NOW) - 700))
    plan = Plan(POLICY, Settings())
    replan(look, 0, 0, plan=plan)

    text = reason_of(look, plan, 0, 0).text
    assert text == "2 GPUs are free, but no nodes near enough have 1 x 2 or 2 x 1, the same ones on each"


def reason_of(look: Reading, plan: Plan, *leaves: int) -> Reason:
    tracker = Tracker(fleet(look, fabric=fabric(*leaves)))
    tracker.update(look)
    [entry] = [entry for entry in plan.queue if entry.job.id == 9]
    assert plan.book is not None
    reason = why(entry, plan.book, tracker.book(), POLICY)
    assert reason is not None
    return reason


def brute_force(demand: Demand, book: Book, policy: Policy) -> float | None:
    """The least cost over each number of nodes, each set of nodes and each set of GPUs that is free on all of them."""
    view = book.cluster.now(demand.limit)
    costs = []
    for one in demand.every_split:
        for nodes in combinations(range(len(book.fleet.names)), one.n):
            common = FULL
            for place in nodes:
                common &= int(view.free[place])
            if common.bit_count() < one.k:
                continue
            level = book.fleet.fabric.level(nodes) if one.n > 1 else "node"
            if one.level == "leaf" and level not in {"leaf", "node"}:
                continue
            free = [gpu for gpu in range(8) if common >> gpu & 1]
            costs += [policy.berth(one, view, nodes, gpus, "").cost for gpus in combinations(free, one.k)]
    return min(costs, default=None)


@given(
    used=st.lists(st.integers(0, FULL), min_size=4, max_size=4),
    leaves=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    gpus=st.sampled_from([2, 3, 4, 6, 8]),
    level=st.sampled_from(["leaf", "pod", "any"]),
)
@settings(max_examples=examples(100), deadline=None)
def test_no_split_is_cheaper_than_the_one_that_is_chosen(
    used: list[int], leaves: list[int], gpus: int, level: str
) -> None:
    look = busy(3_000, *used)
    book = opened(look, *(sorted(leaves) if max(leaves) else leaves))
    asked = submit(tres_per_job=f"gres/gpu:{gpus}", min_cpus="1", **{"flag.locality": level})
    demand = on_fleet(request_of(asked), book.fleet).at(level)
    least = brute_force(demand, book, POLICY)
    try:
        berth = free_now(demand, lambda one: book.now(one, POLICY))
    except NotNow:
        assert least is None
        return
    assert least is not None
    assert berth.cost <= least * 1.02
    assert len(berth.nodes) * len(berth.gpus) == gpus
