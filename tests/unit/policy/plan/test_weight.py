# SPDX-License-Identifier: Apache-2.0
"""Nodes of less Weight are taken first, as by Slurm; links and scores decide among those of one weight."""

from dataclasses import replace

import pytest

from policy.formats.slurm_facts import NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.deciding import decide
from tests.unit.policy_world import NOW, book, fleet, node, reading, running, submit, waiting

POLICY = BerthPolicy()
INSISTS = {"insists": "nvlink", "wait": "600"}
KINDS = {"n1": "h100", "n2": "l40s", "n3": "l40s"}


def placed(nodes: list[NodeFacts], opened: Book | None = None, /, **fields: str) -> list[str]:
    answer = decide(submit(**fields), opened or book(reading(nodes)), POLICY, Settings(), NOW)
    return answer.fields["nodes"].split(",")


def test_the_cheap_node_is_taken_though_another_is_linked_better() -> None:
    dear = [node("n1", weight=1_000), node("n2"), node("n3", gpus_used=0xFF)]

    alike = [replace(one, weight=1) for one in dear]

    assert placed(dear, book(reading(dear), KINDS), tres_per_job="gres/gpu:2") == ["n2"]
    assert placed(alike, book(reading(alike), KINDS), tres_per_job="gres/gpu:2") == ["n1"]


def test_where_the_cheap_nodes_are_full_the_next_weight_is_taken() -> None:
    nodes = [node("n1", weight=1_000), node("n2", gpus_used=0xFF), node("n3", weight=10)]

    assert placed(nodes, tres_per_job="gres/gpu:2") == ["n3"]


def test_a_job_on_several_nodes_takes_the_cheapest_that_are_enough() -> None:
    nodes = [node("n1", weight=3), node("n2", weight=1), node("n3", weight=2), node("n4", weight=9)]

    two = placed(nodes, tres_per_node="gres/gpu:2", min_nodes="2", max_nodes="2")
    three = placed(nodes, tres_per_node="gres/gpu:2", min_nodes="3", max_nodes="3")

    assert (sorted(two), sorted(three)) == (["n2", "n3"], ["n1", "n2", "n3"])


@pytest.mark.parametrize("full", range(1, 12))
def test_of_many_weights_the_least_that_has_room_is_found(full: int) -> None:
    nodes = [node(f"n{number}", weight=number, gpus_used=0xFF if number <= full else 0) for number in range(1, 13)]

    assert placed(nodes, tres_per_job="gres/gpu:8") == [f"n{full + 1}"]


def test_a_place_that_is_free_sooner_counts_for_more_than_weight() -> None:
    nodes = [node("n1", weight=1_000), node("n2", gpus_used=0xFF)]
    opened = book(reading(nodes, [running(1, "n2", 0xFF, 60)]))

    assert placed(nodes, opened, tres_per_job="gres/gpu:2") == ["n1"]


def test_a_wait_goes_on_after_a_restart() -> None:
    old = int(NOW) - 5_000
    segment = {**INSISTS, "until": str(int(NOW) + 598)}
    nodes = [node("n1"), node("n2")]
    job = waiting(5, "n1", 0b11, submitted=old, segment=segment)
    look = reading(nodes, [job])
    plan = Plan(POLICY, Settings())
    plan.replan(book(look), look.jobs)

    assert plan.queue[0].level.until == NOW + 598


def test_the_plan_keeps_waits_over_a_new_fleet() -> None:
    plan = Plan(POLICY, Settings())
    held = waiting(5, "n1", 0b11, reason="JobHeldUser", submitted=int(NOW) - 5_000, segment=INSISTS)
    for at, job in ((NOW, held), (NOW + 1, replace(held, reason="Resources")), (NOW + 2, replace(held, reason="None"))):
        look = reading([node("n1"), node("n2")], [job], at=at)
        tracker = Tracker(fleet(look))
        tracker.update(look)
        assert not [one for one in plan.replan(tracker.book(), look.jobs) if isinstance(one, Move)]

    [entry] = plan.queue
    assert entry.level.until == NOW + 601
