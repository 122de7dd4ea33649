# SPDX-License-Identifier: Apache-2.0
"""Checks that an owner's job waits at most a minute for a guest that has to leave."""

from __future__ import annotations

from dataclasses import replace

from policy.formats import segment
from tests.world import closers
from tests.world.checks import ViolationError
from tests.world.cluster import BLOCKING, ModelCluster, ModelJob, ModelNode, Portion

LONGEST_WAIT = 60.0
"""Seconds that an owner waits at most for a guest to leave, with nothing else in its way."""


def no_owner_waits_long(cluster: ModelCluster, since: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """An owner whose place is free but for a guest has it soon; returns since when each waits for each guest."""
    found: dict[tuple[int, int], float] = {}
    for owner in filter(_may_start, cluster.jobs.values()):
        portion, place = owner.portion(), closers.place_of(owner)
        if owner.begin > cluster.now or portion is None or not portion.gpus or not portion.seats:
            continue
        if not all(name in cluster.nodes and _has_room_but_for_guests(cluster.nodes[name], portion) for name in place):
            continue  # a node or an owner is in its way, and a guest may use its GPUs meanwhile
        if any(_goes_first(other, owner, portion, place) for other in cluster.jobs.values()):
            continue  # Slurm keeps its GPUs for another job, and a guest may use them until that starts
        for name in place:
            for number, held in cluster.nodes[name].held.items():
                if held.seats & portion.seats and not held.gpus and cluster.jobs[number].state == "RUNNING":
                    found[owner.id, number] = since.get((owner.id, number), cluster.now)
    for (owner_id, guest), began in found.items():
        if cluster.now - began > LONGEST_WAIT:
            raise ViolationError(f"job {owner_id} waits for guest {guest} for {cluster.now - began:.0f} s")
    return found


def _may_start(job: ModelJob) -> bool:
    """Tells whether a job waits for its place alone, and not for another task of its array."""
    pinned = _values(job).get("state") == "placed"
    return pinned and job.waits and not (job.held or job.touched or job.tasks or job.reason == "JobArrayTaskLimit")


def _goes_first(other: ModelJob, owner: ModelJob, portion: Portion, place: list[str]) -> bool:
    """Tells whether a job waits before the owner for one of its GPUs."""
    if not other.waits or other.held or other.priority <= owner.priority or "nodes" not in _values(other):
        return False
    wants = other.portion()
    return wants is not None and bool(wants.gpus & portion.gpus) and not set(place).isdisjoint(closers.place_of(other))


def _values(job: ModelJob) -> dict[str, str]:
    return segment.fields(job.admin_comment) or {}


def _has_room_but_for_guests(node: ModelNode, wants: Portion) -> bool:
    rest = {number: held for number, held in node.held.items() if held.gpus or not held.seats}
    return not node.flags & BLOCKING and replace(node, held=rest).fits(wants)
