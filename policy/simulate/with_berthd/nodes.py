"""The nodes in slurmctld's view: GPUs, cores of each socket, and epilogs that still run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.slurm_facts import NodeFacts
from policy.simulate.with_berthd.jobs import SimulatedJob
from policy.simulate.world import PARTITION
from topology.tables import Ints, positions

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.arrays import Bools
    from topology.model import Machine

Cores = list[tuple[int, ...]]


class Nodes:
    """The free resources on each node, updated with each start and end."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self.count = len(fleet.names)
        self.sockets = [sockets_of(machine) for machine in fleet.machines]
        """For each node the GPUs near each of its sockets, as bits."""
        self.gpus: Ints = fleet.full.copy()
        """Free GPUs of each node as bits."""
        self.cpus: Ints = fleet.cpus.copy()
        """Free cores."""
        self.cores: Cores = [
            split(int(cpus), len(sockets)) for cpus, sockets in zip(fleet.cpus, self.sockets, strict=True)
        ]
        """Free cores of each socket."""
        self.epilogs: Ints = np.zeros(self.count, np.int64)
        self._facts: list[NodeFacts | None] = [None] * self.count

    @property
    def quiet(self) -> "Bools":
        """Marks the nodes without a running epilog; the others take no job."""
        quiet: Bools = self.epilogs == 0
        return quiet

    def free_for(self, record: SimulatedJob, nodes: Sequence[int]) -> bool:
        """Tells whether a job's GPUs and cores are free there; a job beyond its time limit still holds its own."""
        gpus, cpus = self.gpus[list(nodes)], self.cpus[list(nodes)]
        return bool((np.bitwise_count(gpus) >= record.k).all() and (cpus >= record.cpus).all())

    def take(self, record: SimulatedJob) -> None:
        """Takes the resources of a job that starts: its nodes and masks are set, its cores are chosen here."""
        held = []
        for node, mask in zip(record.nodes, record.masks, strict=True):
            cores = pick_cores(self.cores[node], record.cpus)
            held.append(cores)
            self.gpus[node] &= ~mask
            self._change(node, cores, -1)
        record.cores = tuple(held)

    def give(self, record: SimulatedJob) -> None:
        """Frees the resources of a job that ends; its nodes take no job until its epilog is over."""
        for node, mask, cores in zip(record.nodes, record.masks, record.cores, strict=True):
            self.gpus[node] |= mask
            self.epilogs[node] += 1
            self._change(node, cores, 1)

    def epilog_ends(self, node: int) -> None:
        """Notes the end of one epilog on a node."""
        self.epilogs[node] -= 1
        self._facts[node] = None

    def _change(self, node: int, cores: Sequence[int], sign: int) -> None:
        self.cores[node] = tuple(free + sign * some for free, some in zip(self.cores[node], cores, strict=True))
        self.cpus[node] += sign * sum(cores)
        self._facts[node] = None

    def facts(self) -> tuple[NodeFacts, ...]:
        """Returns what a gateway reads; unchanged nodes are the same objects as before."""
        return tuple([known or self._read(node) for node, known in enumerate(self._facts)])

    def _read(self, node: int) -> NodeFacts:
        fleet, size = self.fleet, int(self.fleet.size[node])
        used = int(fleet.full[node] & ~self.gpus[node])
        facts = self._facts[node] = NodeFacts(
            name=fleet.names[node],
            cpus=int(fleet.cpus[node]),
            cpus_used=int(fleet.cpus[node] - self.cpus[node]),
            mem=int(fleet.mem[node]),
            mem_used=0,
            threads=1,
            up=True,
            completing=bool(self.epilogs[node]),
            gpus=size,
            loose=0,
            seats=size,
            gpus_used=used,
            seats_used=used,
            partitions=frozenset({PARTITION}),
        )
        return facts


def sockets_of(machine: "Machine | None") -> tuple[int, ...]:
    """Returns the GPUs near each socket of a machine; one socket where the machine has no such data."""
    masks: dict[int, int] = {}
    for gpu in machine.gpus if machine else ():
        masks[gpu.numa] = masks.get(gpu.numa, 0) | 1 << gpu.position
    return tuple(masks[numa] for numa in sorted(masks)) or (0,)


def split(cores: int, sockets: int) -> tuple[int, ...]:
    """Spreads cores evenly over sockets.

    >>> split(16, 2), split(5, 2)
    ((8, 8), (3, 2))
    """
    return tuple((cores + sockets - 1 - number) // sockets for number in range(sockets))


def pick_cores(free: Sequence[int], wanted: int) -> tuple[int, ...]:
    """Picks cores as Slurm does, from the socket with most free cores first.

    >>> pick_cores((5, 8), 4), pick_cores((5, 8), 10)
    ((0, 4), (2, 8))
    """
    taken = [0] * len(free)
    for socket in sorted(range(len(free)), key=lambda socket: (-free[socket], socket)):
        taken[socket] = min(wanted, free[socket])
        wanted -= taken[socket]
    return tuple(taken)


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
