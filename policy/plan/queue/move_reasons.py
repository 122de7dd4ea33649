"""The reasons for which a waiting job gets another place, or gives its place back."""

from policy.formats.plan_fields import LEVEL
from policy.placement.base import Berth
from policy.plan.jobs.waiting import Waiting
from policy.request.spread import on_nodes
from topology.fabric import LEVELS


def relaxed(entry: Waiting, at: float) -> str:
    """Returns why a job may now take less than it asked for; empty if it may not, or has already taken less."""
    if entry.level.insists is None or at < entry.level.until:
        return ""
    level = entry.insisted_level
    if not _nearest_was_taken(entry, level):
        return ""
    if level == "nvlink":
        where = "one node" if entry.demand.n == 1 else f"{entry.demand.n} nodes"
        return f"its wait for NVLink between all pairs has ended, any GPUs of {where} will do"
    nodes = "nodes" if entry.demand.splits else f"{entry.demand.n} nodes"
    return f"its wait for one {level} has ended, the nearest {nodes} will do"


def _nearest_was_taken(entry: Waiting, level: str) -> bool:
    """Tells whether a job's present place is as near as it insisted on; on one node it may be nearer."""
    had = entry.job.known.get(LEVEL, "")
    return had == level or (bool(entry.demand.splits) and had in LEVELS and LEVELS.index(had) < LEVELS.index(level))


def starts_now(entry: Waiting, berth: Berth) -> str:
    """Returns why a job gets a place that is free now."""
    nodes = len(berth.nodes)
    other = entry.demand.splits and nodes != entry.demand.n
    return f"it can start now on {on_nodes(nodes)}" if other else "it can start there now"
