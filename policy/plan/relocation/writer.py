"""What moving a job takes of Slurm: a part of a gateway, and somebody who writes pins. The simulator has both too."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from policy.formats.slurm_facts import JobText, Reading
from policy.plan.changes import Change


class Hands(Protocol):
    """As `policy.slurm.interface.Gateway` has them."""

    def read(self, *, ended: bool) -> Reading:
        """One look."""
        ...

    def job(self, job_id: int) -> JobText:
        """One job's record."""
        ...

    def config(self) -> Mapping[str, str]:
        """Slurm's configuration."""
        ...

    def annotate(self, job_id: int, values: Mapping[str, str]) -> None:
        """Another segment."""
        ...

    def delay(self, job_id: int, values: Mapping[str, str], seconds: int) -> None:
        """Another segment, and not to be started for so long."""
        ...

    def warn(self, job_id: int, signal: str, *, batch: bool = False) -> None:
        """A signal."""
        ...

    def evict(self, job_id: int) -> bool:
        """Back into the queue; False where it has ended."""
        ...

    def requeue(self, job_id: int | str) -> None:
        """Back into the queue, with one that has failed."""
        ...


class Writer(Protocol):
    """Writes what is planned."""

    def write(self, changes: Sequence[Change], reading: Reading) -> list[int]:
        """Write some changes; the jobs of those that failed."""
        ...
