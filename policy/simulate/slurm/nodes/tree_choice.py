# SPDX-License-Identifier: Apache-2.0
"""Slurm's own choice for a job without a pin: nodes as its tree or block plugin chooses them, cores, GPUs."""

from collections.abc import Sequence

import numpy as np

from policy.cluster.view import View
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.slurm_like import links_of, pick_gpus
from policy.placement.slurm_switches import Switches
from policy.request.demand import Demand
from policy.simulate.slurm.nodes.cores import pick_cores
from policy.simulate.slurm.nodes.ledger import Ledger
from topology.network.fabric import Fabric
from topology.sets.tables import Ints


class TreeChoice(Policy):
    """Makes Slurm's choice on one cluster: by leaves, cores and the GPUs near them, as select/cons_tres does."""

    name = "slurm"

    def __init__(self, ledger: Ledger, *, tree: bool = True) -> None:
        """Without `tree` leaves and blocks do not count, as under the plugin topology/flat."""
        self.ledger = ledger
        fabric = ledger.fleet.fabric
        self.switches = Switches(fabric if tree else Fabric.flat(fabric.names))
        self._links = [links_of(machine) for machine in ledger.fleet.machines]

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
        chosen = self.switches.choose(np.flatnonzero(fits), demand.n)
        return None if chosen is None else tuple(chosen.tolist())

    def _gpus_on(self, node: int, demand: Demand) -> int:
        ledger = self.ledger
        near = 0
        for taken, gpus in zip(pick_cores(ledger.cores[node], demand.cpus or 0), ledger.sockets[node], strict=True):
            near |= gpus if taken else 0
        return pick_gpus(int(ledger.free[node]), near, demand.k, self._links[node])


def berth_of(demand: Demand, view: View, nodes: Sequence[int], masks: Sequence[int], why: str) -> Berth:
    """Returns a place on certain GPUs; on none if the job needs only cores."""
    if any(masks):
        return Policy.spread(demand, view, nodes, masks, why)
    names = tuple(view.fleet.names[node] for node in nodes)
    return Berth(tuple(nodes), names, tuple(masks), seats=False, level="node", min_gbps=0.0, sum_gbps=0.0, why=why)
