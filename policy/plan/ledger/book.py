# SPDX-License-Identifier: Apache-2.0
"""The book: a working copy of a `Cluster`, in which each place that is given to a job is claimed.

berthd's planner fills a book from a reading of Slurm: first the running jobs, then the pinned jobs that wait. Its
answerer takes the finished snapshot, and claims each place that it gives until Slurm shows the job.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from policy.cluster.reserved import counted_nodes
from policy.cluster.shared.sharers import Guest, Sharers
from policy.cluster.shared.tenants import PlannedTenant, Tenants, admits, barred
from policy.cluster.snapshot import Cluster
from policy.cluster.timeline import State, states_of, taken
from policy.cluster.view import View
from policy.formats.arrays import FAR
from policy.formats.errors import NotNow, OutOfTime
from policy.placement import keep_together
from policy.placement.base import Berth, Policy
from policy.plan.ledger import share_packing
from policy.plan.ledger.claims import STATES, BookRows, Claim, Repeat
from policy.plan.ledger.first_moments import apart_from_gangs, enough_alone, first_in_common, first_moments, first_times
from policy.plan.ledger.places import FreePlaces, in_first_part, pinnable
from policy.request.demand import Demand
from policy.request.share import Share
from policy.request.tiers import EXCLUSIVE, GUARANTEED, OPPORTUNISTIC
from topology.sets.tables import Ints

OPENS = 600.0
"""Seconds that a small job may wait longer, as time limits tell, rather than take a part of a wholly free node.

