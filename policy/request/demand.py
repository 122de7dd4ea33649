"""From a `Request` to a `Demand` on this fleet: how many nodes, and what each has to give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from policy.formats.flags import Tier
from policy.request.share import Share
from policy.request.tiers import ALONE

if TYPE_CHECKING:
    from policy.formats.arrays import Bools
    from topology.tables import Ints

A_YEAR = 365 * 86_400

ANY_SPREAD = 0
"""In place of a number of nodes: the GPUs may be spread over nodes in any way."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The same on each of n nodes: k GPUs, CPUs and MB; None for CPUs or MB means all of the node.

    With n = ANY_SPREAD the k GPUs are the whole job's, and may lie on nodes in any way. Slurm cannot pin that, since
    a typed request is the same on each node: it is for simulations of systems that can, and for estimates.
    """

    n: int
    k: int
    cpus: int | None
    mem: int | None
    level: str
    limit: int
    candidates: "Bools"
    """Nodes that could ever hold it: in the partition, with the features, big enough."""
    min_cpus_per_node: int | None = None
    """Set where a pin takes away what spread CPUs or tasks evenly over the nodes."""
    min_cpus: int | None = None
    app_class: str = "compute"
    """How much the job suffers from a slow GPU: `compute`, `mixed`, `memory`, or a class of the site's own."""
    model: str = ""
    """What the job runs, where that is known and has a row of its own in the cost model."""
    share: Share | None = None
    """What it asks of each GPU, for a packed job."""
    mem_per_node: int | None = None
    """Set where a pin takes away the GPUs that its memory hung on."""
    tier: Tier = ALONE
    """Of whole GPUs: whether it owns them alone, may have a guest, or is one."""
    gpu_mem: int | None = None
    """MiB of its GPU that a guest needs, or a host on each of its own."""
    user: int = 0
    """Whose it is, where hosts and guests are told apart by it."""
    guest_after: int | None = None
    """Seconds of waiting after which it may begin as a guest; None: never."""
    remaining: float = 0.0
    """Seconds of ideal run time that are left, as far as predicted; 0 where nobody can say."""
    pools: "tuple[Bools, ...]" = ()
    """Of several partitions, their candidates, first those that Slurm tries first: all its nodes are in one of them.
    Empty where any of the candidates go together."""

    shut: tuple[str, ...] = ()
    """Those of several partitions that do not admit it (policy.cluster.partitions.shut_to)."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        return self.k if self.n == ANY_SPREAD else self.n * self.k

    @property
    def host_way(self) -> str:
        """How a host shares GPUs with guests: several of a node have one MPS daemon, which no guest could join."""
        return "mps" if self.tier.mps and self.k == 1 else "time"

    def at_level(self, level: str) -> "Demand":
        """The same demand at another level."""
        return replace(self, level=level)

    def parts(self) -> tuple["Demand", ...]:
        """The same demand in one partition after the other; itself where any candidates go together."""
        return tuple(replace(self, candidates=pool, pools=()) for pool in self.pools) if self.pools else (self,)

    def within(self, nodes: "Bools") -> "Demand":
        """The same demand on some nodes alone."""
        return replace(self, candidates=self.candidates & nodes, pools=tuple(pool & nodes for pool in self.pools))

    def without(self, nodes: "Sequence[int] | Ints") -> "Demand":
        """The same demand anywhere but on some nodes."""
        others = np.ones(len(self.candidates), np.bool_)
        # A tuple would be taken for an index of several dimensions.
        others[list(nodes)] = False
        return self.within(others)

    @property
    def could_be_held(self) -> bool:
        """Whether there are enough nodes that could ever hold it."""
        return any(int(part.candidates.sum()) >= self.n for part in self.parts())
