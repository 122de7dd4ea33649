# SPDX-License-Identifier: Apache-2.0
"""The bound on what a choice of GPUs can reach, on clusters small enough to try every set."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, one_factor, pal_locality
from policy.cluster.fleet import Fleet
from policy.formats.errors import Never
from policy.placement.base import predicted
from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.rounds import RoundsSettings, run
from policy.simulate.world import Layout, build, demand_of, view
from tests.bench.paper.joint.policy import JointBerth
from tests.bench.paper.relaxation import Relaxation
from tests.bench.paper.watched import WatchedRounds
from tests.examples import examples


def fleet(scores: list[list[float]], leaf: int = 0, across: float = 1.7) -> Fleet:
    costs = CostModel({"*": one_factor(leaf=1.3, pod=1.7, any=1.7)} if leaf else pal_locality(across))
    table = np.array(scores)
    return build(Layout(table.shape[0], table.shape[1], leaf), {"compute": table}, costs)


def cheapest(on: Fleet, gpus: int) -> float:
    """The least cost of all sets of so many GPUs."""
    width = int(on.size.max())
    demand = demand_of(TraceJob("a", gpus, 0, 1), on)
    found = []
    for chosen in combinations(range(len(on.names) * width), gpus):
        masks: dict[int, int] = {}
        for slot in chosen:
            masks[slot // width] = masks.get(slot // width, 0) | 1 << slot % width
        nodes = list(masks)
        level = on.fabric.level(nodes)
        found.append(predicted(demand, on, nodes, list(masks.values()), level))
    return min(found)


SCORES = st.lists(st.lists(st.floats(0.8, 3.0), min_size=2, max_size=2), min_size=4, max_size=4)


@settings(max_examples=examples(40), deadline=None)
@given(SCORES, st.integers(1, 5), st.sampled_from([0, 2]), st.sampled_from([1.0, 1.7, 3.0]))
def test_no_set_of_gpus_is_cheaper(scores: list[list[float]], gpus: int, leaf: int, across: float) -> None:
    on = fleet(scores, leaf, across)
    demand = demand_of(TraceJob("a", gpus, 0, 1), on)

    berth = Relaxation().place(demand, view(on, on.full))

    assert berth.cost == pytest.approx(cheapest(on, gpus))


def test_all_jobs_get_the_best_gpus_at_once_and_nothing_moves() -> None:
    on = fleet([[1.0, 1.0], [2.0, 2.0]])
    jobs = [TraceJob("a", 2, 0, 100), TraceJob("b", 2, 0, 300)]

    outcome = run(jobs, on, Relaxation(), RoundsSettings(100.0))

    assert outcome.ends == {"a": 100, "b": 300}
    assert outcome.moves == 0


@pytest.mark.parametrize("policy", ["berth", "pal", "pinned-random", "packed"])
def test_no_policy_beats_it(policy: str) -> None:
    draw = np.random.default_rng(3)
    on = fleet(draw.uniform(0.9, 1.5, (4, 2)).tolist(), leaf=2)
    jobs = [TraceJob(str(n), int(draw.integers(1, 6)), 50.0 * n, float(draw.uniform(100, 2000))) for n in range(30)]
    ours = JointBerth() if policy == "berth" else create(policy)

    real, bound = (
        WatchedRounds(jobs, on, one, RoundsSettings(50.0), exact_end=True).run().figures()
        for one in (ours, Relaxation())
    )

    assert float(str(bound["avg_jct_s"])) <= float(str(real["avg_jct_s"]))


def test_it_forgets_when_the_scores_change() -> None:
    bound = Relaxation()
    before, after = fleet([[1.0, 1.0], [2.0, 2.0]]), fleet([[2.0, 2.0], [1.0, 1.0]])
    demand = demand_of(TraceJob("a", 2, 0, 1), before)

    nodes = [bound.place(demand, view(on, on.full)).nodes for on in (before, after)]

    assert nodes == [(0,), (1,)]


def test_jobs_that_it_cannot_bound_are_refused() -> None:
    on = fleet([[1.0, 1.0]])

    with pytest.raises(Never, match="without a number of nodes"):
        Relaxation().place(demand_of(TraceJob("a", 4, 0, 1, nodes=2), on), view(on, on.full))
    with pytest.raises(Never, match="fewer than 3 GPUs"):
        Relaxation().place(demand_of(TraceJob("a", 3, 0, 1), on), view(on, on.full))