Jobs on whole nodes need those nodes, and room on nodes in part use comes free sooner than time limits tell."""

AS_GOOD = 1.01
"""Factor by which a place without guests may cost more than the best one, where a guest would lose its seat."""


def never() -> bool:
    """Returns False: there is no time limit for the search."""
    return False


class Book(BookRows):
    """A snapshot in which places can be claimed."""

    def __init__(self, cluster: Cluster, rows: Callable[[Cluster], Sequence[list[State]]] | None = None) -> None:
        """`rows` gives all timelines, as the same objects as for an earlier book where nothing has changed."""
        super().__init__(cluster, rows)
        self.enough: Callable[[], bool] = never
        """Returns True when no more places may be looked at, because the time for an answer is over."""
        self.places: FreePlaces | None = None
        """Places that were found before, where only claims change the book."""
        self.given_up: dict[int, int] = {}
        """GPUs, by node, of which packed jobs are to give up their parts, and of which Slurm has not been told yet."""
        self.kept_until: dict[int, float] = {}
        """Nodes that are closed since they are kept for a job that lost a node, with the time until which they are."""
        self._leaves = keep_together.Leaves()

    def claim_later(self, claim: Claim, had: Repeat | None) -> Repeat | None:
        """Makes a claim on whole GPUs from a later moment on; returns it for the next book, None beside shares.

        `had` is the claim of the book before: where a node's timeline and the start are the same, so is what is left.
        """
        self.state = next(STATES)
        before, after = [], []
        for place, node in enumerate(claim.nodes):
            row, left = self._row(node), None if had is None else had.after[place]
            if had is None or had.start != claim.start or had.before[place] is not row or left is None:
                self._claim_on(node, claim)
                if left == self._rows[node]:
                    self._rows[node] = left
            else:
                self._replace_row(node, claim.start, left)
            before.append(row)
            after.append(self._rows[node])
        self.bar(claim.nodes)
        if self._cluster.tenants and not self._cluster.tenants.keys().isdisjoint(claim.nodes):
            return None
        return Repeat(claim.nodes, claim.start, tuple(before), tuple(after))

    def claim(self, claim: Claim) -> None:
        """Takes a place out of the snapshot."""
        self.note(claim)
        self._write_rows()

    def note(self, claim: Claim) -> None:
        """Takes a place out of the snapshot, but leaves the timelines of other holders of the snapshot as they are."""
        self.state = next(STATES)
        cluster = self._cluster
        for node in claim.nodes:
            if claim.tier == OPPORTUNISTIC:
                self._seat(node, claim)
                continue
            if claim.tier == GUARANTEED and node in cluster.sharers and claim.start <= cluster.at:
                cluster.tolerated[node] = cluster.tolerated.get(node, 0) | claim.mask
            self._claim_on(node, claim)
        for one in claim.others:
            self.note(one)

    def displaces(self, claim: Claim) -> bool:
        """Tells whether a guest has to leave before a claim can begin."""
        cluster = self.cluster
        if not cluster.sharers or claim.start > cluster.at or claim.tier != EXCLUSIVE:
            return False
        return self.has_guests(claim.nodes, claim.mask)

    def has_guests(self, nodes: Sequence[int], mask: int) -> bool:
        """Tells whether guests sit on some GPUs of some nodes."""
        sharers = self.cluster.sharers
        return any(sharers[node].guest_mask & mask for node in nodes if node in sharers)

    def takes_part(self, demand: Demand, nodes: Sequence[int], mask: int) -> bool:
        """Tells whether a packed job may ask for its part of some free GPUs.

        Slurm does not count guests as users of a GPU. So beside one the job asks for whole GPUs and their seats, and
        Slurm starts it when the guest has gone. It does the same where a packed job still may start that is to give up
        its part.
        """
        given_up = self.given_up and any(self.given_up.get(node, 0) & mask for node in nodes)
        return demand.share is not None and not given_up and not self.has_guests(nodes, mask)

    def is_wholly_free(self, node: int) -> bool:
        """Tells whether no GPU of a node is held or claimed now, and it takes jobs or is kept."""
        takes_jobs = bool(self._cluster.up[node]) or node in self.kept_until
        return takes_jobs and bool(self._cluster.gpus_now[node] == self.fleet.full[node])

    def keep(self, nodes: Iterable[int], until: float) -> None:
        """Closes nodes to all jobs that ask for a place from here on, until a time."""
        self.state = next(STATES)
        for node in nodes:
            self._cluster.up[node], self.kept_until[node] = False, until

    def open_again(self, nodes: Iterable[int]) -> None:
        """Opens nodes again that were kept."""
        self.state = next(STATES)
        for node in nodes:
            self._cluster.up[node] = True
            self.kept_until.pop(node, None)

    def bar(self, nodes: Iterable[int]) -> None:
        """Notes that Slurm's main pass starts no later job on some nodes."""
        for node in nodes:
            self._cluster.quiet[node] = False

    def _claim_on(self, node: int, claim: Claim) -> None:
        cluster = self._cluster
        if claim.share is not None or node in cluster.tenants:
            self._let_in(node, claim)
        cpus = int(self.fleet.cpus[node]) if claim.cpus is None else claim.cpus
        mem = int(self.fleet.mem[node]) if claim.mem is None else claim.mem
        start = claim.start
        if start <= cluster.at:
            start = cluster.at
            cluster.gpus_now[node] &= ~claim.mask
            if claim.share is None and claim.mask not in (0, int(self.fleet.full[node])):
                cluster.pieces[node] += claim.mask.bit_count()
            cluster.cpus_now[node] = max(0, int(cluster.cpus_now[node]) - cpus)
            cluster.mem_now[node] = max(0, int(cluster.mem_now[node]) - mem)
        elif cluster.hole_until[node] > start:
            cluster.hole_until[node] = start
        self._rows[node] = taken(self._row(node), start, claim.end, claim.mask, cpus, mem)
        self._newer.add(node)

    def _let_in(self, node: int, claim: Claim) -> None:
        """Notes a claim among the packed jobs of a node."""
        cluster, start = self.cluster, max(claim.start, self.cluster.at)
        there = cluster.tenants.get(node, Tenants())
        if claim.share is None:
            shared = 0
            for tenant in there:
                shared |= tenant.mask & claim.mask
            new = [barred(shared, start, claim.end)] if shared else []
        else:
            granted = claim.share.granted(self.fleet.gpu_mem_for_shares(node))
            percent = claim.share.counted(min(map(self.fleet.gpu_mem_for_shares, claim.nodes)))
            new = [PlannedTenant(claim.mask, percent, granted, claim.share.party, start, claim.end, claim.share.mate)]
            planned = claim.mask & ~int(cluster.gpus[node, 0])
            for tenant in there:
                planned &= ~tenant.mask if tenant.there(start) else -1
            if planned and start <= cluster.at:
                # Free now, but planned for a waiting job: no share may join beyond that job's start.
                new.append(barred(planned, cluster.free_until(node, planned), FAR))
        cluster.tenants[node] = Tenants((*there, *new))

    def _seat(self, node: int, claim: Claim) -> None:
        """Adds a guest to a node: it takes its seat from other guests, and nothing from owners."""
        there = self.cluster.sharers.get(node, Sharers())
        guest = Guest(0, claim.mask, claim.cpus or 0, claim.mem or 0)
        self.cluster.sharers[node] = replace(there, guests=(*there.guests, guest))

    def advance(self, at: float) -> None:
        """Sets the time of the snapshot later; only the first column of the timelines changes."""
        self.state = next(STATES)
        self._leaves.forget()
        self.cluster = replace(self.cluster, at=at)
        self.cluster.times[:, 0] = at

    def soonest(self, demand: Demand, policy: Policy) -> tuple[Berth, float]:
        """Returns the best place at the first moment that has one, and that moment: 0 for free now."""
        try:
            if self.places is not None:
                return self.places.best(self, demand, policy, lambda: self.now_together(demand, policy)), 0.0
            return self.now_together(demand, policy), 0.0
        except NotNow as nothing_now:
            found = [place for part in demand.parts() if (place := self._later(part, policy)) is not None]
            if not found:
                raise nothing_now from None
            return min(found, key=lambda place: place[1])

    def _later(self, demand: Demand, policy: Policy) -> tuple[Berth, float] | None:
        """Returns the best place that comes free later, and when; None if none is in sight."""
        self._check_time()
        if demand.n > 1:
            return self._first_on_several(demand, policy)
        moment = self._first_on_one(demand)
        if moment is None:
            return None
        apart = apart_from_gangs(self.cluster, demand)
        later = None if apart is None else self._first_on_one(apart)
        if apart is not None and later is not None and later <= moment + OPENS:
            return self._best_at(later, apart, policy), later
        return self._best_at(moment, demand, policy), moment

    def some_day(self, demand: Demand, policy: Policy) -> Berth:
        """Returns the best place on an empty cluster with all nodes up, for a job without one in sight.

        Raises `NotNow` if there is none. A pin on a node of which a reservation only counts GPUs would pass that one.
        """
        self._check_time()
        fleet = self.fleet
        all_nodes = np.ones(len(fleet.names), np.bool_)
        all_nodes[list(counted_nodes(self.cluster.counted, self.at + demand.limit))] = False
        view = View(fleet, fleet.full, fleet.cpus, fleet.mem, all_nodes, all_nodes)

        def place(part: Demand) -> Berth:
            if part.share is not None:
                return share_packing.place(part, view, {}, self.cluster.at, self.cluster.shapes)
            return pinnable(policy, part, view)

        return in_first_part(demand, place)

    def now(self, demand: Demand, policy: Policy) -> Berth:
        """Returns the best place that is free now, or raises `NotNow`."""
        return in_first_part(demand, lambda part: self._best_at(0.0, part, policy))

    def _check_time(self) -> None:
        if self.enough():
            raise OutOfTime("berthd has looked at as many places as the time for an answer allows", 301)

    def await_pieces(self, gpus: int) -> None:
        """Notes for how many GPUs the jobs on pieces of nodes wait."""
        self.cluster = replace(self.cluster, pieces_wait=gpus)

    def now_together(self, demand: Demand, policy: Policy) -> Berth:
        """Returns the best free place on the leaves kept for jobs on pieces of nodes, for such jobs; else as `now`."""
        gathers = policy.gathers_pieces and self.fleet.has_leaves
        nodes = self._leaves.nodes(demand, self.cluster) if gathers else None
        if nodes is None or len(self._weights_of(demand)) > 1:
            return self.now(demand, policy)
        try:
            berth = self.now(demand.within(nodes), policy)
        except NotNow:
            return self.now(demand, policy)
        if not self._leaves.may_be_better(demand, berth, self.cluster):
            return berth
        anywhere = self.now(demand, policy)
        return anywhere if keep_together.clearly_better(anywhere, berth, crowded=self.cluster.crowded) else berth

    def _best_at(self, moment: float, demand: Demand, policy: Policy) -> Berth:
        """Returns the best place at a moment, 0 for now. Shares are placed by `share_packing`, not by a policy."""
        self._check_time()
        cluster = self.cluster
        view = cluster.then(moment, demand.limit) if moment else cluster.now(demand.limit)
        if cluster.sharers and not moment:
            return self._best_beside_guests(view, demand, policy)
        return self._best_in(view, moment, demand, policy)

    def _best_beside_guests(self, view: View, demand: Demand, policy: Policy) -> Berth:
        """Returns the best place for an owner; among equally good ones, one without guests, so that guests stay."""
        free = view.free.copy()
        for node, sharers in self.cluster.sharers.items():
            free[node] &= ~sharers.guest_mask
        without = None
        with suppress(NotNow):
            without = self._best_in(view.with_free(free), 0.0, demand, policy)
            if without.cost <= 1.0:
                return without
        best = self._best_in(view, 0.0, demand, policy)
        return without if without is not None and without.cost <= best.cost * AS_GOOD else best

    def _best_in(self, view: View, moment: float, demand: Demand, policy: Policy) -> Berth:
        """Returns the best place on the nodes of least Slurm weight that have one.

        A job that fits on the nodes up to some weight also fits if heavier nodes are added, so the search is binary.
        """
        weights = self._weights_of(demand)
        if len(weights) < 2:
            return self._best_of_all(view, moment, demand, policy)
        assert self.fleet.weights is not None, "there are weights"  # noqa: S101 - narrows the type
        best, nothing = None, NotNow("no node could hold it", 300)
        least, most, tried = 0, len(weights) - 1, 0
        while least <= most:
            try:
                light = demand.within(self.fleet.weights <= weights[tried])
                best, most = self._best_of_all(view, moment, light, policy), tried - 1
            except NotNow as none_there:
                nothing, least = none_there, tried + 1
            tried = (least + most) // 2
        if best is None:
            raise nothing
        return best

    def _weights_of(self, demand: Demand) -> Ints:
        """Returns the distinct weights of the nodes that could hold a job, ascending; empty if weights do not count."""
        weights = self.fleet.weights
        return np.zeros(0, np.int64) if weights is None else np.unique(weights[demand.candidates])

    def _best_of_all(self, view: View, moment: float, demand: Demand, policy: Policy) -> Berth:
        cluster = self.cluster
        if demand.share is not None:
            start = moment or cluster.at
            return share_packing.place(
                demand, view, cluster.tenants, start, cluster.shapes, cluster.neighbours, cluster.shelves
            )
        return pinnable(policy, demand, view)

    def start_of(self, demand: Demand, nodes: Sequence[int], mask: int) -> float | None:
        """Returns when a given place is free: 0 for now, None if that is not in sight."""
        latest = 0.0
        for node in nodes:
            start = self._start_on(demand, node, mask)
            if start is None:
                return None
            latest = max(latest, start)
        return latest

    def _start_on(self, demand: Demand, node: int, mask: int) -> float | None:
        # One node at a time and without arrays: this runs for each waiting job in each pass.
        cluster, fleet = self._cluster, self.fleet
        if not (demand.candidates[node] and cluster.up[node]):
            return None
        if demand.share is not None:
            return self._share_starts_on(demand, demand.share, node, mask)
        if demand.cpus is None:
            mask |= (1 << int(fleet.size[node])) - 1
        cpus = int(fleet.cpus[node]) if demand.cpus is None else demand.cpus
        mem = int(fleet.mem[node]) if demand.mem is None else demand.mem
        last_start = float(cluster.reserved_from[node]) - demand.limit
        now_is_open = last_start >= cluster.at
        if now_is_open and self._hole_until(node) >= cluster.at + demand.limit:
            free_gpus, free_cpus = cluster.stays_free(node, cluster.at + demand.limit)
            if free_gpus & mask == mask and free_cpus >= cpus and cluster.mem_now[node] >= mem:
                return 0.0
        for place, (time, gpus, free_cpus, free_mem) in enumerate(self._row(node)):
            if gpus & mask == mask and free_cpus >= cpus and free_mem >= mem:
                if time > last_start or time == FAR:
                    return None
                return time if place else 0.0
        return None

    def _hole_until(self, node: int) -> float:
        until = float(self._cluster.hole_until[node])
        return min(until, self._holes[node]) if node in self._holes else until

    def _share_starts_on(self, demand: Demand, share: Share, node: int, mask: int) -> float | None:
        """Returns when a share can start on given GPUs: free ones, or shared ones with room for it all the time."""
        cluster, there = self.cluster, self.cluster.tenants.get(node, Tenants())
        last_start = float(cluster.reserved_from[node]) - demand.limit
        capacity = self.fleet.gpu_mem_for_shares(node)
        row = states_of(cluster, node)
        ends = {tenant.end for tenant in there if tenant.mask & mask}
        for moment in sorted({state[0] for state in row} | ends | {cluster.at}):
            if moment < cluster.at:
                continue
            if moment > last_start or moment == FAR:
                return None
            _, free, cpus, mem = max((state for state in row if state[0] <= moment), default=row[0])
            if moment == cluster.at and cluster.hole_until[node] >= moment + demand.limit:
                (free, cpus), mem = cluster.stays_free(node, moment + demand.limit), int(cluster.mem_now[node])
            if cpus < (demand.cpus or 0) or mem < (self.fleet.mem[node] if demand.mem is None else demand.mem):
                continue
            joins = any(tenant.mask == mask and tenant.there(moment) for tenant in there)
            end = moment + demand.limit
            if free & mask == mask or (
                joins
                and admits(there, mask, share, capacity, moment, end)
                and share_packing.bears(cluster.neighbours, share, there, mask, moment, end)
            ):
                return moment if moment > cluster.at else 0.0
        return None

    def company(self, demand: Demand, nodes: Sequence[int], mask: int) -> str:
        """Describes the packed jobs that a share joins if it starts now, as the end of a sentence."""
        cluster = self.cluster
        there = cluster.tenants.get(nodes[0], Tenants())
        if demand.share is None:
            return ""
        end = cluster.at + demand.limit
        return share_packing.told(cluster.neighbours, demand.share, there, mask, cluster.at, end)

    def _first_on_shared(self, demand: Demand) -> dict[int, float]:
        """Returns, for each node whose shared GPUs can hold a share, the first moment at which a set of them can."""
        share, found = demand.share, dict[int, float]()
        if share is None:
            return found
        for node, there in self.cluster.tenants.items():
            sets = there.sets.get(share.party, frozenset())
            linked = [mask for mask in sets if mask.bit_count() == demand.k and self._linked(demand, node, mask)]
            starts = [self._start_on(demand, node, mask) for mask in linked]
            if moments := [start or self.cluster.at for start in starts if start is not None]:
                found[node] = min(moments)
        return found

    def _linked(self, demand: Demand, node: int, mask: int) -> bool:
        entry = self.fleet.offset[node : node + 1] + mask
        return bool(self.fleet.tables.look_up(demand.k, demand.level, entry)[0] >= 0)

    def soonest_without_gpus(self, demand: Demand) -> tuple[tuple[int, ...], float] | None:
        """Returns where and when Slurm will probably start a job without GPUs: on the first nodes with room."""
        found = [place for part in demand.parts() if (place := self._first_room(part)) is not None]
        return min(found, key=lambda place: place[1], default=None)

    def _first_room(self, demand: Demand) -> tuple[tuple[int, ...], float] | None:
        cluster = self.cluster
        for moment in (0.0, *self._moments_of(demand)):
            view = cluster.then(moment, demand.limit) if moment else cluster.now(demand.limit)
            nodes = np.flatnonzero(Policy.fitting(demand, view))
            if nodes.size >= demand.n:
                return tuple(nodes[: demand.n].tolist()), moment
        return None

    def _moments_of(self, demand: Demand) -> list[float]:
        """Returns the moment at which enough nodes for a job without GPUs have room, if there is one."""
        cluster, here = self.cluster, np.flatnonzero(demand.candidates & self.cluster.up)
        fits = (cluster.cpus[here] >= (demand.cpus or 0)) & (cluster.mem[here] >= (demand.mem or 0))
        times = np.where(fits, cluster.times[here], FAR).min(axis=1)
        have_room = int((times <= cluster.at).sum())
        later = np.sort(times[np.isfinite(times) & (times > cluster.at)])
        last = max(0, demand.n - 1 - have_room)
        return later[last : last + 1].tolist()  # type: ignore[no-any-return]

    def _first_on_one(self, demand: Demand) -> float | None:
        moments, opens = first_moments(self.cluster, demand)
        first = [float(moments[(moments + OPENS * opens).argmin()])] if moments.size else []
        return min([*first, *self._first_on_shared(demand).values()], default=None)

    def _first_on_several(self, demand: Demand, policy: Policy) -> tuple[Berth, float] | None:
        """Returns the best place at the first moment that has one for a job on several nodes, by binary search.

        Free resources only grow with time, so a place at one moment is a place at all later ones. A reservation ahead
        breaks that rule; then a place may be overlooked, and the job is left to Slurm.
        """
        shared = self._first_on_shared(demand)
        nodes, fits = enough_alone(self.cluster, demand)
        # A node may be here twice, for its free GPUs and for its shared ones; that only makes the search longer.
        alone = np.sort(np.concatenate([first_times(self.cluster.times[nodes], fits), [*shared.values()]]))
        if alone.size < demand.n:
            return None
        on_whole_nodes = demand.cpus is None or bool((self.fleet.size[nodes] == demand.k).all())
        # Which nodes are wholly free changes only where one of them becomes so.
        times = np.unique(alone if on_whole_nodes else self.cluster.times[nodes])
        # Until n nodes have enough GPUs each, no common set exists.
        earliest = alone[demand.n - 1]
        if shared:
            times = np.union1d(times, [tenant.end for node in shared for tenant in self.cluster.tenants[node]])
        else:
            earliest = max(earliest, first_in_common(self.cluster, demand, nodes, fits))
        moments = times[np.isfinite(times) & (times >= earliest)].tolist()
        found: tuple[Berth, float] | None = None
        low, high, step = 0, len(moments), 1
        while low < high:
            middle = min(low + step - 1, (low + high) // 2)
            try:
                found = self._best_at(moments[middle], demand, policy), moments[middle]
            except NotNow:
                low, step = middle + 1, step * 2
            else:
                high = middle
        return found
