# SPDX-License-Identifier: Apache-2.0
"""A cache of the nodes that partitions, features and node lists allow: kinds of requests differ, these seldom do."""

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.partitions import PartitionTerms, Submitter, UsablePartitions, choose, pools, terms_of
from policy.formats.arrays import CUT, Bools
from policy.request.demand import Size
from policy.request.share import Share
from topology.sets.tables import Ints

MOST_KEPT = 64
"""Most combinations in each of the two parts of the cache."""

MOST_NAMED = 64
"""Most nodes that a combination may name; with more it is not cached."""

MOST_MASKS = 256
"""Most arrays of nodes that are shared by the requests with equal nodes."""

MOST_AMOUNTS = 16
"""Most amounts of GPUs, CPUs and memory for which the big enough ones of some allowed nodes are kept."""

_Key = tuple[object, ...]
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
    others, of which the one that was not asked for longest goes. So a user who varies features evicts only what no user
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

    def of(self, names: tuple[str, ...], where: "Where") -> Allowed:
        """Returns the nodes of some partitions that a job may use."""
        if len(where.only) + len(where.excluded) > MOST_NAMED:
            return self._new(names, where)
        key = names, where.features, where.only, where.excluded, where.share and (where.share.gpu_mem,)
        found = self._again.pop(key, None) or self._once.pop(key, None)
        if found is None:
            self._once[key] = found = self._new(names, where)
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

        An amount that was not asked for before mostly fits on the nodes on which others fit.
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

    def _new(self, names: tuple[str, ...], where: "Where") -> Allowed:
        fleet = self.fleet
        nothing = np.zeros(len(fleet.names), np.bool_)
        nodes: Bools = np.logical_or.reduce([nothing, *pools(fleet, names, 1)])
        for condition in where.features:
            nodes &= fleet.having(condition)
        if where.only:
            listed = nothing.copy()
            listed[[fleet.index[name] for name in where.only if name in fleet.index]] = True
            nodes &= listed
        nodes[[fleet.index[name] for name in where.excluded if name in fleet.index]] = False
        if where.share is not None:
            nodes &= able_to_share(fleet, where.share.gpu_mem) & fleet.ready
        nodes.flags.writeable = False
        sizes = np.flatnonzero(np.bincount(fleet.size[nodes & fleet.ready])).tolist()
        threads: Ints = fleet.threads[nodes]
        of_a_core = (int(threads.min()), int(threads.max())) if threads.size else (0, 0)
        return Allowed(nodes, tuple(sizes), int(fleet.gpu_counts[nodes].max(initial=0)), of_a_core)


@dataclass(slots=True)
class SizedRoom:
    """The nodes that could ever hold a job of one size."""

    size: "Size"
    nodes: "Bools"
    pools: "tuple[Bools, ...]" = ()
    """Those of each of several partitions, one of which has to have all nodes of the job; empty if any go together."""
    elsewhere: bool = False
    """True if a node without GRES types for each GPU could hold it too."""
    partitions: tuple[str, ...] = ()
    could_hold: bool = True
    """True if there are enough nodes."""


@dataclass(slots=True)
class Where:
    """The nodes that one job may use, by its partitions, its features and its lists of nodes."""

    known: AllowedNodes
    listed: str
    """The partitions whose nodes it may be given."""
    limit: int | None
    features: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    share: "Share | None" = None
    who: "Submitter | None" = None
    """The submitter, of a job that Slurm has not taken yet."""
    shut: Collection[str] = ()
    """Partitions that are known not to admit a job that waits."""
    _found: dict[tuple[str, ...], Allowed] = field(default_factory=dict, init=False)

    def partitions(self, n: int | None) -> UsablePartitions:
        """Returns the partitions that may start it on n nodes."""
        return choose(self.known.fleet, self.listed, self.limit, n or None, who=self.who, shut=self.shut)

    def names(self, n: int) -> tuple[str, ...]:
        """Returns the names of these partitions; the only one of most jobs needs no choice."""
        return self.partitions(n).names if "," in self.listed else (self.listed,)

    def allowed(self, names: tuple[str, ...]) -> Allowed:
        """Returns the nodes of some of its partitions that it may use."""
        found = self._found.get(names)
        if found is None:
            found = self.known.of(names, self)
            self._found[names] = found
        return found

    def room(self, size: "Size", names: tuple[str, ...] = ()) -> SizedRoom:
        """Returns the nodes that could ever hold it at this size; `names` are its partitions then, if known."""
        n, k, cpus, mem = size
        names = names or self.names(n)
        found = self.known.big_enough(self.allowed(names), k, cpus, mem)
        inside = pools(self.known.fleet, names, n) if len(names) > 1 else []
        several = tuple([found.nodes & pool for pool in inside]) if len(inside) > 1 else ()
        enough = any(int(pool.sum()) >= n for pool in several) if several else found.total >= n
        return SizedRoom(size, found.nodes, several, found.elsewhere, names, enough)


def able_to_share(fleet: "Fleet", gpu_mem: int | None) -> "Bools":
    """Returns the nodes whose GPUs can be shared, and have that much memory."""
    able: Bools = fleet.shares & (fleet.gpu_mem != CUT)
    if gpu_mem is not None:
        able &= fleet.gpu_mem - fleet.sharing.gpu_mem_reserve >= gpu_mem
    return able


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
