"""Works out how long slurmctld holds its locks for berthd's calls.

From what each kind of call took there by `sdiag`, on a real slurmctld with 12,000 jobs and 1,024 nodes (docs/load.md).
"""

from __future__ import annotations

from dataclasses import dataclass

JOB_US, NODE_US, UPDATE_US, SINGLE_US = 7.7, 58.0, 222.0, 91.0
"""Microseconds for a job or a node in a look at all of them, for an update, and for a look at one job."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What was asked of Slurm in some time."""

    jobs: int
    """Records of jobs in all looks at all of them."""
    nodes: int
    updates: int
    singles: int

    @property
    def held_ms(self) -> float:
        """Returns the milliseconds for which slurmctld's locks are held."""
        used = self.jobs * JOB_US + self.nodes * NODE_US + self.updates * UPDATE_US + self.singles * SINGLE_US
        return used / 1_000
