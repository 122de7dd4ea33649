"""A cache of the nodes that partitions, features and node lists allow: kinds of requests differ, these seldom do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policy.cluster.partitions import pools

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.arrays import Bools

MOST_KEPT = 64
"""Most combinations in each of the two parts of the cache."""

MOST_NAMED = 64
"""Most nodes that a combination may name; with more it is not cached."""

MOST_MASKS = 256
"""Most arrays of nodes that are shared by the requests with equal nodes."""

_Key = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The nodes that a request may use by its partitions, features and node lists; read only."""

    nodes: "Bools"
    sizes: tuple[int, ...]
    """Distinct numbers of GPUs of those of the nodes that can be placed on, ascending."""
    most: int
    """GPUs of the largest of the nodes, as Slurm knows them."""


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
    return Allowed(nodes, tuple(sizes), int(fleet.gpu_counts[nodes].max(initial=0)))


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
