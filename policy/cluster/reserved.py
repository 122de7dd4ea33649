# SPDX-License-Identifier: Apache-2.0
"""Computes what reservations take of nodes, and the rooms in which Slurm alone gives GPUs to jobs.

A job that is pinned to GPUs by type is kept off a reservation of typed GPUs, and Slurm overlooks one that only counts
GPUs. So jobs are not pinned to nodes of such a reservation. A job that fits there keeps its user's request, and Slurm
keeps the reservation. A magnetic reservation also takes such jobs only.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from policy.cluster.fleet import Fleet
from policy.formats.arrays import FAR
from policy.formats.slurm_facts import NodeFacts, Reservation
from policy.request.demand import Demand
from policy.request.tiers import ALONE


class Hold(NamedTuple):
    """The GPUs and cores of one node that a reservation takes, with its start and end."""

    start: float
    end: float
    mask: int
    cores: int
    """Mask of the cores."""
    name: str


@dataclass(slots=True)
class Room:
    """Free GPUs and CPUs that Slurm may give to jobs without a pin, by node; jobs that take some are taken out."""

    name: str
    free: dict[int, tuple[int, int]]
    magnet: Reservation | None = None
    """The reservation that draws its users' jobs; None for what a reservation leaves to all others."""
    until: float = FAR

    def takes(self, demand: Demand, at: float, user: int, account: str) -> bool:
        """Tells whether Slurm could start a job there now, and takes its part out."""
        if (
            demand.share is not None
            or demand.tier is not ALONE
            or demand.cpus is None
            or at + demand.limit > self.until
        ):
            return False
        if self.magnet is not None and not admits(self.magnet, user, account):
            return False
        needs = demand.k, demand.cpus
        found = [
            node
            for node, (gpus, cpus) in self.free.items()
            if demand.candidates[node] and gpus >= needs[0] and cpus >= needs[1]
        ][: demand.n]
        if len(found) < demand.n:
            return False
        for node in found:
            gpus, cpus = self.free[node]
            self.free[node] = gpus - needs[0], cpus - needs[1]
        return True


def places(one: Reservation, fleet: Fleet) -> list[int]:
    """Returns its nodes that the fleet has."""
    return [fleet.index[name] for name in one.nodes if name in fleet.index]


def typed(one: Reservation, fleet: Fleet, node: int) -> int | None:
    """Returns the mask of a reservation's GPUs on a node; None if it only counts them, or those of a model.

    The counts are of all its nodes together. A type that it has on some of them counts as taken on each.
    """
    by_type = {kind: count for kind, count in one.gpus if kind}
    names = [f"g{gpu}" for gpu in range(int(fleet.size[node]))]
    if sum(by_type.values()) < dict(one.gpus).get("", 0) or not by_type.keys() <= set(names):
        return None
    return sum(1 << gpu for gpu, name in enumerate(names) if name in by_type)


