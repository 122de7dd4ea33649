# SPDX-License-Identifier: Apache-2.0
"""The base class of placement policies, and the berth that a policy returns.

A policy is a class with one method. It gets a `View`, the free resources at one moment, and a `Demand`. It returns a
`Berth` with its reasons, or raises `NotNow`. It does no I/O and keeps no state between calls, so that berthd, the
commands and the simulator can use the same class. A complete policy, which takes the first node with enough free GPUs
and the lowest positions on it:

    >>> import numpy as np
    >>> class FirstFit(Policy):
    ...     name = "first-fit"
    ...
    ...     def place(self, demand, view):
    ...         fits = self.fitting(demand, view) & (np.bitwise_count(view.free) >= demand.k)
    ...         nodes = np.flatnonzero(fits)
    ...         if demand.n > 1 or not nodes.size:
    ...             raise NotNow(f"no node has {demand.k} free GPUs")
    ...         node = int(nodes[0])
    ...         taken = positions(int(view.free[node]))[: demand.k]
    ...         return self.berth(demand, view, [node], taken, "the first node with enough free GPUs")
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.request.demand import Demand
from topology.sets.wiring import positions

__all__ = ["Berth", "NotNow", "Policy", "positions", "predicted", "take_off"]


@dataclass(frozen=True, slots=True)
class Berth:
    """The exact GPUs on the exact nodes planned for a job, and why."""

    nodes: tuple[int, ...]
    """Places in the fleet's node order."""
    names: tuple[str, ...]
    masks: tuple[int, ...]
    """The GPUs on each node, as bits. A pin in Slurm needs the same bits on each."""
    seats: bool
    level: str
    min_gbps: float
    """NVLink bandwidth of the weakest pair on a node, in GB/s; 0 where a pair has none."""
    sum_gbps: float
    """NVLink bandwidth of all pairs on a node together, in GB/s."""
    why: str
    cost: float = 1.0
    """Predicted run time, divided by the ideal run time."""
    percent: int = 0
    """Percent of each GPU that is counted for a packed job; 0 for whole GPUs."""
    gpu_mem: int = 0
    """MiB of each GPU that a packed job is granted; 0 for whole GPUs, and where the GPUs' memory is unknown."""
    cut: float = 0.0
    """GB/s across the narrowest cut of its GPUs on a node, NVLink or not; 0 for one GPU."""

    @property
    def mask(self) -> int:
        """Returns the GPUs as bits, for a berth with the same GPUs on each node."""
        return self.masks[0]

    @property
    def gpus(self) -> tuple[int, ...]:
        """Returns the GPU positions, for a berth with the same GPUs on each node."""
        return positions(self.masks[0])


class Policy(ABC):
    """Base of all policies; the module's docstring shows a complete one."""

    name: str

    weighs_scores: bool = False
    """Tells that it avoids slow GPUs; a job on several nodes may then wait for faster ones."""

    gathers_pieces: bool = False
    """Tells that jobs on a part of a node are kept together on few leaves.

    The policy then chooses among the nodes of those leaves.
    """

    @abstractmethod
    def place(self, demand: Demand, view: View) -> Berth:
        """Chooses nodes and GPUs, or raises `NotNow` or `Never`."""

    def worthwhile(self, demand: Demand, fleet: Fleet) -> Bools:  # noqa: ARG002 - for policies that know scores
        """Marks the nodes that the policy would ever give to a demand, so that plans for it count on no others."""
        return demand.candidates

    @staticmethod
    def fitting(demand: Demand, view: View) -> Bools:
        """Marks the candidates that are open and have enough free CPUs and memory; GPUs are left to the policy."""
        fits = demand.candidates & view.open
        if demand.cpus is None:
            fits &= (view.cpus >= view.fleet.cpus) & (view.free == view.fleet.full)
        else:
            fits &= view.cpus >= demand.cpus
        if demand.mem is None:
            fits &= view.mem >= view.fleet.mem
        elif demand.mem:
            fits &= view.mem >= demand.mem
        return fits

    @staticmethod
    def berth(demand: Demand, view: View, nodes: Sequence[int], gpus: tuple[int, ...], why: str) -> Berth:
        """Makes a berth, with its bandwidths and costs, from the same GPUs on each node."""
        mask = sum(1 << place for place in gpus)
        return Policy.spread(demand, view, nodes, [mask] * len(nodes), why)

    @staticmethod
    def spread(demand: Demand, view: View, nodes: Sequence[int], masks: Sequence[int], why: str) -> Berth:
        """Makes a berth, with its bandwidths and costs, from GPUs that may differ from node to node."""
        fleet = view.fleet
        level: str = "node" if len(nodes) == 1 else fleet.fabric.level(nodes)
        weakest, together, cut = 0.0, 0.0, 0.0
        if level == "node" or demand.n > 1:
            sets = [
                fleet.tables.joined(machine, int(fleet.offset[node]), mask)
                for node, mask in zip(nodes, masks, strict=True)
                if (machine := fleet.machines[node])
            ]
            weakest, together = min((one.min_gbps, one.sum_gbps) for one in sets)
            cut = min(one.cut for one in sets)
        if level == "node" and weakest > 0:
            level = "nvlink"
        return Berth(
            nodes=tuple(nodes),
            names=tuple(fleet.names[node] for node in nodes),
            masks=tuple(masks),
            seats=all(bool(fleet.seats[node]) for node in nodes),
            level=level,
            min_gbps=weakest,
            sum_gbps=together,
            why=why,
            cost=predicted(demand, fleet, nodes, masks, level) * links(fleet, demand.k, cut),
            percent=counted(demand, view.fleet, nodes),
            gpu_mem=granted(demand, view.fleet, nodes),
            cut=cut,
        )


def take_off(view: View, demand: Demand, berth: Berth) -> None:
    """Takes a berth off a view, which is the caller's own; CPUs and memory may fall below 0."""
    here = list(berth.nodes)
    view.free[here] &= ~np.array(berth.masks, np.int64)
    view.cpus[here] -= view.fleet.cpus[here] if demand.cpus is None else demand.cpus
    view.mem[here] -= view.fleet.mem[here] if demand.mem is None else demand.mem


def granted(demand: Demand, fleet: Fleet, nodes: Sequence[int]) -> int:
    """Returns the MiB of each GPU that a packed job may use: what it requested, else its share of the smallest GPU."""
    if demand.share is None:
        return 0
    return min(demand.share.granted(fleet.gpu_mem_for_shares(node)) for node in nodes)


def counted(demand: Demand, fleet: Fleet, nodes: Sequence[int]) -> int:
    """Returns the percent of each GPU that is counted for a packed job: the same on all its nodes."""
    return 0 if demand.share is None else demand.share.counted(min(map(fleet.gpu_mem_for_shares, nodes)))


def predicted(demand: Demand, fleet: Fleet, nodes: Sequence[int], masks: Sequence[int], level: str) -> float:
    """Returns predicted over ideal run time of a demand on certain GPUs."""
    table = fleet.scores.get(demand.app_class)
    score = 1.0
    if table is not None:
        score = max(
            float(table[node, place]) for node, mask in zip(nodes, masks, strict=True) for place in positions(mask)
        )
    return score * fleet.costs.locality(demand.model, demand.app_class, level, demand.gpus)


def links(fleet: Fleet, k: int, cut: float) -> float:
    """Returns the factor of cost of k GPUs of a node with so many GB/s across their narrowest cut."""
    costs = fleet.costs
    return costs.links(fleet.tables.widest(k), cut) if costs.communication and k > 1 else 1.0
