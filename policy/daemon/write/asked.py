# SPDX-License-Identifier: Apache-2.0
"""Keeps the requests of waiting jobs for the plugin, and plans a job anew if its owner changed its request.

job_modify may ask no daemon. So each pinned job has a file with the fields that undo its pin (docs/develop/formats.md,
section 1.5): the plugin adds them to the owner's change, and leaves a mark for berthd.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.job_plan import NOTHING, JobPlan, readable
from policy.formats.messages import tagged
from policy.formats.plan_fields import (
    ASKED,
    CPUS,
    GBPS,
    GPUS,
    LATER,
    LEVEL,
    MEM,
    NODES,
    NOTHING_ELSE,
    OPEN,
    OTHERS,
    PARKED,
    REASON,
    RELEASED,
    SEATS,
    SHARE,
    SPLITS,
    START,
    STATE,
    SUM,
    TIER,
    UPGRADE,
    WAS,
    WHY,
    K,
    N,
    holds_place,
    pins_nodes_alone,
)
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, JobText, Reading
from policy.formats.slurm_syntax import excluded_nodes
from policy.formats.wire import escape
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import WAITS
from policy.request import node_range
from policy.request.spread import SPREAD
from policy.site import log
from policy.slurm.interface import Gateway

MOST_BYTES = 4_000
"""The longest file that the plugin reads."""
MOST_FILES = 2_000
"""The most jobs that have a file, the first ones of the queue: each takes a page of the controller's memory."""
MOST_A_PASS = 10
_AGAIN_AFTER = 60.0
"""Seconds after which a job that Slurm refused to change is tried again: it must not keep others from their turn."""
_WHOLE_LOOK_EVERY, _MANY_JOBS = 15.0, 2_000
"""Seconds by which a change without a new state may be read late, among so many jobs (gateway_read.c)."""

_MOST_AHEAD = 60.0
"""Seconds by which a mark may be newer than the last reading; beyond that the clock was set back."""

_WHY = "what it asks for was changed"
_SHARES = (SHARE, TIER, UPGRADE, PARKED)
_GPUS = re.compile(r"gres/gpu(?:[:=]([1-9][0-9]{0,3}))?")
_BY_TASK = frozenset({"tres_per_task", "cpus_per_tres", "ntasks_per_tres"})
_OF_THE_PLACE = (NODES, GPUS, SEATS, START, LEVEL, GBPS, SUM, SPLITS, SPREAD, OPEN, *REASON)


def words(job: JobFacts) -> str:
    """Returns the fields that undo a job's pin, as `key=value`; empty if its owner may not change the request."""
    plan = job.known
    if WAS not in plan or plan.has_any(_SHARES) or "berth_" in job.licenses:
        return ""
    asked, was, n = dict(plan.get(ASKED, ())), dict(plan[WAS]), plan.get(N, 0)
    found = {key: asked.get(key, "") for key in ("tres_per_job", "tres_per_node", "req_nodes")}
    found |= {key: asked[key] for key in ("tres_per_task", "cpus_per_tres") if key in asked}
    if OTHERS in plan and not job.excluded:
        found["exc_nodes"] = ""
    # A job that came while berthd was away was pinned by berthd alone, which changed nothing else.
    if plan[WAS] != NOTHING_ELSE:
        if was.get("min_nodes", "1") != str(n):
            found["min_nodes"] = was.get("min_nodes", "1")
        of_tasks = "num_tasks" in was and "max_nodes" not in was
        # This comes first: the plugin checks whether the change itself names GPUs of a node.
        most = {"max_nodes_of_tasks": was["num_tasks"]} if of_tasks else {"max_nodes": was.get("max_nodes", "0")}
        found = most | found
        # Slurm counts the job's CPUs anew from these, so only fields that a pin can have changed are named.
        if "cpus_per_tres" in asked:
            found["cpus_per_task"] = was.get("cpus_per_task", "1")
        if n != 1 and not asked.keys().isdisjoint(_BY_TASK):
            found["pn_min_cpus"] = was.get("pn_min_cpus", "1")
        if "mem_per_tres" in was:
            found |= {"mem_per_tres": was["mem_per_tres"], "pn_min_memory": "0"}
    if job.own_extra is not None:
        found["extra"] = job.own_extra
    text = " ".join(f"{key}={escape(value)}" for key, value in found.items())
    return text if len(text) < MOST_BYTES else ""


