# SPDX-License-Identifier: Apache-2.0
"""Jobs that list several partitions (`-p a,b`): finds the partitions that may start such a job, and their nodes.

Slurm starts the job in one of them, only on nodes of that partition, and tries those of a higher PriorityTier first.
A job that is pinned to nodes of two partitions, or of one that is down or does not admit it, would wait for ever: so
only the others count. For a job that lists one partition this is not checked, as there is no other place for it.

Whether a partition admits a job depends on the user's groups, the account and the QOS. Slurm at once refuses a job that
is placed in a partition which does not admit it. So "not known" is an answer of its own: an account may be below one
that is listed, and a job that names no QOS gets a default one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Bools
from policy.formats.errors import LeftToSlurm
from policy.formats.slurm_facts import AdmissionRule, Memory, PartitionFacts

BLAMED_FOR = 3_600.0
"""Seconds for which a job is not placed in a partition that did not start it on a free place.

Only Slurm knows for sure which jobs the partition admits."""


@dataclass(frozen=True, slots=True)
class Submitter:
    """The account, QOS and groups of a new job, as the request gives them."""

    account: str = ""
    qos: str = ""
    by_groups: frozenset[str] | None = None
    """The partitions, of those it lists, that admit its user's groups; None if slurmctld did not say."""


@dataclass(frozen=True, slots=True)
class UsablePartitions:
    """The usable partitions of those that a job lists."""

    names: tuple[str, ...]
    """Partitions that it may be placed in, in Slurm's order."""
    tier: int
    """Highest PriorityTier of those that may start it: Slurm tries the job there first."""
    apart: bool
    """True if a place may be in the wrong partition, while another one would start the job."""


def names_in(listed: str) -> tuple[str, ...]:
    """Returns the partitions of a list, each once and in order: a user may name one a thousand times."""
    return tuple(dict.fromkeys(listed.split(","))) if "," in listed else (listed,)


def not_skipped(fleet: "Fleet", listed: str) -> str:
    """Returns the partitions of a list that Berth handles, whose rules hold for the job; all if it handles none."""
    return ",".join(name for name in names_in(listed) if name not in fleet.skipped) or listed


def placed_in(fleet: "Fleet", listed: str) -> str:
    """Returns the partitions whose nodes Berth may give a job; all if Slurm wants nodes that are in all of them."""
    return listed if fleet.in_all_partitions else not_skipped(fleet, listed)


@dataclass(frozen=True, slots=True)
class PartitionTerms:
    """The terms of a list of partitions: they are the same for all jobs that name it."""

    names: str
    """Partitions whose nodes Berth may give a job."""
    listed: tuple[str, ...]
    """The same one by one."""
    rules_of: str
    """Partitions whose rules hold for the job."""
    whole_nodes: bool
    """True if one of them hands out whole nodes."""
    cpus_by_gpu: bool
    memory: "Memory"
    """Memory of a job that asks for none."""
    most_cpus: float
    """CPUs on each node that a job may use."""


def terms_of(fleet: "Fleet", listed: str) -> PartitionTerms:
    """Returns the terms of a list of partitions; raises `LeftToSlurm` if Slurm alone knows one."""
    for name in listed.split(","):
        if name not in fleet.partitions:
            raise LeftToSlurm(f"partition {name} is not known", 209)
    names = placed_in(fleet, listed)
    partitions = [fleet.partitions[name] for name in names.split(",")]
    if apart := next((one.name for one in partitions if one.apart), ""):
        raise LeftToSlurm(
            f"partition {apart} keeps its nodes or blocks apart (ExclusiveUser, ExclusiveTopo): Slurm knows for whom",
            211,
        )
    memory = next((one.memory for one in partitions if one.memory != Memory()), fleet.memory)
    return PartitionTerms(
        names,
        tuple(names.split(",")),
        not_skipped(fleet, listed),
        whole_nodes=any(one.whole_nodes for one in partitions),
        cpus_by_gpu=any(one.counts_cpus_by_gpu for one in partitions),
        memory=memory,
        most_cpus=min((one.max_cpus for one in partitions if one.max_cpus is not None), default=float("inf")),
    )


def choose(
    fleet: "Fleet",
    listed: str,
    limit: int | None,
    nodes: int | None,
    *,
    who: Submitter | None = None,
    shut: Collection[str] = (),
) -> UsablePartitions:
    """Chooses the partitions that may start a job of this time limit and number of nodes.

    For a new job `who` counts; for a waiting job, the partitions that are `shut` to it (`shut_to`). If none may start
    it, all that are up count; if none is up, all count, since one of them may change.
    """
    names = names_in(listed)
    if len(names) == 1:
        one = fleet.partitions.get(names[0])
        return UsablePartitions(names, 1 if one is None else one.tier, apart=False)
    known = [fleet.partitions[name] for name in names if name in fleet.partitions]
    known.sort(key=lambda one: -one.tier)
    opened = [one for one in known if one.name not in shut] or known
    starting = [one for one in opened if one.starts]
    admitting = [one for one in starting if one.admits(limit, nodes)]
    welcoming = admitting
    if who is not None:
        # A draining partition takes no new job, though Slurm may keep it in the job's list.
        up = [one for one in admitting if one.up]
        sure = [one for one in up if admits(one, who)]
        # Slurm at once refuses a job whose place is in a partition that does not admit it.
        welcoming = sure or [one for one in up if admits(one, who) is None] or up
    best = welcoming or admitting or starting or known
    placed = known if fleet.in_all_partitions else best
    return UsablePartitions(
        tuple(one.name for one in placed) or names,
        max((one.tier for one in best), default=1),
        apart=bool(admitting) and (len(best) < len(names) or _differ(fleet, known)),
    )


