# SPDX-License-Identifier: Apache-2.0
"""Best fit, dot product and FGD, written anew after "Beware of Fragmentation" (USENIX ATC 2023) and its authors' code.

Like theirs, scores are whole numbers and ties go to the first node by name. Both matter: with ties at random
FGD loses five percent of the cluster.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from tests.bench.sharing_feed import MOST_GPUS, WHOLE, Ask, Bools, Floats, Ints, Nodes, Place

_MOST_CPUS, _MOST_MILLI = 128_000, MOST_GPUS * WHOLE
_POPULAR = 0.95
"""FGD's usual requests are the commonest ones that make so large a part of all pods."""
_NEVER = -np.inf


def fitting(nodes: Nodes, ask: Ask) -> Bools:
    """Nodes on which a pod fits."""
    fits = (nodes.cpus >= ask.cpus) & (nodes.mem >= ask.mem) & nodes.has(ask.models)
    if ask.gpus:
        fits &= (nodes.left >= ask.milli).sum(axis=1) >= ask.gpus
    return np.asarray(fits)


def tightest(nodes: Nodes, ask: Ask, node: int) -> list[int]:
    """The GPUs with least left that have enough."""
    left = np.where(nodes.left[node] >= max(1, ask.milli), nodes.left[node], 2 * WHOLE)
    return [int(gpu) for gpu in np.argsort(left, kind="stable")[: ask.gpus]]


class BestFit:
    """The node on which least is left of CPUs and GPUs together."""

    def __call__(self, nodes: Nodes, ask: Ask) -> Place | None:
        left = (nodes.cpus - ask.cpus) / _MOST_CPUS + (nodes.left.sum(axis=1) - ask.total) / _MOST_MILLI
        scores = np.where(fitting(nodes, ask), np.floor(100 * (1 - left / 2)), _NEVER)
        node = _best(scores)
        return None if node is None else (node, tightest(nodes, ask, node))


class DotProduct:
    """Tetris' alignment turned round: the node whose free vector has the least product with the pod's."""

    def __call__(self, nodes: Nodes, ask: Ask) -> Place | None:
        product = nodes.cpus * (ask.cpus / _MOST_CPUS**2) + nodes.left.sum(axis=1) * (ask.total / _MOST_MILLI**2)
        scores = np.where(fitting(nodes, ask), np.floor(100 * (1 - product / 2)), _NEVER)
        node = _best(scores)
        return None if node is None else (node, tightest(nodes, ask, node))


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual requests: one entry for each."""

    gpus: Ints
    milli: Ints
    cpus: Ints
    weight: Floats
    access: Bools
    """Whether each node (rows) has a model that each request (columns) takes."""


def usual(asks: list[Ask], nodes: Nodes) -> Usual:
    counts = Counter((ask.gpus, ask.milli, ask.cpus, ask.models) for ask in asks).most_common()
    kept, total = [], 0
    for one, count in counts:
        if total >= _POPULAR * len(asks):
            break
        kept.append((*one, count))
        total += count
    gpus, milli, cpus, models, weight = zip(*kept, strict=True)
    access = np.column_stack([nodes.has(some) for some in models])
    return Usual(np.array(gpus), np.array(milli), np.array(cpus), np.array(weight) / total, access)


def fragments(left: Ints, cpus: Ints, access: Bools, asked: Usual) -> Floats:
    """Thousandths of a GPU that a usual request could not use, expected, of each row: one node in one state."""
    total = left.sum(axis=1)
    fits = left[:, None, :] >= asked.milli[:, None]
    able = (fits.sum(axis=2) >= asked.gpus) & (asked.milli > 0) & access & (cpus[:, None] >= asked.cpus)
    usable = (left[:, None, :] * fits).sum(axis=2)
    return np.asarray(total - (able * usable) @ asked.weight)


class Fgd:
    """Every GPU that a pod fits on, by what it adds to its node's expected fragmentation.

    A node is looked at anew only where it changed since the same request came last.
    """

    def __init__(self, asked: Usual, *, rounded: bool = True) -> None:
        self._asked, self._rounded = asked, rounded
        self._known: dict[tuple[int, int, int], tuple[int, Floats, Ints]] = {}
        self._now: Floats | None = None

    def __call__(self, nodes: Nodes, ask: Ask) -> Place | None:
        added, gpu = self._added(nodes, ask)
        scores = -added
        if self._rounded:
            scores = np.floor(100 / (1 + np.exp(added / WHOLE)))
        node = _best(np.where(fitting(nodes, ask), scores, _NEVER))
        if node is None:
            return None
        if 0 < ask.milli < WHOLE:
            return node, [int(gpu[node])]
        return node, np.flatnonzero(nodes.left[node] == WHOLE)[: ask.gpus].tolist()

    def _added(self, nodes: Nodes, ask: Ask) -> tuple[Floats, Ints]:
        key = ask.gpus, ask.milli, ask.cpus
        count = len(nodes.names)
        seen, added, gpu = self._known.get(key, (-1, np.zeros(count), np.zeros(count, dtype=np.int64)))
        rows = np.flatnonzero(nodes.changed > seen)
        left, cpus, access = nodes.left[rows], nodes.cpus[rows], self._asked.access[rows]
        before = fragments(left, cpus, access, self._asked)
        if 0 < ask.milli < WHOLE:
            best = np.full(len(rows), np.inf)
            for column in range(MOST_GPUS):
                able = np.flatnonzero(left[:, column] >= ask.milli)
                # A GPU with as much left as one before it is no other choice.
                able = able[(left[able, :column] != left[able, column, None]).all(axis=1)]
                after = left[able].copy()
                after[:, column] -= ask.milli
                more = fragments(after, cpus[able] - ask.cpus, access[able], self._asked) - before[able]
                better = more < best[able]
                best[able[better]] = more[better]
                gpu[rows[able[better]]] = column
            added[rows] = best
        else:
            free = left == WHOLE
            after = np.where(free & (free.cumsum(axis=1) <= ask.gpus), 0, left) if ask.gpus else left
            added[rows] = fragments(after, cpus - ask.cpus, access, self._asked) - before
        self._known[key] = nodes.count, added, gpu
        return added, gpu


def _best(scores: Floats) -> int | None:
    node = int(scores.argmax())
    return None if scores[node] == _NEVER else node
