# SPDX-License-Identifier: Apache-2.0
"""Counts on how many nodes, leaves and islands jobs of several GPUs ran, and how many they needed."""

from collections import Counter, defaultdict
from heapq import heappush, heappushpop
from typing import Any

from policy.report.counts.gpu_time import GpuTime
from policy.report.rows import JobRun
from policy.report.site import SIZES, Site, size_of

_WIDEST = 8
"""Jobs on more nodes are counted together."""
_NAMED = 10
"""Runs that are named, those that held most."""


class Places:
    """Counts finished runs of two GPUs and more, by where they ran."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._nodes: dict[str, Counter[str]] = {size: Counter() for size in SIZES}
        self._gpu_s: dict[str, Counter[str]] = {size: Counter() for size in SIZES}
        self._levels: dict[str, Counter[str]] = {size: Counter() for size in SIZES}
        self._held: defaultdict[str, GpuTime] = defaultdict(GpuTime)
        self._named: list[tuple[float, int, JobRun, int, int]] = []

    def add(self, run: JobRun) -> None:
        """Adds a finished run."""
        if run.gpus < 2 or not run.nodes:
            return
        size, nodes = size_of(run.gpus), len(run.nodes)
        on = width(nodes)
        self._nodes[size][on] += 1
        self._gpu_s[size][on] += round(run.gpu_s)
        if level := run.said.get("level"):
            self._levels[size][level] += 1
        self._held["runs"].add(run.gpu_s)
        needed = self._site.nodes_needed(run.gpus, run.nodes)
        if needed is not None and nodes > needed:
            self._held["more_nodes"].add(run.gpu_s)
            # A job that Berth pinned requests its nodes by name, so its request says nothing about its user's wish.
            if "state" not in run.said and run.asked_nodes >= nodes:
                self._held["more_nodes_asked"].add(run.gpu_s)
        for level in ("leaf", "pod", "nvlink"):
            groups, largest = self._site.groups_of(level, run.nodes), self._site.largest(level)
            if nodes < 2 or groups is None:
                continue
            self._held[f"several_nodes_{level}_known"].add(run.gpu_s)
            if groups > -(-nodes // largest):
                self._held[f"more_{level}"].add(run.gpu_s)
                if level == "leaf":
                    self._name(run, groups, -(-nodes // largest))

    def _name(self, run: JobRun, leaves: int, needed: int) -> None:
        entry = (run.gpu_s, self._held["runs"].runs, run, leaves, needed)
        if len(self._named) < _NAMED:
            heappush(self._named, entry)
        else:
            heappushpop(self._named, entry)

    def figures(self) -> dict[str, Any]:
        """Returns runs and GPU hours; `more_...` counts runs on more nodes or groups than the job needed."""
        return {
            "by_size": {
                size: {
                    "runs_on_nodes": dict(sorted(counts.items(), key=lambda item: _order(item[0]))),
                    "gpu_hours_on_nodes": {on: round(used / 3_600, 2) for on, used in self._gpu_s[size].items()},
                    "levels_by_berthd": dict(self._levels[size]),
                }
                for size, counts in self._nodes.items()
                if counts
            },
            **{key: {name: one.figures()[key] for name, one in self._held.items()} for key in GpuTime().figures()},
            "in_more_leaves": [
                {
                    "job": run.id,
                    "gpus": run.gpus,
                    "nodes": list(run.nodes),
                    "leaves": leaves,
                    "leaves_needed": needed,
                    "gpu_hours": round(gpu_s / 3_600, 2),
                }
                for gpu_s, _, run, leaves, needed in sorted(self._named, reverse=True)
            ],
        }


def width(nodes: int) -> str:
    """Returns the class of a number of nodes.

    >>> width(2), width(40)
    ('2', '>8')
    """
    return str(nodes) if nodes <= _WIDEST else f">{_WIDEST}"


def _order(on: str) -> int:
    return int(on) if on.isdigit() else _WIDEST + 1
