# SPDX-License-Identifier: Apache-2.0
"""Node sets for people: those of which berthd's placement would take nodes, in its order."""

import dataclasses
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.placement.nodesets import NodeSets
from tests.examples import examples
from tests.strategies import machines, make_machine
from topology.errors import QuestionError
from topology.machines import machine
from topology.model import Machine
from topology.network.fabric import LEVELS, NOBODY, Fabric, FabricLevel

PAIRS = {(0, 1): 4, (2, 3): 4}
QUAD = dict.fromkeys(combinations(range(4), 2), 2)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Machine], Fabric]:
    """Up to 10 nodes of one or two kinds in random domains, leaves and pods."""
    kinds = draw(st.lists(machines(max_gpus=4), min_size=1, max_size=2))
    size = draw(st.integers(1, 10))
    group = st.lists(st.integers(NOBODY, 2), min_size=size, max_size=size)
    domain, leaf = np.array(draw(group), np.int64), np.array(draw(group), np.int64)
    # A leaf lies within one pod.
    pod_of = np.array([*draw(st.lists(st.integers(NOBODY, 1), min_size=3, max_size=3)), NOBODY], np.int64)
    each = [dataclasses.replace(draw(st.sampled_from(kinds)), node=f"n{number}") for number in range(size)]
    labels = [tuple(f"{kind}{number}" for number in range(3)) for kind in ("domain", "leaf", "pod")]
    return each, Fabric(tuple(one.node for one in each), domain, leaf, pod_of[leaf], *labels)


@settings(max_examples=examples(50), deadline=None)
@given(clusters(), st.integers(1, 3), st.integers(1, 3), st.data())
def test_groups_of_which_enough_nodes_have_the_same_gpus_are_found_and_no_others(
    cluster: tuple[list[Machine], Fabric], n: int, k: int, data: st.DataObject
) -> None:
    each, fabric = cluster
    free = [data.draw(st.integers(0, (1 << one.size) - 1)) for one in each]
    sets = NodeSets(each, fabric, free)
    for level in LEVELS:
        groups = np.arange(len(each)) if level == "node" else fabric.groups(level)
        if level == "nvlink" and n == 1:
            # A node outside of every domain is a set of its own, which the other tests look at.
            continue
        expected = set()
        for group in set(groups.tolist()) - {NOBODY}:
            here = [free[node] for node in np.flatnonzero(groups == group).tolist()]
            masks = [sum(1 << gpu for gpu in gpus) for gpus in combinations(range(4), k)]
            if any(sum(mask & one == mask for one in here) >= n for mask in masks):
                expected.add(group)
        found = list(sets.at(level, n * k, k))
        assert len(found) == sets.count(level, n * k, k) == len({int(groups[one.nodes[0]]) for one in found})
        assert {int(groups[one.nodes[0]]) for one in found} == expected
        for one in found:
            assert len({int(groups[node]) for node in one.nodes}) == 1
            assert one.free == sum(free[node].bit_count() for node in one.nodes.tolist())
            assert (len(one.nodes) >= one.needed) == (one.needed == n)
            assert all(free[node] & one.mask == one.mask for node in one.nodes.tolist())


@settings(max_examples=examples(50), deadline=None)
@given(clusters(), st.integers(1, 8), st.data())
def test_with_any_number_on_a_node_the_free_gpus_of_a_group_count(
    cluster: tuple[list[Machine], Fabric], gpus: int, data: st.DataObject
) -> None:
    each, fabric = cluster
    free = [data.draw(st.integers(0, (1 << one.size) - 1)) for one in each]
    sets = NodeSets(each, fabric, free)
    for level in ("leaf", "pod", "any"):
        groups = fabric.groups(level)
        found = list(sets.at(level, gpus))
        counts = {group: [free[node].bit_count() for node in np.flatnonzero(groups == group)] for group in set(groups)}
        able = {group: here for group, here in counts.items() if group != NOBODY and sum(here) >= gpus}
        assert {int(groups[one.nodes[0]]) for one in found} == able.keys()
        assert [one.free for one in found] == sorted(map(sum, able.values()))
        for one in found:
            most_first = sorted(able[groups[one.nodes[0]]], reverse=True)
            assert sum(most_first[: one.needed]) >= gpus > sum(most_first[: one.needed - 1])


def of(counts: dict[tuple[int, int], int], *names: str, domain: str = "") -> list[Machine]:
    return [dataclasses.replace(make_machine(4, counts), node=name, domain=domain) for name in names]


