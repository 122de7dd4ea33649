# SPDX-License-Identifier: Apache-2.0
"""A cluster on its way: some nodes have a GRES type for each GPU, on the others Slurm alone chooses."""

from __future__ import annotations

from policy.formats import segment
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.registry import create
from policy.plan.ledger.changes import Release
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from tests.unit.deciding import Decision, decide

from ...policy_world import NOW, book, node, reading, running, submit, waiting

POLICY = create("berth")
FULL = 0xFF


def plain(name: str) -> NodeFacts:
    """A node that lists its GPUs by a count."""
    return node(name, gpus=0, loose=8, seats=0)


def answer(nodes: list[NodeFacts], jobs: list[JobFacts] | None = None, **fields: str) -> Decision:
    opened = book(reading(nodes, jobs), {"n1": "h100"})
    return decide(submit(tres_per_node="gres/gpu:2", **fields), opened, POLICY, Settings(), NOW)


def test_a_job_that_fits_now_gets_its_place_on_the_nodes_with_types() -> None:
    decision = answer([node("n1"), plain("n2")])

    assert (decision.verb, decision.fields["nodes"]) == ("place", "n1")


def test_a_job_that_would_wait_is_left_to_slurm_that_knows_more_nodes() -> None:
    decision = answer([node("n1", used=FULL), plain("n2")], [running(1, "n1", FULL, 600)])

    assert decision.verb == "pass"
    values = segment.fields(f"[berth/1 {decision.fields['segment']}]") or {}
    assert "nodes whose GPUs have no GRES types of their own may start it sooner" in values["why"]


def test_a_job_that_insists_on_nvlink_waits_for_it() -> None:
    decision = answer(
        [node("n1", used=FULL), plain("n2")], [running(1, "n1", FULL, 600)], **{"flag.locality": "nvlink@10"}
    )

    assert (decision.verb, decision.fields["nodes"]) == ("place", "n1")


def test_a_job_that_only_such_nodes_could_hold_is_left_to_slurm() -> None:
    decision = answer([node("n1", features=frozenset({"v100"})), plain("n2")], features="rack1")

    assert decision.verb == "pass"


def test_a_waiting_job_whose_place_is_not_free_is_given_back() -> None:
    job = waiting(5, "n1", 0b11)
    opened = book(reading([node("n1", used=FULL), plain("n2")], [running(1, "n1", FULL, 600), job]), {"n1": "h100"})

    changes = Plan(POLICY, Settings()).replan(opened, [running(1, "n1", FULL, 600), job])

    assert [change.job.id for change in changes if isinstance(change, Release)] == [5]


def test_without_such_nodes_it_keeps_its_place() -> None:
    job = waiting(5, "n1", 0b11)
    opened = book(reading([node("n1", used=FULL)], [running(1, "n1", FULL, 600), job]))

    assert Plan(POLICY, Settings()).replan(opened, [job]) == []
