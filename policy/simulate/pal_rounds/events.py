"""Events that change a simulated cluster while jobs run, and the interface of those who observe running jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from policy.formats.arrays import Floats
    from policy.placement.base import Berth
    from policy.request.demand import Demand


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A time in which a node is slower: all true scores of its GPUs are multiplied by a factor.

    It is in force in each round that begins between `start` and `end`, which are in seconds.
    """

    node: int
    start: float
    end: float
    factor: float


@dataclass(frozen=True, slots=True)
class RoundShowed:
    """The measured times of a job that ran in a round."""

    job: str
    demand: "Demand"
    berth: "Berth"
    times: "Floats"
    """Time for a unit of work on each of its GPUs, without waits for each other; by node, then position."""


class RoundWatch(Protocol):
    """Learns from the times of running jobs, and sets the scores that policies use."""

    def observe(self, at: float, running: Sequence[RoundShowed]) -> None:
        """Takes the times of a round; called at the end of each round."""

    def scores(self, at: float) -> "Mapping[str, Floats] | None":
        """Returns the scores that policies use from now on; None: no change. Called before each placement."""
