# SPDX-License-Identifier: Apache-2.0
"""Measures what neighbours on a node cost, from jobs' step times and from who ran where.

A job counts that was alone on its nodes in some hours and beside other GPU jobs in others: its median step beside
others over its median step alone. Hours in which others ran for a part of the time are left out.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from policy.report.rows import JobRun
from topology.calibrate.runs import seconds_of
from topology.calibrate.steps import JobReport

HOUR = 3_600.0
_BRIEF = 0.02
"""Part of an hour for which it makes no difference whether others run there."""


class StepsBesideOthers:
    """Keeps who ran on the nodes of which step times are known."""

    def __init__(self, reports: Iterable[JobReport]) -> None:
        self._reports = list(reports)
        nodes = {rank.node for one in self._reports for rank in one.ranks}
        self._on: dict[str, dict[tuple[str, float], float]] = {node: {} for node in nodes}
        """By node, the runs there: job and start, and end."""
        self._accounts: dict[str, str] = {}

    def add(self, run: JobRun) -> None:
        """Adds a run, which may go on still."""
        if run.start is not None and (run.gpus or run.part):
            for node in self._on.keys() & set(run.nodes):
                self._accounts[run.id] = run.account
                self._on[node][run.id, run.start] = run.end or float("inf")

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns the jobs and the median factor of each account, and of all together as `*`."""
        hours: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        shared = self._shared()
        for one in self._reports:
            spans = [span for node in {rank.node for rank in one.ranks} for span in shared[node, seconds_of(one.at)]]
            part = max((span for job, span in spans if job != one.job), default=0.0) / HOUR
            if not _BRIEF < part < 1.0 - _BRIEF:
                hours[one.job][part > _BRIEF].append(max(rank.own_ms for rank in one.ranks))
        found: defaultdict[str, list[float]] = defaultdict(list)
        for job, (alone, beside) in hours.items():
            if alone and beside and job in self._accounts:
                for name in ("*", self._accounts[job]):
                    found[name].append(median(beside) / median(alone))
        return {name: {"jobs": len(some), "factor": round(median(some), 3)} for name, some in sorted(found.items())}

    def _shared(self) -> defaultdict[tuple[str, float], list[tuple[str, float]]]:
        """Returns by node and end of an hour that was told the jobs that ran in it, and for how many seconds."""
        ends: defaultdict[str, set[float]] = defaultdict(set)
        for one in self._reports:
            for rank in one.ranks:
                ends[rank.node].add(seconds_of(one.at))
        found: defaultdict[tuple[str, float], list[tuple[str, float]]] = defaultdict(list)
        for node, runs in self._on.items():
            hours = sorted(ends[node])
            for (job, start), stop in runs.items():
                for end in hours[bisect_right(hours, start) : bisect_left(hours, stop + HOUR)]:
                    found[node, end].append((job, min(stop, end) - max(start, end - HOUR)))
        return found
