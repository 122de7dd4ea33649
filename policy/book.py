"""The working copy of a `Cluster`: places are claimed in it as they are given, soonest first.

berthd's planner fills one from a reading of Slurm, running jobs first, then the pinned ones that wait; its answerer
takes the finished picture and claims each place that it gives until Slurm shows the job.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from policy.cluster import COLUMNS, FAR, Cluster, Fleet, Floats, View
from policy.demand import Demand
from policy.errors import NotNow
from policy.placement.base import Berth, Policy

State = tuple[float, int, int, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs, CPUs and memory of some nodes, for a time. None for CPUs or memory means all of the node."""

    nodes: tuple[int, ...]
    mask: int
    cpus: int | None
    mem: int | None
    start: float
    end: float


def claim_on(fleet: Fleet, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> Claim:
    """What a demand takes on a place from `start` on."""
    if demand.cpus is None:
        for node in nodes:
            mask |= (1 << int(fleet.size[node])) - 1
    return Claim(tuple(nodes), mask, demand.cpus, demand.mem, start, start + demand.limit)


class Book:
    """A picture that can be claimed from."""

    def __init__(self, cluster: Cluster) -> None:
        self.fleet = cluster.fleet
        self.cluster = replace(
            cluster,
            times=cluster.times.copy(),
            gpus=cluster.gpus.copy(),
            cpus=cluster.cpus.copy(),
            mem=cluster.mem.copy(),
            gpus_now=cluster.gpus_now.copy(),
            cpus_now=cluster.cpus_now.copy(),
            mem_now=cluster.mem_now.copy(),
            hole_until=cluster.hole_until.copy(),
            up=cluster.up.copy(),
            quiet=cluster.quiet.copy(),
            reserved_from=cluster.reserved_from.copy(),
        )

    def claim(self, claim: Claim) -> None:
        """Take a place out of the picture."""
        for node in claim.nodes:
            self._claim_on(node, claim)

    def _claim_on(self, node: int, claim: Claim) -> None:
        picture = self.cluster
        cpus = int(self.fleet.cpus[node]) if claim.cpus is None else claim.cpus
        mem = int(self.fleet.mem[node]) if claim.mem is None else claim.mem
        start = claim.start
        if start <= picture.at:
            start = picture.at
            picture.gpus_now[node] &= ~claim.mask
            picture.cpus_now[node] = max(0, int(picture.cpus_now[node]) - cpus)
            picture.mem_now[node] = max(0, int(picture.mem_now[node]) - mem)
        elif picture.hole_until[node] > start:
            picture.hole_until[node] = start
        row = self._row(node)
        at_start = at_end = row[0]
        for state in row:
            if state[0] <= start:
                at_start = state
            if state[0] > claim.end:
                break
            at_end = state
        # What is free from a moment on is bounded by the tightest later moment, which is the claim's start.
        ceiling_cpus, ceiling_mem = max(0, at_start[2] - cpus), max(0, at_start[3] - mem)
        others = ~claim.mask
        states: list[State] = []
        for time, gpus, free_cpus, free_mem in row:
            if time >= claim.end:
                states.append((time, gpus, free_cpus, free_mem))
            elif time <= start:
                states.append((time, gpus & others, min(free_cpus, ceiling_cpus), min(free_mem, ceiling_mem)))
            else:
                states.append((time, gpus & others, max(0, free_cpus - cpus), max(0, free_mem - mem)))
        if claim.end < FAR:
            states.append((claim.end, *at_end[1:]))
        self.set_row(node, states)

    def _row(self, node: int) -> list[State]:
        """A node's timeline without the repeated last moment that fills it up."""
        picture = self.cluster
        times = picture.times[node].tolist()
        length = bisect_left(times, times[-1]) + 1
        return list(
            zip(
                times[:length],
                picture.gpus[node, :length].tolist(),
                picture.cpus[node, :length].tolist(),
                picture.mem[node, :length].tolist(),
                strict=True,
            )
        )

    def set_row(self, node: int, states: Iterable[State]) -> None:
        """Write a node's timeline: moments with the GPUs, CPUs and memory that are free from then on."""
        picture = self.cluster
        picture.times[node], picture.gpus[node], picture.cpus[node], picture.mem[node] = as_row(states)

    def advance(self, at: float) -> None:
        """Let the time of the picture be later; moments that have passed are put off by its own rows alone."""
        self.cluster = replace(self.cluster, at=at)
        self.cluster.times[:, 0] = at

    def soonest(self, demand: Demand, policy: Policy) -> tuple[Berth, float]:
        """The best place at the first moment at which there is one; `start` is 0 for a place that is free now."""
        try:
            return self.now(demand, policy), 0.0
        except NotNow as nothing_now:
            moment = self._first_moment(demand, policy)
            if moment is None:
                raise nothing_now from None
            return _pinnable(policy, demand, self.cluster.then(moment, demand.limit)), moment

    def some_day(self, demand: Demand, policy: Policy) -> Berth:
        """The best place on an empty cluster with all nodes up, for a job that has none in sight; or `NotNow`."""
        fleet = self.fleet
        all_nodes = np.ones(len(fleet.names), np.bool_)
        return _pinnable(policy, demand, View(fleet, fleet.full, fleet.cpus, fleet.mem, all_nodes, all_nodes))

    def now(self, demand: Demand, policy: Policy) -> Berth:
        """The best place that is free now, or `NotNow`."""
        return _pinnable(policy, demand, self.cluster.now(demand.limit))

    def start_of(self, demand: Demand, nodes: Sequence[int], mask: int) -> float | None:
        """When a certain place is free: 0 for now, None for not in sight."""
        latest = 0.0
        for node in nodes:
            start = self._start_on(demand, node, mask)
            if start is None:
                return None
            latest = max(latest, start)
        return latest

    def _start_on(self, demand: Demand, node: int, mask: int) -> float | None:
        # One node at a time and without arrays: this is asked for each waiting job in each pass.
        picture, fleet = self.cluster, self.fleet
        if not (demand.candidates[node] and picture.up[node]):
            return None
        if demand.cpus is None:
            mask |= (1 << int(fleet.size[node])) - 1
        cpus = int(fleet.cpus[node]) if demand.cpus is None else demand.cpus
        mem = int(fleet.mem[node]) if demand.mem is None else demand.mem
        last_start = float(picture.reserved_from[node]) - demand.limit
        now_is_open = last_start >= picture.at
        if now_is_open and picture.hole_until[node] >= picture.at + demand.limit:
            now = int(picture.gpus_now[node]), int(picture.cpus_now[node]), int(picture.mem_now[node])
            if now[0] & mask == mask and now[1] >= cpus and now[2] >= mem:
                return 0.0
        for place, (time, gpus, free_cpus, free_mem) in enumerate(self._row(node)):
            if gpus & mask == mask and free_cpus >= cpus and free_mem >= mem:
                if time > last_start or time == FAR:
                    return None
                return time if place else 0.0
        return None

    def soonest_without_gpus(self, demand: Demand) -> tuple[tuple[int, ...], float] | None:
        """Where and when Slurm will probably start a job without GPUs: on the first nodes with room, as it does."""
        picture = self.cluster
        for moment in (0.0, *self._moments_of(demand)):
            view = picture.then(moment, demand.limit) if moment else picture.now(demand.limit)
            nodes = np.flatnonzero(Policy.fitting(demand, view))
            if nodes.size >= demand.n:
                return tuple(nodes[: demand.n].tolist()), moment
        return None

    def _moments_of(self, demand: Demand) -> list[float]:
        """The moment at which as many nodes as a job without GPUs needs have room each, if there is one."""
        picture, here = self.cluster, np.flatnonzero(demand.candidates & self.cluster.up)
        fits = (picture.cpus[here] >= (demand.cpus or 0)) & (picture.mem[here] >= (demand.mem or 0))
        times = np.where(fits, picture.times[here], FAR).min(axis=1)
        later = np.sort(times[np.isfinite(times) & (times > picture.at)])
        return later[demand.n - 1 : demand.n].tolist()  # type: ignore[no-any-return]

    def _first_moment(self, demand: Demand, policy: Policy) -> float | None:
        return self._first_on_one(demand) if demand.n == 1 else self._first_on_several(demand, policy)

    def _first_on_one(self, demand: Demand) -> float | None:
        moments = self._first_moments(demand)
        return float(moments.min()) if moments.size else None

    def _first_on_several(self, demand: Demand, policy: Policy) -> float | None:
        """What is free only grows with time, so a place at one moment is a place at all later ones: search by halves.

        A reservation ahead breaks that rule; then a place may be overlooked and the job is left to Slurm.
        """
        alone = np.sort(self._first_moments(demand))
        if alone.size < demand.n:
            return None
        # Before so many nodes have enough GPUs each for themselves there is no common set; soon after, mostly.
        times = np.unique(self.cluster.times[demand.candidates & self.cluster.up])
        moments = times[np.isfinite(times) & (times >= alone[demand.n - 1])].tolist()
        low, high, step = 0, len(moments), 1
        while low < high:
            middle = min(low + step - 1, (low + high) // 2)
            try:
                _pinnable(policy, demand, self.cluster.then(moments[middle], demand.limit))
            except NotNow:
                low, step = middle + 1, step * 2
            else:
                high = middle
        return float(moments[low]) if low < len(moments) else None

    def _first_moments(self, demand: Demand) -> Floats:
        """For each node that ever has enough, by itself, the first moment at which it has."""
        picture, fleet = self.cluster, self.fleet
        nodes = np.flatnonzero(demand.candidates & picture.up)
        gpus, times = picture.gpus[nodes], picture.times[nodes]
        fits = fleet.tables.look_up(demand.k, demand.level, fleet.offset[nodes, None] + gpus) >= 0
        if demand.cpus is None:
            fits &= (gpus == fleet.full[nodes, None]) & (picture.cpus[nodes] >= fleet.cpus[nodes, None])
        else:
            fits &= picture.cpus[nodes] >= demand.cpus
        fits &= picture.mem[nodes] >= (fleet.mem[nodes, None] if demand.mem is None else demand.mem)
        fits &= np.isfinite(times) & (times + demand.limit <= picture.reserved_from[nodes, None])
        first: Floats = times[np.arange(nodes.size), fits.argmax(axis=1)]
        return np.compress(fits.any(axis=1), first)


def _pinnable(policy: Policy, demand: Demand, view: View) -> Berth:
    """A policy's answer, if Slurm can pin it: a typed request is the same on each node."""
    berth = policy.place(demand, view)
    if any(mask != berth.mask for mask in berth.masks):
        raise NotNow(f"policy {policy.name} chose other GPUs on each node, which Slurm cannot pin")
    return berth


def as_row(states: Iterable[State]) -> tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The columns of a timeline of fixed length, from moments in any order."""
    kept: list[State] = []
    last: State | None = None
    for state in sorted(states, key=_moment):
        if last is not None and last[0] == state[0]:
            # The same moment twice: the later entry has what the claim gives back.
            kept[-1] = last = state
        elif last is None or last[1:] != state[1:]:
            kept.append(state)
            last = state
    # Leaving a moment out only makes estimates later; the last state must stay, or the node never frees.
    while len(kept) > COLUMNS:
        del kept[-2]
    kept += [kept[-1]] * (COLUMNS - len(kept))
    times, gpus, cpus, mem = zip(*kept, strict=True)
    return times, gpus, cpus, mem


_moment = itemgetter(0)
