"""Node sets against loops that share nothing with the arrays, and what a planner reads from them."""

from __future__ import annotations

import dataclasses
import random
import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.topology import plain_candidates
from tests.examples import examples
from tests.strategies import machines, make_machine
from topology.errors import QuestionError
from topology.fabric import LEVELS, NOBODY, Fabric, FabricLevel
from topology.model import Machine
from topology.nodesets import NodeSets

PAIRS = {(0, 1): 4, (2, 3): 4}
QUAD = dict.fromkeys(combinations(range(4), 2), 2)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Machine], Fabric]:
    """Up to 12 nodes of up to three kinds in random domains, leaves and pods."""
    kinds = draw(st.lists(machines(max_gpus=5), min_size=1, max_size=3))
    size = draw(st.integers(1, 12))
    group = st.lists(st.integers(NOBODY, 3), min_size=size, max_size=size)
    domain, leaf = np.array(draw(group), np.int64), np.array(draw(group), np.int64)
    # A leaf lies within one pod.
    pod_of = np.array([*draw(st.lists(st.integers(NOBODY, 1), min_size=4, max_size=4)), NOBODY], np.int64)
    names = tuple(f"n{i}" for i in range(size))
    each = [dataclasses.replace(draw(st.sampled_from(kinds)), node=name) for name in names]
    labels = [tuple(f"{kind}{i}" for i in range(4)) for kind in ("domain", "leaf", "pod")]
    return each, Fabric(names, domain, leaf, pod_of[leaf], *labels)


@settings(max_examples=examples(300), deadline=None)
@given(clusters(), st.data())
def test_the_arrays_find_what_loops_find(cluster: tuple[list[Machine], Fabric], data: st.DataObject) -> None:
    each, fabric = cluster
    free = [data.draw(st.integers(0, (1 << machine.size) - 1)) for machine in each]
    per_node = data.draw(st.none() | st.integers(1, 4))
    gpus = data.draw(st.integers(1, 12)) * (per_node or 1)
    found = NodeSets.of(each, fabric).candidates(gpus, free, per_node)
    expected = plain_candidates(each, fabric, gpus, free, per_node)
    for level in LEVELS:
        seen = [(tuple(one.nodes.tolist()), one.free, one.needed) for one in found[level]]
        assert sorted(seen) == sorted(expected[level])
        assert [one[1] for one in seen] == sorted(one[1] for one in seen)


@settings(max_examples=examples(100), deadline=None)
@given(clusters(), st.integers(1, 8))
def test_every_set_could_hold_the_job(cluster: tuple[list[Machine], Fabric], gpus: int) -> None:
    each, fabric = cluster
    sets = NodeSets.of(each, fabric)
    for level, found in sets.candidates(gpus, sets.everything).items():
        for one in found:
            assert one.level == level
            sizes = sorted((each[node].size for node in one.nodes.tolist()), reverse=True)
            assert sum(sizes) == one.free >= gpus
            assert sum(sizes[: one.needed]) >= gpus > sum(sizes[: one.needed - 1])
            assert one.names == tuple(each[node].node for node in one.nodes.tolist())
            assert len({int(group) for group in fabric.groups(level)[one.nodes]}) == 1 or level == "nvlink"


def of(counts: dict[tuple[int, int], int], *names: str, domain: str = "") -> list[Machine]:
    return [dataclasses.replace(make_machine(4, counts), node=name, domain=domain) for name in names]


def names(sets: NodeSets, level: FabricLevel, gpus: int, free: list[int], per_node: int | None = None) -> list[str]:
    return [one.name for one in sets.candidates(gpus, free, per_node)[level]]


def test_the_tightest_node_comes_first() -> None:
    sets = NodeSets.of(of(QUAD, "idle", "tight", "full"))
    assert names(sets, "node", 2, [0b1111, 0b0110, 0b0001]) == ["tight", "idle"]


def test_nvlink_wants_an_island_that_is_wide_enough() -> None:
    sets = NodeSets.of([*of(PAIRS, "pairs"), *of(QUAD, "quad"), *of({}, "none")])
    assert names(sets, "nvlink", 2, [0b1111, 0b1111, 0b1111]) == ["pairs", "quad"]
    assert names(sets, "nvlink", 2, [0b0110, 0b1111, 0b1111]) == ["quad"]
    assert names(sets, "node", 2, [0b0110, 0b1111, 0b1111]) == ["pairs", "quad", "none"]
    # One GPU is joined to all others of its set.
    assert names(sets, "nvlink", 1, [0b0001, 0b0011, 0b0111]) == ["pairs", "quad", "none"]
    assert names(sets, "nvlink", 1, [0b0000, 0b1000, 0b0000]) == ["quad"]


def test_a_domain_across_nodes_is_one_set() -> None:
    rack = of(QUAD, *(f"tray{i}" for i in range(18)), domain="u.1")
    sets = NodeSets.of([*rack, *of(QUAD, "alone")])
    found = sets.candidates(gpus=64, free=[15] * 19)["nvlink"]
    assert [(one.name, one.free, one.needed, one.hostlist) for one in found] == [("u.1", 72, 16, "tray[0-17]")]
    assert names(sets, "nvlink", 4, [15] * 19) == ["alone", "u.1"]
    busy = [15] * 16 + [0, 0, 15]
    assert sets.candidates(64, busy, per_node=4)["nvlink"][0].hostlist == "tray[0-15]"
    assert names(sets, "nvlink", 65, busy) == []


