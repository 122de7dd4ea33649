# SPDX-License-Identifier: Apache-2.0
"""Splits: the numbers of nodes that a job may have, and the requests that keep the one they have."""

from dataclasses import replace

import pytest

from policy.cluster.fit import on_fleet
from policy.formats import plan_fields
from policy.formats.errors import FormatError
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import SPLITS, Split
from policy.plan.answer.told import demanded
from policy.request.demand import Demand
from tests.unit.policy_world import fleet, node, reading, request_of, submit

FLEET = fleet(reading([node(f"n{i}") for i in range(1, 9)]))
LEAF = {"flag.locality": "leaf"}


def demand_of(**fields: str) -> Demand:
    return on_fleet(request_of(submit(**fields)), FLEET)


def shapes(demand: Demand) -> list[tuple[int, int]]:
    return [(one.n, one.k) for one in demand.every_split]


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (1, [(1, 1)]),
        (2, [(1, 2), (2, 1)]),
        (6, [(1, 6), (2, 3), (3, 2), (6, 1)]),
        (7, [(1, 7), (7, 1)]),
        (8, [(1, 8), (2, 4), (4, 2), (8, 1)]),
        (16, [(2, 8), (4, 4), (8, 2)]),
    ],
)
def test_a_job_that_names_a_level_and_no_nodes_may_be_split(gpus: int, found: list[tuple[int, int]]) -> None:
    assert shapes(demand_of(tres_per_job=f"gres/gpu:{gpus}", min_cpus="1", **LEAF)) == found


def test_a_job_keeps_the_fewest_nodes_where_limits_may_bound_them() -> None:
    asked = submit(tres_per_job="gres/gpu:4", min_cpus="1", **LEAF)

    assert shapes(on_fleet(request_of(asked), replace(FLEET, splits_limited=True))) == [(1, 4)]


@pytest.mark.parametrize(
    "fields",
    [
        {"flag.locality": ""},
        {"min_nodes": "1", "max_nodes": "1"},
        {"req_nodes": "n1"},
        {"num_tasks": "2", "min_cpus": "2"},
        {"ntasks_per_node": "2"},
        {"cpus_per_tres": "gres/gpu:2", "min_cpus": "4"},
        {"ntasks_per_tres": "1", "num_tasks": "2"},
        {"num_tasks": "6", "pn_min_cpus": "6"},
        {"min_cpus": "6"},
        {"exclusive": "1"},
        {"array": "1"},
        {"het": "1"},
        {"client": "interactive"},
        {"tres_per_job": "", "tres_per_node": "gres/gpu:2"},
        {"tres_per_job": "", "tres_per_task": "gres/gpu=1", "num_tasks": "2", "min_cpus": "2"},
    ],
)
def test_a_request_that_a_pin_could_not_keep_on_other_nodes_has_one_split(fields: dict[str, str]) -> None:
    asked = {"tres_per_job": "gres/gpu:2", "min_cpus": "1", **LEAF, **fields}

    assert len(shapes(demand_of(**{key: value for key, value in asked.items() if value}))) == 1


def test_each_node_of_a_split_gives_what_slurm_would_give() -> None:
    """One task on each node with its CPUs, `--mem` of each node, memory for each GPU by its GPUs."""
    asked = {"tres_per_job": "gres/gpu:4", "cpus_per_task": "3", "min_cpus": "3", **LEAF}

    def given(**more: str) -> list[tuple[int, int | None, int | None]]:
        return [(one.n, one.cpus, one.mem) for one in demand_of(**asked, **more).every_split]

    assert given() == [(1, 3, 300), (2, 3, 300), (4, 3, 300)]
    assert given(mem_per_node="5000") == [(1, 3, 5_000), (2, 3, 5_000), (4, 3, 5_000)]
    assert given(mem_per_tres="gres/gpu:1000") == [(1, 3, 4_000), (2, 3, 2_000), (4, 3, 1_000)]


def test_nodes_with_more_threads_than_others_keep_a_job_together() -> None:
    mixed = fleet(reading([node("n1"), node("n2", threads=2)]))

    assert len(shapes(on_fleet(request_of(submit(tres_per_job="gres/gpu:2", min_cpus="1", **LEAF)), mixed))) == 1


def test_a_split_that_no_nodes_could_hold_is_left_out() -> None:
    small = fleet(reading([node("n1"), node("n2")]))

    assert shapes(on_fleet(request_of(submit(tres_per_job="gres/gpu:4", min_cpus="1", **LEAF)), small)) == [
        (1, 4),
        (2, 2),
    ]


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        ("nvlink", {1: "nvlink", 2: "nvlink"}),
        ("node", {1: "node"}),
        ("leaf", {1: "node", 2: "leaf"}),
        ("any", {1: "node", 2: "any"}),
    ],
)
def test_a_level_holds_for_each_split_that_can_meet_it(level: str, levels: dict[int, str]) -> None:
    demand = demand_of(tres_per_job="gres/gpu:2", min_cpus="1", **LEAF).at(level)

    assert {one.n: one.level for one in demand.every_split} == levels


def test_a_demand_changes_to_another_split_and_back() -> None:
    demand = demand_of(tres_per_job="gres/gpu:4", min_cpus="1", **LEAF)

    assert shapes(demand.on(2)) == shapes(demand) == shapes(demand.on(4).on(1))
    assert (demand.on(2).n, demand.on(2).k) == (2, 2)
    assert demand.on(3) is demand
    assert {one.limit for one in demand.lasting(77).every_split} == {77}


def test_the_segment_keeps_the_splits() -> None:
    request = request_of(submit(tres_per_job="gres/gpu:4", min_cpus="1", mem_per_tres="gres/gpu:1000", **LEAF))
    plan = demanded(request, on_fleet(request, FLEET))

    assert plan.texts["splits"] == "1:4000,2:2000,4:1000"
    assert plan[SPLITS] == (Split(1, 4_000), Split(2, 2_000), Split(4, 1_000))
    assert plan_fields.laid_on(plan, 2).texts == {"n": "2", "k": "2", "mem": "2000"}
    assert not plan_fields.laid_on(JobPlan({"n": "1", "k": "4"}), 2)


@pytest.mark.parametrize("value", ["0:5", "x", "1:y", "-1:5"])
def test_a_segment_whose_splits_make_no_sense_is_an_error(value: str) -> None:
    with pytest.raises(FormatError, match="no split such as"):
        plan_fields.SPLITS.read(value)
