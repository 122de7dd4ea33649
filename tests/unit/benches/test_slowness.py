# SPDX-License-Identifier: Apache-2.0
"""Which nodes are slow now: told from step times alone, without knowing how long a step should take."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.placement.base import Berth, Policy
from policy.request.demand import ANY_SPREAD, Demand
from policy.simulate.world import Layout, build, view
from tests.bench.paper.slowness import FORGET_AFTER, Slowness

ROUND = 300.0


@dataclass(frozen=True)
class Told:
    job: str
    demand: Demand
    berth: Berth
    times: Floats


@pytest.fixture
def fleet() -> Fleet:
    return build(Layout(4, 4), {"compute": np.ones((4, 4))})


def told(fleet: Fleet, job: str, nodes: list[int], slow: dict[int, float], step: float = 1.0) -> Told:
    """A job with all GPUs of its nodes; one step takes `step` where nothing is slow."""
    demand = Demand(ANY_SPREAD, 4 * len(nodes), 0, 0, "any", 1, fleet.ready)
    berth = Policy.spread(demand, view(fleet, fleet.full), nodes, [0b1111] * len(nodes), "")
    times = np.repeat([slow.get(node, 1.0) for node in sorted(nodes)], 4) * step
    return Told(job, demand, berth, times)


def test_other_ranks_of_a_gang_tell_that_a_node_is_slow(fleet: Fleet) -> None:
    slowness = Slowness(fleet)

    slowness.observe(ROUND, [told(fleet, "a", [0, 1, 2], {1: 2.5})])

    assert slowness.factors(ROUND) == (1.0, 2.5, 1.0, 1.0)


@pytest.mark.parametrize("step", [0.001, 40.0])
def test_how_long_a_step_takes_says_nothing(fleet: Fleet, step: float) -> None:
    slowness = Slowness(fleet)

    slowness.observe(ROUND, [told(fleet, "a", [0, 1], {1: 2.0}, step), told(fleet, "b", [2, 3], {}, 7 * step)])

    assert slowness.factors(ROUND) == (1.0, 2.0, 1.0, 1.0)


def test_what_the_scores_explain_is_not_slow_now(fleet: Fleet) -> None:
    scores = np.ones((4, 4))
    scores[1] = 1.8
    slowness = Slowness(replace(fleet, scores={"compute": scores}))

    slowness.observe(ROUND, [told(fleet, "a", [0, 1], {1: 1.8})])

    assert slowness.scores(ROUND) is None


def test_a_job_on_one_node_sees_it_become_slow_and_well_again(fleet: Fleet) -> None:
    slowness = Slowness(fleet)

    slowness.observe(ROUND, [told(fleet, "a", [3], {})])
    slowness.observe(2 * ROUND, [told(fleet, "a", [3], {3: 2.0})])
    slow = slowness.factors(2 * ROUND)
    slowness.observe(3 * ROUND, [told(fleet, "a", [3], {})])

    assert slow == (1.0, 1.0, 1.0, 2.0)
    assert slowness.factors(3 * ROUND) == (1.0, 1.0, 1.0, 1.0)


def test_a_job_that_began_on_a_slow_node_does_not_clear_it(fleet: Fleet) -> None:
    slowness = Slowness(fleet)
    slowness.observe(ROUND, [told(fleet, "gang", [0, 1], {1: 2.0})])

    for number in range(2, 60):
        slowness.observe(number * ROUND, [told(fleet, "new", [1], {1: 2.0})])

    assert slowness.factors(59 * ROUND)[1] == 2.0


def test_it_sees_the_node_get_well_under_that_job(fleet: Fleet) -> None:
    slowness = Slowness(fleet)
    slowness.observe(ROUND, [told(fleet, "gang", [0, 1], {1: 2.0})])
    slowness.observe(2 * ROUND, [told(fleet, "new", [1], {1: 2.0})])

    slowness.observe(3 * ROUND, [told(fleet, "new", [1], {})])

    assert slowness.factors(3 * ROUND)[1] == 1.0


def test_a_job_that_moved_away_accuses_the_node_only_while_it_is_there(fleet: Fleet) -> None:
    slowness = Slowness(fleet)
    slowness.observe(ROUND, [told(fleet, "a", [1], {1: 3.0})])
    slowness.observe(2 * ROUND, [told(fleet, "a", [2], {})])

    slowness.observe(3 * ROUND, [told(fleet, "a", [1], {1: 3.0})])

    assert slowness.factors(3 * ROUND) == (1.0, 3.0, 1.0, 1.0)


def test_a_node_that_nobody_uses_is_tried_again_after_a_while(fleet: Fleet) -> None:
    slowness = Slowness(fleet)
    slowness.observe(ROUND, [told(fleet, "a", [0, 1], {1: 2.0})])

    assert slowness.factors(ROUND + FORGET_AFTER)[1] == 2.0
    assert slowness.factors(ROUND + FORGET_AFTER + 1)[1] == 1.0


def test_noise_accuses_nobody(fleet: Fleet) -> None:
    slowness, draw = Slowness(fleet), np.random.default_rng(3)

    for number in range(200):
        one = told(fleet, "a", [0, 1, 2], {})
        slowness.observe(number * ROUND, [replace(one, times=one.times * draw.normal(1.0, 0.03, 12))])

        assert set(slowness.factors(number * ROUND)) == {1.0}


def test_scores_are_told_once_and_again_when_they_change(fleet: Fleet) -> None:
    slowness = Slowness(fleet)
    nothing = slowness.scores(0)
    slowness.observe(ROUND, [told(fleet, "a", [0, 1], {1: 2.0})])

    first, second = slowness.scores(ROUND), slowness.scores(ROUND)

    assert nothing is None
    assert first is not None
    assert first["compute"].tolist() == [[1.0] * 4, [2.0] * 4, [1.0] * 4, [1.0] * 4]
    assert second is None
