"""The reasons for which a waiting job gets another place, or gives its place back."""

from policy.formats.plan_fields import LEVEL
from policy.formats.slurm_facts import JobFacts
from policy.placement.base import Berth
from policy.plan.jobs.waiting import OF_ONE_PARTITION, Waiting, impossible
from policy.plan.ledger.book import Book
from policy.plan.opinions.splitting import on_nodes
from policy.request.demand import ELSEWHERE
from topology.fabric import LEVELS

STUCK_AFTER = 120
"""Seconds for which a job may fail to start on a place that looks free; then its place is given up."""

_BLAMES_PLACE = ("Resources", "ReqNodeNotAvail", "Nodes_required", "Reservation")
_BLAMES_PARTITION = ("None", *OF_ONE_PARTITION)


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


def may_be_its_place(entry: Waiting) -> bool:
    """Tells whether the place may be why a job does not start on it though it looks free, by Slurm's reason.

    If the place is in the wrong one of several partitions, Slurm names no reason, or that of another partition.
    """
    return entry.job.reason.startswith(_BLAMES_PLACE + _BLAMES_PARTITION if entry.apart else _BLAMES_PLACE)


def why_given_back(job: JobFacts, seconds: int) -> str:
    """Returns why a job that did not start for so many seconds is left to Slurm."""
    if impossible(job):
        return "no place can ever start it as it is now"
    return f"it did not start in {seconds} s on a place that looks free"


def given_back(entry: Waiting, book: Book, *, stuck: bool, ahead: bool, in_part: bool) -> str:
    """Returns why a job that found no better place is left to Slurm; empty if it keeps its pin.

    `ahead`: it may be pinned to a place that is not free yet. `in_part`: only some nodes are planned again.
    """
    alone = book.fleet.nodes_alone
    if stuck:
        return why_given_back(entry.job, STUCK_AFTER)
    if alone and not entry.nodes and entry.job.gpus is not None and not in_part:
        return "its nodes are not for it any more, and no others are in sight"
    if entry.nodes and entry.level.insists is None and entry.demand.may_go_elsewhere:
        return f"its place is not free, and {ELSEWHERE}"
    if entry.nodes and not ahead:
        if alone:
            return "its place is not free, and Slurm may start it elsewhere"
        # With this pin Slurm could preempt only the jobs that run at this place.
        return "its place is not free, and Slurm may preempt for it elsewhere"
    return ""
