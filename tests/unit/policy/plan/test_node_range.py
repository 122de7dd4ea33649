# SPDX-License-Identifier: Apache-2.0
"""A job of `-N 1-4` has a place only on as many nodes as plain Slurm would take at that moment."""

from __future__ import annotations

import pytest

from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts
from policy.placement.registry import create
from policy.plan.ledger.changes import Change, Release
from policy.plan.ledger.tracker import open_book
from policy.plan.queue.plan import Plan
from policy.request import node_range
from policy.request.settings import Settings
from policy.slurm import changes
from tests.unit.deciding import Decision, decide, values
from tests.unit.policy_world import NOW, book, fleet, node, reading, running, submit, waiting

POLICY = create("berth")
FULL = 0xFF
RANGE = {"min_nodes": "1", "max_nodes": "4"}
ON_EACH = {"tres_per_node": "gres/gpu:2", **RANGE}
IN_ALL = {"tres_per_job": "gres/gpu:4", "gpus": "4", **RANGE}


def used(*masks: int) -> tuple[list[NodeFacts], list[JobFacts]]:
    nodes = [node(f"n{number}", used=mask) for number, mask in enumerate(masks, 1)]
    return nodes, [running(number, f"n{number}", mask, 3_000) for number, mask in enumerate(masks, 1) if mask]


def answer(fields: dict[str, str], *masks: int, settings: Settings | None = None) -> Decision:
    return decide(submit(**fields), book(reading(*used(*masks))), POLICY, settings or Settings(), NOW)


@pytest.mark.parametrize(
    ("masks", "most", "nodes"),
    [
        ((0, 0, 0), "4", "n1,n2,n3"),
        ((0, FULL, 0, 0b111), "4", "n1,n3,n4"),
        ((0, 0, 0, 0, 0), "4", 4),
        ((0, 0, 0), "2", 2),
        ((FULL, 0), "500000", "n2"),
    ],
)
def test_gpus_of_each_node_are_on_as_many_nodes_as_are_free(
    masks: tuple[int, ...], most: str, nodes: str | int
) -> None:
    decision = answer(ON_EACH | {"max_nodes": most}, *masks)

    assert decision.verb == "place"
    found = decision.fields["nodes"]
    assert found == nodes if isinstance(nodes, str) else len(found.split(",")) == nodes
    assert values(decision)["was"] == f"min_nodes:1;max_nodes:{most}"
    assert "spread" not in values(decision)


@pytest.mark.parametrize("masks", [(FULL, FULL), (0b0011_1111, 0b1111_1100), (FULL, FULL, 0b0111_1111)])
def test_with_fewer_nodes_than_slurm_would_take_it_is_slurms(masks: tuple[int, ...]) -> None:
    # On the second ones Slurm takes both nodes, but no GPUs are free on both.
    decision = answer(ON_EACH, *masks)

    assert decision.verb == "pass"
    assert values(decision)["state"] == "passed"
    assert "range of 1 to 4 nodes is Slurm's to settle" in decision.fields["message"]


def test_a_node_without_memory_or_cpus_does_not_count() -> None:
    nodes = [node("n1"), node("n2", mem_used=60_000), node("n3", cpus_used=30), node("n4")]
    view = book(reading(nodes))

    more = {"mem_per_node": "8000", "cpus_per_task": "4", "tres_per_task": "cpu=4"}
    assert decide(submit(**ON_EACH, **more), view, POLICY, Settings(), NOW).fields["nodes"] == "n1,n4"


def test_with_tasks_it_needs_fewer_cpus_on_each_of_more_nodes() -> None:
    nodes = [node(f"n{number}", cpus_used=30) for number in range(1, 5)]

    found = decide(submit(**ON_EACH, num_tasks="4"), book(reading(nodes)), POLICY, Settings(), NOW)

    assert found.fields["nodes"] == "n1,n2,n3,n4"


@pytest.mark.parametrize(
    ("masks", "least", "gpus", "nodes"),
    [((0, 0), "1", "4", 1), ((0, 0, 0), "2", "4", 2), ((0, 0, 0), "2", "6", 2), ((0b11_1111,) * 2, "1", "4", 2)],
)
def test_gpus_of_the_job_are_on_the_fewest_nodes(masks: tuple[int, ...], least: str, gpus: str, nodes: int) -> None:
    decision = answer(IN_ALL | {"min_nodes": least, "gpus": gpus, "tres_per_job": f"gres/gpu:{gpus}"}, *masks)

    assert len(decision.fields["nodes"].split(",")) == nodes


