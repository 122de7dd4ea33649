"""Slurm's own choice for a job without a pin: nodes as its tree or block plugin chooses them, cores, GPUs."""

from collections.abc import Sequence

import numpy as np

from policy.cluster.view import View
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.request.demand import Demand
from policy.simulate.slurm.nodes.cores import pick_cores, pick_gpus
from policy.simulate.slurm.nodes.ledger import Ledger
from topology.blocks import IN_NO_BLOCK
from topology.fabric import NOBODY
from topology.model import Machine
from topology.tables import Ints


class TreeChoice(Policy):
    """Makes Slurm's choice on one cluster: by leaves, cores and the GPUs near them, as select/cons_tres does."""

    name = "slurm"

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._count = len(ledger.fleet.names)
        fabric = ledger.fleet.fabric
        nobody = np.zeros(self._count, np.int64)
        # Without a fabric all nodes count as one leaf, as under the plugin topology/flat.
        self._leaf: Ints = nobody if (fabric.leaf == NOBODY).any() else fabric.leaf
        self._pod: Ints = nobody if (fabric.pod == NOBODY).any() else fabric.pod
        self._blocks = fabric.blocks
        self._links = [_links(machine) for machine in ledger.fleet.machines]

    def place(self, demand: Demand, view: View) -> Berth:
        """Returns the place that Slurm gives a job now."""
        found = self.nodes_for(demand, view.open & demand.candidates, np.bitwise_count(view.free), view.cpus)
        if found is None:
            raise NotNow(f"no {demand.n} nodes have {demand.k} free GPUs now")
        return self.on(demand, view, found)

    def on(self, demand: Demand, view: View, nodes: Sequence[int]) -> Berth:
        """Returns the place that Slurm gives a job on these nodes."""
        masks = [self._gpus_on(node, demand) if demand.k else 0 for node in nodes]
        return berth_of(demand, view, nodes, masks, "the nodes and GPUs that plain Slurm takes")

    def nodes_for(self, demand: Demand, open_nodes: Bools, counts: Ints, cpus: Ints) -> tuple[int, ...] | None:
        """Returns nodes with enough free GPUs and cores: of the leaf with the fewest that suffice, or of few leaves."""
        fits = open_nodes & (cpus >= (demand.cpus or 0))
        if demand.k:
            fits &= counts >= demand.k
        found = np.flatnonzero(fits)
        wanted = demand.n
        if self._blocks is not None:
            found = _of_one_block(found, self._blocks.groups(wanted, found), wanted)
        if found.size < wanted:
            return None
        leaf = self._leaf[found]
        held = np.bincount(leaf)
        enough = held >= wanted
        if enough.any():
            best = int(np.where(enough, held, self._count + 1).argmin())
            return tuple(found[leaf == best][:wanted].tolist())
        return self._of_several(found, wanted)

    def _of_several(self, found: Ints, wanted: int) -> tuple[int, ...]:
        """Returns nodes of several leaves, of one pod if one has enough; leaves with most nodes come first."""
        pods = np.bincount(self._pod[found])
        if (pods >= wanted).any():
            best = int(np.where(pods >= wanted, pods, self._count + 1).argmin())
            found = found[self._pod[found] == best]
        leaf = self._leaf[found]
        held = np.bincount(leaf)
        order = np.lexsort((found, leaf, -held[leaf]))
        return tuple(sorted(found[order][:wanted].tolist()))

    def on_one_leaf(self, nodes: Sequence[int]) -> bool:
        """Tells whether the nodes meet `--switches=1`."""
        return len({int(self._leaf[node]) for node in nodes}) == 1

    def _gpus_on(self, node: int, demand: Demand) -> int:
        ledger = self.ledger
        near = 0
        for taken, gpus in zip(pick_cores(ledger.cores[node], demand.cpus or 0), ledger.sockets[node], strict=True):
            near |= gpus if taken else 0
        return pick_gpus(int(ledger.free[node]), near, demand.k, self._links[node])


def berth_of(demand: Demand, view: View, nodes: Sequence[int], masks: Sequence[int], why: str) -> Berth:
    """Returns a place on certain GPUs; on none, where a job needs only cores."""
    if any(masks):
        return Policy.spread(demand, view, nodes, masks, why)
    names = tuple(view.fleet.names[node] for node in nodes)
    return Berth(tuple(nodes), names, tuple(masks), seats=False, level="node", min_gbps=0.0, sum_gbps=0.0, why=why)


def _of_one_block(found: Ints, groups: Ints, wanted: int) -> Ints:
    """Returns the nodes of the block or aggregated block with the fewest that suffice, the last such one; else none."""
    held = np.bincount(groups[groups != IN_NO_BLOCK], minlength=1)
    if held.max() < wanted:
        return found[:0]
    best = held.size - 1 - int(np.where(held >= wanted, held, found.size + 1)[::-1].argmin())
    of_best: Ints = found[groups == best]
    return of_best


def _links(machine: Machine | None) -> list[list[int]]:
    """Returns the NVLinks between each two GPUs as `Links=` in gres.conf counts them: without those to a switch."""
    size = machine.size if machine else 0
    table = [[0] * size for _ in range(size)]
    for link in machine.links if machine else ():
        if link.via == "direct":
            table[link.a][link.b] = table[link.b][link.a] = link.count
    return table
