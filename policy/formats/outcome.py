# SPDX-License-Identifier: Apache-2.0
"""The outcome of a job: its end state, and the number of requeues that are left."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from policy.formats.job_plan import JobPlan


@dataclass(frozen=True, slots=True)
class Outcome:
    """Slurm's facts about a job that has ended."""

    id: int
    name: int | str
    """Slurm's name for this job only: `ARRAY_TASK` for a task of an array, as its number may mean the whole array."""
    state: str
    plan: JobPlan | None
    """The plan in its record; None if there is none."""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    started: int = 0
    ended: int = 0
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    """Number of times that Slurm has requeued it."""
    may_requeue: bool = True
    """True if its user lets Slurm requeue it, and it has a script."""
    logs: tuple[str, ...] = ()
    """Paths of its output files, as its user wrote them."""
    comment: str = ""
    """Its user's comment, by which some systems are told to requeue it; Berth never writes it."""
    user: int = 0


FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})
"""The states of a job that failed."""
_REQUEUES = 5
"""Slurm's own default of max_batch_requeue."""
_MAX_REQUEUES = re.compile(r"\bmax_batch_requeue=(\d{1,6})")


def requeues_left(found: Outcome, config: Mapping[str, str]) -> int:
    """Returns how many more times Slurm requeues a job before it holds it."""
    match = _MAX_REQUEUES.search(config.get("SchedulerParameters", ""))
    return (int(match[1]) if match else _REQUEUES) - found.restarts
