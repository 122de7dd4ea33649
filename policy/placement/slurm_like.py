# SPDX-License-Identifier: Apache-2.0
"""Models the choice of plain Slurm, as the baseline for every other policy.

Nodes: select/cons_tres searches the smallest run of consecutive nodes that is enough ("best fit"), and takes its first
nodes.

GPUs: since 24.11 `--gres=gpu:N` takes the lowest free position, then those *least* linked to it, position by position.
This was observed on 24.11.5 and 26.05.5 with `Links=` in gres.conf. GPUs behind an NVSwitch all read 0 links, so there
it is the lowest positions. Each node of a job gets its own set of GPUs.
"""

from collections.abc import Sequence

import numpy as np

from policy.cluster.view import View
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.slurm_switches import Switches
from policy.request.demand import ANY_SPREAD, Demand
from topology.model import Machine, MachineShape
from topology.sets.tables import Ints
from topology.sets.wiring import positions


def pick_gpus(free: int, near: int, count: int, links: Sequence[Sequence[int]]) -> int:
    """Picks GPUs as Slurm does: those near the job's cores first, of them the lowest, then those least linked to it.

    >>> pick_gpus(0b11110, 0b1111, 2, [[0] * 8] * 8)
    6
    """
    chosen: list[int] = []
    for pool in (free & near, free & ~near):
        rest = list(positions(pool))
        if not chosen and rest and count:
            chosen.append(rest.pop(0))
        if chosen:
            rest.sort(key=lambda place: (links[chosen[0]][place], place))
        chosen += rest[: count - len(chosen)]
    return sum(1 << place for place in chosen)


def links_of(machine: Machine | None) -> list[list[int]]:
    """Returns the NVLinks between each two GPUs as `Links=` in gres.conf counts them: without those to a switch."""
    size = machine.size if machine else 0
    table = [[0] * size for _ in range(size)]
    for link in machine.links if machine else ():
        if link.via == "direct":
            table[link.a][link.b] = table[link.b][link.a] = link.count
    return table


class SlurmPolicy(Policy):
    """Chooses as plain Slurm does, without scores and leaves."""

    name = "slurm"

    def __init__(self) -> None:
        self._picked: dict[tuple[MachineShape, int, int], int] = {}

    def place(self, demand: Demand, view: View) -> Berth:
        """Returns the first nodes of the smallest run of nodes that is enough."""
        counts = np.where(self.fitting(demand, view), np.bitwise_count(view.free), 0).astype(np.int64)
        if demand.n == ANY_SPREAD and int(counts.max(initial=0)) < demand.k:
            return self._as_it_comes(demand, view, counts)
        wanted = max(1, demand.n)
        nodes = np.flatnonzero(counts >= demand.k)
        if nodes.size < wanted:
            raise NotNow(f"{nodes.size} of {wanted} nodes have {demand.k} free GPUs now", 300)
        chosen = self._in_order(view, nodes, wanted)[:wanted]
        chosen.sort()
        return self._take(demand, view, chosen.tolist(), [demand.k] * wanted)

    def _as_it_comes(self, demand: Demand, view: View, counts: Ints) -> Berth:
        """Takes GPUs from as many nodes as the job needs."""
        nodes = np.flatnonzero(counts)
        if int(counts[nodes].sum()) < demand.k:
            raise NotNow(f"{int(counts[nodes].sum())} of {demand.k} GPUs are free now", 300)
        # A run is enough if its GPUs are enough, so the number of nodes is only estimated from below here.
        most = int(view.fleet.size[nodes].max())
        nodes = self._in_order(view, nodes, -(-demand.k // most))
        left, chosen, taken = demand.k, [], []
        for node in nodes.tolist():
            taken.append(min(left, int(counts[node])))
            chosen.append(node)
            left -= taken[-1]
            if not left:
                break
        return self._take(demand, view, chosen, taken)

    def _in_order(self, view: View, nodes: Ints, wanted: int) -> Ints:  # noqa: ARG002 - for leaves
        """Returns the nodes in the order in which they are taken."""
        starts = np.concatenate([[0], np.flatnonzero(np.diff(nodes) > 1) + 1])
        lengths = np.diff(np.concatenate([starts, [nodes.size]]))
        enough = lengths >= wanted
        if enough.any():
            best = int(np.where(enough, lengths, nodes.size + 1).argmin())
            return nodes[starts[best] : starts[best] + lengths[best]]
        # No run is enough: the longest come first, so that as few runs as possible are joined.
        order = np.argsort(-lengths, kind="stable").tolist()
        return np.concatenate([nodes[starts[run] : starts[run] + lengths[run]] for run in order])

    def _take(self, demand: Demand, view: View, nodes: list[int], taken: list[int]) -> Berth:
        machines = view.fleet.machines
        masks = [
            self._gpus_on(machine, int(view.free[node]), count)
            for node, count in zip(nodes, taken, strict=True)
            if (machine := machines[node])
        ]
        return self.spread(demand, view, nodes, masks, "the nodes and GPUs that plain Slurm takes")

    def _gpus_on(self, machine: Machine, free: int, count: int) -> int:
        key = (machine.shape, free, count)
        if key not in self._picked:
            self._picked[key] = pick_gpus(free, free, count, links_of(machine))
        return self._picked[key]


class SlurmTreePolicy(SlurmPolicy):
    """Chooses as plain Slurm with topology/tree or topology/block does."""

    name = "slurm-tree"

    def _in_order(self, view: View, nodes: Ints, wanted: int) -> Ints:
        chosen = Switches(view.fleet.fabric).choose(nodes, wanted)
        if chosen is None:
            raise NotNow(f"no block has {wanted} nodes with room now", 300)
        return chosen
