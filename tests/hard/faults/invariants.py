# SPDX-License-Identifier: Apache-2.0
"""Looks at a cluster from outside, and tells what must not be."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from policy.formats import hostlist, plan_fields, segment
from policy.formats.job_plan import JobPlan
from policy.slurm import fields
from tests.hard.faults.failed import FailedJob, keep
from tests.hard.faults.jobs import FAILS, FOLDER, SentJob
from tests.hard.faults.site import FaultySite
from tests.hard.faults.users import ChangingUsers
from tests.slurm.harness import ENDED

_PART = re.compile(r"Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_FORGOTTEN = "Registered PENDING|Purged files for defunct batch|find_job: could not find|complete: invalid|Orphan"
"""Sentences of slurmctld about runs and jobs that its state lacks."""
_PUT_BACK = r"[Rr]equeu(e|ing)( job)? JobId=|preempted JobId=[^ ]+ has been requeued"
_TOLD = (
    f"Running as primary controller|(Recovered|{_FORGOTTEN}) JobId="
    f"|submit_batch_job: JobId=|(Allocate|Started|_job_complete:) JobId=|{_PUT_BACK}"
)
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)\]")
_SAVED_WITHIN = 10.0
"""Seconds after which slurmctld has saved a change of a job: it begins within five (SAVE_MAX_WAIT)."""
_NUMBER = re.compile(r"JobId=(\d+)(?:_\d+\((\d+)\))?")
_FAULTS = ("Traceback", "fault of berthd's own", "planning it failed", "a step of the plan is left out")


@dataclass(slots=True)
class JobSeen:
    """A record of scontrol's."""

    id: int
    state: str
    reason: str
    restarts: int
    array: int
    extra: str
    required: str
    segment: dict[str, str]
    parts: list[tuple[str, str]]
    exit_code: str = ""
    nodes: str = ""
    limit: str = ""
    nice: int = 0
    started: float = 0.0
    """When Slurm chose nodes for its last run."""


def records(site: FaultySite) -> list[JobSeen] | None:
    """All jobs that Slurm knows; None where it does not answer."""
    answer = site.ask("scontrol", "-d", "-o", "show", "job")
    if answer.rc:
        return None
    return [_record(line) for line in answer.out.splitlines() if line.startswith("JobId=")]


def _record(line: str) -> JobSeen:
    def word(key: str, default: str = "") -> str:
        match = re.search(rf"(?:^|\s){key}=(\S*)", line)
        return match[1] if match else default

    def told(key: str) -> str:
        match = re.search(rf"\s{key}=(\[berth/1 [^\]]*\])", line)
        return match[1] if match else ""

    parts = [(name, gres) for nodes, gres in _PART.findall(line) for name in hostlist.expand(nodes) if gres != "(null)"]
    return JobSeen(
        int(word("JobId")), word("JobState"), word("Reason"), int(word("Restarts", "0")), int(word("ArrayJobId", "0")),
        told("Extra"), word("ReqNodeList"), segment.fields(told("AdminComment")) or {}, parts,
        word("ExitCode"), word("NodeList"), word("TimeLimit"), int(word("Nice", "0")),
        _time(word("StartTime")),
    )  # fmt: skip


def _time(text: str) -> float:
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return 0.0


