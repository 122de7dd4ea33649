"""What a placement policy is.

A policy is a class with one method. It sees a `View`, what is free at one moment, and a `Demand`, and returns a
`Berth` with its reasons, or raises `NotNow`. It does no I/O and keeps nothing between calls, so that the same
class serves berthd, the commands and a simulator. A complete policy, that takes the first node with enough free
GPUs and the lowest positions on it:

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
from typing import TYPE_CHECKING

import numpy as np

from policy.errors import NotNow
from policy.placement.tables import links, positions

if TYPE_CHECKING:
    from policy.cluster import Bools, View
    from policy.demand import Demand

__all__ = ["Berth", "NotNow", "Policy", "positions"]


@dataclass(frozen=True, slots=True)
class Berth:
    """The exact GPUs on the exact nodes planned for a job, and why."""

    nodes: tuple[int, ...]
    """Places in the fleet's node order."""
    names: tuple[str, ...]
    gpus: tuple[int, ...]
    seats: bool
    level: str
    min_gbps: float
    sum_gbps: float
    why: str

    @property
    def mask(self) -> int:
        """The GPUs as bits."""
        return sum(1 << place for place in self.gpus)


class Policy(ABC):
    """Base of all policies; see the module's text for a complete one."""

    name: str

    @abstractmethod
    def place(self, demand: "Demand", view: "View") -> Berth:
        """Choose nodes and GPUs, or raise `NotNow`."""

    @staticmethod
    def fitting(demand: "Demand", view: "View") -> "Bools":
        """Candidates that are open and have the CPUs and memory free; GPUs are the policy's own question."""
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
    def berth(demand: "Demand", view: "View", nodes: Sequence[int], gpus: tuple[int, ...], why: str) -> Berth:
        """Put a choice into words and numbers."""
        fleet = view.fleet
        weakest, together = min(links(machine, gpus) for node in nodes if (machine := fleet.machines[node]))
        linked = demand.n == 1 and weakest > 0
        return Berth(
            nodes=tuple(nodes),
            names=tuple(fleet.names[node] for node in nodes),
            gpus=gpus,
            seats=bool(np.all(fleet.seats[list(nodes)])),
            level="nvlink" if linked else "node" if demand.n == 1 else "any",
            min_gbps=weakest,
            sum_gbps=together,
            why=why,
        )
