# SPDX-License-Identifier: Apache-2.0
"""The view: what is free at one moment, as input of a placement policy."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Bools
from topology.sets.tables import Ints


@dataclass(frozen=True, slots=True)
class View:
    """Free resources at one moment: all the state that a placement policy needs."""

    fleet: Fleet
    free: Ints
    cpus: Ints
    mem: Ints
    open: Bools
    """Nodes that take jobs at that moment, for as long as the job may run."""
    quiet: Bools
    """Nodes without a job in its epilog: a job starts there at once."""
    crowded: bool = False
    """True if most GPUs are taken: GPUs that one job leaves are soon taken by another."""
    cpus_per_gpu: float = 0.0
    """CPUs that usual jobs have for each GPU; 0 if not known."""
    shared_left: Callable[[Ints], Ints] | None = None
    """Returns the percent left of the shared GPUs of each of some nodes, all together; None if no GPU is shared."""

    def with_free(self, free: Ints) -> "View":
        """Returns the same view with other GPUs free."""
        return replace(self, free=free)
