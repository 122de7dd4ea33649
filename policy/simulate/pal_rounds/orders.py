"""In which order the jobs of a simulated queue are served: one small function each, least first.

An order sees what a job has got so far. `las` and `srtf` count service in seconds on the wall clock, as PAL's
artifact does: on slow GPUs its `srtf` therefore believes that less is left than really is. `srtf-true` and `srsf`
count the work that is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from policy.formats.errors import UsageError, nearest

if TYPE_CHECKING:
    from policy.placement.base import Berth
    from policy.request.demand import Demand
    from policy.simulate.jobs import Job


@dataclass(slots=True, eq=False)
class Progress:
    """One job in a simulation, and how far it is; times are in seconds."""

    job: "Job"
    number: int
    """Place in the order of arrival."""
    demand: "Demand"
    done: float = 0.0
    """Work done, as on GPUs of score 1 on one node."""
    service: float = 0.0
    """Time it has run on the wall clock."""
    start: float | None = None
    """First start."""
    since: float = 0.0
    """When it got the berth that it has."""
    berth: "Berth | None" = None
    slowdown: float = 1.0
    """True time for each unit of work on that berth."""
    debt: float = 0.0
    """What is left to pay for a move before work goes on."""

    @property
    def left(self) -> float:
        """Work that is left."""
        return self.job.work - self.done

    def demand_now(self) -> "Demand":
        """What it asks for, with the work that is left."""
        return replace(self.demand, remaining=self.left)


Order = Callable[[Progress], float]


def fifo(one: Progress) -> float:
    """First come, first served."""
    return one.job.submit


def las(one: Progress) -> float:
    """Least attained service first."""
    return one.service


def srtf(one: Progress) -> float:
    """Shortest remaining time first, as PAL's artifact reckons it: run time at full speed minus time it ran."""
    return one.job.work - one.service


def srtf_true(one: Progress) -> float:
    """Shortest remaining time first, by the work that is really left."""
    return one.left


def srsf(one: Progress) -> float:
    """Shortest remaining service first: work that is really left x GPUs."""
    return one.left * one.job.gpus


ORDERS: Mapping[str, Order] = {"fifo": fifo, "las": las, "srtf": srtf, "srtf-true": srtf_true, "srsf": srsf}

UNCHANGING = frozenset({"fifo"})
"""Orders in which running changes nothing."""


def order_named(name: str) -> Order:
    """The order of that name."""
    if name not in ORDERS:
        raise UsageError(f"there is no order {name}{nearest(name, ORDERS)}; known are {', '.join(ORDERS)}")
    return ORDERS[name]
