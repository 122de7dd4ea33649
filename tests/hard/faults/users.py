# SPDX-License-Identifier: Apache-2.0
"""Users who change their own jobs meanwhile, and what must come of it."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.hard.faults.jobs import USERS
from tests.hard.faults.site import FaultySite

if TYPE_CHECKING:
    from tests.hard.faults.invariants import JobSeen

LIMIT = 2
"""Minutes; jobs are submitted with three, and users may only shorten."""
NICE = 70
LATER = 20
"""Seconds from now at which a job may begin."""
_SAVED_WITHIN = 15.0
"""Seconds after which slurmctld has saved a change; one that is killed before forgets it."""
_UNDER_WAY = 2.0
"""Seconds between a user's word and what Slurm did meanwhile; times in its records are whole seconds."""
WAITING = ("hold", "begin", "nice", "limit", "cancel")
RUNNING = ("requeue", "cancel", "limit")
_WORDS = {
    "hold": "scontrol hold {job}",
    "release": "scontrol release {job}",
    "begin": f"scontrol update JobId={{job}} StartTime=now+{LATER}",
    "nice": f"scontrol update JobId={{job}} Nice={NICE}",
    "limit": f"scontrol update JobId={{job}} TimeLimit={LIMIT}",
    "cancel": "scancel {job}",
    "requeue": "scontrol requeue {job}",
}


@dataclass(slots=True)
class Change:
    """What a user did to a job, and when Slurm had done it."""

    what: str
    job: int
    at: float
    until: float = float("inf")
    """When it was taken back."""


@dataclass(slots=True)
class ChangingUsers:
    """The users, what they did, and when slurmctld lost what it had not saved."""

    site: FaultySite
    dice: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    changes: dict[int, list[Change]] = field(default_factory=lambda: defaultdict(list))
    losses: list[float] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    """Jobs that a user held, or tried to."""
    tasks: set[int] = field(default_factory=set)
    """Arrays with waiting tasks: what is done to them is told of no single job."""

    def lose(self) -> None:
        """Note that slurmctld is killed now."""
        self.losses.append(time.time())

    def act(self, count: int) -> None:
        """Each user changes some own jobs, as they come."""
        for user in USERS:
            words = ("timeout", "20", "squeue", "-h", "-u", user, "-o", "%A|%T|%r|%F|%K")
            rows = [line.split("|") for line in self.site.ask(*words).out.splitlines()]
            chosen = [one for one in (self._choose(rows) for _ in range(count)) if one is not None]
            self._do(user, chosen)

    def release_all(self) -> None:
        """Users let go what they hold."""
        for user in USERS:
            words = ("timeout", "20", "squeue", "-h", "-u", user, "-t", "PD", "-o", "%A %r")
            rows = [line.split() for line in self.site.ask(*words).out.splitlines()]
            self._do(user, [("release", int(row[0])) for row in rows if row[1:] == ["JobHeldUser"]])

    def _choose(self, rows: Sequence[Sequence[str]]) -> tuple[str, int] | None:
        # Each is drawn whether or not there is a job for it: the dice fall alike in each run of a seed.
        nth, what, running = self.dice.random(), self.dice.choice(WAITING), self.dice.choice(RUNNING)
        if not rows:
            return None
        number, state, reason, array, task = rows[int(nth * len(rows))]
        if not number.isdigit():
            return None
        if task not in {"", "N/A"}:
            self.tasks |= {int(number), int(array)}
        if state == "PENDING":
            return "release" if reason == "JobHeldUser" else what, int(number)
        return (running, int(number)) if state == "RUNNING" else None

    def _do(self, user: str, chosen: Sequence[tuple[str, int]]) -> None:
        if not chosen:
            return
        lines = [
            f"timeout 20 {_WORDS[what].format(job=job)} >/dev/null 2>&1; echo $? $(date +%s.%N)" for what, job in chosen
        ]
        began = time.time()
        script = "\n".join(lines)
        told = self.site.slurm.target.bash(script, user=user, check=False, timeout=300).out.splitlines()
        for (what, job), line in zip(chosen, told, strict=False):
            status, at = line.split()
            self.counts[what if status == "0" else f"{what}, refused"] += 1
            if what == "hold":
                self.touched.add(job)
            if what in {"release", "requeue"}:
                for change in self.changes[job]:
                    change.until = min(change.until, began)
            elif status == "0":
                self.changes[job].append(Change(what, job, float(at)))

    # What must come of it

    def wrong(self, jobs: Sequence[JobSeen], starts: Sequence[tuple[int, int, float]]) -> Iterator[str]:
        """`starts`: number, run and time of each start of a job."""
        chosen = {record.id: record.started for record in jobs}
        for job, run, at in starts:
            for change in self._in_force(job, at):
                # A launch that is under way goes on, for as long as a Prolog takes.
                too_late = change.at + _UNDER_WAY < min(at, chosen.get(job, 0.0))
                if change.what in {"hold", "cancel"} and too_late:
                    yield f"job {job} started run {run} {at - change.at:.0f} s after its user's {change.what}"
                if change.what == "begin" and run == 0 and change.at + 1 < at < change.at + LATER - 1:
                    yield f"job {job} started {at - change.at:.0f} s after its user put it off for {LATER} s"
        now = time.time()
        for record in jobs:
            for change in self._in_force(record.id, now):
                if change.what == "limit" and record.limit != f"00:{LIMIT:02}:00":
                    yield f"job {record.id} has the time limit {record.limit}, its user set {LIMIT} minutes"
                if change.what == "nice" and record.nice != NICE:
                    yield f"job {record.id} has Nice={record.nice}, its user set {NICE}"

    def _in_force(self, job: int, at: float) -> Iterator[Change]:
        if job in self.tasks:
            return
        for change in self.changes.get(job, ()):
            if change.at <= at < change.until and not self.is_lost(change.at):
                yield change

    def is_lost(self, at: float) -> bool:
        """Tells whether slurmctld was killed before what was done then was surely saved."""
        return any(at <= loss + 1 <= at + 1 + _SAVED_WITHIN for loss in self.losses)
