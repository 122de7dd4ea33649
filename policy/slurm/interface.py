"""The one door to Slurm. Everything that berthd and the commands read or write goes through a `Gateway`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from policy.facts import Reading


@dataclass(frozen=True, slots=True)
class JobText:
    """What one job's record says of Berth, exact to the byte."""

    id: int
    state: str
    user_id: int
    admin_comment: str
    extra: str
    required: str
    tres_per_node: str
    tres_per_job: str


@dataclass(frozen=True, slots=True)
class Pin:
    """A place to be written into a waiting job; `values` is the whole new segment."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    seats: bool
    values: Mapping[str, str]


class Gateway(Protocol):
    """Reads and writes Slurm; every failure is a `SlurmError`.

    Three ways to the same facts, held to it by one set of tests: pyslurm in this process, a small program on libslurm,
    and Slurm's own commands, which are always there.
    """

    name: str

    def version(self) -> str:
        """Slurm's version, such as 24.11.5."""
        ...

    def in_control(self) -> bool:
        """Whether the slurmctld on this host is the one that decides now."""
        ...

    def read(self, *, ended: bool) -> Reading:
        """One look at nodes, jobs, partitions and reservations; with `ended`, at jobs that are over too.

        Asks Slurm for what changed since the last look where it can. An unchanged record is the same object as in the
        last reading, so that whoever reads can tell by `is` what to look at again.
        """
        ...

    def job(self, job_id: int) -> JobText:
        """One job's record."""
        ...

    def pin(self, job_id: int | str, pin: Pin) -> None:
        """Give a waiting job a place, in one update; `ARRAY_TASK` splits a task off its array.

        The texts of the last reading are the base, so that no second question is needed. A job that started meanwhile
        is left as it is.
        """
        ...

    def annotate(self, job_id: int, values: Mapping[str, str]) -> None:
        """Replace the segment of a job and nothing else."""
        ...

    def requeue(self, job_id: int) -> None:
        """Put a running job back into the queue."""
        ...

    def close(self) -> None:
        """Let go of what it holds; a closed gateway is not used again."""
        ...

    def release(self, job_id: int, reason: str) -> bool:
        """Undo the pin of a waiting job; False where it has none (any more)."""
        ...

    def pinned_jobs(self) -> list[int]:
        """Waiting jobs that may hold a pin of ours."""
        ...

    def config(self) -> Mapping[str, str]:
        """Slurm's configuration."""
        ...
