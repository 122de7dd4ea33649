# SPDX-License-Identifier: Apache-2.0
"""Reservations of the model for users who are not here: what they take of a node, and whom Slurm lets start beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.daemon.passes.planner import Planner
    from tests.world.cluster import ModelCluster, ModelJob, ModelNode, Portion

KINDS = ("nodes", "cores", "types", "counted")


@dataclass
class ModelReservation:
    """A reservation of a node, of some of its cores, or of its first GPUs, by type or as a number."""

    name: str
    kind: str
    node: str
    size: int
    start: int
    end: int
    known: bool = False
    """True once berthd has read it and written what follows from it."""

    @property
    def mask(self) -> int:
        """GPUs that it takes by type."""
        return (1 << self.size) - 1 if self.kind == "types" else 0

    def line(self, now: float) -> str:
        """As scontrol prints it."""
        cores = 32 if self.kind == "nodes" else self.size if self.kind == "cores" else 1
        types = "".join(f"gres/gpu:g{gpu}=1," for gpu in range(self.mask.bit_length()))
        gpus = f",{types}gres/gpu={self.size}" if self.kind in {"types", "counted"} else ""
        part = "" if self.kind == "nodes" else f"   NodeName={self.node} CoreIDs=0-{cores - 1}"
        return (
            f"ReservationName={self.name} StartTime={self.start} EndTime={self.end} Duration=00:01:00"
            f" Nodes={self.node} NodeCnt=1 CoreCnt={cores} Features=(null) PartitionName=gpu"
            f" Flags=OVERLAP,IGNORE_JOBS,SPEC_NODES{part} TRES=cpu={cores}{gpus} Users=root Groups=(null)"
            f" Accounts=(null) Licenses=(null) State={'ACTIVE' if self.start <= now else 'INACTIVE'}\n"
        )


def change(cluster: ModelCluster, what: str, kind: str, number: int, lasts: int) -> None:
    """An admin makes a reservation, which begins now or soon, or deletes one."""
    found = cluster.reservations
    if what == "unreserve":
        if found:
            found.pop(list(found)[number % len(found)])
    elif cluster.nodes and len(found) < len(KINDS):
        node = list(cluster.nodes.values())[number % len(cluster.nodes)]
        start = int(cluster.now) + 30 * (number % 3 == 0)
        size = min(1 + number % 3, node.gpus)
        cluster.reserved_before += 1
        name = f"r{cluster.reserved_before}"
        found[name] = ModelReservation(name, kind, node.name, size, start, start + lasts)


def of(cluster: ModelCluster, node: ModelNode, until: float) -> Iterator[ModelReservation]:
    """The reservations of a node between now and then."""
    for one in cluster.reservations.values():
        if one.node == node.name and one.start < until and one.end > cluster.now:
            yield one


def keep_off(cluster: ModelCluster, node: ModelNode, job: ModelJob, portion: Portion) -> bool:
    """Tells whether a reservation keeps a job from taking this of a node now.

    Slurm compares types word by word: a number of GPUs is kept from a number of GPUs, a type from the same type.
    """
    held = node.held.values()
    for one in of(cluster, node, cluster.now + 60 * job.limit):
        match one.kind:
            case "nodes":
                return True
            case "cores" if sum(other.cpus for other in held) + portion.cpus > node.cpus - one.size:
                return True
            case "types" if job.portion() is not None and portion.gpus & one.mask:
                return True
            case "counted" if job.portion() is None and job.counted():
                taken = sum(other.gpus.bit_count() for other in held)
                if node.gpus - taken - portion.gpus.bit_count() < one.size:
                    return True
    return False


def left(cluster: ModelCluster, node: ModelNode, job: ModelJob) -> int:
    """GPUs of a node that a job could have beside all reservations; a gang has none of a node with some."""
    gpus, mask = node.gpus, 0
    for one in of(cluster, node, cluster.now + 60 * job.limit):
        gang, whole = job.n > 1 and one.kind != "cores", job.kind in {"whole", "range"} or one.kind != "counted"
        if one.kind == "nodes" or gang or not whole:
            return 0
        mask |= one.mask & ((1 << node.gpus) - 1)
        gpus -= one.size if one.kind == "counted" else 0
    return max(0, gpus - mask.bit_count())


def passed_by(cluster: ModelCluster, nodes: Iterable[str]) -> str:
    """The name of a reservation of a number of GPUs that a pinned job on these nodes passed, though it was known."""
    names = set(nodes)
    for one in cluster.reservations.values():
        if one.kind == "counted" and one.known and one.node in names and one.start <= cluster.now < one.end:
            return one.name
    return ""


def all_known(cluster: ModelCluster, planner: Planner | None) -> None:
    """A berthd that is in charge has read all reservations that have begun, and written what follows."""
    for one in cluster.reservations.values():
        one.known = one.start <= cluster.now and planner is not None and planner.in_charge
