# SPDX-License-Identifier: Apache-2.0
"""A claim: GPUs, CPUs and memory of some nodes that one job has or will get, with its start and end.

Claims are taken from the timelines of a book's nodes: lists while a walk claims places, written into the snapshot
afterwards.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.reserved import copies
from policy.cluster.snapshot import BY_NODE, Cluster
from policy.cluster.timeline import State, columns, states_of, taken
from policy.formats.arrays import FAR
from policy.request.demand import Demand
from policy.request.share import Share
from policy.request.tiers import EXCLUSIVE, OPPORTUNISTIC

STATES = count(1)
"""Numbers of a book's states."""


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs, CPUs and memory of some nodes, for a time. None for CPUs or memory means all of the node."""

    nodes: tuple[int, ...]
    mask: int
    cpus: int | None
    mem: int | None
    start: float
    end: float
    share: Share | None = None
    """The part that it takes of each GPU; None: all of it."""
    tier: str = EXCLUSIVE
    """For whole GPUs: tells if a guest there may stay, or if the claim is only for a seat."""
    others: "tuple[Claim, ...]" = ()
    """Claims of the same job on other nodes, of other GPUs there."""

    def lasting(self, limit: float, start: float | None = None) -> "Claim":
        """Returns the same claim for a job with another time limit, and with another start if one is named."""
        start = self.start if start is None else start
        others = tuple(one.lasting(limit, start) for one in self.others)
        return replace(self, start=start, end=start + limit, others=others)


class Repeat(NamedTuple):
    """A claim on whole GPUs that come free later, with the timelines of its nodes before and after it."""

    nodes: tuple[int, ...]
    start: float
    before: tuple[list[State], ...]
    after: tuple[list[State], ...]


def claim_on(fleet: Fleet, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> Claim:
    """Returns the claim of a demand on a place from `start` on."""
    if demand.cpus is None:
        for node in nodes:
            mask |= (1 << int(fleet.size[node])) - 1
    end = start + demand.limit
    # On whole nodes Slurm gives all seats to the job.
    tier = EXCLUSIVE if demand.cpus is None else demand.tier.name
    return Claim(tuple(nodes), mask, demand.cpus, demand.mem, start, end, demand.share, tier)


def seat_on(demand: Demand, node: int, mask: int, start: float) -> Claim:
    """Returns the claim of a guest on a seat."""
    end = start + demand.limit
    return Claim((node,), mask, demand.cpus or 0, demand.mem or 0, start, end, None, OPPORTUNISTIC)


def renumbered(claims: Iterable[Claim], old: Fleet, new: Fleet) -> tuple[Claim, ...]:
    """Returns the claims with the node numbers of the new fleet, without nodes that it lacks."""
    if old.names == new.names:
        return tuple(claims)
    return tuple(
        replace(
            claim,
            nodes=tuple(new.index[name] for node in claim.nodes if (name := old.names[node]) in new.index),
            others=renumbered(claim.others, old, new),
        )
        for claim in claims
    )


class BookRows:
    """A snapshot, and timelines that are newer than it."""

    def __init__(self, cluster: Cluster, rows: Callable[[Cluster], Sequence[list[State]]] | None = None) -> None:
        """`rows` gives all timelines, as the same objects as for an earlier book where nothing has changed."""
        self.state = next(STATES)
        """A number that is new after each change, and never used twice."""
        self._rows: dict[int, list[State]] = {}
        """Timelines that are newer than those in the snapshot, or equal to them."""
        self._newer: set[int] = set()
        """Nodes whose timelines in the snapshot are out of date."""
        self._holes: dict[int, float] = {}
        """First starts of claims made again, which the snapshot does not have yet; these nodes are not quiet either."""
        self._first_rows = rows
        self._keeps_rows = False
        self.fleet = cluster.fleet
        self._cluster = replace(
            cluster,
            **{name: getattr(cluster, name).copy() for name in BY_NODE},
            rooms=copies(cluster.rooms),
            tenants=dict(cluster.tenants),
            sharers=dict(cluster.sharers),
            tolerated=dict(cluster.tolerated),
        )

    @property
    def at(self) -> float:
        """Returns the time of the snapshot."""
        return self._cluster.at

    @property
    def cluster(self) -> Cluster:
        """Returns the snapshot with all claims."""
        if self._rows:
            self._write_rows()
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: Cluster) -> None:
        self._write_rows()
        self._cluster = cluster

    def _write_rows(self) -> None:
        """Writes the timelines that claims have changed; a walk along a long queue has many claims on each node."""
        cluster = self._cluster
        for node in self._newer:
            row = columns(self._rows[node])
            cluster.times[node], cluster.gpus[node], cluster.cpus[node], cluster.mem[node] = row
        if self._newer:
            cluster.times[list(self._newer), 0] = cluster.at
            self._newer.clear()
            self._first_rows = None
        if self._holes:
            here = list(self._holes)
            cluster.hole_until[here] = np.minimum(cluster.hole_until[here], list(self._holes.values()))
            cluster.quiet[here] = False
            self._holes.clear()
        # A caller that has the snapshot may write into it.
        if not self._keeps_rows:
            self._rows.clear()

    @property
    def kept_rows(self) -> Mapping[int, list[State]]:
        """Returns the timelines as lists, within `rows_kept`; the same object until its end."""
        return self._rows

    @contextmanager
    def rows_kept(self) -> Iterator[None]:
        """Keeps the timelines as lists for a walk, in which only claims change them."""
        rows = self._first_rows(self._cluster) if self._first_rows is not None else ()
        self._rows, self._keeps_rows = dict(enumerate(rows)), True
        try:
            yield
        finally:
            self._keeps_rows = False
            self._write_rows()

    def repeat(self, claimed: Repeat) -> bool:
        """Makes a claim of an earlier book again, where all timelines are still those it found; returns whether so."""
        rows = self._rows
        for node, before in zip(claimed.nodes, claimed.before, strict=True):
            if rows.get(node) is not before:
                return False
        self.claim_again(claimed)
        return True

    def claim_again(self, claimed: Repeat) -> None:
        """Makes a claim of an earlier book again, whose nodes' timelines are those that it found."""
        self.state = next(STATES)
        start = claimed.start
        for node, after in zip(claimed.nodes, claimed.after, strict=True):
            self._replace_row(node, start, after)

    def claim_alone(self, demand: Demand, node: int, mask: int, had: Repeat | None) -> Repeat | None:
        """Claims a place on one node from the moment on at which it comes free, as `start_of` and `claim_later` do.

        Returns None where those two have more to ask: GPUs that are free now, a whole node, a share, a reservation.
        """
        cluster, cpus, mem, limit = self._cluster, demand.cpus, demand.mem, demand.limit
        if (
            cpus is None
            or mem is None
            or not demand.candidates[node]
            or not cluster.up[node]
            or cluster.reserved_from[node] < FAR
            or node in cluster.tenants
            or cluster.gpus_now[node] & mask == mask
        ):
            return None
        row, start = self._row(node), FAR
        for moment, gpus, free_cpus, free_mem in row:
            if gpus & mask == mask and free_cpus >= cpus and free_mem >= mem:
                start = moment
                break
        if start <= cluster.at or start == FAR:
            return None
        self.state = next(STATES)
        after = taken(row, start, start + limit, mask, cpus, mem)
        # The same object tells the next claim on this node that nothing has changed for it.
        self._replace_row(node, start, had.after[0] if had is not None and had.after[0] == after else after)
        return Repeat((node,), start, (row,), (self._rows[node],))

    def _replace_row(self, node: int, start: float, row: list[State]) -> None:
        self._rows[node] = row
        self._newer.add(node)
        holes = self._holes
        if start < holes.get(node, FAR):
            holes[node] = start

    def _row(self, node: int) -> list[State]:
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = states_of(self._cluster, node)
        return row