@pytest.mark.parametrize(
    "more",
    [
        {"client": "srun"},
        {"begin": str(int(NOW) + 600), "later": "1"},
        {"held": "1"},
        {"dependency": "1"},
        {"array": "1-4"},
        {"het": "1"},
        {"req_nodes": "n1"},
        {"exclusive": "1"},
        {"cpus_per_tres": "gres/gpu:2"},
        {"ntasks_per_node": "2"},
        {"tres_per_task": "gres/gpu=1", "num_tasks": "2"},
        {"flag.locality": "leaf@600"},
        {"flag.gpu_share": "50"},
        {"min_nodes": "3"},
    ],
)
def test_beside_other_conditions_a_range_stays_slurms(more: dict[str, str]) -> None:
    decision = answer(ON_EACH | more, 0, 0)

    assert decision.verb == "pass"
    assert values(decision)["state"] == "passed"


def test_where_slurm_may_preempt_it_is_placed_only_if_it_starts() -> None:
    assert answer(ON_EACH, 0, 0, settings=Settings(pin_ahead=False)).fields["nodes"] == "n1,n2"
    assert answer(ON_EACH, FULL, FULL, settings=Settings(pin_ahead=False)).verb == "pass"


PINNED = {"asked": "tres_per_node:gres/gpu:2", "was": "min_nodes:1;max_nodes:4", "n": "2", "nodes": "n1,n2"}


def pinned(**changed: str) -> JobFacts:
    segment = {**PINNED, "gpus": "0,1", "k": "2", **changed}
    return waiting(9, "n1", 0b11, required=("n1", "n2"), segment=segment)


def replan(plan: Plan, masks: tuple[int, ...], job: JobFacts, at: float = NOW) -> list[Change]:
    nodes, jobs = used(*masks)
    look = reading(nodes, [*jobs, job], at=at)
    return plan.replan(open_book(FLEET, look), look.jobs)


FLEET = fleet(reading([node("n1"), node("n2"), node("n3")]))


def test_a_job_whose_place_is_not_free_is_given_back() -> None:
    [change] = replan(Plan(POLICY, Settings()), (FULL, 0, FULL), pinned())

    assert isinstance(change, Release)
    assert (change.for_now, change.reason) == (False, node_range.WHY_NOT)
    assert replan(Plan(POLICY, Settings()), (FULL, 0, FULL), pinned(was="min_nodes:2;max_nodes:2")) == []


def test_a_job_that_does_not_start_where_it_is_free_is_given_back() -> None:
    plan = Plan(POLICY, Settings())
    job = pinned()
    assert replan(plan, (0, 0, 0), job) == []
    assert replan(plan, (0, 0, 0), job, at=NOW + 10) == []

    [change] = replan(plan, (0, 0, 0), job, at=NOW + 20)

    assert isinstance(change, Release)


@pytest.mark.parametrize("for_now", [False, True])
@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ("tres_per_node:gres/gpu:2", {"tres_per_node": "gres/gpu:2", "tres_per_job": ""}),
        ("tres_per_job:gres/gpu:4", {"tres_per_node": "", "tres_per_job": "gres/gpu:4"}),
    ],
)
def test_what_is_given_back_is_the_range(asked: str, gpus: dict[str, str], *, for_now: bool) -> None:
    told = f"asked={asked} was=min_nodes:2;max_nodes:4 n=3 k=2 cpus=2 nodes=n1,n2,n3 gpus=0,1"
    plan = f"[berth/1 state=waiting id=00 {told}]"
    job = JobText(9, "PENDING", 1000, plan, "", "n[1-3]", "gres/gpu:g0:1,gres/gpu:g1:1", "")

    found = changes.release(job, "because", for_now=for_now)

    assert found is not None
    assert {key: found[key] for key in gpus} == gpus
    assert (found["node_count"], found["min_cpus"], found["req_nodes"]) == ("2-4", "4", "")
    assert "state=released" in found["admin_comment"]
