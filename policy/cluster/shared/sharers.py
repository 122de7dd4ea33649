# SPDX-License-Identifier: Apache-2.0
"""Sharers of whole GPUs of a node: hosts, which own GPUs and may have a guest, and guests, which sit on seats."""

from dataclasses import dataclass
from typing import NamedTuple

from policy.formats.plan_fields import APP_CLASS, GPU_MEM
from policy.formats.slurm_facts import JobFacts


class JobIdentity(NamedTuple):
    """The key by which a job's profile is found."""

    user: int
    account: str
    name: str
    app_class: str = ""
    gpu_mem: int | None = None
    """MiB that the job says it needs."""


def who_is(job: JobFacts) -> JobIdentity:
    """Returns the key by which a job's profile is found."""
    return JobIdentity(job.user, job.account, job.name, job.known.get(APP_CLASS, ""), job.known.get(GPU_MEM))


NOBODY = JobIdentity(0, "", "")


@dataclass(frozen=True, slots=True)
class Host:
    """A running job of the tier `guaranteed`."""

    mask: int
    gpus: int
    """Number of GPUs of the whole job: a guest on one of them slows down the work on all."""
    user: int
    mps: bool
    gpu_mem: int | None = None
    """MiB of each GPU that the job says it needs."""
    who: JobIdentity = NOBODY
    job: int = 0
    """Job number; 0 for one that Slurm does not show yet."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest that runs, or for which a seat is reserved."""

    job: int
    """Job number; 0 for a guest that Slurm does not show yet."""
    mask: int
    cpus: int
    mem: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Sharers:
    """All hosts and guests of a node."""

    hosts: tuple[Host, ...] = ()
    guests: tuple[Guest, ...] = ()

    @property
    def guest_mask(self) -> int:
        """Returns the mask of GPUs with a guest."""
        mask = 0
        for guest in self.guests:
            mask |= guest.mask
        return mask

    @property
    def host_mask(self) -> int:
        """Returns the mask of GPUs whose owners may have a guest."""
        mask = 0
        for host in self.hosts:
            mask |= host.mask
        return mask
