# SPDX-License-Identifier: Apache-2.0
"""The nodes that Slurm's topology/tree and topology/block choose, checked against the rules of its source."""

from dataclasses import replace

import numpy as np
import pytest

from policy.placement.slurm_like import SlurmPolicy, SlurmTreePolicy
from policy.placement.slurm_switches import Switches
from policy.simulate.jobs import TraceJob
from policy.simulate.world import Layout, build, demand_of, view
from topology.network.blocks import Blocks
from topology.network.fabric import Fabric


def tree(*pods: tuple[int, ...]) -> Switches:
    """Leaves of so many nodes each, in pods."""
    leaves = [(leaf, pod) for pod, sizes in enumerate(pods) for leaf in sizes]
    sizes = [size for size, _ in leaves]
    leaf, pod = np.repeat(np.arange(len(leaves)), sizes), np.repeat([pod for _, pod in leaves], sizes)
    return Switches(Fabric(tuple(map(str, range(leaf.size))), leaf * 0 - 1, leaf, pod))


@pytest.mark.parametrize(
    ("pods", "wanted", "taken"),
    [
        (((4, 3, 2),), 2, [7, 8]),
        (((4, 3, 2),), 6, [0, 1, 2, 3, 7, 8]),
        (((4, 3, 2),), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (((3, 3), (2, 2)), 4, [6, 7, 8, 9]),
        (((2, 2), (3, 3)), 7, [0, 1, 2, 3, 4, 5, 6]),
    ],
    ids=[
        "the smallest leaf",
        "the rest on the leaf it fits best",
        "three leaves",
        "the smallest pod",
        "a pod for the rest",
    ],
)
def test_a_job_gets_few_leaves_and_of_those_the_best_fit(
    pods: tuple[tuple[int, ...], ...], wanted: int, taken: list[int]
) -> None:
    switches = tree(*pods)
    able = np.arange(sum(map(sum, pods)))

    chosen = switches.choose(able, wanted)

    assert chosen is not None
    assert chosen.tolist() == taken
    assert switches.choose(able, able.size + 1) is None


def test_under_topology_block_a_job_stays_in_one_block() -> None:
    block = np.repeat([0, 1], 4)
    fabric = Fabric.flat(tuple("abcdefgh"))
    switches = Switches(replace(fabric, leaf=block, blocks=Blocks((4,), block)))

    chosen = switches.choose(np.array([0, 1, 4, 5, 6]), 3)

    assert chosen is not None
    assert chosen.tolist() == [4, 5, 6]
    assert switches.choose(np.array([0, 1, 4, 5]), 3) is None


def test_plain_slurm_without_leaves_takes_a_run_of_nodes_and_with_them_one_leaf() -> None:
    """n1 to n4 are free: a run of four over two leaves; n6 and n7 are a leaf."""
    fleet = build(Layout(8, 4, nodes_per_leaf=2))
    demand = demand_of(TraceJob("a", 8, 0.0, 60.0, nodes=2), fleet)
    free = np.where(np.isin(np.arange(8), (1, 2, 3, 4, 6, 7)), fleet.full, 0)
    here = view(fleet, np.where(np.isin(np.arange(8), (1, 2, 4, 6, 7)), fleet.full, 0))

    assert SlurmPolicy().place(demand, view(fleet, free)).nodes == (6, 7)
    assert SlurmPolicy().place(demand, here).nodes == (1, 2)
    assert SlurmTreePolicy().place(demand, here).nodes == (6, 7)
