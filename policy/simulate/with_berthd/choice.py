"""Slurm's own choice for a job without a pin: nodes as its tree or block plugin chooses them, cores, GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.arrays import Bools
from policy.simulate.with_berthd.jobs import SimulatedJob
from policy.simulate.with_berthd.nodes import Nodes, pick_cores, pick_gpus
from topology.blocks import IN_NO_BLOCK
from topology.fabric import NOBODY
from topology.tables import Ints

if TYPE_CHECKING:
    from topology.model import Machine


class SlurmsChoice:
    """Makes Slurm's choice on one cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        fabric = nodes.fleet.fabric
        nobody = np.zeros(nodes.count, np.int64)
        # Without a fabric all nodes count as one leaf, as under the plugin topology/flat.
        self._leaf: Ints = nobody if (fabric.leaf == NOBODY).any() else fabric.leaf
        self._pod: Ints = nobody if (fabric.pod == NOBODY).any() else fabric.pod
        self._blocks = fabric.blocks
        self._links = [_links(machine) for machine in nodes.fleet.machines]

    def nodes_for(self, record: SimulatedJob, open_nodes: Bools, counts: Ints, cpus: Ints) -> tuple[int, ...] | None:
        """Returns nodes with enough free GPUs and cores: of the leaf with the fewest that suffice, or of few leaves."""
        fits = open_nodes & (cpus >= record.cpus)
        if record.k:
            fits &= counts >= record.k
        found = np.flatnonzero(fits)
        wanted = record.nodes_wanted
        if self._blocks is not None:
            found = _of_one_block(found, self._blocks.groups(wanted, found), wanted)
        if found.size < wanted:
            return None
        leaf = self._leaf[found]
        held = np.bincount(leaf)
        enough = held >= wanted
        if enough.any():
            best = int(np.where(enough, held, self._nodes.count + 1).argmin())
            return tuple(found[leaf == best][:wanted].tolist())
        return self._of_several(found, wanted)

    def _of_several(self, found: Ints, wanted: int) -> tuple[int, ...]:
        """Returns nodes of several leaves, of one pod if one has enough; leaves with most nodes come first."""
        pods = np.bincount(self._pod[found])
        if (pods >= wanted).any():
            best = int(np.where(pods >= wanted, pods, self._nodes.count + 1).argmin())
            found = found[self._pod[found] == best]
        leaf = self._leaf[found]
        held = np.bincount(leaf)
        order = np.lexsort((found, leaf, -held[leaf]))
        return tuple(sorted(found[order][:wanted].tolist()))

    def on_one_leaf(self, nodes: Sequence[int]) -> bool:
        """Tells whether the nodes meet `--switches=1`."""
        return len({int(self._leaf[node]) for node in nodes}) == 1

    def gpus_for(self, record: SimulatedJob, nodes: Sequence[int]) -> tuple[int, ...]:
        """Returns the GPUs on each of these nodes."""
        if not record.k:
            return (0,) * len(nodes)
        return tuple([self._gpus_on(node, record) for node in nodes])

    def _gpus_on(self, node: int, record: SimulatedJob) -> int:
        nodes = self._nodes
        near = 0
        for taken, gpus in zip(pick_cores(nodes.cores[node], record.cpus), nodes.sockets[node], strict=True):
            near |= gpus if taken else 0
        return pick_gpus(int(nodes.gpus[node]), near, record.k, self._links[node])


def _of_one_block(found: Ints, groups: Ints, wanted: int) -> Ints:
    """Returns the nodes of the block or aggregated block with the fewest that suffice, the last such one; else none."""
    held = np.bincount(groups[groups != IN_NO_BLOCK], minlength=1)
    if held.max() < wanted:
        return found[:0]
    best = held.size - 1 - int(np.where(held >= wanted, held, found.size + 1)[::-1].argmin())
    of_best: Ints = found[groups == best]
    return of_best


def _links(machine: "Machine | None") -> list[list[int]]:
    """Returns the NVLinks between each two GPUs as `Links=` in gres.conf counts them: without those to a switch."""
    size = machine.size if machine else 0
    table = [[0] * size for _ in range(size)]
    for link in machine.links if machine else ():
        if link.via == "direct":
            table[link.a][link.b] = table[link.b][link.a] = link.count
    return table
