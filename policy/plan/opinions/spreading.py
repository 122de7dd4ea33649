# SPDX-License-Identifier: Apache-2.0
"""Lets a job start now on several nodes in a form that a pin cannot say, such as 3 + 1 GPUs (policy/request/spread.py).

While no place of Berth's is free for it, and enough GPUs are free over several nodes, the job gets its user's request
back and Slurm starts it there, as it would without Berth. One that does not start within a time is pinned again.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from policy.formats.arrays import Bools
from policy.formats.plan_fields import OPEN
from policy.placement.base import Berth
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Release
from policy.plan.ledger.claims import Claim
from policy.plan.opinions.opinion import Opinion
from policy.plan.opinions.reservations import OpenTry
from policy.request.demand import Demand
from policy.request.spread import SpreadNeeds
from topology.sets.tables import Ints
from topology.sets.wiring import positions

SOON_AGAIN = 30.0
"""Seconds after a try before which there is no other, where the GPUs went to another job."""

MOST_NODES = 1_024
"""Most nodes that are counted on."""


class NodePart(NamedTuple):
    """Names one node of a job, with the GPUs and tasks that Slurm is expected to give it there."""

    node: int
    mask: int
    """Its GPUs there, as bits."""
    tasks: int = 0
    """Its tasks there, where it says how many it has."""


def parts_now(book: Book, needs: SpreadNeeds | None, gpus: int, limit: int) -> list[NodePart]:
    """Returns the fewest nodes on which so many GPUs are free for so long, or none if one node or no nodes do."""
    if needs is None or needs.candidates is None or book.fleet.nodes_alone:
        return []
    view = book.cluster.now(limit)
    for pool in needs.pools or (needs.candidates,):
        if _guests_there(book, pool) or pool[[node for node, _ in book.cluster.typed]].any():
            continue
        nodes = np.flatnonzero(pool & view.open)
        free, tasks = _room(needs, view.cpus[nodes], view.mem[nodes], np.bitwise_count(view.free[nodes]))
        most_first = np.argsort(-free, kind="stable")[:MOST_NODES]
        count = _node_count(needs, gpus, free[most_first], tasks[most_first])
        if not count:
            continue
        chosen = most_first[:count]
        here = zip(nodes[chosen].tolist(), _laid(gpus, free[chosen].tolist(), max(1, needs.task_gpus)), strict=True)
        found = [(node, sum(1 << gpu for gpu in positions(int(view.free[node]))[:taken])) for node, taken in here]
        most = tasks[chosen].tolist()
        return [
            NodePart(node, mask, min(most[at], needs.tasks_beside(mask.bit_count(), gpus)))
            for at, (node, mask) in enumerate(found)
        ]
    return []


def _room(needs: SpreadNeeds, cpus: Ints, mem: Ints, gpus: Ints) -> tuple[Ints, Ints]:
    """Returns the GPUs of each node that the job could have, and the most of its tasks there."""
    free, tasks = gpus.astype(np.int64), np.full(len(gpus), needs.tasks)
    if needs.task_cpus:
        tasks = np.minimum(tasks, cpus // needs.task_cpus)
    if needs.task_mem:
        tasks = np.minimum(tasks, mem // needs.task_mem)
    if needs.tasks_on_node:
        tasks = np.minimum(tasks, needs.tasks_on_node)
    if needs.task_gpus:
        tasks = np.minimum(tasks, free // needs.task_gpus)
        free = tasks * needs.task_gpus
    free[(cpus < needs.cpus) | (mem < needs.mem) | (tasks < (needs.tasks > 0))] = 0
    if needs.gpu_cpus:
        free = np.minimum(free, cpus // needs.gpu_cpus)
    if needs.gpu_mem:
        free = np.minimum(free, mem // needs.gpu_mem)
    free[free < needs.least_gpus] = 0
    return free, tasks


def _node_count(needs: SpreadNeeds, gpus: int, free: Ints, tasks: Ints) -> int:
    """Returns how many of these nodes, most GPUs first, hold all GPUs and tasks; 0 if none do or one does."""
    enough = (np.cumsum(free) >= gpus) & (np.cumsum(tasks) >= needs.tasks) & (free > 0)
    if needs.nodes:
        found = needs.nodes if len(free) >= needs.nodes and enough[needs.nodes - 1] else 0
    else:
        found = int(enough.argmax()) + 1 if enough.any() else 0
    return found if 1 < found <= min(gpus, needs.tasks or gpus) else 0


def _laid(gpus: int, free: Sequence[int], unit: int) -> list[int]:
    """Lays GPUs on nodes, as many as can be on the first ones, and one unit at least on each.

    >>> _laid(4, [3, 3], 1), _laid(4, [4, 1, 1], 1)
    ([3, 1], [2, 1, 1])
    """
    left, found = gpus - unit * len(free), []
    for most in free:
        more = min(left, most - unit)
        found.append(unit + more)
        left -= more
    return found


def _guests_there(book: Book, pool: Bools) -> bool:
    """Tells whether guests sit on GPUs that Slurm counts as free: without a seat in its request a job joins them."""
    cluster = book.cluster
    return any(pool[node] and one.guest_mask & int(cluster.gpus_now[node]) for node, one in cluster.sharers.items())


def claims_on(needs: SpreadNeeds, parts: Iterable[NodePart], start: float, limit: int) -> list[Claim]:
    """Returns a claim for each node: what Slurm is expected to give there."""
    found = []
    for node, mask, tasks in parts:
        gpus = mask.bit_count()
        cpus = max(needs.cpus, needs.gpu_cpus * gpus, needs.task_cpus * tasks)
        mem = max(needs.mem, needs.gpu_mem * gpus, needs.task_mem * tasks)
        found.append(Claim((node,), mask, cpus, mem, start, start + limit))
    return found


class Spreading(Opinion):
    """Lets jobs start on several nodes where no place is free for them."""

    about = Matter.SPREADING

    memory: dict[int, OpenTry]

    def leave(self, entry: Waiting, demand: Demand, berth: Berth | None, task: int | None = None) -> bool:
        """Lets a job, or a task of an array, start now on several nodes if there is room there, and claims it."""
        ledger, at = self.ledger, self.ledger.at
        worth = ledger.may_spread(entry.spread.gpus, entry.spread.shape, entry.demand.limit)
        if berth is not None or demand.spread is None or at < entry.level.until or not worth:
            return False
        tried = self.memory.setdefault(entry.job.id, OpenTry())
        if task is not None:
            may = bool(entry.nodes) and at >= tried.again
        else:
            # Tasks of an array with a place are let start one by one; the last of them has no record of its own.
            may = not (entry.job.tasks and entry.nodes) and ledger.only is None and self._may_try(entry, tried)
        if not may or not (parts := self._parts(entry, demand)):
            return False
        claims = claims_on(demand.spread, parts, at, demand.limit)
        if task is not None:
            entry.last.given[task] = tuple(claims)
            reason = f"a task of its array can start now on {len(parts)} nodes"
            ledger.write(Release(entry.job, reason, for_now=True, task=task))
        else:
            entry.last.start, entry.last.place = 0.0, tuple(part.node for part in parts)
            if entry.nodes:
                tried.since, tried.again = at, at + SOON_AGAIN
                ledger.write(Release(entry.job, f"it can start now on {len(parts)} nodes", for_now=True))
        for claim in claims:
            ledger.claim(claim)
        return True

    def _may_try(self, entry: Waiting, tried: OpenTry) -> bool:
        """Tells whether a job may start without a pin; notes since when one that has none may."""
        at = self.ledger.at
        if entry.nodes or OPEN not in entry.job.known:
            return bool(entry.nodes) and at >= tried.again
        if tried.since is None and at >= tried.again:
            tried.since = at
        elif tried.since is not None and not tried.lasts(at) and entry.job.array:
            # What keeps one task keeps the others too.
            self.memory.setdefault(entry.job.array, OpenTry()).again = tried.again
        return tried.since is not None

    def _parts(self, entry: Waiting, demand: Demand) -> list[NodePart]:
        """Returns where there is room for a job; if there is none, the others of its shape need not look."""
        ledger = self.ledger
        parts = parts_now(ledger.book, demand.spread, entry.spread.gpus, demand.limit)
        if not parts:
            ledger.refuse(entry.spread.shape, demand.limit)
        return parts
