# SPDX-License-Identifier: Apache-2.0
"""The tracker: what the cluster holds now and when it comes free; each reading updates only the changed nodes."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from policy.cluster import reserved
from policy.cluster.fleet import Fleet
from policy.cluster.shared.fragmentation import cpus_per_gpu, learned
from policy.cluster.shared.sharers import Guest, Host, Sharers, who_is
from policy.cluster.shared.shelves import Shelves
from policy.cluster.shared.tenants import PlannedTenant, Tenants
from policy.cluster.snapshot import BY_NODE, COLUMNS, Cluster, TakenLater
from policy.cluster.timeline import State, columns, normal, states_of, taken
from policy.formats.arrays import FAR
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import GPU_MEM, HELD, MOVE_UNTIL, TIER, WAY, HeldLevel, K
from policy.formats.selection import Selection
from policy.plan.ledger.book import Book
from policy.plan.ledger.isolation import Isolation
from policy.request.share import NOBODY, Mate, Share, party
from policy.request.tiers import GUARANTEED

if TYPE_CHECKING:
    from policy.cluster.shared.company import Company
    from policy.cluster.shared.fragmentation import UsualJob
    from policy.formats.arrays import Bools
    from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading, Reservation

SOON = 5.0
"""Seconds after which the GPUs of a job past its time limit are assumed to come free."""

LEARN_EVERY = 60.0
"""Seconds between two updates of what usual jobs ask for, while GPUs are shared."""

IN_TURN = "guard"
"""The level by which a node holds a host and its guest that take turns (`held` in the plan)."""

HOLDING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})


class Tracker:
    """All running jobs on their nodes, without waiting jobs."""

    def __init__(self, fleet: Fleet, isolation: Isolation | None = None) -> None:
        """With `isolation` a node that cannot be understood counts as down; without it, that raises."""
        count = len(fleet.names)
        self._isolation = isolation
        self.fleet = fleet
        self.at = 0.0
        self._memory_counts = True
        self._nodes: list[NodeFacts | None] = [None] * count
        self._holding: dict[int, JobFacts] = {}
        self._jobs_of: list[dict[int, JobFacts]] = [{} for _ in range(count)]
        self._ended: set[tuple[int, int]] = set()
        """Pairs of job and node that the snapshot shows as free already; their Epilog may still report."""
        self._running, self._completing = Selection(_is_running), Selection(_is_completing)
        self._up, self._lost = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self._quiet = np.zeros(count, np.bool_)
        self._pieces = np.zeros(count, np.int64)
        self._open = np.zeros(count, np.bool_)
        self._reserved_from = self._no_holes = np.full(count, FAR)
        self._holds: dict[int, tuple[reserved.Hold, ...]] = {}
        """The parts of nodes that reservations take, by node."""
        self._free_now = np.zeros((3, count), np.int64)
        """GPUs, CPUs and memory that are free now, and perhaps reserved for later."""
        self._reservations: tuple[Reservation, ...] = ()
        self._counted: dict[int, float] = {}
        self._taken_later: dict[int, tuple[TakenLater, ...]] = {}
        self._rooms: tuple[reserved.Room, ...] = ()
        self._rows: list[list[State] | None] = [None] * count
        """Timelines as lists, for books; None where it has to be made anew."""
        self._rows_until = np.zeros(count)
        """Times of the first ends in these lists."""
        self._version = 0
        self._times = np.zeros((count, COLUMNS))
        self._gpus = np.zeros((count, COLUMNS), np.int64)
        self._cpus = np.zeros((count, COLUMNS), np.int64)
        self._mem = np.zeros((count, COLUMNS), np.int64)
        self._tenants: dict[int, Tenants] = {}
        self._sharers: dict[int, Sharers] = {}
        self._shelves = Shelves()
        self.changed: frozenset[int] = frozenset()
        """Nodes that the last reading has changed."""
        self.closed: dict[int, int] = {}
        """Mask of GPUs that take no new guest, by node."""
        self.spare_sms: dict[Mate, int] = {}
        """Percent of the SMs that hosts leave to a guest, if known."""
        self.neighbours: Company | None = None
        """Predictions for packed jobs that share a GPU."""
        self._leaving: dict[int, int] = {}
        """Seats of guests that are ending; a node may have been read a moment before the guest left."""
        self._shapes: tuple[UsualJob, ...] = ()
        self._cpus_per_gpu = 0.0
        self._learned = -LEARN_EVERY

    def update(self, reading: "Reading", is_requeued: "Callable[[int], bool]" = lambda _: False) -> frozenset[int]:
        """Takes a reading over; returns the nodes that have changed, which `changed` keeps until the next one.

        `is_requeued` tells whether Slurm has requeued a job that still ends, for one on several nodes of its place.
        """
        self.at = reading.at
        self._version += 1
        self._memory_counts = reading.memory_counts
        over = self._completing.of(reading.jobs).values()
        self._leaving = self._seats_left(over)
        changed = {place for place, node in enumerate(reading.nodes) if node is not self._nodes[place]}
        changed |= self._take_jobs(self._running.of(reading.jobs))
        for place in changed:
            self._take_node(place, reading.nodes[place], memory_counts=reading.memory_counts)
        changed.update(self._reserve(reading, [job for job in over if is_requeued(job.id)]))
        for place in changed:
            self._rows[place] = None
        self._ended = {(job.id, place) for job in over for place in self._places(job)}
        # An expected end that has passed while the job still runs is put off; the first column is always now.
        np.maximum(self._times, self.at + SOON, out=self._times)
        self._times[:, 0] = self.at
        # Of most nodes where nothing more comes free nothing is held: their timelines stay as they are.
        more = [rows[:, -1] != rows[:, 0] for rows in (self._gpus, self._cpus, self._mem)]
        self._times[~np.logical_or.reduce(more)] = self.at
        if self._tenants:
            self._look_after_tenants()
        if self.at - self._learned >= LEARN_EVERY:
            self._learned = self.at
            if self._isolation is None:
                self._learn_shapes(reading.jobs)
            else:
                self._isolation.group(self.at, self._learn_shapes, reading.jobs)
        self.changed = frozenset(changed)
        return self.changed

    def _learn_shapes(self, jobs: "Iterable[JobFacts]") -> None:
        self._shapes = learned(jobs)
        self._cpus_per_gpu = cpus_per_gpu(self._shapes)

    def _take_node(self, place: int, node: "NodeFacts", *, memory_counts: bool) -> None:
        """Takes a changed node over; one that cannot be understood counts as down, and is tried again."""
        self._nodes[place], self._up[place], self._quiet[place] = node, node.up, not node.completing
        self._lost[place] = node.lost and not node.up
        write = partial(self._write, memory_counts=memory_counts)
        if self._isolation is None:
            write(place, node)
        elif not self._isolation.node(node.name, self.at, write, place, node):
            self._nodes[place], self._up[place] = None, False

    def end(self, job_id: int, name: str) -> frozenset[int]:
        """Frees all nodes of a job whose Epilog has reported its end on one node; returns the nodes that came free.

        This saves a reading of Slurm. A job ends on all its nodes at the same moment. They are freed together, so that
        a job that needs all of them does not lose one. Returns an empty set if the job is not known on that node; then
        a reading is needed. If the job still runs on another node, the next reading corrects it.
        """
        place = self.fleet.index.get(name)
        if place is None:
            return frozenset()
        if (job_id, place) in self._ended:
            return frozenset({place})
        job = self._jobs_of[place].get(job_id)
        if job is None:
            return frozenset()
        places = self._places(job)
        if any(self._nodes[one] is None or gpus_held(job, self.fleet.names[one]) is None for one in places):
            return frozenset()
        for one in places:
            self._end_on(one, job)
        self._ended.update((job_id, one) for one in places if one != place)
        return frozenset(places)

    def _end_on(self, place: int, job: "JobFacts") -> None:
        node = self._nodes[place]
        assert node is not None, "a job was read with its nodes"  # noqa: S101 - narrows the type
        mask = gpus_held(job, node.name) or 0
        self._jobs_of[place].pop(job.id, None)
        # A guest may sit on the owner's seat, and it stays.
        seats = (job.gpus or 0) if job.guest else mask & ~self._sharers.get(place, Sharers()).guest_mask
        share = job.cpus // max(1, len(job.nodes))
        mem = min(node.mem_used, job.mem or 0)
        shared = [max(0, had - (job.share if mask >> gpu & 1 else 0)) for gpu, had in enumerate(node.shared)]
        for gpu, left in enumerate(shared):
            mask &= ~(1 << gpu if left else 0)
        # The next reading replaces this record.
        self._nodes[place] = node = replace(
            node,
            gpus_used=node.gpus_used & ~(0 if job.guest else mask),
            seats_used=node.seats_used & ~seats,
            shared=tuple(shared) if any(shared) else (),
            cpus_used=max(0, node.cpus_used - share),
            mem_used=node.mem_used - mem,
            completing=True,
        )
        self._quiet[place] = False
        self._write(place, node, memory_counts=self._memory_counts)

    def book(self) -> Book:
        """Returns a new book to claim from."""
        crowded = 2 * int(np.bitwise_count(self._gpus[:, 0]).sum()) < int(self.fleet.size.sum())
        return Book(self._cluster(crowded=crowded), partial(self._as_rows, self._version))

    def _cluster(self, *, crowded: bool = False) -> Cluster:
        """Returns the snapshot as it is now; costs next to no time in the number of nodes."""
        return Cluster(
            fleet=self.fleet,
            at=self.at,
            up=self._open,
            quiet=self._quiet,
            times=self._times,
            gpus=self._gpus,
            cpus=self._cpus,
            mem=self._mem,
            gpus_now=self._free_now[0],
            cpus_now=self._free_now[1],
            mem_now=self._free_now[2],
            hole_until=self._no_holes,
            reserved_from=self._reserved_from,
            pieces=self._pieces,
            lost=frozenset(np.flatnonzero(self._lost).tolist()),
            tenants=self._tenants,
            shapes=self._shapes,
            cpus_per_gpu=self._cpus_per_gpu,
            sharers=self._sharers,
            closed=self.closed,
            neighbours=self.neighbours,
            spare_sms=self.spare_sms,
            shelves=self._shelves,
            reservations=self._reservations,
            typed=frozenset((place, one.name) for place, holds in self._holds.items() for one in holds if one.mask),
            counted=self._counted,
            taken_later=dict(self._taken_later),
            rooms=self._rooms,
            crowded=crowded,
        )

    def _as_rows(self, version: int, cluster: Cluster) -> list[list[State]]:
        """Returns all timelines as lists: those of the last book where nothing but the time has changed since.

        Returns nothing for a book that is older than the snapshot.
        """
        if version != self._version:
            return []
        old = (self._rows_until < self.at + SOON) | (self._reserved_from < FAR)
        for place in np.flatnonzero(old).tolist():
            self._rows[place] = None
        rows = []
        for place, known in enumerate(self._rows):
            row = known
            if row is None:
                row = self._rows[place] = states_of(cluster, place)
                self._rows_until[place] = row[1][0] if len(row) > 1 else FAR
            rows.append(row)
        return rows

    def put_back(self, book: Book, places: Iterable[int]) -> None:
        """Undoes all claims on some nodes of a book, and brings those nodes up to date."""
        here = list(places)
        cluster, ours = book.cluster, self._cluster()
        for name in BY_NODE:
            getattr(cluster, name)[here] = getattr(ours, name)[here]
        for place in here if self._tenants or cluster.tenants else ():
            cluster.tenants.pop(place, None)
            if place in self._tenants:
                cluster.tenants[place] = self._tenants[place]
        for place in here if self._sharers or cluster.sharers else ():
            cluster.tolerated.pop(place, None)
            cluster.sharers.pop(place, None)
            if place in self._sharers:
                cluster.sharers[place] = self._sharers[place]
        book.advance(self.at)

    def is_free(self, places: Iterable[int], mask: int) -> bool:
        """Tells whether no running job holds any of these GPUs on any of these nodes."""
        return all(int(self._gpus[place, 0]) & mask == mask for place in places)

    def _seats_left(self, jobs: "Iterable[JobFacts]") -> dict[int, int]:
        left: dict[int, int] = {}
        for job in jobs:
            if job.guest:
                for place in self._places(job):
                    left[place] = left.get(place, 0) | (job.gpus or 0)
        return left

    def _take_jobs(self, holding: "dict[int, JobFacts]") -> set[int]:
        changed: set[int] = set()
        for job_id, job in holding.items():
            if self._holding.get(job_id) is not job:
                changed |= self._forget(job_id)
                for place in self._places(job):
                    self._jobs_of[place][job_id] = job
                    changed.add(place)
        for job_id in self._holding.keys() - holding.keys():
            changed |= self._forget(job_id)
        self._holding = holding
        return changed

    def _forget(self, job_id: int) -> set[int]:
        places = set(self._places(self._holding[job_id])) if job_id in self._holding else set()
        for place in places:
            self._jobs_of[place].pop(job_id, None)
        return places

    def _places(self, job: "JobFacts") -> list[int]:
        return [self.fleet.index[name] for name in job.nodes if name in self.fleet.index]

    def _reserve(self, reading: "Reading", requeued: "Iterable[JobFacts]") -> Iterable[int]:
        """Closes what is reserved, or may be kept for a requeued job; returns the nodes that changed by this."""
        is_open, reserved_from = self._up.copy(), np.full(len(self.fleet.names), FAR)
        found: dict[int, list[reserved.Hold]] = {}
        counted: dict[int, float] = {}
        self._reservations = tuple(one for one in reading.reservations if one.end > reading.at)
        now = [one for one in self._reservations if one.start <= reading.at]
        for one in self._reservations:
            cores = dict(one.cores)
            for place in reserved.places(one, self.fleet):
                mask = reserved.typed(one, self.fleet, place)
                if mask is None:
                    counted[place] = min(counted.get(place, FAR), float(one.start))
                if mask is not None and (held := cores.get(self.fleet.names[place])):
                    # An active one has no start of its own, so that time alone changes nothing.
                    start = 0.0 if one in now else float(one.start)
                    found.setdefault(place, []).append(reserved.Hold(start, one.end, mask, held, one.name))
                elif one in now:
                    is_open[place] = False
                else:
                    reserved_from[place] = min(reserved_from[place], one.start)
        for job in requeued:
            is_open[self._kept_for(job)] = False
        holds = reserved.by_node(found)
        other = {place for place in self._holds.keys() | holds if self._holds.get(place) != holds.get(place)}
        different: Bools = (is_open != self._open) | (reserved_from != self._reserved_from)
        self._open, self._reserved_from, self._holds, self._counted = is_open, reserved_from, holds, counted
        for place in other:
            if (node := self._nodes[place]) is not None:
                self._write(place, node, memory_counts=reading.memory_counts)
        self._rooms = tuple(room for one in now for room in self._rooms_of(one, reading.version))
        return {*other, *np.flatnonzero(different).tolist()}

    def _kept_for(self, job: "JobFacts") -> list[int]:
        """Returns the whole nodes of a requeued job that still ends, if one takes no jobs any more.

        It may keep the others from then on (policy/plan/opinions/lost_node.py).
        """
        places = [self.fleet.index[name] for name in job.required if name in self.fleet.index]
        whole = bool((self.fleet.size[places] == job.known.get(K)).all())
        return places if whole and not self._up[places].all() else []

    def _rooms_of(self, one: "Reservation", version: str) -> list[reserved.Room]:
        """Returns what Slurm may give to unpinned jobs: beside what a reservation counts, and in a magnetic one."""
        own = reserved.places(one, self.fleet)
        anywhere = {"MAGNETIC", "FLEX"} <= one.flags
        places = {*own, *(np.flatnonzero(self._open).tolist() if anywhere else ())}
        nodes = {place: node for place in places if (node := self._nodes[place]) is not None and self._up[place]}
        used = {
            place: [
                (gpus_held(job, node.name) or 0, job.cpus // max(1, len(job.nodes)))
                for job in self._inside(place, one.name)
            ]
            for place, node in nodes.items()
        }
        idle = {place: _free_gpus(node, 0) & self._total(place)[0] for place, node in nodes.items()}
        return reserved.rooms_of(one, self.fleet, own, nodes, idle, used, version)

    def _inside(self, place: int, name: str) -> "list[JobFacts]":
        """Returns the jobs of a reservation on a node."""
        return [job for job in self._jobs_of[place].values() if job.reservation == name]

    def _write(self, place: int, node: "NodeFacts", *, memory_counts: bool) -> None:
        """Writes a node's timeline: when its jobs free what they hold."""
        self._rows[place] = None
        self._version += 1
        full, total_cpus, total_mem = self._total(place)
        sharers = self._sharers_of(place, node)
        free = _free_gpus(node, sharers.guest_mask | self._leaving.get(place, 0)) & full
        # The plan of the owners is made as if there were no guests.
        cpus = max(0, node.cpus - node.cpus_used + sum(guest.cpus for guest in sharers.guests))
        given = sum(guest.mem for guest in sharers.guests)
        mem = max(0, total_mem - (node.mem_used - given if memory_counts else 0))
        until = {hold.name: hold.end for hold in self._holds.get(place, ()) if not hold.start}
        ends = sorted(
            (max(_end(job, self.at), until.get(job.reservation, 0.0)), job.id, job)
            for job in self._jobs_of[place].values()
            if not job.rides
        )
        held = {job.id: gpus_held(job, node.name) for _, _, job in ends}
        alone = [held[job.id] or 0 for _, _, job in ends if not job.share]
        self._pieces[place] = sum(mask.bit_count() for mask in alone if mask != full)
        # A shared GPU comes free when its last job ends.
        known, last = 0, {}
        for _, _, job in reversed(ends):
            mask = held[job.id] or 0
            last[job.id] = mask & ~known
            known |= mask
        # Nodes are read before jobs: a job that started in between holds GPUs that still looked free.
        free &= ~known
        # If Slurm does not tell which GPUs untyped jobs hold, all of these come free when the last such job ends.
        unknown = full & ~free & ~known
        last_unknown = max((number for number, (_, _, job) in enumerate(ends) if held[job.id] is None), default=-1)
        states: list[State] = [(self.at, free, cpus, mem)]
        for number, (end, _, job) in enumerate(ends):
            _, gpus, cpus, mem = states[-1]
            gpus |= full & (last[job.id] | (unknown if number == last_unknown else 0))
            share = job.cpus / max(1, len(job.nodes))
            # If a job's memory is not known, it is estimated by the job's share of the CPUs in use.
            given = int(node.mem_used * share / max(1, node.cpus_used)) if job.mem is None else job.mem
            states.append((end, gpus, min(total_cpus, cpus + int(share)), min(total_mem, mem + given)))
        if ends:
            # After its last job a node is empty, whatever the rounding above left over.
            states[-1] = (*states[-1][:2], total_cpus, total_mem)
        row = normal(states)
        self._free_now[:, place] = row[0][1:]
        later = []
        for hold in self._holds.get(place, ()):
            # What the reservation's own jobs hold is not free for others, and not reserved twice.
            cores = hold.cores.bit_count() * node.threads
            cores = max(0, cores - sum(job.cpus // max(1, len(job.nodes)) for job in self._inside(place, hold.name)))
            row = taken(row, hold.start or self.at, hold.end, hold.mask, cores, 0)
            if hold.start:
                later.append(TakenLater(hold.start, hold.mask, cores))
            else:
                self._free_now[:, place] = row[0][1:]
        self._taken_later.pop(place, None)
        if later:
            self._taken_later[place] = tuple(later)
        self._times[place], self._gpus[place], self._cpus[place], self._mem[place] = columns(row)
        tenants = self._tenants_of(place, node, ends, held)
        if tenants:
            self._tenants[place] = Tenants(tenants)
        else:
            self._tenants.pop(place, None)

    def _sharers_of(self, place: int, node: "NodeFacts") -> Sharers:
        """Finds, stores and returns the hosts and guests of a node."""
        hosts, guests = [], []
        for job in self._jobs_of[place].values():
            if job.rides:
                guests.append(Guest(job.id, job.gpus or 0, job.cpus, job.mem or 0, job.priority))
            elif job.known.get(TIER) == GUARANTEED and (mask := gpus_held(job, node.name)):
                gpus = mask.bit_count() * len(job.nodes)
                mps, gpu_mem = _bears_mps(job.known, node.name), job.known.get(GPU_MEM)
                hosts.append(Host(mask, gpus, job.user, mps, gpu_mem, who_is(job), job.id))
        sharers = Sharers(tuple(hosts), tuple(guests))
        if hosts or guests:
            self._sharers[place] = sharers
        else:
            self._sharers.pop(place, None)
        return sharers

    def _tenants_of(
        self,
        place: int,
        node: "NodeFacts",
        ends: "Iterable[tuple[float, int, JobFacts]]",
        held: "dict[int, int | None]",
    ) -> tuple[PlannedTenant, ...]:
        """Returns the jobs that share GPUs of a node, and the part of its GPUs that no known job accounts for."""
        sharing, capacity = self.fleet.sharing, self.fleet.gpu_mem_for_shares(place)
        tenants = []
        for end, _, job in ends:
            if job.share and (mask := held[job.id]):
                share = Share(job.share, job.known.get(GPU_MEM), party(job.user, sharing))
                mate = job.user, job.name
                tenants.append(PlannedTenant(mask, job.share, share.granted(capacity), share.party, 0.0, end, mate))
        for gpu, percent in enumerate(node.shared):
            told = sum(tenant.percent for tenant in tenants if tenant.mask >> gpu & 1)
            if percent > told:
                tenants.append(PlannedTenant(1 << gpu, percent - told, 0, NOBODY, 0.0, FAR))
        return tuple(tenants)

    def _look_after_tenants(self) -> None:
        """Puts off the ends of packed jobs past their time limits."""
        soon = self.at + SOON
        for place, tenants in self._tenants.items():
            if any(tenant.end < soon for tenant in tenants):
                late = [replace(tenant, end=soon) if tenant.end < soon else tenant for tenant in tenants]
                self._tenants[place] = Tenants(tuple(late))

    def _total(self, place: int) -> tuple[int, int, int]:
        fleet = self.fleet
        full = (1 << int(fleet.size[place])) - 1 if fleet.ready[place] else 0
        return full, int(fleet.cpus[place]), int(fleet.mem[place])


def open_book(fleet: Fleet, reading: "Reading") -> Book:
    """Returns the book of a single reading."""
    tracker = Tracker(fleet)
    tracker.update(reading)
    return tracker.book()


def _free_gpus(node: "NodeFacts", guests: int) -> int:
    # An exclusive job takes the seats of its GPUs too. So a GPU whose seat is taken is not free for it, except when a
    # guest has that seat: guests leave.
    return ((1 << node.gpus) - 1) & ~node.gpus_used & ~(node.seats_used & ~guests)


def _bears_mps(plan: JobPlan, node: str) -> bool:
    """Tells whether guests join a host by MPS; its node says otherwise if a guest was there before it."""
    return plan.get(WAY) == "mps" and HeldLevel(node, IN_TURN) not in plan.get(HELD, ())


def gpus_held(job: "JobFacts", node: str) -> int | None:
    """Returns the GPUs that a job holds on one of its nodes; None if not known."""
    if job.guest:
        # For Slurm a guest holds no GPU. A guest that was given its GPU for good keeps other jobs off it.
        return 0 if job.rides else job.gpus
    if job.holds:
        return job.holds[job.nodes.index(node)]
    return job.gpus if job.wants_gpus else 0


def _end(job: "JobFacts", at: float) -> float:
    # Slurm sees a guest's GPU as free, and would start a job there that is planned without a seat. So a guest gets no
    # expected end, and no job is planned on its GPU.
    leaves = job.known.get(MOVE_UNTIL)
    if leaves is not None and not job.guest:
        return max(float(leaves), at + SOON)
    return FAR if job.guest or job.end is None else max(float(job.end), at + SOON)


def _is_running(job: "JobFacts") -> bool:
    return job.state in HOLDING


def _is_completing(job: "JobFacts") -> bool:
    return job.state == "COMPLETING"
