# SPDX-License-Identifier: Apache-2.0
"""The working state of a joint placement: which job has which free GPU, and what each job then costs.

A *slot* is one free GPU. The change in cost if two GPUs were swapped is computed for all slots at once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from topology.network.fabric import NOBODY
from topology.sets.tables import Ints

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.cluster.view import View
    from policy.formats.arrays import Floats
    from policy.request.demand import Demand

NONE = -1
_MIXED, _ALONE = -2, -3
"""Values for the common group of a job's other GPUs: there is no common group, or there are no other GPUs."""

_NEAR = 1e-3
"""A job whose cost is within this part of its lowest possible cost is not improved further."""

IMPOSSIBLE = 1e6
"""Cost of GPUs that a job cannot take: far above any real one, but small enough to add up."""


class Board:
    """Keeps slots, jobs and owners; `give` keeps `cost` up to date."""

    def __init__(self, view: "View", demands: "Sequence[Demand]", moving: Sequence[float]) -> None:
        fleet = view.fleet
        self.nodes = np.flatnonzero((view.free != 0) & view.open)
        """Nodes with free GPUs, as the fleet numbers them."""
        self.width = int(fleet.size[self.nodes].max(initial=1))
        bits = (view.free[self.nodes, None] >> np.arange(self.width)) & 1
        self.row, self.position = np.nonzero(bits)
        """For each slot its node, as an index of `nodes`, and its GPU position."""
        self.slot_at = np.full(bits.shape, NONE, np.int64)
        self.slot_at[self.row, self.position] = np.arange(self.row.size)
        self.leaf, self.pod = (self._group_of_slots(group) for group in (fleet.fabric.leaf, fleet.fabric.pod))
        groups = {"nvlink": self._group_of_slots(fleet.fabric.domain), "leaf": self.leaf, "pod": self.pod}
        # Levels at which no two nodes meet are left out to save time.
        levels = [level for level, group in groups.items() if np.unique(group).size < self.nodes.size]
        # The last level is one group of all, so that each set of slots meets at some level.
        self._groups = np.stack([self.row, *(groups[level] for level in levels), np.zeros_like(self.row)])
        self.gpus = np.array([demand.gpus for demand in demands], np.int64)
        self._kinds: dict[tuple[str, int], int] = {}
        self.kind = np.array([self._kind(demand) for demand in demands], np.int64)
        self.scores = np.stack(self._score_rows(view, demands)) if demands else np.ones((1, self.row.size))
        self.factor = np.array([_factors(fleet, demand, levels) for demand in demands])
        """For each job the locality factor of each level, in the order of `_groups`; the last is that of any GPUs."""
        self.moving = np.asarray(moving, np.float64)
        """The cost of a move for each job, in the unit of `cost`."""
        self.owner = np.full(self.row.size, NONE, np.int64)
        self.slots: list[Ints] = [np.zeros(0, np.int64) for _ in demands]
        self.home: list[Ints | None] = [None for _ in demands]
        """Slots on which a job runs now; None for a job that does not run."""
        self.cost = np.zeros(len(demands))
        self._rest_group = np.full(self._groups.shape, _ALONE, np.int64)
        self._rest_group[-1] = 0
        self._rest_score = np.zeros(self.row.size)
        """For each owned slot, the common group of its owner's other GPUs, and the slowest score of them."""
        self._off_node_group = self._rest_group.copy()
        self._off_node_score = np.zeros(self.row.size)
        """The same for the owner's GPUs on other nodes."""
        self._fastest: dict[tuple[int, int], tuple[float, float]] = {}
        self._leaving = np.zeros(len(demands))
        """The move cost of a job away from home; 0 for one that does not run yet."""

    def _group_of_slots(self, groups: Ints) -> Ints:
        """Returns for each slot its node's group; a node without a known group is a group of its own."""
        here = groups[self.nodes[self.row]]
        return np.where(here == NOBODY, self.row + groups.size, here)

    def _kind(self, demand: "Demand") -> int:
        return self._kinds.setdefault((demand.app_class, id(demand.candidates)), len(self._kinds))

    def _score_rows(self, view: "View", demands: "Sequence[Demand]") -> "list[Floats]":
        first = {kind: demand for demand, kind in reversed(list(zip(demands, self.kind.tolist(), strict=True)))}
        rows = []
        for kind in range(len(self._kinds)):
            demand = first[kind]
            table = view.fleet.scores.get(demand.app_class)
            here = self.nodes[self.row]
            row = np.ones(self.row.size) if table is None else table[here, self.position]
            rows.append(np.where(demand.candidates[here], row, IMPOSSIBLE))
        return rows

    def could_gain(self, job: int) -> bool:
        """Tells whether the job's cost is far enough above its lowest possible cost to search further."""
        if not self.slots[job].size:
            return False
        key = (int(self.kind[job]), int(self.gpus[job]))
        if key not in self._fastest:
            self._fastest[key] = self._fastest_sets(*key)
        within, anywhere = self._fastest[key]
        best = min(within * self.factor[job, 0], anywhere * self.factor[job, 1:].min())
        return bool(self.cost[job] > best * (1 + _NEAR))

    def _fastest_sets(self, kind: int, gpus: int) -> tuple[float, float]:
        """Returns the slowest score of the fastest set on one node, and on any nodes."""
        scores = np.where(self.slot_at == NONE, np.inf, self.scores[kind][self.slot_at])
        within = np.partition(scores, gpus - 1, axis=1)[:, gpus - 1].min() if gpus <= self.width else np.inf
        anywhere = np.partition(self.scores[kind], gpus - 1)[gpus - 1] if gpus <= self.row.size else np.inf
        return float(within), float(anywhere)

    def seated(self) -> list[int]:
        """Returns the jobs that have slots."""
        return [job for job, slots in enumerate(self.slots) if slots.size]

    def total(self) -> float:
        """Returns the sum over jobs of predicted over ideal time, moves included."""
        return float(self.cost.sum())

    def price(self, job: int, slots: Ints) -> float:
        """Returns the cost of a job on these slots."""
        groups = self._groups[:, slots]
        level = int((groups == groups[:, :1]).all(axis=1).argmax())
        price = float(self.scores[self.kind[job], slots].max() * self.factor[job, level])
        return price + (0.0 if self.at_home(job, slots) else float(self.moving[job]))

    def slowest(self) -> "Floats":
        """Returns the greatest score that each job has; 0 for a job without slots."""
        return np.array(
            [self.scores[kind, slots].max(initial=0.0) for kind, slots in zip(self.kind, self.slots, strict=True)]
        )

    def levels(self, sets: Ints) -> Ints:
        """Returns the level at which each row of slots meets."""
        groups = self._groups[:, sets]
        level: Ints = (groups == groups[:, :, :1]).all(axis=2).argmax(axis=0)
        return level

    def at_home(self, job: int, slots: Ints) -> bool:
        """Tells whether the job runs on these slots now; always true for a job that does not run."""
        home = self.home[job]
        return home is None or (home.size == slots.size and bool((home == slots).all()))

    def give(self, job: int, slots: Ints) -> None:
        """Makes a job the owner of these slots, which are in ascending order.

        Former owners must be given other slots before the next query.
        """
        before = self.slots[job]
        self.owner[before[self.owner[before] == job]] = NONE
        self.owner[slots] = job
        self.slots[job] = slots
        self.cost[job] = self.price(job, slots)
        self._leaving[job] = 0.0 if self.home[job] is None else self.moving[job]
        self._note_others(job, slots)

    def _note_others(self, job: int, slots: Ints) -> None:
        """Updates for each slot what the job's other GPUs have in common."""
        levels = range(len(self._groups) - 1)
        if slots.size == 1:
            self._rest_group[:-1, slots] = self._off_node_group[:-1, slots] = _ALONE
            self._rest_score[slots] = self._off_node_score[slots] = 0.0
            return
        scores, groups = self.scores[self.kind[job], slots], self._groups[:, slots]
        top = int(scores.argmax())
        self._rest_score[slots] = scores[top]
        self._rest_score[slots[top]] = max(scores[:top].max(initial=0.0), scores[top + 1 :].max(initial=0.0))
        for level in levels:
            self._rest_group[level, slots] = _common_group_of_others(groups[level])
        rows = groups[0]
        if rows[0] == rows[-1]:
            self._off_node_group[:-1, slots], self._off_node_score[slots] = _ALONE, 0.0
            return
        for row in set(rows.tolist()):
            outside = rows != row
            inside = slots[~outside]
            self._off_node_score[inside] = scores[outside].max()
            for level in levels:
                others = groups[level, outside]
                self._off_node_group[level, inside] = others[0] if (others == others[0]).all() else _MIXED

    def worst_slots(self, job: int) -> list[int]:
        """Returns the slots whose loss could improve the job: its slowest GPU, and those that spread it."""
        slots = self.slots[job]
        scores = self.scores[self.kind[job], slots]
        slowest = (scores == scores.max()) & (self._rest_score[slots] < scores)
        spreading = np.zeros(slots.size, np.bool_)
        for level, groups in enumerate(self._groups[:, slots]):
            if (groups != groups[0]).any():
                spreading |= self._rest_group[level, slots] >= 0
        found: list[int] = slots[slowest | spreading].tolist()
        return found

    def gain_of_swaps(self, slot: int) -> "Floats":
        """Returns the change of the sum of costs if a slot is swapped with each other slot; less is better."""
        job = int(self.owner[slot])
        taker, everyone = self.owner, np.arange(self.row.size)
        mine = np.maximum(self._rest_score[slot], self.scores[self.kind[job]])
        mine = mine * self.factor[job][self._level_with(self._rest_group[:, slot, None], self._groups)]
        owned = np.where(taker == NONE, 0, taker)
        theirs = np.maximum(self._rest_score, self.scores[self.kind[owned], slot])
        theirs = theirs * self.factor[owned, self._level_with(self._rest_group, self._groups[:, slot, None])]
        theirs = np.where(taker == NONE, 0.0, theirs + self._leaving[owned] - self.cost[owned])
        change: Floats = mine + self._leaving[job] - self.cost[job] + theirs
        change[(taker == job) | (everyone == slot)] = np.inf
        return change

    def gain_of_node_swaps(self, row: int, others: Ints) -> "Floats":
        """Estimates the change of the sum of costs if a node swaps its contents with each other node.

        Nodes that share a job are left out. The cost of a job that a swap would bring home is estimated too high, so
        the exact change must be computed before the swap.
        """
        here, there = self.slot_at[row], self.slot_at[others]
        change = np.zeros(others.size)
        for job in set(self.owner[here].tolist()) - {NONE}:
            inside = self.owner[here] == job
            first = here[inside.argmax()]
            slowest = np.maximum(self.scores[self.kind[job]][there[:, inside]].max(axis=1), self._off_node_score[first])
            level = self._level_with(self._off_node_group[:, first, None], self._groups[:, there[:, 0]])
            change += slowest * self.factor[job, level] + self._leaving[job] - self.cost[job]
        owners = self.owner[there]
        owned = np.where(owners == NONE, 0, owners)
        same = owners[:, :, None] == owners[:, None, :]
        scores = np.where(same, self.scores[self.kind[owned], here][:, None, :], 0.0).max(axis=2)
        slowest = np.maximum(scores, self._off_node_score[there])
        level = self._level_with(self._off_node_group[:, there], self._groups[:, here[0], None, None])
        theirs = (slowest * self.factor[owned, level] + self._leaving[owned] - self.cost[owned]) / same.sum(axis=2)
        change += np.where(owners == NONE, 0.0, theirs).sum(axis=1)
        shared = np.zeros(self.cost.size + 1, np.bool_)
        shared[self.owner[here]] = True
        shared[NONE] = False
        change[(others == row) | shared[owners].any(axis=1)] = np.inf
        return change

    @staticmethod
    def _level_with(rest: Ints, groups: Ints) -> Ints:
        """Returns the level of GPUs with the common groups `rest`, once a GPU of the groups `groups` joins them."""
        joined = (rest == groups) | (rest == _ALONE)
        level: Ints = joined.argmax(axis=0)
        return level

    def swap_slots(self, one: int, other: int) -> None:
        """Swaps two slots between their owners; the second may be free."""
        first, second = int(self.owner[one]), int(self.owner[other])
        new_first = np.sort(np.where(self.slots[first] == one, other, self.slots[first]))
        if second != NONE:
            new_second = np.sort(np.where(self.slots[second] == other, one, self.slots[second]))
            self.give(first, new_first)
            self.give(second, new_second)
        else:
            self.give(first, new_first)


def _factors(fleet: "Fleet", demand: "Demand", levels: Sequence[str]) -> list[float]:
    """Returns the locality factor by level; for a job that needs one node all other levels are impossible."""
    model, app_class, gpus = demand.model, demand.app_class, demand.gpus
    factors = [fleet.costs.locality(model, app_class, level, gpus) for level in ("node", *levels, "any")]
    return [factors[0], *(IMPOSSIBLE if demand.n == 1 else factor for factor in factors[1:])]


def _common_group_of_others(groups: Ints) -> Ints:
    """Returns for each member the group that all the others share, or `_MIXED`."""
    first = groups[0]
    different = groups != first
    count = int(different.sum())
    if count == 0:
        return np.full(groups.size, first)
    rest = np.full(groups.size, _MIXED)
    if count == 1:
        rest[different] = first
    if count == groups.size - 1 and (groups[1:] == groups[1]).all():
        rest[0] = groups[1]
    return rest
