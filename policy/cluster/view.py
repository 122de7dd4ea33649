"""What is free at one moment, as a placement policy sees it."""

from dataclasses import dataclass, replace

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Bools
from topology.tables import Ints


@dataclass(frozen=True, slots=True)
class View:
    """What is free at one moment: all that a placement policy needs to know."""

    fleet: Fleet
    free: Ints
    cpus: Ints
    mem: Ints
    open: Bools
    """Nodes that take jobs at that moment, for as long as the job may run."""
    quiet: Bools
    """Nodes without a job in its epilog: those start a job at once."""
    crowded: bool = False
    """Whether most GPUs are taken: what one job leaves, another takes."""

    def with_free(self, free: Ints) -> "View":
        """The same moment with other GPUs free."""
        return replace(self, free=free)