@dataclass(slots=True)
class Watch:
    """All that was seen of jobs, and what was wrong."""

    site: FaultySite
    users: ChangingUsers
    sent: list[SentJob] = field(default_factory=list)
    last: dict[int, str] = field(default_factory=dict)
    failed: dict[int, FailedJob] = field(default_factory=dict)
    log_from: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    checks: int = 0
    forgotten: set[int] = field(default_factory=set)
    """Jobs that slurmctld forgot, or their start, as its log shows: killed before it saved its state, it starts them
    anew, or gives their numbers to others."""

    def begin(self) -> None:
        """Leave out what the log said before."""
        self.log_from = self.site.length("berthd")

    def look(self) -> list[str]:
        """Check all invariants now; what is wrong that was not before."""
        jobs = records(self.site)
        if jobs is None:
            return []
        self.checks += 1
        self.forgotten = forgotten_in(in_order(self.site.log("slurmctld", _TOLD).values()))
        kinds = {one.id: one.kind for one in self.sent}
        for job in jobs:
            self.last[job.id] = job.state
            if job.array:
                self.last[job.array] = self.last.get(job.array, job.state)
            kind = kinds.get(job.id) or kinds.get(job.array, "")
            if job.state == "FAILED" and kind != FAILS and job.id not in self.failed:
                why = f"{job.reason}, exit code {job.exit_code}"
                self.failed[job.id] = keep(self.site, job.id, kind, why, job.nodes)
        found = [
            *_owned_once(jobs), *self._held(jobs), *_pins_are_whole(jobs), *_run_as_planned(jobs),
            *self._started(jobs), *self._lost(jobs), *self._log_is_clean(),
        ]  # fmt: skip
        new = [one for one in found if one not in self.wrong]
        self.wrong += new
        return new

    def _held(self, jobs: Sequence[JobSeen]) -> Iterator[str]:
        for job in jobs:
            by_user = job.reason == "JobHeldUser" and not self.users.touched.isdisjoint({job.id, job.array})
            if job.state == "PENDING" and job.reason in {"JobHeldAdmin", "JobHeldUser"} and not by_user:
                yield f"job {job.id} is held ({job.reason}), and nobody did that"

    def _lost(self, jobs: Sequence[JobSeen]) -> Iterator[str]:
        known = {job.id for job in jobs} | {job.array for job in jobs}
        for one in self.sent:
            if one.id in known or one.id in self.forgotten or self.users.is_lost(one.at):
                continue
            if self.last.get(one.id, "") not in ENDED | {"COMPLETING"}:
                yield f"job {one.id} ({one.kind}) is gone, and was {self.last.get(one.id, 'never seen')} before"

    def _started(self, jobs: Sequence[JobSeen]) -> Iterator[str]:
        script = f"cd {FOLDER} && grep -H '^start' * 2>/dev/null"
        text = self.site.slurm.target.bash(script, user="root", check=False).out
        runs: dict[tuple[int, int], list[tuple[str, float, str]]] = defaultdict(list)
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            words = [*rest.split(" "), ""]
            runs[int(name), int(words[1])].append((words[2], float(words[3]), words[4]))
        for (number, run), seen in runs.items():
            if len(seen) > 1 and number not in self.forgotten:
                yield f"job {number} started run {run} {len(seen)} times"
        for job in jobs if self.site.holds_jobs else ():
            planned = segment.fields(job.extra) or {}
            seen = runs.get((job.id, job.restarts), [])
            if job.state != "RUNNING" or not seen or "gpus" not in planned:
                continue
            # The first of two is one that slurmctld forgot.
            if (opened := seen[-1][2]) != planned["gpus"]:
                yield f"job {job.id} was planned on GPUs {planned['gpus']} of {planned['nodes']} and opens {opened!r}"
        starts = [(number, run, one[1]) for (number, run), seen in runs.items() for one in seen]
        yield from self.users.wrong(jobs, [one for one in starts if one[0] not in self.forgotten])

    def _log_is_clean(self) -> Iterator[str]:
        for name, lines in self.site.log("berthd", "|".join(_FAULTS), after=self.log_from).items():
            yield from (f"berthd's log on {name}: {line[:300]}" for line in lines)


