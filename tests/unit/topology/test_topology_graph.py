"""Bandwidths and neighbourhoods of real machines, worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import machines
from topology.errors import QuestionError
from topology.fabric import Fabric
from topology.graph import bandwidths, cluster_graph, generation, node_graph, widest_path
from topology.islands import islands, positions
from topology.machines import machine, names, rack
from topology.machines.kinds import relation
from topology.model import NEAR, Gpu, Machine, Nic
from topology.pcie import Branch, align, rails, tree

NV1, NV2 = 25.781, 51.562


def widest(node: Machine, a: int, b: int, *, through_gpus: bool = False) -> float:
    graph = node_graph(node)
    return widest_path(graph, node.gpus[a].uuid, node.gpus[b].uuid, through_gpus=through_gpus).gbps


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
    assert widest(machine(name, "n1"), a, b) == pytest.approx(gbps, abs=0.001)


def test_a_ring_may_pass_gpus_where_a_copy_may_not() -> None:
    node = machine("dgx-1v", "n1")
    # 0-3-2-1-5 and 0-4-7-6-5 have two NVLinks at every step.
    path = widest_path(node_graph(node), node.gpus[0].uuid, node.gpus[5].uuid, through_gpus=True)
    assert path.gbps == NV2
    assert [node_graph(node).nodes[hop]["position"] for hop in path.hops] in ([0, 3, 2, 1, 5], [0, 4, 7, 6, 5])


def test_a_path_takes_the_fewest_steps_among_the_widest() -> None:
    node = machine("hgx-h100", "n1")
    path = widest_path(node_graph(node), node.gpus[0].uuid, node.gpus[1].uuid)
    assert path.hops == (node.gpus[0].uuid, "n1/nvswitch", node.gpus[1].uuid)


def test_a_path_to_nowhere_is_an_error_that_names_it() -> None:
    graph = node_graph(machine("l40s", "n1"))
    with pytest.raises(QuestionError, match="no n9/gpu in this graph"):
        widest_path(graph, next(iter(graph)), "n9/gpu")


def test_bandwidth_matrix_of_a6000_pairs() -> None:
    matrix = bandwidths(machine("a6000-pairs", "n1"), gpus=(0, 1, 2, 4))
    pcie, sockets = 31.508, 16.0
    expected = [
        [np.inf, 56.248, pcie, sockets],
        [56.248, np.inf, pcie, sockets],
        [pcie, pcie, np.inf, sockets],
        [sockets, sockets, sockets, np.inf],
    ]
    assert matrix == pytest.approx(np.array(expected))


def test_a_gpu_reaches_the_nic_beside_it_at_the_nics_rate() -> None:
    node = machine("hgx-h100", "n1")
    graph = node_graph(node)
    assert widest_path(graph, node.gpus[0].uuid, "n1/mlx5_0").gbps == 50.0
    # The other socket's NIC: 22 GB/s between sockets.
    assert widest_path(graph, node.gpus[0].uuid, "n1/mlx5_6").gbps == 22.0


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
def test_bandwidths_are_at_least_nvlinks_and_the_same_both_ways(node: Machine) -> None:
    matrix = bandwidths(node)
    assert (matrix == matrix.T).all()
    assert all(matrix[a, b] >= node.gbps[a][b] for a, b in combinations(range(node.size), 2))


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


def test_alignment_gives_each_gpu_its_own_nic_where_there_are_enough() -> None:
    hgx = align(machine("hgx-h100", "n1"), (0, 1, 4))
    assert (hgx.nics, hgx.shared, hgx.gbps) == ({0: "mlx5_0", 1: "mlx5_3", 4: "mlx5_6"}, {}, 150.0)
    dgx = align(machine("dgx-1v", "n1"), (0, 1, 2))
    assert (dgx.shared, dgx.gbps) == ({"mlx5_0": (0, 1)}, 25.0)
    two_nics_beside_two = align(machine("dgx-a100", "n1"), (0, 1))
    assert two_nics_beside_two.nics == {0: "mlx5_0", 1: "mlx5_1"}


def test_alignment_prefers_the_gpu_with_the_least_choice() -> None:
    gpus = (Gpu(0, 0, "a"), Gpu(1, 1, "b"))
    node = Machine("n1", "x", gpus, nics=(Nic("near"), Nic("far")), nic_paths=(("PHB", "PHB"), ("PIX", "SYS")))
    assert align(node, (0, 1)).nics == {0: "far", 1: "near"}
    assert align(node, (0, 1)).gbps == 0.0


# Clusters


def fabric(nodes: list[Machine], leaf: list[int], pod: list[int], domain: list[int] | None = None) -> Fabric:
    names = tuple(node.node for node in nodes)
    return Fabric(names, np.array(domain or [-1] * len(nodes)), np.array(leaf), np.array(pod))


def test_nodes_meet_at_the_nearest_switch() -> None:
    nodes = [machine("dgx-1v", f"n{i}") for i in range(4)]
    graph = cluster_graph({node.node: node for node in nodes}, fabric(nodes, [0, 0, 1, 2], [0, 0, 0, 1]))
    assert widest_path(graph, "n0", "n1") == widest_path(graph, "n0", "n1", through_gpus=True)
    assert widest_path(graph, "n0", "n1").hops == ("n0", "leaf 0", "n1")
    assert widest_path(graph, "n0", "n2").hops == ("n0", "leaf 0", "pod 0", "leaf 1", "n2")
    assert len(widest_path(graph, "n0", "n3").hops) == 7
    assert widest_path(graph, "n0", "n3").gbps == 50.0  # four EDR cards
    assert graph.edges["leaf 0", "pod 0"]["gbps"] == 100.0


def test_a_rack_is_joined_by_nvlink_and_not_by_the_network() -> None:
    trays = rack("gb200-nvl72", ["t1", "t2"])
    whole = fabric(trays, [-1, -1], [-1, -1], [0, 0])
    graph = cluster_graph({tray.node: tray for tray in trays}, whole, inside=True)
    path = widest_path(graph, trays[0].gpus[0].uuid, trays[1].gpus[0].uuid)
    assert path.hops[1:-1] == ("t1/nvswitch", "domain 0", "t2/nvswitch")
    assert path.gbps == pytest.approx(956.25)


def test_gpus_of_two_nodes_meet_over_their_rails() -> None:
    nodes = [machine("hgx-h100", f"n{i}") for i in range(2)]
    graph = cluster_graph({node.node: node for node in nodes}, fabric(nodes, [0, 0], [-1, -1]), inside=True)
    path = widest_path(graph, nodes[0].gpus[1].uuid, nodes[1].gpus[1].uuid)
    assert path.gbps == 50.0
    assert {"n0/mlx5_3", "leaf 0", "n1/mlx5_3"} <= set(path.hops)


def test_a_node_is_as_wide_as_the_nics_that_tell_their_rate() -> None:
    nodes = [machine("hgx-h100", "n1"), machine("a6000-pairs", "n2")]
    graph = cluster_graph({node.node: node for node in nodes}, fabric(nodes, [0, 0], [-1, -1]))
    assert graph.edges["n1", "leaf 0"] == {"kind": "network", "gbps": 400.0, "guessed": False}
    # Two cards of unknown rate beside PCIe generation 4.
    assert graph.edges["n2", "leaf 0"] == {"kind": "network", "gbps": 50.0, "guessed": True}


def test_a_node_without_a_machine_is_in_the_graph_too() -> None:
    graph = cluster_graph({}, Fabric.flat(("n1",)))
    assert graph.nodes["n1"]["kind"] == "node"
    assert graph.edges["n1", "core"]["guessed"]


def test_a_gpu_and_itself() -> None:
    node = machine("l40s", "n1")
    assert widest(node, 0, 0) == math.inf
    assert NEAR[node.paths[0][0]] == max(NEAR.values())
