"""Placing all jobs of a round together, beside PAL placing them one after another."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, Table, one_factor, pal_locality
from policy.cluster.fleet import Fleet
from policy.placement.base import Berth, Policy
from policy.placement.registry import create
from policy.request.demand import Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import in_rounds
from policy.simulate.world import Layout, build, demand_of, view
from tests.examples import examples

NODES, GPUS = 8, 4
CLASSES = ("compute", "mixed", "memory")
LOCALITIES: dict[str, Table] = {
    "flat": pal_locality(1.7),
    "free": pal_locality(1.0),
    "leaf": {"*": one_factor(leaf=1.3, pod=1.7, any=1.7)},
}


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

    assert total(create("berth"), demands, on) <= 1.01 * total(create("pal"), demands, on)


@pytest.mark.slow
def test_together_is_a_tenth_better_on_average() -> None:
    draw = np.random.default_rng(8)
    sums = dict.fromkeys(("berth", "pal"), 0.0)
    for seed in range(40):
        on = fleet(str(draw.choice(list(LOCALITIES))), 0.05, 2, seed)
        demands = queue(on, draw.choice([1, 2, 3, 4, 6, 8, 12, 16], 20).tolist(), seed)
        for policy in sums:
            sums[policy] += total(create(policy), demands, on)

    assert sums["berth"] < 0.9 * sums["pal"]


def test_gangs_among_the_jobs_of_a_round_have_the_same_gpus_on_each_of_their_nodes() -> None:
    on = fleet("flat", 0.2, 4, 1)
    gangs = [Demand(2, width, cpus=0, mem=0, level="any", limit=3_600, candidates=on.ready) for width in (4, 3, 2)]

    berths = in_rounds(create("berth")).place_together(gangs, view(on, on.full))

    check(berths, gangs)
    for berth in berths:
        assert berth is not None
        assert len(set(berth.nodes)) == 2
        assert len(set(berth.masks)) == 1
