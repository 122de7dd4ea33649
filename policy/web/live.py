"""Shows the cluster as Slurm and berthd tell it; one reading serves all viewers."""

import os
import pwd
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from policy.formats.errors import BerthError
from policy.formats.slurm_facts import JobFacts, Reading
from policy.web.model import (
    MOST_EVENTS,
    WebEvent,
    WebJob,
    WebMoment,
    WebNode,
    WebPrivacy,
    WebRoom,
    changes,
    places_of,
)

RARELY = 60.0
"""Seconds between looks at who may see what."""
_SLURM_USER = re.compile(r"[^(]*\(([0-9]+)\)")
_SHOWN = ("PENDING", "RUNNING")


class SlurmToShow(Protocol):
    """The part of a gateway that the page needs."""

    def read(self, *, ended: bool) -> Reading:
        """Returns one reading."""
        ...

    def config(self) -> Mapping[str, str]:
        """Returns Slurm's configuration."""
        ...


class LiveSource:
    """Reads Slurm when it is asked to, and notes what has changed since."""

    live = True

    def __init__(
        self, slurm: SlurmToShow, known: Callable[[Sequence[str]], WebRoom], now: Callable[[], float] = time.time
    ) -> None:
        """`known` returns the room of nodes with these names, from the topology files."""
        self._slurm, self._known, self._now = slurm, known, now
        self._room = WebRoom([])
        self._names: tuple[str, ...] = ()
        self._jobs: dict[str, WebJob] | None = None
        self._events: deque[WebEvent] = deque(maxlen=MOST_EVENTS)
        self._latest = WebMoment(0.0, (), problem="Slurm was not read yet")
        self._rules: tuple[float, WebPrivacy] | None = None

    def room(self) -> WebRoom:
        """Returns the nodes of the last reading."""
        return self._room

    def moment(self, at: float | None) -> WebMoment:  # noqa: ARG002 - the past is not kept
        """Returns the last reading."""
        return self._latest

    def read(self) -> bool:
        """Reads Slurm once; tells whether it answered. The last reading stays, with the reason, where it does not."""
        try:
            self._look()
        except BerthError as problem:
            reason = str(problem)
        except Exception as fault:  # noqa: BLE001 - one reading that cannot be understood must not end all later ones
            reason = f"a fault of berth web's own: {fault!r}"
        else:
            return True
        last = self._latest
        self._latest = WebMoment(last.at, last.jobs, last.events, last.sick, problem=reason)
        return False

    def _look(self) -> None:
        reading = self._slurm.read(ended=False)
        self._look_at_rules()
        names = tuple(node.name for node in reading.nodes if node.gpus or node.loose)
        if names != self._names:
            self._room, self._names = self._sized(self._known(names), reading), names
        index = {name: place for place, name in enumerate(names)}
        jobs = {job.id: job for job in _jobs(reading, index)}
        if self._jobs is not None:
            for name in [*jobs, *(self._jobs.keys() - jobs.keys())]:
                self._events.extend(changes(reading.at, self._jobs.get(name), jobs.get(name)))
        self._jobs = jobs
        sick = {index[node.name]: "takes no jobs" for node in reading.nodes if node.name in index and not node.up}
        self._latest = WebMoment(reading.at, list(jobs.values()), list(self._events), sick)

    @staticmethod
    def _sized(room: WebRoom, reading: Reading) -> WebRoom:
        """Returns the room with Slurm's number of GPUs where no topology file tells it."""
        counts = {node.name: node.gpus + node.loose for node in reading.nodes}
        nodes = [node if node.gpus else WebNode(node.name, counts[node.name]) for node in room.nodes]
        return WebRoom(nodes, room.links)

    def privacy(self) -> WebPrivacy:
        """Returns who may see what; until Slurm has told, jobs and nodes are private."""
        return WebPrivacy() if self._rules is None else self._rules[1]

    def _look_at_rules(self) -> None:
        now = self._now()
        if self._rules is not None and now - self._rules[0] < RARELY:
            return
        config = self._slurm.config()
        words = {word.strip().lower() for word in config.get("PrivateData", "all").split(",")}
        user = _SLURM_USER.fullmatch(config.get("SlurmUser", ""))
        trusted = frozenset({0, os.geteuid(), *([int(user[1])] if user else [])})
        self._rules = now, WebPrivacy(bool(words & {"jobs", "all"}), bool(words & {"nodes", "all"}), trusted)


def _jobs(reading: Reading, index: Mapping[str, int]) -> Iterator[WebJob]:
    for job in reading.jobs:
        if job.wants_gpus and job.state in _SHOWN:
            segment = job.segment or {}
            runs = job.state == "RUNNING"
            held = [(index[name], mask) for name, mask in zip(job.nodes, job.holds, strict=False) if name in index]
            yield WebJob(
                id=str(job.id),
                state=job.state,
                user=_user(job.user),
                uid=job.user,
                name=job.name,
                account=job.account,
                gpus=_gpus(job, segment),
                submitted=job.submitted,
                start=job.start if runs else None,
                end=job.end if runs else None,
                limit=job.limit,
                places=(held or places_of(segment, index)) if runs else places_of(segment, index),
                reason="" if runs else job.reason,
                share=job.share,
                guest=job.rides,
                segment=segment,
            )


def _gpus(job: JobFacts, segment: Mapping[str, str]) -> int:
    if job.holds:
        return sum(mask.bit_count() for mask in job.holds)
    words = segment.get("n", ""), segment.get("k", "")
    return int(words[0]) * int(words[1]) if all(word.isdigit() for word in words) else 0


@lru_cache(4_096)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
