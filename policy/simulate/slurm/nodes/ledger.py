# SPDX-License-Identifier: Apache-2.0
"""Keeps which GPUs and cores are held and until when, updated step by step, so that no event reads all nodes."""

from collections.abc import Iterable, Sequence

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Bools
from policy.simulate.slurm.nodes.cores import Cores, pick_cores, sockets_of, split
from topology.sets.tables import Ints
from topology.sets.wiring import positions

NEVER = float("inf")


class Ledger:
    """The GPUs and cores of a cluster, and the epilogs that still run."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.free = fleet.full.copy()
        """Free GPUs of each node as bits."""
        self.counts = np.bitwise_count(self.free).astype(np.int64)
        """Free GPUs of each node that is up."""
        self.up = fleet.ready.copy()
        self.version = 0
        """A number that grows with each change, so that answers can be kept until the next one."""
        self.free_gpus = int(self.counts.sum())
        width = int(fleet.size.max(initial=0))
        self.nodes_with = np.bincount(self.counts[self.up], minlength=width + 1).tolist()
        """The number of nodes that are up and have exactly so many free GPUs."""
        self._until = [[0.0] * size + [NEVER] * (width - size) for size in self.counts.tolist()]
        self.soonest = np.sort(np.array(self._until, np.float64), axis=1)
        """Column c: the time at which c + 1 GPUs of the node are expected to be free."""
        self.cpus: Ints = fleet.cpus.copy()
        """Free cores of each node."""
        self.sockets = [sockets_of(machine) for machine in fleet.machines]
        """For each node the GPUs near each of its sockets, as bits."""
        self.cores: Cores = [
            split(int(cpus), len(sockets)) for cpus, sockets in zip(fleet.cpus, self.sockets, strict=True)
        ]
        """Free cores of each socket."""
        self.epilogs: Ints = np.zeros(len(fleet.names), np.int64)
        self._epilogs = 0
        self.changed: set[int] = set()
        """Nodes that have changed since a gateway last read them."""

    @property
    def open(self) -> Bools:
        """Marks the nodes that are up and run no epilog; the others take no job."""
        return self.up & (self.epilogs == 0) if self._epilogs else self.up

    def is_open(self, nodes: Sequence[int]) -> bool:
        """Tells whether these nodes may take a job."""
        return all(self.up[node] and not self.epilogs[node] for node in nodes)

    def take(self, nodes: Sequence[int], masks: Sequence[int], until: float, cpus: int = 0) -> Cores:
        """Takes the GPUs of a job that is expected to end at `until`, and its cores; returns those by socket."""
        for node, mask in zip(nodes, masks, strict=True):
            self._change(node, int(self.free[node]) & ~mask)
        self.expect(nodes, masks, until)
        if not cpus:
            return []
        held = [pick_cores(self.cores[node], cpus) for node in nodes]
        for node, cores in zip(nodes, held, strict=True):
            self._move_cores(node, cores, -1)
        return held

    def give(self, nodes: Sequence[int], masks: Sequence[int], cores: Cores) -> None:
        """Gives back the GPUs and cores of a job that ends."""
        for node, mask in zip(nodes, masks, strict=True):
            self._change(node, int(self.free[node]) | mask)
        self.expect(nodes, masks, 0.0)
        for node, held in zip(nodes, cores, strict=False):
            self._move_cores(node, held, 1)

    def epilog(self, node: int, change: int) -> None:
        """Notes that an epilog begins on a node, or ends: a change of 1 or -1."""
        self.epilogs[node] += change
        self._epilogs += change
        self.version += 1
        self.changed.add(node)

    def expect(self, nodes: Sequence[int], masks: Sequence[int], until: float) -> None:
        """Changes the time at which a job is expected to end."""
        self.version += 1
        for node, mask in zip(nodes, masks, strict=True):
            ends = self._until[node]
            for place in positions(mask):
                ends[place] = until
            self.soonest[node] = sorted(ends) if self.up[node] else NEVER

    def free_at(self, nodes: Sequence[int], mask: int) -> float:
        """Returns the time at which these GPUs of each of these nodes are expected to be free."""
        if not all(self.up[node] for node in nodes):
            return NEVER
        return max((self._until[node][place] for node in nodes for place in positions(mask)), default=0.0)

    def set_up(self, node: int, *, up: bool) -> None:
        """Notes that a node fails, or comes back."""
        if bool(self.up[node]) == up:
            return
        count = int(self.free[node]).bit_count()
        sign = 1 if up else -1
        self.up[node] = up
        self.nodes_with[count] += sign
        self.free_gpus += sign * count
        self.counts[node] = count if up else 0
        self.soonest[node] = sorted(self._until[node]) if up else NEVER
        self.version += 1
        self.changed.add(node)

    def _change(self, node: int, free: int) -> None:
        before, after = int(self.free[node]).bit_count(), free.bit_count()
        self.free[node] = free
        self.changed.add(node)
        if self.up[node]:
            self.nodes_with[before] -= 1
            self.nodes_with[after] += 1
            self.free_gpus += after - before
            self.counts[node] = after

    def _move_cores(self, node: int, cores: Sequence[int], sign: int) -> None:
        self.cores[node] = tuple(free + sign * some for free, some in zip(self.cores[node], cores, strict=True))
        self.cpus[node] += sign * sum(cores)

    def nodes_with_at_least(self, k: int) -> int:
        """Returns the number of nodes that have k free GPUs."""
        return sum(self.nodes_with[k:])

    def fits(self, shapes: Iterable[tuple[int, int]]) -> bool:
        """Tells whether one of these shapes (nodes, GPUs on each; 0 nodes: anywhere) would fit by numbers alone."""
        return any(
            self.free_gpus >= k if n == 0 else self.free_gpus >= n * k and self.nodes_with_at_least(k) >= n
            for n, k in shapes
        )
