# SPDX-License-Identifier: Apache-2.0
"""What one run did to each job, from the logs that it left: the jobs' own, slurmctld's records, the submitter's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from policy.formats import hostlist, plan_fields, segment

from .workload import Job


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job of a run. Moments are seconds since 1970, of the one clock that all containers share."""

    name: str
    width: int
    """GPUs in all; 0 for a job without."""
    app_class: str
    at: float
    """When it came, in seconds from the start of the replay."""
    seconds: float
    limit: int
    asked: float = 0.0
    started: float = 0.0
    """By the job itself; 0 if it never did."""
    ended: float = 0.0
    stretch: float = 1.0
    level: str = "none"
    nodes: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    """On each of its nodes."""
    state: str = "unknown"
    """The last that slurmctld said."""
    starts: int = 0
    shrunk: bool = False
    planned: bool | None = None
    """Whether it started on the GPUs recorded in its admin_comment at that moment; None where nothing is planned."""
    problem: str = ""
    """Why it was refused, or has no berth."""

    @property
    def wait(self) -> float:
        """Seconds from the submission to the start."""
        return self.started - self.asked

    @property
    def jct(self) -> float:
        """Seconds from the submission to the end."""
        return self.ended - self.asked

    @property
    def done(self) -> bool:
        """Whether it ran to its end."""
        return self.started > 0 and self.ended > 0 and self.state == "completed"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the queue."""

    at: float
    pending: int
    running: int
    busy: float
    """Share of the machine's processors that was busy since the last look."""


@dataclass(frozen=True, slots=True)
class Run:
    """All that is kept of a run (build/replay/RUN.json)."""

    system: str
    seed: int
    slurm: str
    settings: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    looks: tuple[Look, ...]
    updates: int = 0
    """Job updates that slurmctld carried out."""
    denied: int = 0
    """Updates that would have shrunk a running job."""
    notices_us: tuple[int, ...] = ()
    """How long each Epilog took to tell berthd and to wait for its word, microseconds."""
    answers_us: tuple[int, ...] = ()
    """How long of that it waited, after berthd had been told."""
    cpu_share: float = 0.0
    """Share of the machine's processors that the cluster itself used."""
    notes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read the file."""
        data = json.loads(path.read_text(encoding="utf-8"))
        outcomes = tuple(
            Outcome(**{**one, "nodes": tuple(one["nodes"]), "gpus": tuple(one["gpus"])}) for one in data.pop("outcomes")
        )
        for name in ("notices_us", "answers_us"):
            data[name] = tuple(data.get(name, ()))
        return cls(outcomes=outcomes, looks=tuple(Look(**one) for one in data.pop("looks")), **data)


@dataclass(slots=True)
class _Record:
    """slurmctld's word on a job, look by look."""

    state: str = "unknown"
    comment: str = ""
    """admin_comment when it was first seen started."""
    started: bool = False
    restarts: int = 0


def outcomes(jobs: Iterable[Job], folder: Path, *, berth: bool) -> tuple[Outcome, ...]:
    """Join the logs of a run by job."""
    asked = {row[0]: row for row in _rows(folder / "submit.log") if len(row) > 3}
    ends = {row[1]: float(row[3]) for row in _rows(folder / "jobs.log", "end")}
    starts: dict[str, list[list[str]]] = {}
    for row in _rows(folder / "jobs.log", "start"):
        starts.setdefault(row[1], []).append(row)
    records = _records(folder / "watch.log")
    return tuple(
        _outcome(job, asked.get(job.name), starts.get(job.name, []), ends.get(job.name, 0.0), records, berth=berth)
        for job in jobs
    )


def looks(folder: Path) -> tuple[Look, ...]:
    """The queue over time."""
    found, last = [], (0.0, 0.0)
    for row in _rows(folder / "watch.log", "queue"):
        busy, total = float(row[5]), float(row[6])
        share = (busy - last[0]) / max(1.0, total - last[1])
        last = (busy, total)
        found.append(Look(float(row[1]), int(row[2]), int(row[3]), round(share, 3)))
    return tuple(found[1:])


def count(path: Path, *words: str) -> int:
    """Lines of a log that contain all these words."""
    if not path.exists():
        return 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        return sum(all(word in line for word in words) for line in lines)


def notices(path: Path) -> tuple[int, ...]:
    """From the log of berth-notice: job, node, microseconds, outcome, microseconds until berthd was told."""
    return tuple(int(row[2]) for row in _rows(path) if len(row) > 3) if path.exists() else ()


def answers(path: Path) -> tuple[int, ...]:
    """The part of it that was berthd's."""
    rows = [row for row in _rows(path) if len(row) > 4] if path.exists() else []
    return tuple(int(row[2]) - int(row[4]) for row in rows if int(row[4]) >= 0)


def _rows(path: Path, first: str = "") -> Iterator[list[str]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            row = line.rstrip("\n").split("\t")
            if not first or row[0] == first:
                yield row


def _records(path: Path) -> dict[str, _Record]:
    records: dict[str, _Record] = {}
    for _, number, _, state, _, _, _, _, restarts, comment, _ in _rows(path, "job"):
        record = records.setdefault(number, _Record())
        record.state, record.restarts = state, int(restarts)
        # Requeued: what counts is its last start.
        if state == "pending":
            record.started = False
        elif not record.started:
            record.started, record.comment = True, comment
    return records


def _outcome(
    job: Job,
    asked: list[str] | None,
    starts: list[list[str]],
    ended: float,
    records: dict[str, _Record],
    *,
    berth: bool,
) -> Outcome:
    base = Outcome(job.name, job.width, job.app_class, job.at, job.seconds, job.limit)
    if asked is None or asked[1] == "0":
        return replace(base, state="refused", problem=asked[4] if asked and len(asked) > 4 else "never submitted")
    record = records.get(asked[1], _Record())
    base = replace(base, asked=float(asked[2]), state=record.state, starts=len(starts))
    if not starts:
        return base
    _, _, _, started, stretch, level, nodes, gpus, _ = starts[-1]
    names, positions = hostlist.expand(nodes), tuple(sorted(map(int, filter(None, gpus.split(",")))))
    planned = is_planned(record.comment, names, positions) if berth and job.gpus else None
    return replace(
        base,
        started=float(started),
        ended=ended,
        stretch=float(stretch),
        level=level,
        nodes=names,
        gpus=positions,
        shrunk=(len(names), len(positions)) != (job.nodes, job.gpus),
        planned=planned,
        problem=(segment.fields(record.comment) or {}).get("why", "no segment") if planned is False else "",
    )


def is_planned(comment: str, nodes: tuple[str, ...], gpus: tuple[int, ...]) -> bool:
    """Whether a job on these GPUs is where its admin_comment says."""
    values = segment.fields(comment) or {}
    if values.get("state") not in plan_fields.PINNED_STATES:
        return False
    planned_nodes = sorted(filter(None, values.get("nodes", "").split(",")))
    planned_gpus = sorted(int(gpu) for gpu in values.get("gpus", "").split(",") if gpu)
    return planned_nodes == sorted(nodes) and planned_gpus == list(gpus)