def in_order(logs: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of several logs in the order of their times."""
    stamped = list[tuple[str, str]]()
    for lines in logs:
        at = ""
        for line in lines:
            stamp = _STAMP.match(line)
            at = stamp[1] if stamp else at
            stamped.append((at, line))
    return [line for _, line in sorted(stamped, key=lambda one: one[0])]


def forgotten_in(log: Sequence[str]) -> set[int]:
    """Returns the jobs that slurmctld forgot, or their start.

    Of those that still ran it says so. Of one that came to its end before the kill it says nothing: its number is given
    out, or its start told, before and after the start of slurmctld. The start of a job that was put back in between is
    another one, unless the kill came too soon after for that to be saved.
    """
    forgotten, before, here = set[int](), set[tuple[str, int]](), set[tuple[str, int]]()
    put_back, recovered, at = dict[int, float](), set[int](), 0.0
    for line in log:
        last, stamp = at, _STAMP.match(line)
        at = datetime.datetime.fromisoformat(stamp[1]).timestamp() if stamp else last
        number = _NUMBER.search(line)
        if number is None:
            # What was told of jobs that the state lacks: their numbers are given out again, and not each start is told.
            forgotten |= {job_id for _, job_id in here if recovered and job_id not in recovered}
            recovered.clear()
            saved = {("started", job_id) for job_id, since in put_back.items() if last - since >= _SAVED_WITHIN}
            before = (before | here) - saved
            here.clear()
            put_back.clear()
            continue
        job_id = int(number[2] or number[1])
        if "Recovered JobId=" in line:
            recovered.add(job_id)
            continue
        if re.search(_PUT_BACK, line):
            put_back[job_id] = at
            before.discard(("started", job_id))
            continue
        if re.search(_FORGOTTEN, line):
            forgotten.add(job_id)
            continue
        told = "submitted" if "submit_batch_job" in line else "started", job_id
        here.add(told)
        if "_job_complete" in line:
            # Not each start is told; it may have been another slurmctld's.
            continue
        if told[0] == "started":
            put_back.pop(job_id, None)
        # A number that a task of an array had is given to a new job, too.
        if told in before or (told[0] == "submitted" and ("started", job_id) in before):
            forgotten.add(job_id)
    return forgotten


def _owned_once(jobs: Sequence[JobSeen]) -> Iterator[str]:
    whole: dict[tuple[str, int], list[int]] = defaultdict(list)
    percent: dict[tuple[str, int], int] = defaultdict(int)
    for job in jobs:
        for name, gres in job.parts if job.state in {"RUNNING", "SUSPENDED"} else ():
            used = fields.gres_used(gres)
            for place, share in enumerate(used.shared):
                percent[name, place] += share
            for place in range(8):
                if used.gpus >> place & 1 and not (place < len(used.shared) and used.shared[place]):
                    whole[name, place].append(job.id)
    for (name, place), owners in whole.items():
        if len(owners) > 1:
            yield f"GPU {place} of {name} has two owners: jobs {owners}"
        if percent.get((name, place)):
            yield f"GPU {place} of {name} is owned by job {owners[0]} and shared"
    for (name, place), share in percent.items():
        if share > 100:
            yield f"shares of GPU {place} of {name} add up to {share}"


def _run_as_planned(jobs: Sequence[JobSeen]) -> Iterator[str]:
    for job in jobs:
        planned = segment.fields(job.extra) or {}
        if job.state != "RUNNING" or "gpus" not in planned or not job.parts:
            continue
        for name, gres in job.parts:
            used = fields.gres_used(gres)
            given = ",".join(str(place) for place in range(8) if used.gpus >> place & 1)
            if given and given != planned["gpus"]:
                place = f"GPUs {planned['gpus']} of {planned['nodes']}"
                yield f"job {job.id} was planned on {place}, and has {given} of {name}"


def _pins_are_whole(jobs: Sequence[JobSeen]) -> Iterator[str]:
    for job in jobs:
        values = job.segment
        if job.state != "PENDING" or values.get("state") not in plan_fields.PINNED_STATES:
            continue
        if sorted(hostlist.expand(job.required)) != sorted(values.get("nodes", "").split(",")):
            yield f"job {job.id} requires {job.required} and its segment says {values.get('nodes')}"
        extra = segment.fields(job.extra) or {}
        if not plan_fields.pins_nodes_alone(JobPlan(values)) and extra.get("gpus") != values.get("gpus"):
            yield f"job {job.id}: its node would be told of GPUs {extra.get('gpus')}, not {values.get('gpus')}"
