# SPDX-License-Identifier: Apache-2.0
"""Company: predicted speeds of packed jobs that share a GPU. The snapshot carries the predictor to the placement."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from policy.cluster.shared.tenants import PlannedTenant
from policy.request.share import Share


@dataclass(frozen=True, slots=True)
class Meeting:
    """The prediction for a packed job that joins others."""

    own: float = 1.0
    """Its speed, relative to its speed with its share alone."""
    theirs: float = 1.0
    """The same of the slowest of the jobs that are there."""
    least: float = 1.0
    """Lowest promised speed of all these jobs."""
    lost: float = 0.0
    """Percent of a GPU that all of them lose because the job joins."""
    known: bool = False
    """True if something is known of it and of at least one of the others."""


NOBODY_KNOWN = Meeting()


class Company(Protocol):
    """Predicts the speeds of packed jobs on one GPU; `policy.sharing.neighbours` has a predictor that uses profiles."""

    least: float
    """Part of its speed that each job has to be promised."""

    def adopt(self, old: object) -> None:
        """Takes over the cached results of another predictor."""
        ...

    def bears(self, meeting: Meeting) -> bool:
        """Tells whether all of the jobs keep their speed."""
        ...

    def meeting(self, share: Share, there: Iterable[PlannedTenant]) -> Meeting:
        """Returns the prediction for a job that joins these tenants."""
        ...
