# SPDX-License-Identifier: Apache-2.0
"""Shelves: arrays of all shared GPUs, to find those with room for a share among thousands in a fraction of a second.

Most sets of GPUs are plain: all jobs that share them are there now, and no other job is planned there. Plain sets are
compared all at once. Other sets, and sets with a job that should have ended by now, are checked one by one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from policy.cluster.shared.fragmentation import UsualJob, stranded
from policy.cluster.shared.tenants import MOST_TENANTS, Tenants, admits
from policy.cluster.view import View
from policy.formats.arrays import Bools, Floats
from policy.request.share import Share
from topology.sets.tables import MOST_GPUS, Ints


class ShelfRequest(NamedTuple):
    """A request, and the usual requests by which its places are compared."""

    k: int
    percent: int
    cpus: int
    shapes: tuple[UsualJob, ...]


class _Costs:
    """Fragmentation that a request would add to each node, with the state of the node for which it was computed."""

    def __init__(self, count: int) -> None:
        self.free: Ints = np.full(count, -1, np.int64)
        self.cpus: Ints = np.zeros(count, np.int64)
        self.parts: Ints = np.zeros((count, MOST_GPUS), np.int64)
        self.added: Floats = np.zeros((count, MOST_GPUS + 1))
        """Added fragmentation: a column for each GPU that it may join, and the last column for free GPUs."""


_MOST_ASKED = 64
"""Most kinds of requests for which costs are cached."""

_NEVER = float("inf")
_SETS = MOST_GPUS
"""Most sets of GPUs kept for each node."""


class Shelves:
    """The `Tenants` of all nodes as arrays; a node's row is written again only if its tenants have changed."""

    nodes: Ints
    _parts: Ints
    _node_since: "Floats"
    _node_until: "Floats"
    """For the node in each row: the percent left of each GPU, and the time span in which that holds."""
    _mask: Ints
    _k: Ints
    _party: Ints
    _left: Ints
    _mem: Ints
    _count: Ints
    _since: "Floats"
    _until: "Floats"
    """For the node's sets of GPUs, one per column; `_since` is infinite if a set is not plain."""

    def __init__(self) -> None:
        self._row: dict[int, int] = {}
        self._seen: list[Tenants] = []
        self._grow(4)
        self._costs: dict[ShelfRequest, _Costs] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the costs: they stay in the process that computed them."""
        return {**self.__dict__, "_costs": {}}

    def adopt(self, old: Self) -> None:
        """Takes over the cached costs of another object; each node's state is still compared before a cost is used."""
        self._costs = old._costs

    def bring(self, tenants: Mapping[int, Tenants]) -> None:
        """Updates the rows of nodes whose tenants have changed."""
        row, seen = self._row, self._seen
        for node, there in tenants.items():
            place = row.get(node)
            if place is None:
                place = row[node] = len(seen)
                seen.append(there)
                if place >= self.nodes.size:
                    self._grow(2 * self.nodes.size)
                self.nodes[place] = node
            elif seen[place] is there:
                continue
            seen[place] = there
            self._write(place, there)
        if len(row) > len(tenants):
            nobody = Tenants()
            for node, place in row.items():
                if node not in tenants and seen[place].everybody:
                    seen[place] = nobody
                    self._write(place, nobody)

    def open_to(
        self,
        share: Share,
        k: int,
        fits: "Bools",
        capacity: Ints,
        start: float,
        end: float,
    ) -> tuple[Ints, Ints]:
        """Returns the nodes and sets of k GPUs, shared at `start`, with room for a share until `end`, in order.

        `capacity` is in MiB for each node, 0 if not known.
        """
        used = len(self._seen)
        nodes = self.nodes[:used]
        mine = (self._k[:used] == k) & (self._party[:used] == share.party) & fits[nodes][:, None]
        plain = mine & (self._since[:used] <= start) & (start < self._until[:used])
        mib = capacity[nodes]
        granted = mib * share.percent // 100 if share.gpu_mem is None else np.full(used, share.gpu_mem)
        kinds, kind_of = np.unique(mib, return_inverse=True)
        percent = np.array([share.counted(one) for one in kinds.tolist()], np.int64)[kind_of]
        roomy = (mib == 0)[:, None] | (self._mem[:used] + granted[:, None] <= mib[:, None])
        good = plain & (self._left[:used] >= percent[:, None]) & (self._count[:used] < MOST_TENANTS) & roomy
        for place, column in np.argwhere(mine & ~plain).tolist():
            mask = int(self._mask[place, column])
            there = self._seen[place]
            good[place, column] = any(tenant.mask == mask and tenant.there(start) for tenant in there) and admits(
                there, mask, share, int(mib[place]), start, end
            )
        if share.foes:
            for place, column in np.argwhere(good).tolist():
                mask = int(self._mask[place, column])
                good[place, column] = admits(self._seen[place], mask, share, int(mib[place]), start, end)
        places, columns = np.nonzero(good)
        found, masks = nodes[places], self._mask[places, columns]
        order = np.lexsort((masks, found))
        return found[order], masks[order]

    def added(self, asked: ShelfRequest, view: "View", nodes: Ints, masks: Ints, start: float) -> "Floats":
        """Returns how much each place would add to its node's fragmentation; mask 0 means GPUs that no job holds.

        Most nodes have not changed since the last such request; only the others are computed again.
        """
        several = (masks & (masks - 1)) != 0
        found = np.zeros(nodes.size)
        if several.any():
            found[several] = self._join_several(asked, view, nodes[several], masks[several], start)
        here = np.unique(nodes[~several])
        costs = self._costs_of(asked, view.free.size)
        free = np.bitwise_count(view.free[here]).astype(np.int64)
        cpus, parts = view.cpus[here], self.left(here, start)
        other = (costs.free[here] != free) | (costs.cpus[here] != cpus) | (costs.parts[here] != parts).any(axis=1)
        if other.any():
            rows = here[other]
            costs.free[rows], costs.cpus[rows], costs.parts[rows] = free[other], cpus[other], parts[other]
            costs.added[rows] = _every_place(asked, free[other], cpus[other], parts[other])
        column = np.where(masks > 0, np.bitwise_count(masks - 1), MOST_GPUS)
        found[~several] = costs.added[nodes, column][~several]
        return found

    def _costs_of(self, asked: ShelfRequest, count: int) -> _Costs:
        costs = self._costs.pop(asked, None)
        if costs is None or costs.free.size != count:
            costs = _Costs(count)
        if len(self._costs) >= _MOST_ASKED:
            del self._costs[next(iter(self._costs))]
        self._costs[asked] = costs
        return costs

    def _join_several(self, asked: ShelfRequest, view: "View", nodes: Ints, masks: Ints, start: float) -> "Floats":
        parts = self.left(nodes, start)
        free = np.bitwise_count(view.free[nodes]).astype(np.int64)
        after = parts - asked.percent * (masks[:, None] >> np.arange(MOST_GPUS) & 1)
        cpus = view.cpus[nodes]
        then: Floats = stranded(free, after, cpus - asked.cpus, asked.shapes)
        return then - stranded(free, parts, cpus, asked.shapes)

    def left(self, nodes: Ints, start: float) -> Ints:
        """Returns the percent left of each shared GPU at a moment, 0 for other GPUs: a row for each node."""
        found = np.zeros((nodes.size, MOST_GPUS), np.int64)
        place_of = np.full(int(max(nodes.max(initial=-1), self.nodes.max(initial=-1))) + 1, -1, np.int64)
        place_of[self.nodes[: len(self._seen)]] = np.arange(len(self._seen))
        places = place_of[nodes]
        known = places >= 0
        found[known] = self._parts[places[known]]
        since, until = self._node_since[places], self._node_until[places]
        for row in np.flatnonzero(known & ~((since <= start) & (start < until))).tolist():
            found[row] = 0
            for gpu, percent in self._seen[int(places[row])].left(start).items():
                found[row, gpu] = percent
        return found

    def _write(self, place: int, there: Tenants) -> None:
        self._k[place], self._parts[place] = 0, 0
        self._node_since[place] = max((tenant.start for tenant in there), default=-_NEVER)
        self._node_until[place] = min((tenant.end for tenant in there), default=_NEVER)
        for gpu, percent in there.left(float(self._node_since[place])).items():
            self._parts[place, gpu] = percent
        sets = sorted((mask, party) for party, masks in there.sets.items() for mask in masks)
        for column, (mask, party) in enumerate(sets[:_SETS]):
            met = [tenant for tenant in there if tenant.mask & mask]
            plain = all((tenant.mask, tenant.party) == (mask, party) for tenant in met)
            self._mask[place, column], self._k[place, column] = mask, mask.bit_count()
            self._party[place, column], self._count[place, column] = party, len(met)
            self._left[place, column] = 100 - sum(tenant.percent for tenant in met)
            self._mem[place, column] = sum(tenant.gpu_mem for tenant in met)
            self._since[place, column] = max(tenant.start for tenant in met) if plain else _NEVER
            self._until[place, column] = min(tenant.end for tenant in met)

    def _grow(self, size: int) -> None:
        old = self.nodes.size if self._seen else 0
        shape = size, _SETS
        new: dict[str, Ints | Floats] = {
            "nodes": np.zeros(size, np.int64),
            "_node_since": np.zeros(size),
            "_node_until": np.zeros(size),
            "_parts": np.zeros((size, MOST_GPUS), np.int64),
            **{name: np.zeros(shape, np.int64) for name in ("_mask", "_k", "_party", "_left", "_mem", "_count")},
            **{name: np.zeros(shape) for name in ("_since", "_until")},
        }
        for name, array in new.items():
            if old:
                array[:old] = getattr(self, name)
            setattr(self, name, array)


def _every_place(asked: ShelfRequest, free: Ints, cpus: Ints, parts: Ints) -> "Floats":
    """Returns what each place would add: a row per node, a column per GPU to join, the last column for free GPUs."""
    width = int(np.flatnonzero(parts.any(axis=0)).max(initial=-1)) + 1
    before = stranded(free, parts[:, :width], cpus, asked.shapes)
    found = np.zeros((free.size, MOST_GPUS + 1))
    rows, gpus = np.nonzero(parts >= asked.percent)
    if rows.size:
        after = parts[rows, :width]
        after[np.arange(rows.size), gpus] -= asked.percent
        found[rows, gpus] = stranded(free[rows], after, cpus[rows] - asked.cpus, asked.shapes) - before[rows]
    opened = np.full((free.size, asked.k), 100 - asked.percent)
    after = np.concatenate([parts[:, :width], opened], axis=1)
    found[:, MOST_GPUS] = stranded(free - asked.k, after, cpus - asked.cpus, asked.shapes) - before
    return found