def names(
    each: Sequence[Machine], free: Sequence[int], level: FabricLevel, gpus: int, per_node: int | None = None
) -> list[str]:
    return [one.name for one in NodeSets(each, Fabric.of(each), free).at(level, gpus, per_node)]


def test_the_best_links_come_first_then_the_fewest_gpus_left_over() -> None:
    each = [*of(PAIRS, "pairs"), *of(QUAD, "idle", "tight", "full")]
    assert names(each, [0b1111, 0b1111, 0b0110, 0b0001], "node", 2) == ["pairs", "tight", "idle"]


def test_nvlink_wants_gpus_that_are_all_joined() -> None:
    each = [*of(PAIRS, "pairs"), *of(QUAD, "quad"), *of({}, "none")]
    assert names(each, [0b1111] * 3, "nvlink", 2) == ["pairs", "quad"]
    assert names(each, [0b0110, 0b1111, 0b1111], "nvlink", 2) == ["quad"]
    assert names(each, [0b0110, 0b1111, 0b1111], "nvlink", 4) == ["quad"]
    # One GPU is joined to all others of its set.
    assert sorted(names(each, [0b0001, 0b0011, 0b0000], "nvlink", 1)) == ["pairs", "quad"]


def test_a_domain_across_nodes_is_one_set() -> None:
    each = [*of(QUAD, *(f"tray{number}" for number in range(18)), domain="u.1"), *of(QUAD, "alone")]
    [found] = NodeSets(each, Fabric.of(each), [15] * 19).at("nvlink", 64)
    assert (found.name, found.free, found.needed, found.hostlist) == ("u.1", 72, 16, "tray[0-17]")
    assert names(each, [15] * 19, "nvlink", 4) == ["alone", "u.1"]
    busy = [15] * 16 + [0, 0, 15]
    [found] = NodeSets(each, Fabric.of(each), busy).at("nvlink", 64, 4)
    assert (found.hostlist, found.gpus) == ("tray[0-15]", (0, 1, 2, 3))
    assert names(each, busy, "nvlink", 65) == []


def test_nodes_of_a_gang_have_the_same_gpus_free() -> None:
    """One typed request holds for all nodes of a job."""
    each = of(QUAD, "n1", "n2", "n3")
    assert names(each, [0b0011, 0b1100, 0b0001], "any", 4, 2) == []
    [found] = NodeSets(each, Fabric.of(each), [0b0011, 0b1111, 0b0111]).at("any", 4, 2)
    assert (found.names, found.gpus) == (("n1", "n2", "n3"), (0, 1))
    assert names(each, [0b0011, 0b1111, 0b0111], "any", 8, 4) == []


def test_a_domain_across_leaves_is_in_no_leaf() -> None:
    each = of(QUAD, "n1", "n2", "n3", domain="u.1")
    fabric = dataclasses.replace(Fabric.of(each), leaf=np.array([0, 1, 1]), leaves=("a", "b"))
    assert [(one.name, one.names) for one in NodeSets(each, fabric, [15] * 3).at("leaf", 8, 4)] == [("b", ("n2", "n3"))]


def test_a_machine_with_more_gpus_than_berthd_places_on_is_in_no_set() -> None:
    each = [dataclasses.replace(make_machine(20, {}), node="wide"), *of(QUAD, "n1")]
    assert names(each, [(1 << 20) - 1, 15], "node", 2) == ["n1"]


def test_bits_beyond_a_machine_are_no_gpus() -> None:
    assert names(of(QUAD, "n1"), [0xFF], "node", 5) == []


@pytest.mark.parametrize(("gpus", "per_node"), [(0, None), (-1, None), (8, 0), (8, 3)])
def test_what_is_no_demand_is_refused(gpus: int, per_node: int | None) -> None:
    with pytest.raises(QuestionError, match="are no demand"):
        names(of(QUAD, "n1"), [1], "any", gpus, per_node)


def test_an_empty_cluster_has_no_sets() -> None:
    assert {level: names([], [], level, 1) for level in LEVELS} == {level: [] for level in LEVELS}


def test_the_machines_of_a_rack_are_in_the_order_of_their_names() -> None:
    each = [machine("hgx-h100", f"n{number}") for number in range(3)]
    assert names(each, [0xFF, 0x0F, 0xFF], "node", 4) == ["n1", "n0", "n2"]