def shut_to(fleet: "Fleet", listed: str, who: Submitter) -> tuple[str, ...]:
    """Returns those of several partitions that are known not to admit a job."""
    return tuple(
        name for name in names_in(listed) if name in fleet.partitions and admits(fleet.partitions[name], who) is False
    )


def first_for_some(fleet: "Fleet", listed: str, limit: int | None, who: Submitter) -> str:
    """Returns one of several partitions that Slurm tries before all that admit a new job, and that may not admit it.

    Empty if there is none. If no partition of the list is known to admit the job, the user's list is trusted; so too
    with EnforcePartLimits=ALL.
    """
    known = [fleet.partitions[name] for name in names_in(listed) if name in fleet.partitions]
    welcoming = [(one, admits(one, who)) for one in known if one.up and one.admits(limit, None)]
    tiers = [one.tier for one, sure in welcoming if sure]
    if fleet.in_all_partitions or not tiers:
        return ""
    return next((one.name for one, sure in welcoming if sure is None and one.tier > max(tiers)), "")


def _differ(fleet: "Fleet", partitions: "Sequence[PartitionFacts]") -> bool:
    first = fleet.members[partitions[0].name]
    return any(not np.array_equal(first, fleet.members[one.name]) for one in partitions[1:])


def pools(fleet: "Fleet", names: Sequence[str], nodes: int) -> "list[Bools]":
    """Returns sets of nodes, one of which has to hold all nodes of a job, in the order in which Slurm tries them.

    For a job on one node, all partitions of one tier form one pool. A partition whose nodes are all in another one
    that Slurm tries before, or at the same time, gets no pool of its own.
    """
    nothing = np.zeros(len(fleet.names), np.bool_)
    members = [fleet.members.get(name, nothing) for name in names]
    if len(members) == 1:
        return members
    if fleet.in_all_partitions:
        return [np.logical_and.reduce(members)]
    tiers = [fleet.partitions[name].tier if name in fleet.partitions else 1 for name in names]
    if nodes == 1:
        together = {tier: nothing.copy() for tier in tiers}
        for tier, here in zip(tiers, members, strict=True):
            together[tier] |= here
        tiers, members = list(together), list(together.values())
    # As integers, since each set is compared with each other.
    found: list[tuple[int, int, Bools]] = []
    for tier, here in zip(tiers, members, strict=True):
        mask = int.from_bytes(np.packbits(here).tobytes())
        if any(mask & other == mask for _, other, _ in found):
            continue
        found = [one for one in found if one[0] != tier or one[1] & mask != one[1]]
        found.append((tier, mask, here))
    return [here for _, _, here in found]


def holding(fleet: "Fleet", listed: str, place: Sequence[int]) -> frozenset[str]:
    """Returns the partitions of a list that have all nodes of a place."""
    names = (name for name in names_in(listed) if name in fleet.members)
    return frozenset(name for name in names if fleet.members[name][list(place)].all())


def beyond(fleet: "Fleet", listed: str, blamed: frozenset[str]) -> "Bools":
    """Returns the nodes that a job can have in the partitions that are not blamed."""
    found = np.zeros(len(fleet.names), np.bool_)
    for name in names_in(listed):
        if name in fleet.members and name not in blamed:
            found |= fleet.members[name]
    return found


def others(fleet: "Fleet", listed: str, nodes: Sequence[str]) -> str:
    """Returns the host list of all other nodes, which a job of these partitions excludes when it is pinned.

    With several partitions, the nodes of those that do not hold the whole place are not excluded: Slurm tries the job
    in these partitions too, and calls it impossible if its request leaves none of their nodes.
    """
    names = names_in(listed)
    if len(names) == 1:
        return fleet.others.but(nodes)
    if not all(name in fleet.members for name in names):
        return ""
    places = [fleet.index[node] for node in nodes if node in fleet.index]
    lacking = tuple(name for name in names if not fleet.members[name][places].all())
    return fleet.others.outside(lacking, lambda: _members(fleet, lacking)).but(nodes)


def least_gpus(fleet: "Fleet", listed: str | None) -> int:
    """Returns the GPUs that each GPU node of a job's partitions has at least; 0 where that is not known."""
    names = names_in(listed or fleet.default_partition or "")
    if not names or not all(name in fleet.members for name in names):
        return 0
    inside = np.logical_or.reduce([fleet.members[name] for name in names]) & (fleet.gpu_counts > 0)
    return int(fleet.gpu_counts[inside].min()) if inside.any() else 0


def _members(fleet: "Fleet", partitions: Sequence[str]) -> set[str]:
    found = np.logical_or.reduce([fleet.members[name] for name in partitions])
    return {fleet.names[at] for at in np.flatnonzero(found)}


def admits(partition: "PartitionFacts", who: Submitter) -> bool | None:
    """Tells whether a partition admits a job; None if only Slurm knows."""
    answers = (_by_groups(partition, who), _by_account(partition.accounts, who), _by_qos(partition.qos, who))
    if False in answers:
        return False
    return None if None in answers else True


def _by_groups(partition: "PartitionFacts", who: Submitter) -> bool | None:
    if partition.for_all_groups:
        return True
    return None if who.by_groups is None else partition.name in who.by_groups


def _by_account(rule: "AdmissionRule", who: Submitter) -> bool | None:
    account = who.account.lower()
    if rule.admits_all:
        return True
    if account and account in rule.never:
        return False
    # A rule for an account also holds for all accounts below it.
    return True if rule.only is not None and account in rule.only else None


def _by_qos(rule: "AdmissionRule", who: Submitter) -> bool | None:
    qos = who.qos.lower()
    if rule.admits_all:
        return True
    if not qos or "," in qos:
        return None
    return qos not in rule.never and (rule.only is None or qos in rule.only)