def test_whole_nodes_of_so_many_gpus() -> None:
    """Six free GPUs on two nodes are not two nodes with four."""
    sets = NodeSets.of(of(QUAD, "n1", "n2", "n3"))
    assert names(sets, "any", 8, [0b1111, 0b0011, 0b0011]) == [""]
    assert names(sets, "any", 8, [0b1111, 0b0011, 0b0011], per_node=4) == []
    (found,) = sets.candidates(8, [0b1111, 0b0011, 0b1111], per_node=4)["any"]
    assert (found.names, found.free, found.needed) == (("n1", "n3"), 8, 2)


def test_bits_beyond_a_machine_are_no_gpus() -> None:
    assert names(NodeSets.of(of(QUAD, "n1")), "node", 5, [0xFF]) == []


def test_machines_wider_than_the_table() -> None:
    """As many as a mask has bits; one island of the first 20."""
    wide = make_machine(64, dict.fromkeys(combinations(range(20), 2), 1))
    sets = NodeSets.of([dataclasses.replace(wide, node="wide"), *of(QUAD, "n1")])
    everything = (1 << 64) - 1
    assert sets.linked(np.array([everything, 7], np.uint64)).tolist() == [20, 3]
    assert sets.linked(np.array([1 << 63, 0], np.uint64)).tolist() == [1, 0]
    assert [one.free for one in sets.candidates(64, np.array([everything, 0], np.uint64))["node"]] == [64]


def test_a_level_can_be_asked_alone() -> None:
    assert list(NodeSets.of(of(QUAD, "n1")).candidates(1, [1], levels=("leaf",))) == ["leaf"]


def test_sets_are_a_sequence() -> None:
    found = NodeSets.of(of(QUAD, "n1", "n2", "n3")).candidates(1, [1, 3, 7])["node"]
    assert [one.name for one in found[:2]] == ["n1", "n2"]
    assert found[-1].name == "n3"
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize(("gpus", "per_node"), [(0, None), (-1, None), (8, 0), (8, 3)])
def test_what_is_no_demand_is_refused(gpus: int, per_node: int | None) -> None:
    with pytest.raises(QuestionError, match="are no demand"):
        NodeSets.of(of(QUAD, "n1")).candidates(gpus, [1], per_node)


def test_machines_and_fabric_are_of_the_same_nodes() -> None:
    with pytest.raises(QuestionError, match="1 machines and 2 nodes"):
        NodeSets.of(of(QUAD, "n1"), Fabric.flat(("n1", "n2")))


def test_an_empty_cluster_has_no_sets() -> None:
    sets = NodeSets.of([])
    assert {level: len(found) for level, found in sets.candidates(1, []).items()} == dict.fromkeys(LEVELS, 0)


def test_many_broken_kinds_cost_no_more_than_few() -> None:
    """A large cluster has as many shapes as it has broken links."""
    chance = random.Random(7)
    each = [dataclasses.replace(make_machine(6, {}), node=f"n{i}") for i in range(2000)]
    kinds = [make_machine(6, {pair: chance.randrange(3) for pair in combinations(range(6), 2)}) for _ in range(300)]
    mixed = [dataclasses.replace(kinds[i % 300], node=f"n{i}") for i in range(2000)]
    free = np.full(2000, 63)
    times = []
    for cluster in (each, mixed):
        sets = NodeSets.of(cluster)
        runs = []
        for _ in range(20):
            begin = time.perf_counter()
            sets.candidates(2, free)
            runs.append(time.perf_counter() - begin)
        times.append(sorted(runs)[10])
    assert times[1] < 10 * times[0] + 0.001


def test_plans_and_node_sets_ask_the_same_groups() -> None:
    """A fabric makes the groups of a level once; what shares no group at a level is in none of its sets."""
    names_ = ("n1", "n2", "n3", "n4")
    leaf = np.array([0, 0, 1, -1])
    fabric = Fabric(names_, np.full(4, -1), leaf, np.array([0, 0, 0, -1]), leaves=("a", "b"), pods=("p",))
    sets = NodeSets.of(of(QUAD, *names_), fabric)

    assert fabric.at("leaf") is fabric.at("leaf")
    found = sets.candidates(6, [0xF] * 4, levels=("leaf", "pod"))
    assert [one.names for one in found["leaf"]] == [("n1", "n2")]
    assert fabric.at("leaf").most(np.arange(4)) == 2
    has = np.array([[True, True], [True, False], [True, True], [True, True]])
    assert fabric.at("leaf").share(2, np.arange(4), has).tolist() == [True, False]
    assert fabric.at("pod").share(2, np.arange(4), has).tolist() == [True, True]
    assert [group.tolist() for group in fabric.at("leaf").split(np.array([1, 2, 3]))] == [[1], [2]]
    assert fabric.within("nvlink") is None
    assert fabric.within("any") is None
