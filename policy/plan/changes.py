"""What a plan changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Berth


@dataclass(frozen=True, slots=True)
class Move:
    """Pin a waiting job elsewhere."""

    job: JobFacts
    berth: Berth
    start: float
    """0 for at once."""
    reason: str
    task: int | None = None
    """The task of an array that gets a place of its own."""
    adopted: Mapping[str, str] = field(default_factory=dict)
    """What its segment does not say yet of what it needs, for a job that berthd did not answer for."""
    way: str = ""
    """For a seat, how guest and host share the GPU; empty for GPUs of its own."""
    slope: float | None = None
    """For a seat beside a host, the speed that this is predicted to lose at most."""
    sms: int | None = None
    """For a seat under MPS, percent of the SMs that the guest is held to."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give a waiting job back to Slurm."""

    job: JobFacts
    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """Take a waiting guest off its node while no seat is free: pinned, it would keep the node from others."""

    job: JobFacts
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Put a running guest back into the queue."""

    job: JobFacts
    reason: str


@dataclass(frozen=True, slots=True)
class Own:
    """Give a running guest, whose turn has come, the GPU that it sits on: from now on it goes to nobody else."""

    job: JobFacts
    reason: str


Change = Move | Release | Park | Evict | Own


PATIENCE = 10.0
"""Seconds after which a guest that does not end is spoken of; Slurm kills it after KillWait, its guard before."""


BACK_AFTER = 3.0
"""Seconds until a guest may start again: slurmd refuses a job on the node that killed it in the same second."""
