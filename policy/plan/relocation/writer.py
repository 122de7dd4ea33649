"""Interfaces that relocation needs: a part of the gateway to Slurm, and a writer of pins. The simulator has both."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobText, Reading
from policy.plan.ledger.changes import Change


class RelocationGateway(Protocol):
    """The methods of `policy.slurm.interface.Gateway` that relocation uses."""

    def read(self, *, ended: bool) -> Reading:
        """Reads Slurm once."""
        ...

    def job(self, job_id: int) -> JobText:
        """Returns one job's record."""
        ...

    def config(self) -> Mapping[str, str]:
        """Returns Slurm's configuration."""
        ...

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        """Writes a job's plan."""
        ...

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:
        """Writes a job's plan, and keeps it from starting for some seconds."""
        ...

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Sends a signal to a job."""
        ...

    def evict(self, job_id: int) -> bool:
        """Requeues a running job; returns False if it has ended."""
        ...

    def requeue(self, job_id: int | str) -> None:
        """Requeues a job that has failed."""
        ...


class Writer(Protocol):
    """Writes planned changes to Slurm."""

    def write(self, changes: Sequence[Change], reading: Reading) -> list[int]:
        """Writes some changes; returns the jobs whose changes failed."""
        ...
