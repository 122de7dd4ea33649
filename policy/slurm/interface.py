# SPDX-License-Identifier: Apache-2.0
"""The interface to Slurm: berthd and the commands read and write Slurm only by a `Gateway`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import TIER
from policy.formats.slurm_facts import JobText, Reading
from policy.request.tiers import OPPORTUNISTIC


@dataclass(frozen=True, slots=True)
class Pin:
    """A place to write into a waiting job; `plan` is the whole new plan."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    seats: bool
    plan: JobPlan
    share: int = 0
    """Percent of each GPU; 0 for whole GPUs."""
    others: str = ""
    """All nodes but these, to be excluded if the user excludes none."""
    licenses: Mapping[str, int] | None = None
    """Licences that count its GPUs by model; None if the site counts no model."""
    again: bool = False
    """True if the job already has this place: it is written only if the record still has it."""
    closes: bool = False
    """True if only its excluded nodes keep the job there: it closes its partition (plan/queue/closers.py)."""

    @property
    def guest(self) -> bool:
        """Tells whether the place is a guest's seat, without a GPU."""
        return self.plan.get(TIER) == OPPORTUNISTIC


class Gateway(Protocol):
    """Reads and writes Slurm; every failure is a `SlurmError`.

    Three implementations give the same facts, and pass one set of tests: pyslurm in this process, a small program with
    libslurm, and Slurm's own commands, which are always available.
    """

    name: str

    def version(self) -> str:
        """Returns Slurm's version, such as 24.11.5."""

    def in_control(self) -> bool:
        """Tells whether the slurmctld on this host is in charge now."""

    def read(self, *, ended: bool) -> Reading:
        """Reads nodes, jobs, partitions and reservations; with `ended`, also jobs that are over.

        Asks Slurm only for changes if it can. An unchanged record is the same object as in the last reading, so that a
        caller can tell by `is` which records have changed.
        """

    def job(self, job_id: int) -> JobText:
        """Returns one job's record."""

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool = False) -> None:
        """Writes a place into a waiting job, in one update; `ARRAY_TASK` splits a task off its array.

        The job's record is read just before, as for each change, so that other programs' texts in it stay there. In a
        `hurry`, when an Epilog waits for the pin, the texts of the last reading are the base. A job that started
        meanwhile is left as it is.
        """

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        """Replaces the segment of a job, and with `requeue` lets Slurm requeue the job; changes nothing else."""

    def requeue(self, job_id: int | str) -> None:
        """Requeues a job that runs or has failed; `ARRAY_TASK` names a single task of an array."""

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Replaces the segment of a waiting job and delays its start by so many seconds, in one update."""

    def evict(self, job_id: int) -> bool:
        """Requeues a running job; returns False if it has ended, or is about to: it is then not run again."""

    def cancel(self, job_id: int) -> None:
        """Cancels a job."""

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Sends a signal to the steps of a running job, or with `batch` only to its script's shell."""

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        """Takes a waiting guest off its node, and delays its start by so many seconds, in one update."""

    def close(self) -> None:
        """Closes connections and programs; a closed gateway is not used again."""

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        """Undoes the pin of a waiting job; returns False if it has none.

        With `for_now` the next berthd may pin it again; else it is left to Slurm for good.
        """

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        """Returns the waiting jobs that may have a pin, as names for `release`; with `called`, only those of this name.

        Jobs that end on their nodes are among them: if such a job was requeued, it can be changed already. An array's
        number names all its tasks, `ARRAY_TASK` a single one.
        """

    def config(self) -> Mapping[str, str]:
        """Returns Slurm's configuration."""
