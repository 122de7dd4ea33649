# SPDX-License-Identifier: Apache-2.0
"""Tells from sacct's lines where past jobs ran and waited, in the form that a page plays (docs/develop/formats.md, 10).

sacct tells the nodes of a run and how many GPUs it had, not which. So each run is shown on the first GPUs of its nodes
that no earlier run holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from policy.report.rows import JobRun


@dataclass(frozen=True, slots=True)
class PastDays:
    """Jobs with their runs, and the nodes on which these were, by name in order."""

    names: tuple[str, ...]
    gpus: tuple[int, ...]
    """GPUs of each node that its jobs held at one time, at most: it may have more."""
    jobs: list[dict[str, Any]]
    written: list[list[Any]]
    """Moment, job and segment: what Berth had written into a job by its end."""


@dataclass(slots=True)
class _Node:
    held: list[tuple[float, int]] = field(default_factory=list)
    """When a run ends, and the mask of its GPUs."""
    width: int = 0

    def take(self, count: int, start: float, end: float) -> int:
        """Gives a run the first GPUs that are free then."""
        self.held = [(until, mask) for until, mask in self.held if until > start]
        busy = 0
        for _, mask in self.held:
            busy |= mask
        mask, place = 0, 0
        while mask.bit_count() < count:
            mask |= (~busy >> place & 1) << place
            place += 1
        self.held.append((end, mask))
        self.width = max(self.width, mask.bit_length())
        return mask


def past_days(runs: Iterable[JobRun], since: float = 0.0, until: float = float("inf")) -> PastDays:
    """Returns the GPU jobs that waited or ran in this time."""
    here = [run for run in runs if run.gpus and run.submit < until and (run.end is None or run.end > since)]
    last = max((run.end or run.start or run.submit for run in here), default=0.0)
    nodes: dict[str, _Node] = {
        name: _Node() for name in sorted({name for run in here for name in run.nodes}, key=_natural)
    }
    number = {name: place for place, name in enumerate(nodes)}
    jobs: dict[str, dict[str, Any]] = {}
    written = []
    for run in sorted(here, key=lambda one: (one.start or one.submit, one.id)):
        end = run.end if run.end is not None else last
        job = jobs.setdefault(run.id, _job(run))
        job["submitted"], job["ends"] = min(job["submitted"], run.submit), max(job["ends"], end)
        if run.start is None or not run.nodes:
            continue
        each, more = divmod(run.gpus, len(run.nodes))
        places = [
            [number[name], nodes[name].take(each + (place < more), run.start, end)]
            for place, name in enumerate(run.nodes)
        ]
        job["runs"].append([run.start, end, places])
        if run.said:
            written.append([run.start, run.id, dict(run.said)])
    widths = tuple(node.width for node in nodes.values())
    return PastDays(tuple(nodes), widths, list(jobs.values()), written)


def _job(run: JobRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "user": run.user,
        "account": run.account,
        "name": "",
        "gpus": run.gpus,
        "submitted": run.submit,
        "limit": float(run.limit) * 60 if run.limit.isdigit() else None,
        "ends": run.submit,
        "runs": [],
    }


def _natural(name: str) -> tuple[str, int, str]:
    stem = name.rstrip("0123456789")
    tail = name[len(stem) :]
    return stem, int(tail or 0), name
