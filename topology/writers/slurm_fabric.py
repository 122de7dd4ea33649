# SPDX-License-Identifier: Apache-2.0
"""Lines for Slurm's topology.conf or topology.yaml from a fabric; what is read back means the same."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from topology.errors import UnknownError
from topology.hostlist import fold
from topology.network.fabric import NOBODY, Fabric

Form: TypeAlias = Literal["tree", "block"]

_ROOT = "berth-root"


def tree_conf(fabric: Fabric) -> Iterator[str]:
    """Yields lines of topology.conf for topology/tree: leaves, pods, and one switch that joins them all."""
    for name, children, nodes in _switches(fabric):
        yield f"SwitchName={name} " + (f"Switches={fold(children)}" if children else f"Nodes={fold(nodes)}")


def block_conf(fabric: Fabric) -> Iterator[str]:
    """Yields lines of topology.conf for topology/block: one block an NVLink domain; nodes without one are left out."""
    sizes, blocks = _blocks(fabric)
    for name, (domain, nodes) in blocks.items():
        yield f"# {name}={domain}"
        yield f"BlockName={name} Nodes={fold(nodes)}"
    yield f"BlockSizes={','.join(map(str, sizes))}"


def yaml(fabrics: Mapping[str, tuple[Form, Fabric]]) -> Iterator[str]:
    """Yields lines of topology.yaml with named topologies; the first one is the cluster's default."""
    for number, (topology, (form, fabric)) in enumerate(fabrics.items()):
        yield f"- topology: {topology}"
        yield f"  cluster_default: {'false' if number else 'true'}"
        yield f"  {form}:"
        if form == "tree":
            yield "    switches:"
            for name, children, nodes in _switches(fabric):
                yield f"      - switch: {name}"
                yield f"        children: {fold(children)}" if children else f"        nodes: {fold(nodes)}"
            continue
        sizes, blocks = _blocks(fabric)
        yield "    block_sizes:"
        yield from (f"      - {size}" for size in sizes)
        yield "    blocks:"
        for name, (domain, nodes) in blocks.items():
            yield f"      - block: {name} # {domain}"
            yield f"        nodes: {fold(nodes)}"


def _switches(fabric: Fabric) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Yields name, child switches and nodes of each switch, children first."""
    if not fabric.leaves:
        raise UnknownError("no tree can be written, because no leaf is known; discover the fabric first")
    above: dict[str, list[str]] = {}
    tops: list[str] = []
    for number, leaf in enumerate(fabric.leaves):
        members = (fabric.leaf == number).nonzero()[0].tolist()
        yield leaf, (), [fabric.names[i] for i in members]
        pod = int(fabric.pod[members[0]])
        if pod == NOBODY:
            tops.append(leaf)
        else:
            above.setdefault(fabric.pods[pod], []).append(leaf)
    for pod_name, children in above.items():
        yield pod_name, children, ()
    tops += above
    if len(tops) > 1:
        # Without it Slurm would run no job across them.
        yield _ROOT, tops, ()


def _blocks(fabric: Fabric) -> tuple[list[int], dict[str, tuple[str, Sequence[str]]]]:
    """Returns block sizes, and domain and nodes of each block; the smallest domain is the base."""
    members = [(fabric.domain == number).nonzero()[0].tolist() for number in range(len(fabric.domains))]
    if not members:
        raise UnknownError("no blocks can be written, because no node reports an NVLink domain")
    base = min(map(len, members))
    sizes = [base * 2**power for power in range(int(math.log2(len(members))) + 1)]
    blocks: dict[str, tuple[str, Sequence[str]]] = {
        f"block{number:03}": (fabric.domains[number - 1], [fabric.names[i] for i in nodes])
        for number, nodes in enumerate(members, 1)
    }
    return sizes, blocks
