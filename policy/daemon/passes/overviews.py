# SPDX-License-Identifier: Apache-2.0
"""Writes the state file: the overview of GPUs and queue after the last pass, and the data of the metrics.

Its format is in docs/develop/formats.md (11.7). A thread makes and writes it from values that no pass changes, so
neither passes nor Epilogs wait for it. The overview takes a fiftieth of a processor at most; on a large cluster the
metrics are written more often.
"""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from policy.cluster.fleet import Fleet
from policy.daemon.hear.gpu_use import NONE_SEEN, Idle, SeenGpus, ToldGpu
from policy.formats import hostlist
from policy.formats.plan_fields import (
    EVICTED,
    EVICTED_TEXT,
    INSISTS,
    LEVEL,
    MOVE_TEXT,
    MOVE_UNTIL,
    MOVES,
    PINS,
    REASON,
    TIER,
    WHY,
    K,
)
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import WAITS
from policy.plan.ledger.tracker import HOLDING, gpus_held
from policy.plan.queue.plan import Plan
from policy.site import log
from policy.site.metrics_state import ClusterState
from policy.site.overview import MOST_JOBS, SCHEMA_VERSION
from topology import atomic
from topology.errors import TopologyFileError
from topology.sets.islands import islands
from topology.sets.wiring import positions

EVERY = 2.0
"""Least seconds between two overviews."""

REST = 50.0
"""The pause after an overview, as a multiple of its processor time."""

_PRIVATE = 0o600
Told = Mapping[int, Mapping[str, Any]]
"""By job number, more fields of the overview: that it hangs, or why it is slow."""
_NOTHING_TOLD: Told = {}

_KEPT_BY_SLURM = frozenset({*HOLDING, "COMPLETING"})


class PlannedPlace(NamedTuple):
    """The place that the last pass planned for a waiting job."""

    nodes: tuple[int, ...]
    mask: int
    start: float | None
    """Seconds since 1970; 0: now; None: no start is in sight."""
    until: float
    """The time until which the job insists on its level; 0 if it does not insist."""


class Moment(NamedTuple):
    """The values that an overview is made of; none of them changes later."""

    fleet: Fleet
    reading: Reading
    open: tuple[bool, ...]
    """By node, True if it takes jobs: up, and not reserved."""
    closed: Mapping[int, int]
    places: Mapping[int, PlannedPlace]
    """By job number, in the order of planning: places of the jobs that are shown, or that are to start now."""
    seen: SeenGpus = NONE_SEEN
    told: Told = _NOTHING_TOLD


def moment_of(plan: Plan, reading: Reading, seen: SeenGpus = NONE_SEEN, told: Told = _NOTHING_TOLD) -> Moment | None:
    """Returns the values for an overview from the last pass; None before the first pass."""
    if plan.book is None:
        return None
    cluster = plan.book.cluster
    wanting = [entry for entry in plan.queue if entry.job.wants_gpus]
    in_order = [*wanting[:MOST_JOBS], *(entry for entry in wanting[MOST_JOBS:] if entry.last.start == 0.0)]
    places = {entry.job.id: _place(entry) for entry in in_order}
    return Moment(cluster.fleet, reading, tuple(cluster.up.tolist()), dict(cluster.closed), places, seen, told)


def overview_of(moment: Moment) -> dict[str, Any]:
    """Returns the overview, complete; policy.site.overview decides what each user may see of it."""
    reading, fleet = moment.reading, moment.fleet
    jobs = [job for job in reading.jobs if job.wants_gpus]
    order = {job_id: place for place, job_id in enumerate(moment.places)}
    waiting = sorted(
        (job for job in jobs if job.state in WAITS), key=lambda job: (order.get(job.id, len(order)), job.id)
    )
    running = [job for job in jobs if job.state in _KEPT_BY_SLURM]
    told = [*waiting[:MOST_JOBS], *running]
    nodes = _nodes(moment, running)
    jobs_told = [_job(job, moment.places.get(job.id), fleet) for job in told]
    idle = _idle_jobs(moment.seen.idle)
    for job in jobs_told if idle or moment.told else ():
        job.update({"idle": idle[job["id"]]} if job["id"] in idle else {}, **moment.told.get(job["id"], {}))
    return {
        "schema_version": SCHEMA_VERSION,
        "at": round(reading.at, 3),
        "nodes": nodes,
        "jobs": jobs_told,
        "idle": [
            {"node": node, "gpu": gpu, "job": job, **one._asdict()}
            for (node, gpu, job), one in moment.seen.idle.items()
        ],
        "left_out": max(0, len(waiting) - MOST_JOBS),
    }


