# SPDX-License-Identifier: Apache-2.0
"""Works out how long slurmctld holds its locks for berthd's calls.

From what each kind of call took there by `sdiag`, on a real slurmctld with 12,000 jobs and 1,024 nodes
(docs/develop/load.md), and by the rules of slurm_plugins/berth_slurm/gateway_read.c: many jobs are asked for their
states first, and a look at all nodes, or at all of many jobs, comes when fifty times its cost has gone by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from policy.slurm.by_library.between_looks import LEAVE_ALONE, MOST_LATE, NODE_US

JOB_US, STATE_US, UPDATE_US, SINGLE_US = 7.7, 0.13, 222.0, 91.0
"""Microseconds for a job or its state in a look at all of them, for an update, and for a look at one job."""

STATES_FROM, WHOLE_EVERY_S, MOST_SINGLE, SINGLE_COSTS = 2_000, 5.0, 4_096, 12


class SlurmLook(NamedTuple):
    """A look at Slurm."""

    at: float
    jobs: int
    """All that Slurm has."""
    changed: int
    nodes: int
    """All nodes, if it looked at them; else 0."""


def leave_alone_s(records: int, each_us: float = NODE_US) -> float:
    """Seconds from a look at so many records to the next."""
    return min(MOST_LATE, LEAVE_ALONE * records * each_us / 1e6)


def of_looks(looks: Iterable[SlurmLook]) -> float:
    """Milliseconds for these looks."""
    total, whole_due = 0.0, 0.0
    for at, jobs, changed, nodes in looks:
        total += nodes * NODE_US
        if jobs >= STATES_FROM:
            total += jobs * STATE_US
            if at < whole_due and changed <= MOST_SINGLE and changed * SINGLE_COSTS <= jobs:
                total += changed * SINGLE_US
                continue
            whole_due = at + max(WHOLE_EVERY_S, leave_alone_s(jobs, JOB_US))
        total += jobs * JOB_US
    return total / 1_000


def of_calls(updates: int, singles: int) -> float:
    """Milliseconds for updates, and for the looks at one job."""
    return (updates * UPDATE_US + singles * SINGLE_US) / 1_000
