# SPDX-License-Identifier: Apache-2.0
"""The orders of a simulated queue: one small function each, least first.

An order uses the service that a job has had so far. `las` and `srtf` count service in seconds on the wall clock, as
PAL's artifact does. On slow GPUs its `srtf` therefore underestimates the time that is left. `srsf` counts the work
that is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from policy.placement.base import Berth
from policy.request.demand import Demand
from policy.simulate.jobs import TraceJob


@dataclass(slots=True, eq=False)
class JobProgress:
    """One job in a simulation, and its progress; times are in seconds."""

    job: TraceJob
    number: int
    """Place in the order of arrival."""
    demand: Demand
    done: float = 0.0
    """Work done, in seconds on GPUs of score 1 on one node."""
    service: float = 0.0
    """Time it has run, on the wall clock."""
    start: float | None = None
    """First start."""
    since: float = 0.0
    """The time at which it got its present berth."""
    berth: Berth | None = None
    slowdown: float = 1.0
    """True time for each unit of work on that berth."""
    debt: float = 0.0
    """Seconds of a move that are still to be paid before work goes on."""

    @property
    def left(self) -> float:
        """Work that is left."""
        return self.job.work - self.done

    def demand_now(self) -> Demand:
        """Returns its demand, with the work that is left."""
        return replace(self.demand, remaining=self.left)


Order = Callable[[JobProgress], float]


def fifo(one: JobProgress) -> float:
    """Sorts by submission: first come, first served."""
    return one.job.submit


def las(one: JobProgress) -> float:
    """Sorts by attained service, the least first."""
    return one.service


def srtf(one: JobProgress) -> float:
    """Sorts by remaining time as in PAL's artifact, the shortest first: run time at full speed minus time it ran."""
    return one.job.work - one.service


def srsf(one: JobProgress) -> float:
    """Sorts by remaining service, the least first: work that is really left x GPUs."""
    return one.left * one.job.gpus


ORDERS: Mapping[str, Order] = {"fifo": fifo, "las": las, "srtf": srtf, "srsf": srsf}

UNCHANGING = frozenset({"fifo"})
"""Orders that do not depend on how long jobs have run."""
