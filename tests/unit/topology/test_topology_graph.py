# SPDX-License-Identifier: Apache-2.0
"""Bandwidths and neighbourhoods of real machines, worked out by hand."""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import machines
from topology.graph import generation, node_graph, widest_paths
from topology.machines import machine, names
from topology.machines.kinds import relation
from topology.model import Gpu, Machine
from topology.pcie import Branch, rails, tree
from topology.sets.islands import islands
from topology.sets.wiring import positions

NV1, NV2 = 25.781, 51.562


def widest(node: Machine) -> tuple[tuple[float, ...], ...]:
    return widest_paths(node_graph(node), node)


@pytest.mark.parametrize(
    ("name", "a", "b", "gbps"),
    [
        ("dgx-1v", 0, 3, NV2),
        ("dgx-1v", 0, 1, NV1),  # one NVLink beats PCIe generation 3
        ("dgx-1v", 0, 5, 10.0),  # no NVLink: over both sockets
        ("hgx-h100", 0, 7, 478.116),
        ("a6000-pairs", 0, 1, 56.248),
        ("a6000-pairs", 0, 2, 31.508),  # one NUMA node: PCIe generation 4
        ("a6000-pairs", 0, 4, 16.0),
        ("l40s", 0, 1, 31.508),
        ("gb200-tray", 0, 3, 956.25),
    ],
)
def test_widest_path_of_two_gpus(name: str, a: int, b: int, gbps: float) -> None:
    assert widest(machine(name, "n1"))[a][b] == pytest.approx(gbps, abs=0.001)


def test_widths_of_a6000_pairs() -> None:
    table = widest(machine("a6000-pairs", "n1"))
    pcie, sockets = 31.508, 16.0
    expected = [
        [0.0, 56.248, pcie, sockets],
        [56.248, 0.0, pcie, sockets],
        [pcie, pcie, 0.0, sockets],
        [sockets, sockets, sockets, 0.0],
    ]
    assert [[table[a][b] for b in (0, 1, 2, 4)] for a in (0, 1, 2, 4)] == expected


def test_a_nic_has_its_rate_where_it_is_below_the_bus() -> None:
    graph = node_graph(machine("hgx-h100", "n1"))
    [edge] = graph.adj["n1/mlx5_0"].values()
    assert edge["gbps"] == 50.0


@pytest.mark.parametrize("name", names())
def test_every_edge_says_what_it_is_and_how_wide(name: str) -> None:
    graph = node_graph(machine(name, "n1"))
    assert nx.is_connected(graph)
    assert all(edge["gbps"] > 0 and edge["kind"] and "guessed" in edge for _, _, edge in graph.edges(data=True))
    assert all(not edge["guessed"] for _, _, edge in graph.edges(data=True) if edge["kind"] in {"nvlink", "c2c"})


def test_kinds_of_vertices_of_a_cube_mesh() -> None:
    graph = node_graph(machine("dgx-1v", "n1"))
    kinds = [data["kind"] for _, data in graph.nodes(data=True)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "gpu": 8,
        "nic": 4,
        "switch": 4,
        "bridge": 2,
        "numa": 2,
    }


@given(machines())
def test_nvlink_edges_have_the_islands_of_the_machine(node: Machine) -> None:
    graph = node_graph(node)
    direct = nx.Graph((a, b) for a, b, edge in graph.edges(data=True) if edge["kind"] == "nvlink")
    cliques = {frozenset(clique) for clique in nx.find_cliques(direct)} if direct else set()
    assert cliques == {frozenset(node.gpus[i].uuid for i in positions(mask)) for mask in islands(node.shape)}


@given(machines(max_gpus=6))
def test_widths_are_at_least_nvlinks_and_the_same_both_ways(node: Machine) -> None:
    table = widest(node)
    assert all(table[a][b] == table[b][a] >= node.gbps[a][b] for a, b in combinations(range(node.size), 2))


@pytest.mark.parametrize(
    ("model", "name", "expected"),
    [("v100", "", 3), ("h100", "", 5), ("a100", "", 4), ("x1", "NVIDIA GB200", 5), ("new", "Fancy 9000", 4)],
)
def test_pcie_generation_of_a_model(model: str, name: str, expected: int) -> None:
    assert generation(Machine("n1", model, (Gpu(0, 0, "a", name=name),))) == expected


# PCIe trees

PLACES = st.lists(st.tuples(*[st.integers(0, 1)] * 4).map(lambda place: "/".join(map(str, place))), max_size=7)


def nearest_common(branches: tuple[Branch, ...], a: int, b: int) -> str:
    kind = "apart"
    while found := next((branch for branch in branches if {a, b} <= set(branch.gpus)), None):
        kind, branches = found.kind, found.parts
    return kind


@given(PLACES)
def test_a_tree_says_the_same_as_the_words_it_was_made_of(places: list[str]) -> None:
    words = tuple(
        tuple("SELF" if a == b else relation(one, other) for b, other in enumerate(places))
        for a, one in enumerate(places)
    )
    gpus = tuple(Gpu(i, i, f"GPU-{i}", numa=int(place[0])) for i, place in enumerate(places))
    branches = tree(Machine("n1", "x", gpus, paths=words))
    kinds = {"SYS": "apart", "NODE": "numa", "PHB": "bridge", "PXB": "switches", "PIX": "switch"}
    for a, b in combinations(range(len(places)), 2):
        assert nearest_common(branches, a, b) == kinds[words[a][b]]


def test_gpus_of_which_nothing_is_known_stand_together() -> None:
    (branch,) = tree(Machine("n1", "x", (Gpu(0, 0, "a"), Gpu(1, 1, "b"))))
    assert (branch.kind, branch.gpus, branch.numa) == ("numa", (0, 1), -1)


def test_nics_far_from_every_gpu_share_the_last_branch() -> None:
    branches = tree(machine("dgx-a100", "n1"))
    assert [branch.numa for branch in branches] == [3, 1, 7, 5, -1]
    assert branches[-1].gpus == ()
    assert len(branches[-1].nics) == 4


def test_rails_of_real_machines() -> None:
    one_each = rails(machine("hgx-h100", "n1"))
    assert one_each == tuple((f"mlx5_{i}",) for i in (0, 3, 4, 5, 6, 9, 10, 11))
    assert rails(machine("dgx-1v", "n1"))[:3] == (("mlx5_0",), ("mlx5_0",), ("mlx5_1",))
    assert rails(machine("a100-pcie", "n1")) == ((),) * 4


@pytest.mark.parametrize(
    ("numas", "branches"),
    [
        ((0, 0, 1, 1), [((0, 1), 0), ((2, 3), 1)]),
        ((1, 0, 1, 0), [((0, 2), 1), ((1, 3), 0)]),
        ((-1, -1, 0, 0), [((0, 1), -1), ((2, 3), 0)]),
    ],
)
def test_gpus_of_which_the_numa_node_alone_is_known_share_its_branch(
    numas: tuple[int, ...], branches: list[tuple[tuple[int, ...], int]]
) -> None:
    """A driver in a virtual machine tells no paths; node 0 counts as any other."""
    gpus = tuple(Gpu(place, place, f"GPU-{place}", numa=numa) for place, numa in enumerate(numas))
    found = tree(Machine("n1", "h100", gpus))
    assert [(branch.gpus, branch.numa) for branch in found] == branches
