# SPDX-License-Identifier: Apache-2.0
"""Shows the cluster by berthd's overview, the file from which `berth nodes` and `berth queue` are answered."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from policy.formats import hostlist, segment
from policy.formats.errors import BerthError
from policy.formats.slurm_facts import JobText
from policy.serve.web.model import (
    MOST_EVENTS,
    WebEvent,
    WebJob,
    WebMoment,
    WebNode,
    WebRoom,
    changes,
)
from policy.site.ahead import ahead_of
from policy.site.overview import fleet_for, jobs_of, user_of
from policy.site.privacy import SlurmRules, Visibility

OLD = 60.0
"""Age in seconds from which on an overview is called old."""
OFTEN = 5.0
"""Seconds for which a job's decision is cached, so that many viewers of a job cost Slurm one question."""
MOST_DECISIONS = 1_000
_APP_CLASS = "compute"
_DECISION = (
    *("level", "because", "because_text", "why", "pins"),
    *("evicted", "evicted_text", "moves", "move_until", "move_text"),
)
"""The decision's keys in the overview's jobs."""


class LiveSource:
    """Reads the overview when it is called to, and notes what has changed since the last time."""

    live = True

    def __init__(
        self,
        overview: Callable[[], Mapping[str, Any]],
        slurms_job: Callable[[int], JobText],
        rules: SlurmRules,
        links: Callable[[], Mapping[str, Sequence[Sequence[float]]]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`links` returns the NVLinks of each model, from the topology files."""
        self._overview, self._slurms_job, self._rules, self._links, self._now = overview, slurms_job, rules, links, now
        self._room = WebRoom([])
        self._jobs: dict[str, WebJob] | None = None
        self._events: deque[WebEvent] = deque(maxlen=MOST_EVENTS)
        self._latest = WebMoment(0.0, (), problem="the overview was not read yet")
        self._lock = threading.Lock()
        self._decisions: dict[str, tuple[float, Mapping[str, str]]] = {}

    def room(self) -> WebRoom:
        """Returns the nodes of the last reading."""
        return self._room

    def moment(self, at: float | None) -> WebMoment:  # noqa: ARG002 - the past is not kept
        """Returns the last reading."""
        return self._latest

    def read(self) -> bool:
        """Reads the overview once; if that fails, keeps the last one with the reason, and returns False."""
        try:
            self._look()
        except BerthError as problem:
            reason = str(problem)
        except Exception as fault:  # noqa: BLE001 - one overview that cannot be understood must not end all later ones
            reason = f"a fault of berth web's own: {fault!r}"
        else:
            return True
        self._latest = replace(self._latest, problem=reason)
        return False

    def decision(self, job: WebJob) -> Mapping[str, str]:
        """Returns a job's decision from Slurm; if Slurm does not answer, the part that the overview has."""
        with self._lock:
            kept = self._decisions.get(job.id)
            if kept is not None and self._now() - kept[0] < OFTEN:
                return kept[1]
            try:
                found = segment.fields(self._slurms_job(int(job.id)).admin_comment) or job.segment
            except BerthError:
                found = job.segment
            if len(self._decisions) >= MOST_DECISIONS:
                self._decisions.clear()
            self._decisions[job.id] = self._now(), found
            return found

    def ahead(self, job: WebJob, viewer: int | None) -> Mapping[str, Any] | None:
        """Returns the jobs ahead of a waiting job, from the overview; None without one."""
        try:
            return ahead_of(self._overview(), int(job.id), self.visibility(), viewer)
        except BerthError:
            return None

    def use(self, viewer: int | None) -> dict[str, Any]:
        """Returns by node what its GPUs do, as far as this user may see it; empty where no node tells."""
        visibility = self.visibility()
        if not visibility.shows("nodes", viewer):
            return {}
        visible = None if visibility.shows("jobs", viewer) else -1 if viewer is None else viewer
        try:
            nodes = fleet_for(self._overview(), visible)["nodes"]
        except BerthError:
            return {}
        return {node["name"]: node["use"] for node in nodes if "use" in node}

    def _look(self) -> None:
        overview = self._overview()
        at, told = float(overview["at"]), overview["nodes"]
        nodes = [_node(one) for one in told]
        if nodes != self._room.nodes:
            links = self._links() if {one.model for one in nodes} != {one.model for one in self._room.nodes} else None
            number = crc32(ascii(nodes).encode())
            self._room = WebRoom(nodes, self._room.links if links is None else links, number=number)
        index = {node.name: place for place, node in enumerate(nodes)}
        held = _held(told)
        jobs = {job.id: job for job in _jobs(overview["jobs"], index, held)}
        if self._jobs is not None:
            for name in [*jobs, *(self._jobs.keys() - jobs.keys())]:
                self._events.extend(changes(at, self._jobs.get(name), jobs.get(name)))
        self._jobs = jobs
        sick = {index[node["name"]]: "takes no jobs" for node in told if node["state"] == "down"}
        age = self._now() - at
        problem = f"berthd's overview is {age:.0f} s old; is berthd running?" if age > OLD else ""
        self._latest = WebMoment(
            at,
            list(jobs.values()),
            list(self._events),
            sick,
            list(_taken(told)),
            problem=problem,
            room=self._room.number,
        )

    def visibility(self) -> Visibility:
        """Returns what each user may see."""
        return self._rules.visibility()


def _node(told: Mapping[str, Any]) -> WebNode:
    leaf, pod, domain, model = (str(told.get(key, "")) for key in ("leaf", "pod", "domain", "model"))
    scores = tuple(told.get("scores", {}).get(_APP_CLASS, ()))
    return WebNode(told["name"], len(told["gpus"]), leaf, pod, domain, model, scores)


def _taken(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yields the nodes with GPUs that are held and of which Slurm does not say by whom, each with their mask."""
    for place, node in enumerate(nodes):
        if mask := sum(1 << position for position, cell in enumerate(node["gpus"]) if cell["state"] == "taken"):
            yield place, mask


def _held(nodes: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[int, int]]]:
    """Returns the nodes of each running job by number, each with the mask of its GPUs."""
    masks: dict[tuple[int, int], int] = {}
    for place, node in enumerate(nodes):
        for position, cell in enumerate(node["gpus"]):
            for job in jobs_of(cell):
                masks[job, place] = masks.get((job, place), 0) | 1 << position
    found: dict[int, list[tuple[int, int]]] = {}
    for (job, place), mask in masks.items():
        found.setdefault(job, []).append((place, mask))
    return found


def _jobs(
    told: Sequence[Mapping[str, Any]], index: Mapping[str, int], held: Mapping[int, list[tuple[int, int]]]
) -> Iterator[WebJob]:
    for job in told:
        # One that is suspended, or ends, still holds its GPUs.
        runs = job["state"] != "PENDING"
        planned = job.get("planned") or {"nodes": "", "gpus": [], "start": None}
        mask = sum(1 << gpu for gpu in planned["gpus"])
        known = {key: str(job[key]) for key in _DECISION if key in job}
        yield WebJob(
            id=str(job["id"]),
            state="RUNNING" if runs else "PENDING",
            user=user_of(job["user_id"]),
            uid=job["user_id"],
            name=job["name"],
            account=job["account"],
            partition=job["partition"],
            gpus=job["gpus"],
            submitted=job["submitted"],
            start=job["start"],
            end=job["end"],
            limit=job["limit"],
            places=held.get(job["id"], [])
            if runs
            else [(index[name], mask) for name in hostlist.expand(planned["nodes"]) if name in index],
            reason="" if runs else job["reason"],
            share=job.get("share", 0),
            guest=job.get("guest", False),
            segment=known | ({"start": str(planned["start"])} if planned["start"] else {}),
        )
