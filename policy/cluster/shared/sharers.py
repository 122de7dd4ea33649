"""Who shares whole GPUs of a node: hosts, which own them and may have a guest, and guests, which sit on seats."""

from dataclasses import dataclass
from typing import NamedTuple

from policy.formats.slurm_facts import JobFacts


class Who(NamedTuple):
    """What a job's profile is found by."""

    user: int
    account: str
    name: str
    app_class: str = ""
    gpu_mem: int | None = None
    """MiB that it says it needs."""


def who_is(job: JobFacts) -> Who:
    """What a job's profile is found by."""
    segment = job.segment or {}
    asked = segment.get("gpu_mem", "")
    gpu_mem = int(asked) if asked.isdigit() else None
    return Who(job.user, job.account, job.name, segment.get("f.app-class", ""), gpu_mem)


NOBODY = Who(0, "", "")


@dataclass(frozen=True, slots=True)
class Host:
    """A guaranteed job that runs."""

    mask: int
    gpus: int
    """GPUs of the whole job: a guest on one of them holds up all."""
    user: int
    mps: bool
    gpu_mem: int | None = None
    """MiB of each GPU that it says it needs."""
    who: Who = NOBODY


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest that runs, or for whom a seat is reserved."""

    job: int
    """0 for one that Slurm has not shown yet."""
    mask: int
    cpus: int
    mem: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Sharers:
    """All of a node."""

    hosts: tuple[Host, ...] = ()
    guests: tuple[Guest, ...] = ()

    @property
    def guest_mask(self) -> int:
        """GPUs with a guest."""
        mask = 0
        for guest in self.guests:
            mask |= guest.mask
        return mask

    @property
    def host_mask(self) -> int:
        """GPUs whose owners may have a guest."""
        mask = 0
        for host in self.hosts:
            mask |= host.mask
        return mask
