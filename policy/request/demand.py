# SPDX-License-Identifier: Apache-2.0
"""The demand: the number of nodes that a job needs on this fleet, and what each of them must give."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from policy.formats.flags import Tier
from policy.request.share import Share
from policy.request.spread import SpreadNeeds
from policy.request.tiers import ALONE

if TYPE_CHECKING:
    from policy.formats.arrays import Bools
    from topology.sets.tables import Ints

A_YEAR = 365 * 86_400

ELSEWHERE = "nodes whose GPUs have no GRES types of their own may start it sooner"
"""The reason why a job is left to Slurm on a cluster of which only a part has the exact layout."""

ANY_SPREAD = 0
"""Stands for a number of nodes: the GPUs may be spread over nodes in any way."""


def binding(level: str, nodes: int) -> str:
    """Returns the level for a demand of this number of nodes; a level that the nodes meet anyway is no condition.

    >>> binding("leaf", 1), binding("leaf", 2), binding("node", 2), binding("nvlink", 1)
    ('node', 'leaf', 'any', 'nvlink')
    """
    if level == "nvlink":
        return level
    if nodes == 1:
        return "node"
    return "any" if level == "node" else level


class Size(NamedTuple):
    """Needs of a job on each of n nodes: k GPUs, CPUs and MB; None for CPUs or MB means all of the node."""

    n: int
    k: int
    cpus: int | None
    mem: int | None

    @property
    def gpus(self) -> int:
        """Returns the number of GPUs of the whole job."""
        return self.k if self.n == ANY_SPREAD else self.n * self.k


@dataclass(frozen=True, slots=True)
class Written:
    """Parts of a request that its answer writes beside the place: what a pin replaces, and what the plan keeps."""

    min_cpus: int | None = None
    min_cpus_per_node: int | None = None
    """Set if a pin removes the option that spread CPUs or tasks evenly over the nodes."""
    mem_per_node: int | None = None
    """Set if a pin removes the GPU count by which its memory was requested."""
    shut: tuple[str, ...] = ()
    """Partitions, of several, that do not admit the job (policy.cluster.partitions.shut_to)."""
    guest_after: int | None = None
    """Seconds of waiting after which it may begin as a guest; None: never."""


NOTHING_WRITTEN = Written()


@dataclass(frozen=True, slots=True)
class Demand:
    """Needs of a job, the same on each of n nodes: k GPUs, CPUs and MB; None for CPUs or MB means all of the node.

    With n = ANY_SPREAD, k counts the GPUs of the whole job, which may be on nodes in any way. Slurm cannot pin that,
    since a typed request is the same on each node. It is for estimates, and for simulations of systems that can.
    """

    n: int
    k: int
    cpus: int | None
    mem: int | None
    level: str
    limit: int
    candidates: "Bools"
    """Nodes that could ever hold it: in the partition, with the features, big enough."""
    app_class: str = "compute"
    """Class of how much a slow GPU slows the job: `compute`, `mixed`, `memory`, or a class of the site's own."""
    model: str = ""
    """Model that the job runs, if it is known and has a row of its own in the cost model."""
    share: Share | None = None
    """Part that a packed job asks of each GPU."""
    tier: Tier = ALONE
    """For whole GPUs: tells if the job owns them alone, may have a guest, or is a guest."""
    gpu_mem: int | None = None
    """MiB that a guest needs of its GPU, or a host of each of its GPUs."""
    user: int = 0
    """User of the job, where hosts and guests depend on it."""
    remaining: float = 0.0
    """Seconds of ideal run time that are left, by prediction; 0 if not known."""
    elsewhere: bool = False
    """True if nodes where Slurm alone chooses GPUs could hold it too, perhaps sooner."""
    pools: "tuple[Bools, ...]" = ()
    """Candidates of each of several partitions, in the order in which Slurm tries them. All nodes of the job must be in
    one pool. Empty if any candidates go together."""
    splits: tuple["Demand", ...] = ()
    """The same job on other numbers of nodes, few before many (policy/request/spread.py); empty if its is fixed."""
    spread: SpreadNeeds | None = None
    """Needs on each node if Slurm may lay its GPUs on nodes in any way (policy/request/spread.py)."""
    written: Written = NOTHING_WRITTEN

    @property
    def gpus(self) -> int:
        """Returns the number of GPUs of the whole job."""
        return self.k if self.n == ANY_SPREAD else self.n * self.k

    @property
    def may_go_elsewhere(self) -> bool:
        """Tells whether such a node would do: it has whole GPUs only, and no guests."""
        return self.elsewhere and self.share is None and self.tier is ALONE

    @property
    def is_piece(self) -> bool:
        """Tells whether it leaves the other GPUs of its node to other jobs.

        Jobs on shares of GPUs have rules of their own. A job that lists several partitions goes to the first one with
        room.
        """
        return self.n == 1 and self.k > 0 and self.cpus is not None and self.share is None and not self.pools

    @property
    def host_way(self) -> str:
        """Returns the way in which a host shares GPUs with guests: `mps` or `time`.

        Several GPUs of a node have one MPS daemon, which no guest could join, so such a host shares by `time`.
        """
        return "mps" if self.tier.mps and self.k == 1 else "time"

    def lasting(self, limit: int) -> "Demand":
        """Returns the same demand with another time limit."""
        return replace(self, limit=limit, splits=tuple(one.lasting(limit) for one in self.splits))

    def at(self, level: str) -> "Demand":
        """Returns the demand at a level that its user named; several nodes cannot meet the level `node`."""
        if not self.splits and binding(level, self.n) == self.level:
            return self
        others = [one for one in self.splits if one.n == 1 or level != "node"]
        return replace(
            self,
            level=binding(level, self.n),
            splits=tuple(replace(one, level=binding(level, one.n)) for one in others),
        )

    def at_level(self, level: str) -> "Demand":
        """Returns the same demand at another level, on this number of nodes only."""
        return replace(self, level=level, splits=())

    def parts(self) -> tuple["Demand", ...]:
        """Returns the same demand for each pool; only the demand itself if any candidates go together."""
        return tuple(replace(self, candidates=pool, pools=()) for pool in self.pools) if self.pools else (self,)

    def within(self, nodes: "Bools") -> "Demand":
        """Returns the same demand on some nodes only."""
        return replace(
            self,
            candidates=self.candidates & nodes,
            pools=tuple(pool & nodes for pool in self.pools),
            splits=tuple(split.within(nodes) for split in self.splits),
            spread=None if self.spread is None else self.spread.within(nodes),
        )

    def without(self, nodes: "Sequence[int] | Ints") -> "Demand":
        """Returns the same demand without some nodes."""
        others = np.ones(len(self.candidates), np.bool_)
        # Not as a tuple, which numpy takes for an index of several dimensions.
        others[np.asarray(nodes, np.int64)] = False
        return self.within(others)

    def with_splits(self, others: Iterable["Demand"]) -> "Demand":
        """Returns the demand with its other splits: those whose nodes exist, and that need the same CPUs on each."""
        if self.tier is not ALONE:
            return self
        return replace(self, splits=tuple(one for one in others if one.cpus == self.cpus and one.could_be_held))

    @property
    def every_split(self) -> tuple["Demand", ...]:
        """Returns the demand on each number of nodes that it may have, few before many."""
        if not self.splits:
            return (self,)
        return tuple(sorted((replace(self, splits=()), *self.splits), key=lambda one: one.n))

    def on(self, nodes: int) -> "Demand":
        """Returns the demand on so many nodes, if it may have these; the others become `splits`."""
        if nodes == self.n:
            return self
        every = self.every_split
        chosen = next((one for one in every if one.n == nodes), None)
        if chosen is None:
            return self
        others = tuple(one for one in every if one is not chosen)
        return replace(chosen, splits=others, spread=self.spread)

    @property
    def could_be_held(self) -> bool:
        """Tells whether there are enough nodes that could ever hold it."""
        return any(int(part.candidates.sum()) >= self.n for part in self.parts())
