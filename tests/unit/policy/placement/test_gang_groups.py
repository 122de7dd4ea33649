# SPDX-License-Identifier: Apache-2.0
"""Groups of nodes for gangs, and which nodes of a group a gang is given."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.berth import BerthPolicy
from policy.placement.gang import LEVELS_OF_NODES, _fullest_group, _least_missed, _of_both, choose, nearness
from policy.plan.ledger.tracker import open_book
from policy.request.demand import Demand
from tests.examples import SEED
from tests.unit import policy_world
from tests.unit.policy_world import fleet, node, reading
from topology.machines import machine
from topology.network.blocks import Blocks
from topology.network.fabric import NOBODY, Fabric
from topology.pcie import rails as nics_of


def test_nodes_are_together_only_where_both_groupings_have_them_together() -> None:
    leaves = np.array([0, 0, 0, 1, 1, NOBODY, 1, 1])
    blocks = np.array([0, 0, 1, 1, 1, 1, NOBODY, 0])

    found = _of_both(leaves, blocks).tolist()

    assert found[0] == found[1]
    assert found[3] == found[4]
    assert len({found[0], found[2], found[3], found[7], NOBODY}) == 5
    assert found[5:7] == [NOBODY, NOBODY]


def chosen(slowest: list[float], leaves: list[int], n: int = 2) -> list[int]:
    """The nodes that a gang is given of those that are able, all of them empty."""
    full = np.full(len(slowest), 0xFF)
    fleet = SimpleNamespace(fabric=SimpleNamespace(leaf=np.array(leaves)), full=full)
    view: Any = SimpleNamespace(fleet=fleet, free=full, crowded=False)
    demand: Any = SimpleNamespace(n=n)
    return sorted(_least_missed(demand, view, np.arange(len(slowest)), np.array(slowest)).tolist())


@pytest.mark.parametrize("slowest", [[1.0, 1.5, 2.0], [2.0, 1.0, 1.5], [1.5, 2.0, 1.0]])
def test_a_gang_has_as_many_nodes_as_it_needs_and_no_slower_ones(slowest: list[float]) -> None:
    assert chosen(slowest, [0, 0, 0]) == sorted(np.argsort(slowest)[:2].tolist())


def test_nodes_of_a_known_leaf_come_before_those_of_which_nobody_knows_where_they_are() -> None:
    assert chosen([1.0, 1.0, 1.0, 1.0], [NOBODY, NOBODY, 0, 0]) == [2, 3]
    assert chosen([1.0, 1.0], [NOBODY, 0], n=1) == [1]


def test_the_best_group_is_the_one_whose_slowest_needed_node_is_fastest() -> None:
    view: Any = SimpleNamespace(crowded=False)
    demand: Any = SimpleNamespace(n=2)
    # The second group has fewer nodes, and its second node is slow.
    found = _fullest_group(demand, view, np.array([1.0, 1.0, 9.0, 1.0, 1.5]), np.array([0, 0, 0, 1, 1]))

    assert found is not None
    assert found.tolist() == [0, 1, 2]


def two_pods() -> View:
    """Four free nodes: in the first pod on a leaf each, in the second on one leaf."""
    look = reading([node(name) for name in ("n1", "n2", "n3", "n4")])
    flat = fleet(look)
    fabric = replace(Fabric.flat(flat.names), leaf=np.array([0, 1, 2, 2]), pod=np.array([0, 0, 1, 1]))
    return open_book(replace(flat, fabric=fabric), look).cluster.now(3_600)


@pytest.mark.parametrize(
    ("level", "able", "nodes"),
    [
        ("leaf", [0, 1, 2, 3], [2, 3]),
        ("leaf", [0, 1, 2], None),
        ("pod", [0, 1, 2], [0, 1]),
        ("pod", [0, 2], None),
        ("any", [0, 2], [0, 2]),
    ],
)
def test_a_gang_never_goes_farther_than_the_level_that_it_needs(
    level: str, able: list[int], nodes: list[int] | None
) -> None:
    view = two_pods()
    demand = Demand(2, 8, cpus=1, mem=1, level=level, limit=3_600, candidates=view.fleet.ready)

    gang = choose(demand, view, np.array(able), 0xFF)

    assert (gang and gang.nodes) == nodes


def test_the_nearest_level_at_which_enough_nodes_have_a_set_free() -> None:
    on = np.array([[0, 1, 1], [0, 1, 0], [1, 0, 1], [1, 0, 0]], np.bool_)

    near = nearness(2, two_pods().fleet.fabric, np.arange(4), on)

    assert [LEVELS_OF_NODES[place] for place in near] == ["leaf", "pod", "any"]


@pytest.mark.parametrize(("across", "inside"), [(0x0F, 0xF0), (0xF0, 0x0F)])
def test_gpus_that_are_free_only_across_blocks_leave_the_job_those_that_are_free_within_one(
    across: int, inside: int
) -> None:
    """Slurm starts two nodes of one block: n1 and n2, or n3 and n4."""
    nodes = [node(name, used=0xFF ^ free) for name, free in (("n1", across), ("n2", 0), ("n3", 0xFF), ("n4", inside))]
    look = reading(nodes)
    flat = Fabric.flat(["n1", "n2", "n3", "n4"])
    fabric = replace(flat, blocks=Blocks((2,), np.array([0, 0, 1, 1])))
    view = open_book(fleet(look, fabric=fabric), look).cluster.now(3_600)
    demand = Demand(2, 4, cpus=1, mem=1, level="any", limit=3_600, candidates=view.fleet.ready)

    berth = BerthPolicy().place(demand, view)

    assert (berth.names, berth.mask) == (("n3", "n4"), inside)


@pytest.mark.parametrize("kind", ["dgx-1v", "dgx-a100", "hgx-h100"])
@pytest.mark.parametrize("k", [2, 4])
def test_a_gang_on_parts_of_nodes_has_the_same_rails_on_each(
    kind: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rail of a GPU is the NIC that is nearest to it by the driver's table."""
    monkeypatch.setattr(policy_world, "machine", lambda name, kind: machine(kind, name))
    rails, draw, placed = nics_of(machine(kind, "n1")), random.Random(SEED), 0
    assert all(rails)
    for _ in range(12):
        look = reading([node(f"n{number}", used=draw.getrandbits(8)) for number in range(1, 7)])
        view = open_book(fleet(look, {one.name: kind for one in look.nodes}), look).cluster.now(3_600)
        demand = Demand(2, k, cpus=1, mem=1, level="any", limit=3_600, candidates=view.fleet.ready)
        try:
            berth = BerthPolicy().place(demand, view)
        except NotNow:
            continue
        on_each = [[rails[gpu] for gpu in range(8) if mask >> gpu & 1] for mask in berth.masks]
        assert on_each[0] == on_each[1]
        assert len(on_each[0]) == k
        placed += 1
    assert placed > 3
