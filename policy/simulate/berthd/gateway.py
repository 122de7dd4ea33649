"""Moves running jobs in the simulated slurmctld, with the interface of a Slurm gateway."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobText, Reading
from policy.plan.answer.plan_values import moved
from policy.plan.ledger.changes import Change, Move

if TYPE_CHECKING:
    from policy.simulate.berthd.records import SlurmRecords


class SimulatedGateway:
    """The part of a gateway that moving jobs needs.

    A simulated job saves its work when it is told to, and then waits to be requeued.
    """

    name = "simulated"

    def __init__(self, slurm: "SlurmRecords") -> None:
        self._slurm = slurm

    def read(self, *, ended: bool) -> Reading:  # noqa: ARG002 - as a gateway has it
        """Returns all jobs that run or wait."""
        return self._slurm.look()

    def job(self, job_id: int) -> JobText:
        """Returns the state of a job."""
        return JobText(job_id, self._slurm.state(job_id), 0, "", "", "", "", "")

    def ask(self, job_id: int) -> Outcome:
        """Returns that the job may be requeued; in the simulation every job may."""
        return Outcome(job_id, job_id, self._slurm.state(job_id), None)

    def config(self) -> Mapping[str, str]:
        """Returns a configuration that allows any number of requeues."""
        return {"SchedulerParameters": "max_batch_requeue=999999"}

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        """Replaces a job's plan."""
        self._slurm.annotate(job_id, plan)

    def delay(self, job_id: int, plan: JobPlan, seconds: int) -> None:  # noqa: ARG002 - as above
        """Replaces a job's plan; the job may start when Slurm lets a requeued job start."""
        self._slurm.annotate(job_id, plan)

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """Does nothing: a simulated job saves its work without a signal."""

    def evict(self, job_id: int) -> bool:
        """Requeues a running job."""
        return self._slurm.put_back(job_id)

    def requeue(self, job_id: int | str) -> None:
        """Does nothing: no simulated job fails."""

    def write(self, changes: Sequence[Change], reading: Reading) -> list[int]:
        """Writes pins one after another."""
        for change in changes:
            if isinstance(change, Move):
                self._slurm.pin(change.job.id, change.berth.nodes, change.berth.mask, moved(change, reading.at))
        return []
