# SPDX-License-Identifier: Apache-2.0
"""A node as a networkx graph: every edge has a `kind` and `gbps`, its GB/s in one direction.

A GPU's vertex is its UUID; all other vertices are `NODE/WHAT`. A vertex has a `kind`: gpu, nic, nvswitch, switch,
bridge, numa.

NVLink bandwidth is what the driver told. The rest is not told and stands on the line rate of the PCIe
generation that the GPU model was built for; such edges have `guessed=True`:

| generation | GPUs | PCIe x16 | between sockets | NIC of unknown rate |
|---|---|---|---|---|
| 3 | Pascal, Volta, Turing | 15.75 | 10 | 12.5 |
| 4 | Ampere, Ada | 31.51 | 16 | 25 |
| 5 | Hopper, Blackwell | 63.02 | 22 | 50 |

PCIe x16 is 8, 16 or 32 GT/s with 128b/130b coding; between sockets is what NCCL counts for Skylake, AMD and
Sapphire Rapids (src/graph/topo.h); a NIC has 100, 200 or 400 Gb/s.

NVLink islands and the best k GPUs are in `topology.sets`, nearest NICs in `topology.pcie`.
"""

import math
import re
from itertools import combinations

import networkx as nx

from topology.model import Machine
from topology.pcie import Branch, tree

_PCIE = {3: 15.754, 4: 31.508, 5: 63.015}
_SOCKET = {3: 10.0, 4: 16.0, 5: 22.0}
_NIC = {3: 12.5, 4: 25.0, 5: 50.0}
_GENERATION = (
    (3, re.compile(r"\b(p100|p40|p4|v100s?|t4|titan|k80|gtx\w*|rtx ?20\w*|quadro)\b")),
    (5, re.compile(r"\b(h100|h200|h20|h800|gh200|b100|b200|b300|gb200|gb300|rtx ?50\w*|rtx pro|rtxpro\w*)\b")),
)


def generation(machine: Machine) -> int:
    """Returns PCIe generation that the GPUs were built for, 3 to 5; 4 for a model that is not known."""
    words = f"{machine.model} {machine.gpus[0].name if machine.gpus else ''}".lower().replace("-", " ")
    return next((number for number, models in _GENERATION if models.search(words)), 4)


def node_graph(machine: Machine) -> nx.Graph:
    """Returns GPUs, NVSwitches, PCIe switches, host bridges, NUMA nodes and NICs of one node.

    A GPU's traffic is striped over all NVSwitches of its node, so they are one vertex with their number as `count`.
    """
    graph = nx.Graph(node=machine.node)
    for gpu in machine.gpus:
        graph.add_node(gpu.uuid, kind="gpu", node=machine.node, position=gpu.position)
    for nic in machine.nics:
        graph.add_node(f"{machine.node}/{nic.name}", kind="nic", node=machine.node, gbps=nic.gbps)
    _add_nvlinks(graph, machine)
    _add_pcie(graph, machine)
    return graph


def _add_nvlinks(graph: nx.Graph, machine: Machine) -> None:
    uplink: dict[int, float] = {}
    for link in machine.links:
        if link.via == "direct":
            a, b = machine.gpus[link.a].uuid, machine.gpus[link.b].uuid
            graph.add_edge(a, b, kind="nvlink", gbps=link.gbps, count=link.count, guessed=False)
        else:
            # A pair gets what the weaker of the two has; the widest pair tells what a GPU has itself.
            for end in (link.a, link.b):
                uplink[end] = max(uplink.get(end, 0.0), link.gbps)
    if uplink:
        hub = f"{machine.node}/nvswitch"
        graph.add_node(hub, kind="nvswitch", node=machine.node, count=machine.switches, domain=machine.domain)
        for end, gbps in uplink.items():
            graph.add_edge(machine.gpus[end].uuid, hub, kind="nvlink", gbps=gbps, guessed=False)


def _add_pcie(graph: nx.Graph, machine: Machine) -> None:
    speed = generation(machine)
    numbers: dict[str, int] = {}

    def grow(branch: Branch) -> str:
        number = numbers[branch.kind] = numbers.get(branch.kind, -1) + 1
        if branch.kind == "numa":
            number = branch.numa if branch.numa >= 0 else -number - 1
        name = f"{machine.node}/{branch.kind}{number}"
        graph.add_node(name, kind=branch.kind, node=machine.node)
        for part in branch.parts:
            graph.add_edge(name, grow(part), kind="pcie", gbps=_PCIE[speed], guessed=True)
        for position in branch.own_gpus:
            gpu = machine.gpus[position]
            if gpu.c2c_gbps > 0:
                graph.add_edge(name, gpu.uuid, kind="c2c", gbps=gpu.c2c_gbps, guessed=False)
            else:
                graph.add_edge(name, gpu.uuid, kind="pcie", gbps=_PCIE[speed], guessed=True)
        for index in branch.own_nics:
            nic = machine.nics[index]
            rate = min(nic.gbps or _NIC[speed], _PCIE[speed])
            graph.add_edge(name, f"{machine.node}/{nic.name}", kind="pcie", gbps=rate, guessed=True)
        return name

    roots = [grow(branch) for branch in tree(machine)]
    for a, b in combinations(roots, 2):
        graph.add_edge(a, b, kind="socket", gbps=_SOCKET[speed], guessed=True)


def widest_paths(graph: nx.Graph, machine: Machine) -> tuple[tuple[float, ...], ...]:
    """Returns GB/s of the widest path of each pair of a node's GPUs, which are ends only; 0 on the diagonal.

    All paths of a maximum spanning tree are widest paths. GPUs hand nothing on, so the tree is that of all other
    vertices; a GPU has one or two edges to them, and perhaps some to other GPUs.
    """
    uuids = [gpu.uuid for gpu in machine.gpus]
    ends = set(uuids)
    tree_ = nx.maximum_spanning_tree(graph.subgraph(graph.nodes - ends), weight="gbps")
    ways = [[(hub, edge["gbps"]) for hub, edge in graph.adj[uuid].items() if hub not in ends] for uuid in uuids]
    from_hub = {hub: _widest_from(tree_, hub) for way in ways for hub, _ in way}
    rows = [[0.0] * len(uuids) for _ in uuids]
    for a, b in combinations(range(len(uuids)), 2):
        wide = [graph.edges[uuids[a], uuids[b]]["gbps"]] if graph.has_edge(uuids[a], uuids[b]) else [0.0]
        wide += [min(up, from_hub[hub].get(other, 0.0), down) for hub, up in ways[a] for other, down in ways[b]]
        rows[a][b] = rows[b][a] = max(wide)
    return tuple(map(tuple, rows))


def _widest_from(tree_: nx.Graph, start: str) -> dict[str, float]:
    """Returns GB/s from a vertex of a tree to each that it reaches."""
    wide = {start: math.inf}
    for above, below in nx.bfs_edges(tree_, start):
        wide[below] = min(wide[above], tree_.edges[above, below]["gbps"])
    return wide


def direct_links(graph: nx.Graph, machine: Machine) -> tuple[tuple[float, ...], ...]:
    """Returns GB/s of the edges between GPUs, in which no switch has a part; 0 where there is none."""
    uuids = [gpu.uuid for gpu in machine.gpus]
    return tuple(tuple(float(graph.adj[a].get(b, {}).get("gbps", 0.0)) for b in uuids) for a in uuids)