def anew(job: JobFacts, text: JobText) -> JobPlan:
    """Returns a job's plan by the present request in its record: to be planned again, or left to Slurm."""
    plan = readable(text.admin_comment) or NOTHING
    old = plan.without(*_OF_THE_PLACE)
    request = {"tres_per_job": text.tres_per_job, "tres_per_node": text.tres_per_node, "req_nodes": text.required}
    asked = tuple((key, value) for key, value in request.items() if value)
    gpus = [_GPUS.fullmatch(value) for key, value in asked if key != "req_nodes"]
    by_task = "gpu" in text.tres_per_task or not _BY_TASK.isdisjoint(dict(plan.get(ASKED, ())))
    n = max(1, job.count)
    count = int(gpus[0][1] or 1) if len(gpus) == 1 and gpus[0] else 0
    by_job = bool(text.tres_per_job)
    # GPUs on nodes in any way, whole nodes, or a range: its record does not tell.
    other = SPREAD in plan or CPUS not in plan or node_range.of(plan.get(WAS, ()))
    if not count or other or by_task or job.mem is None or (by_job and count % n):
        return old.having(STATE(RELEASED), WHY(tagged(f"given back to Slurm: {_WHY}", 106)))
    of_job = N(n), K(count // n if by_job else count), CPUS(-(-job.cpus // n)), MEM(job.mem)
    return old.having(STATE(LATER), ASKED(asked), WAS(NOTHING_ELSE), *of_job, WHY(f"planned anew: {_WHY}"))


class Asked:
    """The files of jobs, and the marks that the plugin leaves."""

    def __init__(self, gateway: Gateway, pinned_file: Path, pin_again: Callable[[JobFacts], None]) -> None:
        """At the first step files of an earlier berthd are removed; marks stay."""
        self._gateway, self._pin_again = gateway, pin_again
        folders = (Path(f"{pinned_file}.{name}") for name in ("asked", "changed", "excluded"))
        self._files, self._marks, self._excluded = folders
        self._written: dict[int, str] = {}
        self._known: dict[int, tuple[JobFacts, str]] = {}
        self._again: dict[int, float] = {}
        self._on_a_place_left = Selection(_is_left_on_its_place)
        self._began = False

    def step(self, queue: Iterable[Waiting], reading: Reading) -> int:
        """Plans changed jobs anew, and updates the files; returns the number of updates in Slurm."""
        if not self._began:
            for folder in (self._files, self._marks, self._excluded):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in self._files.iterdir():
                file.unlink()
            self._began = True
        late = _WHOLE_LOOK_EVERY if len(reading.jobs) >= _MANY_JOBS else 0.0
        marks = {int(mark.name): mark for mark in self._marks.iterdir() if mark.name.isdecimal()}
        due = [job for job, mark in marks.items() if _is_read(mark, reading.at, late)]
        lists = {int(mark.name): mark for mark in self._excluded.iterdir() if mark.name.isdecimal()}
        read = [job for job, mark in lists.items() if _is_read(mark, reading.at, late)]
        jobs = Selection.all_of(reading.jobs)
        ours = [job for job in read if job in jobs and self.has_written_ours(jobs[job])]
        for job_id in set(read).difference(ours):
            lists[job_id].unlink(missing_ok=True)
        left = (job for job in self._on_a_place_left.of(reading.jobs).values() if job.id not in marks)
        updates = self._each({one: partial(self._forget_list, one) for one in ours}, lists, reading.at)
        updates += self._each({one: partial(self._look_at, jobs.get(one)) for one in due}, marks, reading.at)
        updates += self._each({job.id: partial(self._free, job) for job in left}, {}, reading.at)
        jobs_left = (entry.job for entry in queue if entry.job.wants_gpus and entry.job.id not in marks)
        self._keep(islice(jobs_left, MOST_FILES))
        return updates

    def has_changed(self, job_id: int) -> bool:
        """Tells whether a job's owner has changed, since the reading, fields that a pin would overwrite."""
        return self._began and any((marks / str(job_id)).exists() for marks in (self._marks, self._excluded))

    def has_written_ours(self, job: JobFacts) -> bool:
        """Tells whether a job's owner has written, since the reading, the same list of excluded nodes as Berth."""
        return self._began and excluded_nodes.is_ours(_listed(self._excluded / str(job.id)), job.known)

    def _each(self, steps: Mapping[int, Callable[[], int]], marks: Mapping[int, Path], at: float) -> int:
        """Takes the steps of some jobs, removes their marks if Slurm does not refuse, and returns the updates."""
        self._again = {job_id: then for job_id, then in self._again.items() if at < then <= at + _AGAIN_AFTER}
        updates = 0
        for job_id in islice((one for one in steps if one not in self._again), MOST_A_PASS):
            try:
                updates += steps[job_id]()
            except SlurmError as problem:
                if not isinstance(problem, NoAnswer):
                    self._again[job_id] = at + _AGAIN_AFTER
            else:
                if job_id in marks:
                    marks[job_id].unlink(missing_ok=True)
                    self._written.pop(job_id, None)
        return updates

    def _forget_list(self, job_id: int) -> int:
        """Marks a list of excluded nodes as the user's, who has written the same one as Berth."""
        text = self._gateway.job(job_id)
        plan = readable(text.admin_comment) or NOTHING
        if text.state != "PENDING" or not excluded_nodes.is_ours(text.excluded, plan):
            return 0
        self._gateway.annotate(job_id, plan.having(OTHERS(excluded_nodes.OF_NO_LIST)))
        return 1

    def _free(self, job: JobFacts) -> int:
        """Gives a job whose GPUs an administrator changed its user's nodes again, and plans it anew."""
        if not self._gateway.release(job.id, f"given back to Slurm: {_WHY}"):
            return 0
        plan = anew(job, self._gateway.job(job.id))
        log.info(f"JobId={job.id} {plan[WHY]}", 606)
        if plan[STATE] != RELEASED:
            self._gateway.annotate(job.id, plan)
        return 1

    def _look_at(self, job: JobFacts | None) -> int:
        if job is None or job.state not in WAITS or not job.plan:
            return 0
        text = self._gateway.job(job.id)
        if text.state != "PENDING" or (readable(text.admin_comment) or NOTHING).get(STATE) == RELEASED:
            return 0
        if "gres/gpu:g" in text.tres_per_node + text.tres_per_job:
            if not (text.required or excluded_nodes.is_ours(text.excluded, readable(text.admin_comment))):
                # Slurm refused the change after it had removed the required nodes.
                return int(self._gateway.release(job.id, "its owner's change was refused", for_now=True))
            if "[berth/" not in text.extra:
                self._pin_again(job)
            return 0
        if text.required and _is_left_on_its_place(job):
            return self._free(job)
        plan = anew(job, text)
        log.info(f"JobId={job.id} {plan[WHY]}", 606)
        if plan[STATE] != RELEASED or not self._gateway.release(job.id, plan[WHY]):
            self._gateway.annotate(job.id, plan)
        return 1

    def _keep(self, jobs: Iterable[JobFacts]) -> None:
        # An unchanged record is the same object.
        known, self._known = self._known, {}
        for job in jobs:
            before = known.get(job.id)
            self._known[job.id] = before if before is not None and before[0] is job else (job, words(job))
        wanted = {job_id: text for job_id, (_, text) in self._known.items() if text}
        for job_id in self._written.keys() - wanted.keys():
            (self._files / str(job_id)).unlink(missing_ok=True)
        for job_id, text in wanted.items():
            if self._written.get(job_id) != text:
                new = self._files / f"{job_id}.new"
                new.write_text(f"{text}\n")
                new.replace(self._files / str(job_id))
        self._written = wanted


def _is_left_on_its_place(job: JobFacts) -> bool:
    """Tells whether a waiting job asks for GPUs of any kind and yet requires the nodes of its place.

    An administrator changed the GPUs, and the plugin did not complete it, as for SlurmUser (job_submit_berth.c).
    """
    if job.gpus is not None or not job.required or job.state not in WAITS:
        return False
    plan = job.known
    return holds_place(plan) and not pins_nodes_alone(plan) and set(job.required) == set(plan.get(NODES, ()))


def _listed(mark: Path) -> str:
    with suppress(OSError):
        return mark.read_text("utf-8", "surrogateescape")
    return ""


def _is_read(mark: Path, at: float, late: float) -> bool:
    """Tells whether a reading shows a mark's change; a mark far ahead of it is from before the clock was set back."""
    return not at - late <= _left_at(mark) <= at + _MOST_AHEAD


def _left_at(mark: Path) -> float:
    """Returns the time at which a mark was left, by ctime: a file that was moved there keeps its mtime."""
    return mark.stat().st_ctime
