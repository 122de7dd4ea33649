"""Splits: the ways in which `--gpus=N` may lie on nodes, such as 8 = 1 x 8, 2 x 4, 4 x 2 or 8 x 1.

A job may be split if its user gives no number of nodes and says by `--locality` how near its GPUs must be. Slurm gives
such a job one task on each of its nodes, with the CPUs of a task and the memory of a node. So the job has its request
on each node, and a pin only has to change the number of nodes. Jobs that tie tasks or CPUs to nodes or GPUs keep one
split: a pin could not give them what Slurm would.
"""

from collections.abc import Iterable
from dataclasses import replace

from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.plan_fields import SPLITS
from policy.formats.split_text import Split
from policy.request.demand import Demand
from policy.request.locality import binding
from policy.request.parse import Request
from policy.request.tiers import ALONE

MOST_NODES = 64
"""Most nodes that a job is split over by choice."""

MOST_SPLITS = 6
"""Most splits of one job: each one costs a search."""


def may_split(request: Request) -> bool:
    """Tells whether a pin may choose the job's number of nodes."""
    fixed = request.nodes is not None or bool(request.only) or request.total is None or request.total < 2
    tied = request.tied or request.tasks is not None or request.tasks_per_node is not None
    bound = tied or request.min_cpus_per_node > request.cpus_per_task or request.min_cpus > request.cpus_per_task
    other = request.array or request.het or request.whole_nodes or request.share is not None or not request.batch
    return request.locality is not None and not (fixed or bound or other)


def more_nodes(gpus: int, nodes: int) -> list[tuple[int, int]]:
    """Returns the splits on more than some nodes, as pairs of nodes and GPUs on each.

    >>> more_nodes(8, 1), more_nodes(6, 2)
    ([(2, 4), (4, 2), (8, 1)], [(3, 2), (6, 1)])
    """
    most = min(gpus, MOST_NODES)
    return [(n, gpus // n) for n in range(nodes + 1, most + 1) if gpus % n == 0][: MOST_SPLITS - 1]


def joined(first: Demand, others: Iterable[Demand]) -> Demand:
    """Returns the demand with its other splits: those whose nodes exist, and that need the same CPUs on each."""
    if first.tier is not ALONE:
        return first
    return replace(first, splits=tuple(one for one in others if one.cpus == first.cpus and one.could_be_held))


def at(demand: Demand, level: str) -> Demand:
    """Returns the demand at a level that its user named; several nodes cannot meet the level `node`."""
    if not demand.splits and binding(level, demand.n) == demand.level:
        return demand
    others = [one for one in demand.splits if one.n == 1 or level != "node"]
    return replace(
        demand,
        level=binding(level, demand.n),
        splits=tuple(replace(one, level=binding(level, one.n)) for one in others),
    )


def kept(demand: Demand) -> JobPlan:
    """Returns what the plan keeps of the splits; nothing for a job that may not be split."""
    if not demand.splits:
        return NOTHING
    return JobPlan.of(SPLITS(tuple(Split(one.n, one.mem) for one in demand.every_split)))


def on_nodes(nodes: int) -> str:
    """Returns the words for a number of nodes.

    >>> on_nodes(1), on_nodes(4)
    ('one node', '4 nodes')
    """
    return "one node" if nodes == 1 else f"{nodes} nodes"
