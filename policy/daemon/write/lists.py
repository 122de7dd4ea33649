# SPDX-License-Identifier: Apache-2.0
"""Updates the lists of excluded nodes of pinned jobs: adds missing lists, and drops nodes that may soon be gone.

If Slurm does not know a node any more, it refuses every change to a job whose record excludes that node by name
("Invalid node name"), from its user as well as from Berth: the job can neither move nor be given back. So a node that
takes no jobs for long is taken off the lists of waiting jobs. Those of running jobs cannot be changed.

A job that may not start yet, such as a held one, excludes no node: Slurm does not test it, and a list takes time at
its submission. It gets a list when it may start.
"""

from collections.abc import Container, Iterable, Mapping
from itertools import islice

from policy.cluster.fleet import Fleet
from policy.cluster.partitions import others
from policy.daemon.write.pins import Pins
from policy.formats.errors import NoAnswer, SlurmError
from policy.formats.plan_fields import GPUS, NODES, OTHERS
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.site import log

MOST_A_PASS = 10
"""The most updates in a pass: they are not urgent, and each takes slurmctld's write locks."""

_AT_ONCE = 200
"""Jobs that are checked before another task has its turn."""


class Lists:
    """Corrects the lists of waiting jobs, some in each pass."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._fleet: Fleet | None = None
        self._lacking = Selection(_lacks)
        self._due: dict[int, None] = {}
        self._refused: set[int] = set()
        """Jobs whose update Slurm refused."""
        self._left = 0

    def look(self, fleet: Fleet, jobs: Iterable[JobFacts]) -> None:
        """Finds the jobs whose lists are to be written; called in each pass."""
        before, self._fleet, self._left = self._fleet, fleet, MOST_A_PASS
        if before is not fleet:
            self._refused.clear()
        self._due |= dict.fromkeys(job_id for job_id in self._lacking.of(jobs) if job_id not in self._refused)
        if before is fleet:
            return
        if before is not None and (gone := set(before.names) - set(fleet.names)):
            _warn(sorted(gone), sum(OTHERS in job.known for job in jobs))
        if fleet.unnamed - (before.unnamed if before is not None else frozenset()):
            self._due |= {job.id: None for job in jobs if _waits(job)}

    def write_one(self, jobs: Mapping[int, JobFacts], moved: Container[int]) -> int | None:
        """Writes one list; returns the job's number, or None if none is left for this pass.

        A job that has moved since the reading has a new list, and another place than `jobs` says.
        """
        if not self._left or self._fleet is None:
            return None
        for job_id in list(islice(self._due, _AT_ONCE)):
            del self._due[job_id]
            job = jobs.get(job_id)
            if job is None or job_id in moved or not (_waits(job) or _lacks(job)) or self._is_right(job, self._fleet):
                continue
            if any(name not in self._fleet.index for name in job.required):
                continue  # Slurm does not know that node, and the plan gives the job another place
            self._left -= 1
            try:
                self._pins.pin_again(job)
            except NoAnswer:
                self._due[job_id], self._left = None, 0  # the next pass tries again
            except SlurmError as problem:
                self._refused.add(job_id)
                log.error(f"JobId={job_id} keeps its old list of excluded nodes: {problem}", 616)
            return job_id
        return None

    def _is_right(self, job: JobFacts, fleet: Fleet) -> bool:
        told = others(fleet, job.partition, job.required)
        return job.known.get(OTHERS) == (mark_of(told) if told else None)


def _waits(job: JobFacts) -> bool:
    return job.state == "PENDING" and bool(job.required) and OTHERS in job.known


def _lacks(job: JobFacts) -> bool:
    """Tells whether a job that may start now on whole GPUs of Berth's choice has no list."""
    plan = job.known
    if OTHERS in plan or NODES not in plan or GPUS not in plan or job.state != "PENDING":
        return False
    if not job.required or job.gpus is None or job.excluded or job.share or job.guest:
        return False
    return job.may_start


def _warn(gone: list[str], count: int) -> None:
    if count:
        log.error(
            f"NodeList={','.join(gone)} Slurm knows it no more, and refuses every change to those of {count} jobs that"
            " exclude it by name; a line NodeName=... State=FUTURE for it in slurm.conf lets them be changed again",
            617,
        )
