# SPDX-License-Identifier: Apache-2.0
"""Measures what neighbours on a node cost, from jobs' step times and from who ran where.

A job counts that was alone on its nodes in some hours and beside other GPU jobs in others: its median step beside
others over its median step alone. Hours in which others ran for a part of the time are left out.
"""

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
        self._on: dict[str, dict[str, tuple[float, float]]] = {node: {} for node in nodes}
        self._accounts: dict[str, str] = {}

    def add(self, run: JobRun) -> None:
        """Adds a run, which may go on still."""
        if run.start is not None and (run.gpus or run.part):
            for node in self._on.keys() & set(run.nodes):
                self._accounts[run.id] = run.account
                self._on[node][run.id] = run.start, run.end or float("inf")

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns the jobs and the median factor of each account, and of all together as `*`."""
        hours: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for one in self._reports:
            part = max(self._beside(node, one) for node in {rank.node for rank in one.ranks})
            if not _BRIEF < part < 1.0 - _BRIEF:
                hours[one.job][part > _BRIEF].append(max(rank.own_ms for rank in one.ranks))
        found: defaultdict[str, list[float]] = defaultdict(list)
        for job, (alone, beside) in hours.items():
            if alone and beside and job in self._accounts:
                for name in ("*", self._accounts[job]):
                    found[name].append(median(beside) / median(alone))
        return {name: {"jobs": len(some), "factor": round(median(some), 3)} for name, some in sorted(found.items())}

    def _beside(self, node: str, report: JobReport) -> float:
        """Returns the greatest part of the report's hour for which one other job ran on a node."""
        end = seconds_of(report.at)
        spans = (span for job, span in self._on[node].items() if job != report.job)
        return max((min(stop, end) - max(start, end - HOUR) for start, stop in spans), default=0.0) / HOUR
