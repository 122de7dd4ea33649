"""A cache of the nodes that partitions, features and node lists allow: kinds of requests differ, these seldom do."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from policy.cluster.partitions import PartitionTerms, pools, terms_of

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.arrays import Bools
    from topology.tables import Ints

MOST_KEPT = 64
"""Most combinations in each of the two parts of the cache."""

MOST_NAMED = 64
"""Most nodes that a combination may name; with more it is not cached."""

MOST_MASKS = 256
"""Most arrays of nodes that are shared by the requests with equal nodes."""

MOST_AMOUNTS = 16
"""Most amounts of GPUs, CPUs and memory for which the big enough ones of some allowed nodes are kept."""

_Key = tuple[tuple[str, ...], ...]
_Amounts = tuple[int, int, int]
"""GPUs, and the ranks of CPUs and memory among those that nodes of the fleet have."""


@dataclass(frozen=True, slots=True)
class BigEnough:
    """Those of the allowed nodes that could ever hold some GPUs, CPUs and memory; read only."""

    nodes: "Bools"
    total: int
    elsewhere: bool
    """True if a node without GRES types for each GPU could hold them too."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The nodes that a request may use by its partitions, features and node lists; read only."""

    nodes: "Bools"
    sizes: tuple[int, ...]
    """Distinct numbers of GPUs of those of the nodes that can be placed on, ascending."""
    most: int
    """GPUs of the largest of the nodes, as Slurm knows them."""
    threads: tuple[int, int]
    """Least and most threads of a core of the nodes; 0 if there are none."""
    big_enough: dict[_Amounts, BigEnough] = field(default_factory=dict)
    """A cache; see `AllowedNodes.big_enough`."""


class AllowedNodes:
    """Caches what is allowed on one fleet.

    A new combination replaces the oldest of those that were asked for once. One that is asked for again joins the
    others, of which the one that was not asked for longest goes. So a user who varies features evicts only what nobody
    else asks for.
    """

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self._once: dict[_Key, Allowed] = {}
        self._again: dict[_Key, Allowed] = {}
        self._masks: dict[bytes, Bools] = {}
        self._terms: dict[str, PartitionTerms] = {}
        self._cpus: list[int] = np.unique(fleet.cpus).tolist()
        self._mem: list[int] = np.unique(fleet.mem).tolist()
        """The amounts that nodes have, ascending: requests between two of them fit on the same nodes."""

    def __len__(self) -> int:
        """Returns how many entries are kept."""
        return len(self._once) + len(self._again) + len(self._masks)

    def of(
        self, names: Sequence[str], features: Sequence[str], only: Sequence[str], excluded: Sequence[str]
    ) -> Allowed:
        """Returns the nodes of some partitions that have all features, and are in the lists as asked."""
        if len(only) + len(excluded) > MOST_NAMED:
            return self._new(names, features, only, excluded)
        key = tuple(names), tuple(features), tuple(only), tuple(excluded)
        found = self._again.pop(key, None) or self._once.pop(key, None)
        if found is None:
            self._once[key] = found = self._new(names, features, only, excluded)
            if len(self._once) > MOST_KEPT:
                del self._once[next(iter(self._once))]
            return found
        self._again[key] = found
        if len(self._again) > MOST_KEPT:
            del self._again[next(iter(self._again))]
        return found

    def terms(self, listed: str) -> PartitionTerms:
        """Returns the terms of a list of partitions; those of each one by itself are kept."""
        found = self._terms.get(listed)
        if found is None:
            found = terms_of(self.fleet, listed)
            if listed in self.fleet.partitions:
                self._terms[listed] = found
        return found

    def big_enough(self, allowed: Allowed, k: int, cpus: int | None, mem: int | None) -> BigEnough:
        """Returns those of the allowed nodes that could ever hold k GPUs, and CPUs and memory; None: any amount.

        An amount that nobody asked for before mostly fits on the nodes on which others fit.
        """
        key = k, bisect_left(self._cpus, cpus or 0), bisect_left(self._mem, mem or 0)
        found = allowed.big_enough.get(key)
        if found is None:
            nodes = self.same(candidates(self.fleet, allowed.nodes, k, cpus, mem))
            found = BigEnough(nodes, int(nodes.sum()), elsewhere(self.fleet, allowed.nodes, k, cpus, mem))
            if len(allowed.big_enough) >= MOST_AMOUNTS:
                del allowed.big_enough[next(iter(allowed.big_enough))]
            allowed.big_enough[key] = found
        return found

    def same(self, nodes: "Bools") -> "Bools":
        """Returns an equal array of nodes that other requests have too, so that what follows from it is found again."""
        key = nodes.tobytes()
        found = self._masks.pop(key, nodes)
        self._masks[key] = found
        if len(self._masks) > MOST_MASKS:
            del self._masks[next(iter(self._masks))]
        return found

    def _new(
        self, names: Sequence[str], features: Sequence[str], only: Sequence[str], excluded: Sequence[str]
    ) -> Allowed:
        fleet = self.fleet
        nodes = allowed_nodes(fleet, pools(fleet, names, 1), features, only, excluded)
        nodes.flags.writeable = False
        return described(fleet, nodes)


def described(fleet: "Fleet", nodes: "Bools") -> Allowed:
    """Returns allowed nodes with the sizes that they have."""
    sizes = np.flatnonzero(np.bincount(fleet.size[nodes & fleet.ready])).tolist()
    threads: Ints = fleet.threads[nodes]
    of_a_core = (int(threads.min()), int(threads.max())) if threads.size else (0, 0)
    return Allowed(nodes, tuple(sizes), int(fleet.gpu_counts[nodes].max(initial=0)), of_a_core)


def candidates(fleet: "Fleet", allowed: "Bools", k: int, cpus: int | None, mem: int | None) -> "Bools":
    """Returns those of the allowed nodes that are big enough."""
    fits = allowed & fleet.ready & (fleet.size >= k) if k else allowed.copy()
    if cpus is not None:
        fits &= fleet.cpus >= cpus
    if mem is not None:
        fits &= fleet.mem >= mem
    return fits


def elsewhere(fleet: "Fleet", allowed: "Bools", k: int, cpus: int | None, mem: int | None) -> bool:
    """Tells whether a node without GRES types for each GPU could hold the job, or a part of it."""
    if not k or not fleet.plain.any():
        return False
    fits = allowed & fleet.plain & (fleet.gpu_counts >= k)
    fits &= fleet.cpus >= (cpus or 0)
    return bool((fits & (fleet.mem >= (mem or 0))).any())


def allowed_nodes(
    fleet: "Fleet", inside: "Sequence[Bools]", features: Sequence[str], only: Sequence[str], excluded: Sequence[str]
) -> "Bools":
    """Returns the nodes of some pools that have all features, are in the node list if any, and are not excluded."""
    nothing = np.zeros(len(fleet.names), np.bool_)
    allowed: Bools = np.logical_or.reduce([nothing, *inside])
    for feature in features:
        allowed &= fleet.features.get(feature, nothing)
    if only:
        listed = nothing.copy()
        listed[[fleet.index[name] for name in only if name in fleet.index]] = True
        allowed &= listed
    allowed[[fleet.index[name] for name in excluded if name in fleet.index]] = False
    return allowed
