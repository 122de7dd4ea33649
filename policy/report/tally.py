# SPDX-License-Identifier: Apache-2.0
"""Gathers the whole report run by run, in memory that hardly grows with the number of runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from policy.report.counts.beside_others import StepsBesideOthers
from policy.report.counts.ends import STATUS, Ends
from policy.report.counts.owners import Owners
from policy.report.counts.places import Places
from policy.report.counts.use import Use
from policy.report.counts.waits import BusyGpus, WaitCounts
from policy.report.counts.worth import worth
from policy.report.rows import JobRun
from policy.report.site import Site
from policy.retry.rules import Rules
from topology.calibrate.steps import JobReport

FORMAT = "berth-report/1"
_POINTS = 240
"""Most points on the line of busy GPUs."""
_TIDY_EVERY = 1_000
"""Runs between two cleanups of failures that are too old to be tried again."""


@dataclass(frozen=True, slots=True)
class Period:
    """The time of a report: runs count that ended after `since` and not after `until`; seconds since 1970."""

    since: float
    until: float

    def holds(self, run: JobRun) -> bool:
        """Tells whether the run is finished and counts."""
        return run.end is not None and self.since < run.end <= self.until


class Tally:
    """Gathers all parts of the report."""

    def __init__(self, site: Site, rules: Rules, steps: Iterable[JobReport] = ()) -> None:
        """Takes the step times of jobs, which tell what neighbours cost."""
        self._site = site
        self._busy, self._waits, self._places = BusyGpus(), WaitCounts(), Places(site)
        self._use, self._ends = Use(), Ends(rules)
        self._owners, self._neighbours = Owners(), StepsBesideOthers(steps)
        self._counts = dict.fromkeys(("runs", "by_berth", "without_gpus", "parts", "open"), 0)
        self._first, self._last = float("inf"), 0.0

    def add(self, runs: Iterable[JobRun], period: Period, until: float) -> None:
        """Adds the runs of a part of the time, as sacct lists them; `until` is the end of the whole report."""
        for place, run in enumerate(runs):
            if place % _TIDY_EVERY == 0:
                self._ends.forget(run.submit)
            self._neighbours.add(run)
            if not period.holds(run):
                # A run that goes on at the end has held its GPUs so far; only the last part of the time counts it.
                if run.gpus and period.until == until and (run.end is None or run.end > until):
                    self._counts["open"] += run.start is not None and run.start < until
                    if run.start is not None and run.start < until:
                        self._busy.add(run, until)
                continue
            if not run.gpus:
                self._counts["parts" if run.part else "without_gpus"] += 1
                continue
            self._add(run, until)

    def _add(self, run: JobRun, until: float) -> None:
        self._counts["runs"] += 1
        self._counts["by_berth"] += run.said.get("state") in ("placed", "waiting")
        self._first = min(self._first, run.start or run.submit)
        self._last = max(self._last, run.end or 0.0)
        status = STATUS.get(run.state, "other")
        self._busy.add(run, until)
        self._waits.add(run)
        self._ends.add(run)
        if run.start is not None:
            self._places.add(run)
            self._use.add(run, status)
            self._owners.add(run, status)

    def figures(self, period: Period) -> dict[str, Any]:
        """Returns all figures, in the shape of docs/develop/formats.md."""
        since = max(period.since, self._first) if self._counts["runs"] else period.since
        until = period.until if period.until < float("inf") else self._last
        first, minutes = self._busy.minutes()
        capacity = self._site.total or max(minutes, default=0)
        found: dict[str, Any] = {
            "format": FORMAT,
            "since": round(since),
            "until": round(until),
            "gpus": capacity,
            "gpus_known": bool(self._site.total),
            "counts": {**self._counts, "never_started": self._waits.never_started},
            "waits": self._waits.figures(self._busy, capacity),
            "places": self._places.figures(),
            "use": self._use.figures(capacity, until - since),
            **self._ends.figures(),
            **self._owners.figures(),
            "neighbours": self._neighbours.figures(),
            "busy": _line(first, minutes, since, until),
        }
        found["worth"] = worth(found)
        return found


def _line(first: int, minutes: list[int], since: float, until: float) -> list[list[float]]:
    """Returns moments, each with the mean number of busy GPUs up to the next moment."""
    begin, end = max(0, int(since // 60) - first), min(len(minutes), int(until // 60) - first)
    step = max(1, -(-(end - begin) // _POINTS))
    parts = [(at, minutes[at : min(end, at + step)]) for at in range(begin, end, step)]
    return [[float((first + at) * 60), round(sum(part) / len(part), 2)] for at, part in parts]
