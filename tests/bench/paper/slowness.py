# SPDX-License-Identifier: Apache-2.0
"""Which nodes are slow *now*, told from the step times that running jobs report; scores say which are slow always.

Nobody knows how long a step of a job ought to take. What can be compared is: the job's other ranks on other nodes,
and the same job at other times and places. From these each job gets a *reference*, the least time that one of its
nodes ever showed, in units of what the scores explain; a node that shows a job clearly more than its reference is
slow now. A job that never was elsewhere cannot accuse its node, but it shows when the node gets better.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from topology.sets.wiring import positions

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.arrays import Floats
    from policy.placement.base import Berth
    from policy.request.demand import Demand

SLOW_FROM = 1.2
"""A node this much slower than its scores explain is slow; noise and wrong scores stay below."""

FORGET_AFTER = 3_600.0
"""Seconds for which a node is believed to be slow while no job shows how it is: then somebody has to try."""


_JUST_BEFORE = 900.0
"""Seconds in which a slow node is taken to stay slow while nobody looks."""


class Reported(Protocol):
    """What one running job reports."""

    @property
    def job(self) -> str:
        """Its number."""

    @property
    def demand(self) -> "Demand":
        """What it asked for; its class says which scores explain its times."""

    @property
    def berth(self) -> "Berth":
        """Where it runs."""

    @property
    def times(self) -> "Floats":
        """Time of a step on each of its GPUs before they wait for each other, in any unit; by node, then position."""


@dataclass(slots=True)
class _Node:
    factor: float = 1.0
    seen: float = float("-inf")
    """When somebody last showed that it is so slow."""


@dataclass(slots=True)
class _Reference:
    """The least time that a job ever showed, and where and since when that stands."""

    time: float
    node: int
    at: float
    last: dict[int, float] = field(default_factory=dict)
    """What each of its nodes showed the last time."""


class Slowness:
    """Keeps how slow each node is now; feed it with `observe`, ask it with `scores`."""

    def __init__(self, fleet: "Fleet", *, slow_from: float = SLOW_FROM, forget_after: float = FORGET_AFTER) -> None:
        self._fleet = fleet
        self._slow_from = slow_from
        self._forget_after = forget_after
        self._references: dict[str, _Reference] = {}
        self._nodes = [_Node() for _ in fleet.names]
        self._told: tuple[float, ...] = ()

    def observe(self, at: float, running: "Iterable[Reported]") -> None:
        """Learn from the jobs that ran until now; all that run are to be given, others are forgotten."""
        said: dict[int, float] = {}
        alive = set()
        for one in running:
            alive.add(one.job)
            for number, factor in self._judge(at, one):
                said[number] = max(said.get(number, 0.0), factor)
        for number, factor in said.items():
            slow = factor >= self._slow_from
            self._nodes[number] = _Node(factor, at) if slow else _Node()
        for ended in self._references.keys() - alive:
            del self._references[ended]

    def factors(self, at: float) -> tuple[float, ...]:
        """For each node how much slower it is now than its scores say; 1 where nothing is known."""
        return tuple(
            node.factor if node.factor > 1.0 and at - node.seen <= self._forget_after else 1.0 for node in self._nodes
        )

    def scores(self, at: float) -> "Mapping[str, Floats] | None":
        """The scores that count now, None if they are what was told the last time."""
        # Tenths are fine enough for placing, and keep the answer the same while nothing happens.
        factors = tuple(round(factor, 1) for factor in self.factors(at))
        if factors == self._told or (not self._told and set(factors) <= {1.0}):
            return None
        self._told = factors
        slower = np.array(factors)[:, None]
        return {app_class: table * slower for app_class, table in self._fleet.scores.items()}

    def _judge(self, at: float, one: "Reported") -> "Iterator[tuple[int, float]]":
        """What a job can say of its nodes; its reference is brought up to date."""
        shown = self._by_node(one)
        least = min(shown, key=lambda number: shown[number])
        known = self._references.get(one.job)
        if known is None:
            known = self._references[one.job] = _Reference(shown[least], least, at)
        elif shown[least] < known.time:
            known.time, known.node, known.at = shown[least], least, at
        for number, time in shown.items():
            factor = time / known.time
            if number != known.node or factor >= self._slow_from:
                yield number, factor
            elif known.last.get(number, time) >= time * self._slow_from:
                yield number, 1.0  # It got better under this job's eyes.
            elif self._was_slow_since(number, known.at):
                # The job cannot tell how slow its node is, but that nothing has changed since somebody could.
                yield number, self._nodes[number].factor
        known.last = shown

    def _was_slow_since(self, number: int, start: float) -> bool:
        """Whether somebody found the node slow while a job that began then was there, or just before."""
        node = self._nodes[number]
        return node.factor > 1.0 and start <= node.seen + _JUST_BEFORE

    def _by_node(self, one: "Reported") -> dict[int, float]:
        """The median over a node's ranks of time over score."""
        table = self._fleet.scores.get(one.demand.app_class)
        shown, first = {}, 0
        for node, mask in sorted(zip(one.berth.nodes, one.berth.masks, strict=True)):
            here = positions(mask)
            times = one.times[first : first + len(here)]
            first += len(here)
            shown[node] = float(np.median(times if table is None else times / table[node, list(here)]))
        return shown
