"""Bringing whole nodes together for a job that needs several of them.

They seldom fall free at once, and time limits say little about when they do. So the first such job in line takes each
node that has become wholly free in place of one that is still busy, and keeps it, until it has them all.
"""

import numpy as np

from policy.book import Book
from policy.demand import Demand
from policy.placement.base import Policy
from policy.placement.speed import node_scores
from topology.fabric import NOBODY


def gather(book: Book, demand: Demand, nodes: tuple[int, ...]) -> tuple[list[int], float] | None:
    """Other nodes for a job that is pinned to `nodes`, more of them free, and when they all will be; None for no gain.

    Only for jobs on whole nodes: parts of nodes need a set of GPUs that is the same on each.
    """
    fleet = book.fleet
    if np.any(fleet.size[list(nodes)] != demand.k):
        return None
    whole = int(fleet.full[nodes[0]])
    view = book.cluster.now(demand.limit)
    free = Policy.fitting(demand, view) & (fleet.size == demand.k) & (view.free == whole)
    kept = [node for node in nodes if free[node]]
    busy = [node for node in nodes if not free[node]]
    found = [node for node in np.flatnonzero(free).tolist() if node not in nodes and _near(book, demand, node, nodes)]
    if not busy or not found:
        return None
    slowness = node_scores(fleet, demand.app_class, np.array(found), whole)
    near = kept or nodes
    order = sorted(range(len(found)), key=lambda at: (_distance(book, found[at], near), slowness[at], found[at]))
    taken = [found[at] for at in order[: len(busy)]]
    starts = {node: book.start_of(demand, [node], whole) for node in busy}
    soonest = sorted((start, node) for node, start in starts.items() if start is not None)
    rest = [node for _, node in soonest[: demand.n - len(kept) - len(taken)]]
    chosen = sorted([*kept, *taken, *rest])
    if len(chosen) < demand.n:
        return None
    return chosen, max([0.0, *(starts[node] or 0.0 for node in rest)])


def _near(book: Book, demand: Demand, node: int, nodes: tuple[int, ...]) -> bool:
    """Whether a node shares the level that the job insists on with the nodes that it has."""
    if demand.level == "any":
        return True
    fabric = book.fleet.fabric
    groups = {"nvlink": fabric.domain, "leaf": fabric.leaf, "pod": fabric.pod}[demand.level]
    return bool(groups[node] != NOBODY and groups[node] == groups[nodes[0]])


def _distance(book: Book, node: int, nodes: "list[int] | tuple[int, ...]") -> float:
    """How far a node is from others on average, in levels of the fabric."""
    here = np.full(len(nodes), node)
    return float(np.mean(book.fleet.fabric.distance(here, np.array(nodes))))
