# SPDX-License-Identifier: Apache-2.0
"""The changes that a plan makes to jobs."""

from collections.abc import Iterable
from dataclasses import dataclass

from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Berth


@dataclass(frozen=True, slots=True)
class Move:
    """Pins a waiting job elsewhere."""

    job: JobFacts
    berth: Berth
    start: float
    """Time at which the place is free; 0 for at once."""
    reason: str
    task: int | None = None
    """The task of an array that gets a place of its own."""
    adopted: JobPlan = NOTHING
    """Needs of the job that its plan does not hold yet, for a job that berthd did not answer for."""
    way: str = ""
    """The way in which guest and host share the GPU, for a seat; empty for GPUs of its own."""
    slope: float | None = None
    """The most speed that the host is predicted to lose, for a seat beside a host."""
    sms: int | None = None
    """Percent of the SMs that the guest is limited to, for a seat under MPS."""
    need: str | None = None
    """The job number of the host and the MiB that it was measured to need, for a seat beside it."""

    @property
    def concerns(self) -> tuple[str, ...]:
        """Returns the nodes on which the job is to start, and those on which it must not start any more."""
        return (*self.berth.names, *(self.job.required if self.job.share or self.start else ()))


@dataclass(frozen=True, slots=True)
class Release:
    """Gives a waiting job back to Slurm."""

    job: JobFacts
    reason: str
    for_now: bool = False
    """True if a later pass may give it a place again."""
    task: int | None = None
    """The task of an array that alone is given back."""


@dataclass(frozen=True)
class _OfGuest:
    job: JobFacts
    reason: str


class Park(_OfGuest):
    """Unpins a waiting guest while no seat is free: with its pin, it would keep other jobs off the node."""


class Evict(_OfGuest):
    """Puts a running guest back into the queue."""


class Own(_OfGuest):
    """Gives a running guest, at its turn in the queue, the GPU of its seat; no other job gets that GPU from now on."""


Change = Move | Release | Park | Evict | Own


def parts_given_up(changes: Iterable[Change]) -> dict[str, int]:
    """Returns the GPUs, by node, of which packed jobs give up their parts: until that is written, Slurm may start them.

    A task with a place of its own leaves the others of its array where they are.
    """
    found: dict[str, int] = {}
    for one in changes:
        if (
            one.job.share
            and one.job.gpus
            and (isinstance(one, Release) or (isinstance(one, Move) and one.task is None))
        ):
            for name in one.job.required:
                found[name] = found.get(name, 0) | one.job.gpus
    return found


LEAVING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States of a job that was told to leave its nodes and has not left them yet."""

BY_THE_SIGNAL = frozenset({"FAILED", "OUT_OF_MEMORY"})
"""States in which a job ends if the signal that told it to leave ended it; such a job is run again."""

PATIENCE = 10.0
"""Seconds after which a job that does not leave is reported; its guard kills a guest first, or Slurm after KillWait."""

BACK_AFTER = 3.0
"""Seconds until such a job may start again: slurmd refuses a job on the node that killed it in that second."""
