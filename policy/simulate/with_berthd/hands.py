"""What berthd does to running jobs, in the simulated slurmctld: as through a gateway."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from policy.formats.outcome import Outcome
from policy.formats.slurm_facts import JobText, Reading
from policy.plan.answer.segment_values import moved
from policy.plan.changes import Change, Move

if TYPE_CHECKING:
    from policy.simulate.with_berthd.berthd import Slurm


class Hands:
    """As much of a gateway as moving jobs takes. A job saves its work when it is told to, and waits to be put back."""

    name = "simulated"

    def __init__(self, slurm: "Slurm") -> None:
        self._slurm = slurm

    def read(self, *, ended: bool) -> Reading:  # noqa: ARG002 - as a gateway has it
        """All that runs or waits."""
        return self._slurm.look()

    def job(self, job_id: int) -> JobText:
        """What a job does."""
        return JobText(job_id, self._slurm.state(job_id), 0, "", "", "", "", "")

    def ask(self, job_id: int) -> Outcome:
        """Every job may be put back."""
        return Outcome(job_id, job_id, self._slurm.state(job_id), None)

    def config(self) -> Mapping[str, str]:
        """No bound on requeues."""
        return {"SchedulerParameters": "max_batch_requeue=999999"}

    def annotate(self, job_id: int, values: Mapping[str, str]) -> None:
        """Another segment."""
        self._slurm.annotate(job_id, values)

    def delay(self, job_id: int, values: Mapping[str, str], seconds: int) -> None:  # noqa: ARG002 - as above
        """Another segment; it may start when Slurm lets a job start that was put back."""
        self._slurm.annotate(job_id, values)

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """It saves its work."""

    def evict(self, job_id: int) -> bool:
        """Back into the queue."""
        return self._slurm.put_back(job_id)

    def requeue(self, job_id: int | str) -> None:
        """No simulated job fails."""

    def write(self, changes: Sequence[Change], reading: Reading) -> list[int]:
        """Pins, one after another."""
        for change in changes:
            if isinstance(change, Move):
                values = moved(change, reading.at)
                self._slurm.pin(change.job.id, change.berth.nodes, change.berth.mask, values)
        return []
