"""What Berth would have chosen for a job that Slurm has just started: for a site that watches before it acts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.plan.book import Book, in_first_part
from policy.request.demand import Demand


@dataclass(frozen=True, slots=True)
class Comparison:
    """The GPUs that a job got, and the best that were free at that moment."""

    got: Berth
    best: Berth

    @property
    def gain(self) -> float:
        """By how much shorter the job is predicted to run on the best; 0.05 is five percent."""
        return 1.0 - self.best.cost / self.got.cost

    @property
    def better_links(self) -> bool:
        """Whether the best ones are joined better."""
        return self.best.paths > self.got.paths


def compare(book: Book, demand: Demand, nodes: Sequence[int], masks: Sequence[int], policy: Policy) -> Comparison:
    """Give the job's GPUs back in thought, and choose again."""
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
    # By links alone a set may be better that the formula sees as equal; one that it sees as worse is none.
    return Comparison(got, best if best.cost <= got.cost else got)
