# SPDX-License-Identifier: Apache-2.0
"""The one door to Slurm. Everything that berthd and the commands read or write goes through a `Gateway`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import TIER
from policy.formats.slurm_facts import JobText, Reading
from policy.request.tiers import OPPORTUNISTIC


@dataclass(frozen=True, slots=True)
class Pin:
    """A place to be written into a waiting job; `plan` is the whole new plan."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    seats: bool
    plan: JobPlan
    share: int = 0
    """Percent of each GPU; 0 for whole GPUs."""
    others: str = ""
    """All nodes but these, to be excluded where the user excludes none."""
    licenses: Mapping[str, int] | None = None
    """Licences that count its GPUs by model; None where the site counts no model."""
    again: bool = False
    """True if the job has this place: it is written only if the record still says so."""
    closes: bool = False
    """True if its excluded nodes alone keep the job there: it closes its partition (plan/queue/closers.py)."""

    @property
    def guest(self) -> bool:
        """Tells whether it is a seat, and no GPU."""
        return self.plan.get(TIER) == OPPORTUNISTIC


class Gateway(Protocol):
    """Reads and writes Slurm; every failure is a `SlurmError`.

    Three ways to the same facts, held to it by one set of tests: pyslurm in this process, a small program on libslurm,
    and Slurm's own commands, which are always there.
    """

    name: str

    def version(self) -> str:
        """Slurm's version, such as 24.11.5."""

    def in_control(self) -> bool:
        """Tells whether the slurmctld on this host is the one that decides now."""

    def read(self, *, ended: bool) -> Reading:
        """One look at nodes, jobs, partitions and reservations; with `ended`, at jobs that are over too.

        Asks Slurm for what changed since the last look where it can. An unchanged record is the same object as in the
        last reading, so that a caller can tell by `is` what to look at again.
        """

    def job(self, job_id: int) -> JobText:
        """One job's record."""

    def pin(self, job_id: int | str, pin: Pin, *, hurry: bool = False) -> None:
        """Give a waiting job a place, in one update; `ARRAY_TASK` splits a task off its array.

        The job's record is read just before, as for each change, so that what others wrote into its texts stays there.
        In a `hurry`, which is when an Epilog waits for the pin, the texts of the last reading are the base. A job that
        started meanwhile is left as it is.
        """

    def annotate(self, job_id: int, plan: JobPlan, *, requeue: bool = False) -> None:
        """Replace the segment of a job, and with `requeue` let Slurm requeue the job; nothing else."""

    def requeue(self, job_id: int | str) -> None:
        """Put a job that runs, or has failed, back into the queue; `ARRAY_TASK` names a task of an array alone."""

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Replace the segment of a waiting job and keep it from starting for so long, in one update."""

    def evict(self, job_id: int) -> bool:
        """Put a job that runs back into the queue; False where it has ended, or is about to: it is not run again."""

    def cancel(self, job_id: int) -> None:
        """End a job for good."""

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Send a signal to the steps of a running job, or with `batch` to its script's shell alone."""

    def park(self, job_id: int | str, plan: JobPlan, seconds: int) -> None:
        """Take a waiting guest off its node, and keep it from starting for so long, in one update."""

    def close(self) -> None:
        """Let go of what it holds; a closed gateway is not used again."""

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        """Undo the pin of a waiting job; False where it has none (any more).

        `for_now` it is until the next berthd takes it, else for good.
        """

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        """Waiting jobs that may hold a pin of ours, as `release` takes them; only the ones that are `called` so.

        Jobs that end on their nodes are among them: those that were put back can be changed already, others cannot.
        An array's number is all its tasks, `ARRAY_TASK` one of them.
        """

    def config(self) -> Mapping[str, str]:
        """Slurm's configuration."""