class OverviewWriter:
    """Writes the file after a pass, in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due = 0.0
        self._overview = b""
        self._metrics: ClusterState | None = None
        self._thread: threading.Thread | None = None
        self._problem = ""

    def write_if_due(
        self,
        plan: Plan,
        reading: Reading,
        metrics: ClusterState | None = None,
        seen: SeenGpus = NONE_SEEN,
        told: Told = _NOTHING_TOLD,
    ) -> None:
        """Begins to write if an overview is due or the metrics are new, unless the last write goes on; never waits."""
        is_due = time.monotonic() >= self._due
        if not (is_due or metrics is not self._metrics) or (self._thread is not None and self._thread.is_alive()):
            return
        moment = moment_of(plan, reading, seen, told) if is_due else None
        if moment is not None:
            self._due = time.monotonic() + EVERY
        self._metrics = metrics
        self._thread = threading.Thread(target=self._write, args=(moment,), name="berth-overview", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits up to a second for the write under way."""
        if self._thread is not None:
            self._thread.join(1.0)

    def _write(self, moment: Moment | None) -> None:
        began, problem = time.thread_time(), ""
        try:
            if moment is not None:
                self._overview = _encode(overview_of(moment))
            if self._overview:
                atomic.replace(self._path, _with_metrics(self._overview, self._metrics), _PRIVATE)
        except TopologyFileError as fault:
            problem = f"{fault}; berth nodes, queue, top, web and the metrics have nothing new to show"
        except Exception as fault:  # noqa: BLE001 - an overview that cannot be made must not end the planner
            problem = f"a fault of berthd's own, there is no overview: {fault!r}"
        if problem and problem != self._problem:
            log.error(problem, 638)
        self._problem = problem
        if moment is not None:
            self._due = time.monotonic() + max(EVERY, REST * (time.thread_time() - began))


def _with_metrics(overview: bytes, metrics: ClusterState | None) -> bytes:
    return overview if metrics is None else b'%b,"metrics":%b}' % (overview[:-1], msgspec.json.encode(metrics))


def _encode(overview: Mapping[str, Any]) -> bytes:
    """Returns the overview as JSON, made piece by piece: `json.dumps` blocks all other threads."""
    pieces = []
    for key, value in overview.items():
        whole = not isinstance(value, list)
        text = _dumps(value) if whole else f"[{','.join([_dumps(item) for item in value])}]"
        pieces.append(f'"{key}":{text}')
    return f"{{{','.join(pieces)}}}".encode("ascii")


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _place(entry: Waiting) -> PlannedPlace:
    until = entry.level.until if entry.level.insists is not None else 0.0
    return PlannedPlace(tuple(entry.last.place), entry.last.mask, entry.last.start, until)


def _nodes(moment: Moment, running: Iterable[JobFacts]) -> list[dict[str, Any]]:
    fleet = moment.fleet
    here: dict[str, list[JobFacts]] = {}
    for job in running:
        for name in job.nodes:
            here.setdefault(name, []).append(job)
    planned = _planned_now(moment)
    found = []
    for place, facts in enumerate(moment.reading.nodes):
        count = facts.gpus + facts.loose
        if not count or place >= len(fleet.names) or fleet.names[place] != facts.name:
            continue
        machine = fleet.machines[place]
        state = "down" if not facts.up else "reserved" if not moment.open[place] else "up"
        node: dict[str, Any] = {
            "name": facts.name,
            "state": "completing" if state == "up" and facts.completing else state,
            "partitions": sorted(facts.partitions),
            "model": ",".join(sorted(fleet.models_at(place))),
            "islands": [] if machine is None else [list(positions(mask)) for mask in islands(machine.shape)],
        }
        for key, number, names in (
            ("domain", fleet.fabric.domain[place], fleet.fabric.domains),
            ("leaf", fleet.fabric.leaf[place], fleet.fabric.leaves),
            ("pod", fleet.fabric.pod[place], fleet.fabric.pods),
        ):
            if 0 <= number < len(names):
                node[key] = names[number]
        if place in fleet.not_ready:
            node["problem"] = fleet.not_ready[place]
        scores = {name: [round(float(one), 3) for one in table[place][:count]] for name, table in fleet.scores.items()}
        if known := {name: row for name, row in scores.items() if any(score != 1.0 for score in row)}:
            node["scores"] = known
        cells = _cells(count, facts.name, here.get(facts.name, ()), facts.gpus_used)
        for position, cell in enumerate(cells):
            if moment.closed.get(place, 0) >> position & 1:
                cell["closed"] = True
            if (job_id := planned.get((place, position))) and cell["state"] == "free":
                cell["planned"] = job_id
        node["gpus"] = cells
        node.update(_use(moment.seen.use.get(facts.name, ()), count))
        found.append(node)
    return found


