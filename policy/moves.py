"""What a plan changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    adopted: Mapping[str, str] = field(default_factory=dict)
    """What its segment does not say yet of what it needs, for a job that berthd did not answer for."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give a waiting job back to Slurm."""

    job: JobFacts
    reason: str


Change = Move | Release
