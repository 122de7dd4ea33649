# SPDX-License-Identifier: Apache-2.0
"""What a policy has from its base class: which nodes fit, what a berth takes away, and what nobody measured."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policy.cluster.cost import CostModel, pal_locality
from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy, take_off
from policy.request.demand import Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import in_rounds
from policy.simulate.world import Layout, build, demand_of, view
from tests.unit.policy_world import book, node, reading

ON = build(Layout(3, 4), {}, CostModel(pal_locality(1.7)))
PLENTY = [1 << 20] * 3


def demand(gpus: int = 1, **changes: object) -> Demand:
    return replace(demand_of(TraceJob("j", gpus, 0.0, 1.0), ON), **changes)  # type: ignore[arg-type]


def room(cpus: Sequence[int] = PLENTY, mem: Sequence[int] = PLENTY) -> View:
    """Three nodes of four free GPUs with so many free CPUs and MiB."""
    return replace(view(ON, ON.full), free=ON.full.copy(), cpus=np.array(cpus), mem=np.array(mem))


class FirstThatFits(Policy):
    """The shortest policy: the first GPU of the first node with room."""

    name = "first that fits"

    def place(self, demand: Demand, view: View) -> Berth:
        fits = np.flatnonzero(self.fitting(demand, view) & (view.free & 1 == 1))
        if not fits.size:
            raise NotNow("nothing fits")
        return self.berth(demand, view, [int(fits[0])], (0,), "it fits")


def test_a_job_fits_down_to_the_last_cpu_and_mebibyte() -> None:
    fits = Policy.fitting(demand(cpus=4, mem=100), room([4, 3, 4], [100, 100, 99]))

    assert fits.tolist() == [True, False, False]


def test_a_job_on_whole_nodes_fits_where_nothing_is_taken() -> None:
    whole = demand(gpus=4, cpus=None, mem=None)
    here = room(ON.cpus.tolist(), ON.mem.tolist())
    taken = replace(here, free=here.free & np.array([0b1111, 0b1110, 0b1111]), mem=here.mem - np.array([0, 0, 1]))

    assert Policy.fitting(whole, here).all()
    assert Policy.fitting(whole, taken).tolist() == [True, False, False]


def test_a_berth_takes_its_gpus_cpus_and_memory_on_each_of_its_nodes() -> None:
    left = room([9, 9, 9], [200, 200, 200])
    one = demand(cpus=4, mem=150)
    take_off(left, one, Policy.spread(one, left, [0, 2], [0b0001, 0b1100], "by hand"))

    assert left.free.tolist() == [0b1110, 0b1111, 0b0011]
    assert (left.cpus.tolist(), left.mem.tolist()) == ([5, 9, 5], [50, 200, 50])


def test_a_berth_on_whole_nodes_takes_all_that_the_nodes_have() -> None:
    left = room(ON.cpus.tolist(), ON.mem.tolist())
    whole = demand(gpus=4, cpus=None, mem=None)
    take_off(left, whole, Policy.spread(whole, left, [1], [0b1111], "by hand"))

    assert (left.free[1], left.cpus[1], left.mem[1]) == (0, 0, 0)


def test_jobs_of_one_pass_share_what_is_there() -> None:
    several = [demand(cpus=1, mem=60) for _ in range(4)]
    here = room(mem=[100, 100, 0])
    berths = in_rounds(FirstThatFits()).place_together(several, here)

    assert [berth and berth.nodes for berth in berths] == [(0,), (1,), None, None]
    assert here.mem.tolist() == [100, 100, 0], "the caller's view stays as it was"


def test_between_gpus_of_several_nodes_no_link_is_counted() -> None:
    berth = Policy.spread(demand(gpus=2), room(), [0, 1], [0b0001, 0b0001], "scattered")

    assert (berth.min_gbps, berth.sum_gbps, berth.cut) == (0.0, 0.0, 0.0)


def test_a_berth_has_seats_only_where_each_of_its_nodes_has() -> None:
    here = book(reading([node("n1"), node("n2"), node("n3", seats=0)])).cluster.now(60)

    assert [Policy.spread(demand(), here, nodes, [1, 1], "by hand").seats for nodes in ([0, 1], [1, 2])] == [
        True,
        False,
    ]


def test_where_nobody_measured_the_gpus_a_place_costs_its_distance_alone() -> None:
    here = room()

    assert Policy.spread(demand(2), here, [0], [0b0011], "by hand").cost == 1.0
    assert Policy.spread(demand(2), here, [0, 1], [0b0001, 0b0001], "by hand").cost == 1.7
