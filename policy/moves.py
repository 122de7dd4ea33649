"""What a plan changes."""

from dataclasses import dataclass

from policy.facts import JobFacts
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


@dataclass(frozen=True, slots=True)
class Release:
    """Give a waiting job back to Slurm."""

    job: JobFacts
    reason: str


Change = Move | Release
