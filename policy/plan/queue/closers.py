# SPDX-License-Identifier: Apache-2.0
"""Chooses the waiting jobs that close their partitions to Slurm's main pass, so that Slurm gives its usual reasons.

A waiting job that requires its nodes closes nothing: Slurm takes its nodes out of the pass, tests the jobs behind it,
and says of each whose node is taken that this node is not available. If excluded nodes alone keep the first waiting job
on its place, it gets `Resources` and all behind it get `Priority`, as without Berth. But none of them starts in the
main pass then. So a job closes its partition only while no job behind it can start (decision 018).
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from policy.cluster.fleet import Fleet
from policy.cluster.partitions import names_in
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting import Waiting

DEPTH = 100
"""Jobs of the queue that are looked at: Slurm's main pass tests no more (default_queue_depth)."""


def in_the_way(queue: Sequence[Waiting], fleet: Fleet, closing: AbstractSet[int]) -> list[JobFacts]:
    """Returns the jobs that close a partition in which a job behind them can start now."""
    if not closing:
        return []
    starting = [number for number, entry in enumerate(queue) if entry.last.start == 0.0]
    return [
        entry.job
        for number, entry in enumerate(queue)
        if entry.job.id in closing
        and any(later > number and _is_in(queue[later], fleet, entry.job.partition) for later in starting)
    ]


def closers(queue: Sequence[Waiting], fleet: Fleet) -> dict[str, JobFacts]:
    """Returns the job that is to close each partition where others wait too: the first behind all that can start.

    A partition with a node that no list names stays open: the job could start there.
    """
    found = {}
    starting = [entry for entry in queue[DEPTH:] if entry.last.start == 0.0]
    tested = [entry for entry in queue[:DEPTH] if entry.last.start == 0.0 or entry.job.may_start]
    for name, members in fleet.members.items():
        unnamed = any(members[fleet.index[node]] for node in fleet.unnamed if node in fleet.index)
        if unnamed or any(_is_in(entry, fleet, name) for entry in starting):
            continue
        line = [entry for entry in tested if _is_in(entry, fleet, name)]
        last = max((number for number, entry in enumerate(line) if entry.last.start == 0.0), default=-1)
        # Slurm's main pass tests no job on the nodes of one before it that cannot start.
        taken = {node for entry in line[: last + 1] if entry.last.start != 0.0 for node in entry.nodes}
        for entry in line[last + 1 : -1]:
            if not entry.nodes:
                break  # Slurm alone places it, and closes the partition for it
            job = entry.job
            plain = entry.plain and job.partition == name and not (job.excluded or job.reservation)
            if plain and taken.isdisjoint(entry.nodes):
                found[name] = job
                break
            taken.update(entry.nodes)
    return found


def _is_in(entry: Waiting, fleet: Fleet, partition: str) -> bool:
    """Tells whether a job waits in a partition, or for nodes of it; of one that is not known, any job may."""
    members = fleet.members.get(partition)
    return members is None or partition in names_in(entry.job.partition) or bool(members[list(entry.last.place)].any())