def _use(told: Iterable[ToldGpu], count: int) -> dict[str, Any]:
    """Returns what the GPUs of a node do; nothing if the node does not tell."""
    by_position = {gpu.position: (gpu.percent, gpu.memory_mib, gpu.power_w) for gpu in told}
    return {"use": [by_position.get(position) for position in range(count)]} if by_position else {}


def _idle_jobs(idle: Idle) -> dict[int, dict[str, int]]:
    """Returns by job the number of its idle GPUs, and the time since which all of them have been idle."""
    found: dict[int, dict[str, int]] = {}
    for (_, _, job), gpu in idle.items():
        one = found.setdefault(job, {"gpus": 0, "since": 0})
        one["gpus"] += 1
        one["since"] = max(one["since"], gpu.no_kernel)
    return found


def _planned_now(moment: Moment) -> dict[tuple[int, int], int]:
    """Returns by GPU the first waiting job that Slurm may start on it now."""
    found: dict[tuple[int, int], int] = {}
    for job_id, planned in moment.places.items():
        if planned.start == 0.0:
            for node in planned.nodes:
                for position in positions(planned.mask):
                    found.setdefault((node, position), job_id)
    return found


def _cells(count: int, name: str, jobs: Iterable[JobFacts], used: int) -> list[dict[str, Any]]:
    """Returns one cell for each GPU of a node: its owner, its packed jobs, and its guest."""
    cells: list[dict[str, Any]] = [{"state": "free"} for _ in range(count)]
    for job in jobs:
        rides = job.rides
        mask = (job.gpus or 0) if rides else (gpus_held(job, name) or 0)
        for position in positions(mask & ((1 << count) - 1)):
            cell = cells[position]
            if rides:
                cell["guest"] = job.id
            elif job.share:
                cell["state"] = "packed"
                cell.setdefault("packed", []).append({"job": job.id, "percent": job.share})
            else:
                cell["state"], cell["owner"] = "owned", job.id
    for position, cell in enumerate(cells):
        if cell["state"] == "free" and used >> position & 1:
            cell["state"] = "taken"
    return cells


_WHILE_IT_RUNS = (TIER, LEVEL, INSISTS, WHY, PINS, EVICTED, EVICTED_TEXT, MOVES, MOVE_UNTIL, MOVE_TEXT)
_WHILE_IT_WAITS = (*_WHILE_IT_RUNS, *REASON)


def _job(job: JobFacts, planned: PlannedPlace | None, fleet: Fleet) -> dict[str, Any]:
    plan = job.known
    waits = job.state in WAITS
    per_node = plan.get(K, (job.gpus or 0).bit_count())
    found: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "user_id": job.user,
        "account": job.account,
        "partition": job.partition,
        "state": "PENDING" if waits else job.state,
        "priority": job.priority,
        "submitted": job.submitted,
        "start": None if waits else job.start,
        "end": None if waits else job.end,
        "limit": job.limit,
        "nodes": hostlist.fold(job.nodes),
        "node_count": len(job.nodes) or max(1, job.count),
        "gpus": sum(mask.bit_count() for mask in job.holds) or per_node * (len(job.nodes) or max(1, job.count)),
        "reason": job.reason if waits else "None",
    }
    optional = {"array": job.array, "tasks": job.tasks, "het": job.het, "share": job.share, "guest": job.guest}
    found |= {key: value for key, value in optional.items() if value}
    if job.task is not None:
        found["task"] = job.task
    found |= plan.only(_WHILE_IT_WAITS if waits else _WHILE_IT_RUNS).texts
    if waits and planned is not None:
        if planned.until > 0.0:
            found["insists_until"] = int(planned.until)
        if planned.nodes:
            names = hostlist.fold(fleet.names[node] for node in planned.nodes)
            start = None if planned.start is None else int(planned.start)
            found["planned"] = {"nodes": names, "gpus": list(positions(planned.mask)), "start": start}
    return found
