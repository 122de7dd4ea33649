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
    """Reads and writes Slurm; every failure is a `SlurmError`."""

    name: str

    def version(self) -> str:
        """Slurm's version, such as 24.11.5."""
        ...

    def in_control(self) -> bool:
        """Whether the slurmctld on this host is the one that decides now."""
        ...

    def read(self, *, ended: bool) -> Reading:
        """One look at nodes, jobs, partitions and reservations; with `ended`, at jobs that are over too."""
        ...

    def job(self, job_id: int) -> JobText:
        """One job's record."""
        ...

    def pin(self, job_id: int, pin: Pin) -> None:
        """Move a waiting job to a place. A job that started meanwhile is left as it is."""
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
