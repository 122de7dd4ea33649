"""Compares Slurm's choice for a job that has just started with Berth's: for a site that only watches at first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.plan.ledger.book import Book
from policy.plan.ledger.pinnable import in_first_part
from policy.request.demand import Demand


@dataclass(frozen=True, slots=True)
class Comparison:
    """The GPUs that a job got, and the best GPUs that were free at that moment."""

    got: Berth
    best: Berth

    @property
    def gain(self) -> float:
        """Returns by how much shorter the job is predicted to run on the best GPUs; 0.05 is five percent."""
        return 1.0 - self.best.cost / self.got.cost

    @property
    def better_links(self) -> bool:
        """Tells whether the best GPUs are better linked."""
        return self.best.paths > self.got.paths


def compare(book: Book, demand: Demand, nodes: Sequence[int], masks: Sequence[int], policy: Policy) -> Comparison:
    """Chooses again as if the job's GPUs were free, and compares."""
    view = book.cluster.now(demand.limit)
    here = list(nodes)
    free, cpus, mem = view.free.copy(), view.cpus.copy(), view.mem.copy()
    free[here] |= np.array(masks, np.int64)
    cpus[here] += view.fleet.cpus[here] if demand.cpus is None else demand.cpus
    mem[here] += view.fleet.mem[here] if demand.mem is None else demand.mem
    then = replace(view, free=free, cpus=cpus, mem=mem)
    got = Policy.spread(demand, then, nodes, masks, "what Slurm chose")
    try:
        best = in_first_part(demand, lambda part: policy.place(part, then))
    except NotNow:
        best = got
    # Links alone may make a set better that has the same cost. A set with a higher cost is not better.
    return Comparison(got, best if best.cost <= got.cost else got)
