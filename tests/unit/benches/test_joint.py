# SPDX-License-Identifier: Apache-2.0
"""Berth in PAL's rounds: all jobs of a round together, beside PAL placing them one after another."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, Table, one_factor, pal_locality
from policy.cluster.fleet import Fleet
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.berth import BerthPolicy
from policy.placement.published.pal import PalPolicy
from policy.placement.registry import create
from policy.request.demand import ANY_SPREAD, Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import in_rounds
from policy.simulate.world import Layout, build, demand_of, view
from tests.bench.paper.joint.policy import JointBerth, _in_reach
from tests.examples import examples

NODES, GPUS = 8, 4
CLASSES = ("compute", "mixed", "memory")
LOCALITIES: dict[str, Table] = {
    "flat": pal_locality(1.7),
    "free": pal_locality(1.0),
    "leaf": {"*": one_factor(leaf=1.3, pod=1.7, any=1.7)},
}

FAR = CostModel({"*": one_factor(leaf=1.3, pod=1.7, any=1.7)})


def fleet(locality: str, spread: float, outliers: int, seed: int) -> Fleet:
    draw = np.random.default_rng(seed)
    scores = {}
    for app_class in CLASSES:
        table = np.maximum(draw.normal(1.0, spread, (NODES, GPUS)), 0.5)
        table.ravel()[draw.choice(table.size, outliers, replace=False)] *= draw.uniform(1.3, 2.9, outliers)
        scores[app_class] = table
    return build(Layout(NODES, GPUS, 4 if locality == "leaf" else 0), scores, CostModel(LOCALITIES[locality]))


def queue(on: Fleet, widths: Sequence[int], seed: int) -> list[Demand]:
    """The first of these jobs that fit the cluster together."""
    draw = np.random.default_rng(seed)
    demands: list[Demand] = []
    for number, width in enumerate(widths):
        if sum(demand.gpus for demand in demands) + width <= NODES * GPUS:
            demands.append(demand_of(TraceJob(str(number), width, 0.0, 3600.0, "", str(draw.choice(CLASSES))), on))
    return demands


def total(policy: Policy, demands: Sequence[Demand], on: Fleet) -> float:
    berths = in_rounds(policy).place_together(demands, view(on, on.full))
    check(berths, demands)
    return sum(berth.cost for berth in berths if berth)


def check(berths: Sequence[Berth | None], demands: Sequence[Demand]) -> None:
    """All have a berth, of the width that they asked for, and no GPU is in two."""
    taken: set[tuple[int, int]] = set()
    for berth, demand in zip(berths, demands, strict=True):
        assert berth is not None
        mine = {
            (node, gpu)
            for node, mask in zip(berth.nodes, berth.masks, strict=True)
            for gpu in range(GPUS)
            if mask >> gpu & 1
        }
        assert len(mine) == demand.gpus
        assert not mine & taken
        taken |= mine


ROUND = {
    "locality": st.sampled_from(sorted(LOCALITIES)),
    "spread": st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    "outliers": st.integers(0, 4),
    "widths": st.lists(st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12, 16]), min_size=1, max_size=24),
    "seed": st.integers(0, 10_000),
}


@settings(max_examples=examples(60), deadline=None)
@example("flat", 0.0, 3, [1, 4, 16, 1, 1], 34)
@given(**ROUND)
def test_together_is_never_worse_than_one_after_another(
    locality: str, spread: float, outliers: int, widths: list[int], seed: int
) -> None:
    on = fleet(locality, spread, outliers, seed)
    demands = queue(on, widths, seed)

    assert total(JointBerth(), demands, on) <= 1.01 * total(create("pal"), demands, on)


@pytest.mark.slow
def test_together_is_a_tenth_better_on_average() -> None:
    draw = np.random.default_rng(8)
    policies: dict[str, Policy] = {"berth": JointBerth(), "pal": create("pal")}
    sums = dict.fromkeys(policies, 0.0)
    for seed in range(40):
        on = fleet(str(draw.choice(list(LOCALITIES))), 0.05, 2, seed)
        demands = queue(on, draw.choice([1, 2, 3, 4, 6, 8, 12, 16], 20).tolist(), seed)
        for name, policy in policies.items():
            sums[name] += total(policy, demands, on)

    assert sums["berth"] < 0.9 * sums["pal"]


def test_gangs_among_the_jobs_of_a_round_have_the_same_gpus_on_each_of_their_nodes() -> None:
    on = fleet("flat", 0.2, 4, 1)
    gangs = [Demand(2, width, cpus=0, mem=0, level="any", limit=3_600, candidates=on.ready) for width in (4, 3, 2)]

    berths = JointBerth().place_together(gangs, view(on, on.full))

    check(berths, gangs)
    for berth in berths:
        assert berth is not None
        assert len(set(berth.nodes)) == 2
        assert len(set(berth.masks)) == 1


def demand(on: Fleet, n: int, k: int, **changes: object) -> Demand:
    facts: dict[str, object] = {"cpus": 0, "mem": 0, "level": "any", "limit": 3600, "candidates": on.ready}
    return Demand(n, k, **{**facts, **changes})  # type: ignore[arg-type]


def test_slow_gpus_go_to_the_job_that_does_not_suffer() -> None:
    scores = np.ones((2, 4))
    scores[1] = 2.0
    fleet = build(Layout(2, 4), {"compute": scores, "memory": np.ones((2, 4))})
    sensitive = demand(fleet, ANY_SPREAD, 4)
    other = demand(fleet, ANY_SPREAD, 4, app_class="memory")

    for jobs in ([sensitive, other], [other, sensitive]):
        placed = JointBerth().place_together(jobs, view(fleet, fleet.full))

        where = {job.app_class: berth.nodes for job, berth in zip(jobs, placed, strict=True) if berth}
        assert where == {"compute": (0,), "memory": (1,)}


def test_small_jobs_leave_room_for_the_wide_one() -> None:
    fleet = build(Layout(3, 4), costs=CostModel(pal_locality()))
    jobs = [demand(fleet, ANY_SPREAD, k) for k in (1, 1, 1, 1, 4, 3)]

    placed = JointBerth().place_together(jobs, view(fleet, fleet.full))

    assert [len(berth.nodes) for berth in placed if berth] == [1] * 6


def test_jobs_placed_together_share_the_cores_of_their_nodes() -> None:
    fleet = build(Layout(2, 4))
    cores = int(fleet.cpus[0])
    jobs = [demand(fleet, 1, 2, cpus=cores // 2 + 1), demand(fleet, 1, 2, cpus=cores // 2 + 1)]

    placed = JointBerth().place_together(jobs, view(fleet, fleet.full))

    assert {berth.nodes for berth in placed if berth} == {(0,), (1,)}


def test_a_running_job_moves_only_for_more_than_the_move_costs() -> None:
    scores = np.ones((2, 4))
    scores[0] = 1.5
    fleet = build(Layout(2, 4), {"compute": scores})
    everything = view(fleet, fleet.full)
    first = BerthPolicy.spread(demand(fleet, ANY_SPREAD, 4), everything, [0], [15], "")

    def after(remaining: float, policy: JointBerth) -> tuple[int, ...]:
        job = demand(fleet, ANY_SPREAD, 4, remaining=remaining)
        berth = policy.place_together([job], everything, [first])[0]
        assert berth
        return berth.nodes

    assert after(100, JointBerth(60)) == (0,)  # It would gain 50 s.
    assert after(200, JointBerth(60)) == (1,)  # It would gain 100 s.
    assert after(1, JointBerth()) == (1,), "a move that costs nothing is worth half a second"


def test_jobs_on_what_is_alike_stay_where_they_are() -> None:
    fleet = build(Layout(4, 4), {"compute": np.ones((4, 4))})
    everything = view(fleet, fleet.full)
    jobs = [demand(fleet, ANY_SPREAD, k) for k in (4, 2, 1)]
    held = [BerthPolicy.spread(job, everything, [3 - i], [(1 << job.k) - 1], "") for i, job in enumerate(jobs)]

    placed = JointBerth().place_together(jobs, everything, held)

    assert [(berth.nodes, berth.masks) for berth in placed if berth] == [(b.nodes, b.masks) for b in held]


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.slow
def test_together_is_much_cheaper_than_pal_on_the_whole_and_never_dearer(leaves: bool) -> None:
    ratios = []
    for seed in range(40):
        fleet, jobs = full_queue(seed, leaves)
        everything = view(fleet, fleet.full)
        ours = JointBerth().place_together(jobs, everything)
        pal = in_rounds(PalPolicy()).place_together(jobs, everything)

        taken = np.zeros(8, np.int64)
        for job, berth in zip(jobs, ours, strict=True):
            assert berth
            assert sum(mask.bit_count() for mask in berth.masks) == job.gpus
            for node, mask in zip(berth.nodes, berth.masks, strict=True):
                assert not taken[node] & mask
                taken[node] |= mask
        ratios.append(sum(one.cost for one in ours if one) / sum(one.cost for one in pal if one))

    assert np.mean(ratios) < 0.9
    assert max(ratios) <= 1.0 + 1e-9


def full_queue(seed: int, leaves: bool) -> tuple[Fleet, list[Demand]]:
    """32 GPUs, two classes of scores with slow ones among them, and jobs that need all of it."""
    draw = np.random.default_rng(seed)
    scores = {name: draw.choice([0.95, 1.0, 1.05, 1.4, 2.8], (8, 4), p=[0.3, 0.4, 0.2, 0.07, 0.03]) for name in "AB"}
    fleet = build(Layout(8, 4, nodes_per_leaf=2 * leaves), scores, FAR if leaves else CostModel(pal_locality()))
    left, jobs = 32, []
    while left:
        gpus = int(min(left, draw.choice([1, 2, 3, 4, 8, 12])))
        jobs.append(demand(fleet, ANY_SPREAD, gpus, app_class=str(draw.choice(["A", "B"]))))
        left -= gpus
    return fleet, jobs


def anywhere(scores: list[list[float]], free: list[int], k: int) -> Berth:
    """A job on any GPUs of nodes in one leaf, where two nodes cost 1.3 times as much as one."""
    fleet = build(Layout(len(scores), 4, nodes_per_leaf=len(scores)), {"compute": np.array(scores)}, FAR)
    return JointBerth().place(spread(fleet, k), view(fleet, np.array(free)))


def spread(fleet: Fleet, k: int) -> Demand:
    return Demand(ANY_SPREAD, k, 0, 0, "any", 3_600, fleet.ready)


@pytest.mark.parametrize(("slow", "nodes"), [(1.25, (0,)), (2.0, (1, 2))])
def test_one_node_is_better_than_two_while_it_is_not_slower_than_the_way_between_them(
    slow: float, nodes: tuple[int, ...]
) -> None:
    berth = anywhere([[slow] * 4, [1.0] * 4, [1.0] * 4], [0b1111, 0b0011, 0b0011], 4)

    assert berth.nodes == nodes
    assert berth.cost == pytest.approx(slow if nodes == (0,) else 1.3)


def test_two_nodes_are_taken_where_no_node_has_enough_and_nothing_where_all_together_have_not() -> None:
    ones = [[1.0] * 4, [1.0] * 4]

    assert anywhere(ones, [0b0111, 0b0011], 4).nodes == (0, 1)
    assert anywhere(ones, [0b1111, 0b1111], 8).nodes == (0, 1)
    with pytest.raises(NotNow, match=r"^fewer than 6 GPUs are free$"):
        anywhere(ones, [0b0111, 0b0011], 6)


def test_no_more_gpus_are_searched_than_can_be_those_of_the_freest_leaves_first() -> None:
    """Leaves of 100 nodes; the last one has most free, and nodes that do not fit are not looked at."""
    fleet = build(Layout(1_200, 4, nodes_per_leaf=100), {"compute": np.ones((1_200, 4))}, FAR)
    free = np.full(1_200, 0b0111)
    free[1_100:] = 0b1111
    fits = np.ones(1_200, np.bool_)
    few = _in_reach(spread(fleet, 8), view(fleet, free), np.arange(1_200) < 1_000)
    assert few.free.tolist() == [*free[:1_000], *[0] * 200], "3,000 can be searched"

    free[:] = 0b1111
    free[:1_100:4] = 0b0111
    found = _in_reach(spread(fleet, 8), view(fleet, free), fits).free
    assert (found[1_100:] == 0b1111).all()
    assert 4_096 <= np.bitwise_count(found).sum() < 4_100
    wide = _in_reach(spread(fleet, 4_200), view(fleet, free), fits).free
    assert 4_200 <= np.bitwise_count(wide).sum() < 4_204