def counted(one: Reservation) -> int:
    """Returns how many GPUs a reservation takes of each node; of nodes that differ, the mean rounded up."""
    return -(-dict(one.gpus).get("", 0) // max(1, len(one.nodes)))


def taken(one: Reservation, fleet: Fleet, node: int) -> int:
    """Returns how many GPUs of a node a reservation takes: all of them if it takes whole nodes."""
    if not any(name == fleet.names[node] for name, _ in one.cores):
        return int(fleet.size[node])
    mask = typed(one, fleet, node)
    return counted(one) if mask is None else mask.bit_count()


def admits(one: Reservation, user: int, account: str) -> bool:
    """Tells whether a reservation admits a job; False if the user has no name here.

    A job that comes without an account may be of any: Slurm gives it its user's own after the plugin has seen it.
    """
    name, groups = _known_by[0](user)
    users = _rule(one.users, {name}) and (not one.groups or bool(groups.intersection(one.groups)))
    return bool(name) and users and (not account or _rule(one.accounts, {account}))


def _rule(listed: tuple[str, ...], mine: set[str]) -> bool:
    never = {name[1:] for name in listed if name.startswith("-")}
    return not listed or (mine.isdisjoint(never) if never else not mine.isdisjoint(listed))


Names = Callable[[int], tuple[str, frozenset[str]]]
"""Name and groups of a user; an empty name if there is no such user here."""

_known_by: list[Names] = [lambda _: ("", frozenset())]


def know_users_by(names: Names) -> None:
    """Sets the function that finds users' names; before that no user has a name."""
    _known_by[0] = names


def rooms_of(
    one: Reservation,
    fleet: Fleet,
    own: Collection[int],
    nodes: Mapping[int, NodeFacts],
    idle: Mapping[int, int],
    used: Mapping[int, Sequence[tuple[int, int]]],
    version: str,
) -> list[Room]:
    """Returns what Slurm may give to unpinned jobs beside what an active reservation counts, and in a magnetic one.

    `own` are its nodes; `idle` and `used` are the GPUs without a job, and the GPUs and CPUs of each of its own jobs.
    """
    beside, within, cores = dict[int, tuple[int, int]](), dict[int, tuple[int, int]](), dict(one.cores)
    for place, node in nodes.items():
        mask = typed(one, fleet, place)
        inside = sum(gpus.bit_count() for gpus, _ in used[place])
        count = max(0, counted(one) - inside)
        cpus = node.cpus - node.cpus_used
        kept = max(0, cores.get(node.name, 0).bit_count() * node.threads - sum(cpus for _, cpus in used[place]))
        gpus = idle[place].bit_count()
        if mask is None:
            # GPUs of jobs that ran before may be reserved too.
            elsewhere = node.gpus - gpus - inside if "IGNORE_JOBS" in one.flags else 0
            beside[place] = gpus - max(0, count - elsewhere), cpus - kept
        if place in own and cores and "FLEX" not in one.flags:
            cpus = min(cpus, kept)
            if one.gpus:
                gpus = min(gpus, count) if mask is None else (idle[place] & mask).bit_count()
        within[place] = gpus, cpus
    rooms = [Room(one.name, {place: beside[place] for place in own if place in beside})]
    if "MAGNETIC" in one.flags:
        # From 25.05 on Slurm draws no job that would outlast the reservation.
        ends = not version.startswith("24.") and "FLEX" not in one.flags
        rooms.insert(0, Room(one.name, within, one, one.end if ends else FAR))
    return [room for room in rooms if room.free]


def counted_nodes(counted: Mapping[int, float], closes: float) -> set[int]:
    """Returns the nodes of which a reservation that begins before a time only counts GPUs."""
    return {node for node, start in counted.items() if start < closes}


def copies(rooms: tuple[Room, ...]) -> tuple[Room, ...]:
    """Returns rooms of which jobs may take without changing the old ones."""
    return tuple(Room(one.name, dict(one.free), one.magnet, one.until) for one in rooms)


def first(
    rooms: Sequence[Room],
    typed_nodes: Collection[tuple[int, str]],
    demand: Demand,
    at: float,
    user: int,
    account: str,
    *,
    magnetic: bool = False,
) -> str:
    """Returns the reservation beside or in which Slurm may start a job now; empty if there is none.

    None of the job's nodes may be one where GPUs are reserved by type: a job that names no types is not kept off these.
    Those of the magnetic reservation that draws the job are for this job too.
    """
    for room in rooms:
        drawn = room.magnet is not None
        others = [node for node, name in typed_nodes if not (drawn and name == room.name)]
        if (drawn or not magnetic) and not demand.candidates[others].any() and room.takes(demand, at, user, account):
            return room.name
    return ""


def by_node(found: Mapping[int, list[Hold]]) -> dict[int, tuple[Hold, ...]]:
    """Returns the holds of each node in order of their starts; cores that a longer one takes too count once."""
    holds: dict[int, tuple[Hold, ...]] = {}
    for node, those in found.items():
        kept: list[Hold] = []
        for one in sorted(those, key=lambda one: (one.start, -one.end)):
            cores = one.cores
            for other in kept:
                cores &= ~(other.cores if one.end <= other.end else 0)
            kept.append(one._replace(cores=cores))
        holds[node] = tuple(kept)
    return holds
