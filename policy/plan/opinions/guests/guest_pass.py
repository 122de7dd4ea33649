# SPDX-License-Identifier: Apache-2.0
"""The guest pass: after the owners are planned, it evicts guests, gives out seats, and upgrades guests to owners.

The book holds the claims of the owners. Guests get what is left, in Slurm's own order, and never move an owner.
A waiting guest is pinned only when its seat is free; until then it is parked, on no node.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from policy.cluster.shared.sharers import Guest, Sharers
from policy.formats.arrays import FAR
from policy.formats.errors import FormatError, NotNow
from policy.formats.plan_fields import PARKED, UPGRADE
from policy.formats.slurm_syntax.array_tasks import waiting_tasks
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Matter, Waiting
from policy.plan.jobs.waiting_jobs import PARKED_FOR, parked_until
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Evict, Move, Own, Park
from policy.plan.ledger.claims import Claim, claim_on, seat_on
from policy.plan.opinions.guests import seats
from policy.plan.opinions.guests.choosing import Chooser
from policy.plan.opinions.opinion import Opinion, PassState, Reason
from policy.request.tiers import GUARANTEED, OPPORTUNISTIC

PARK_AGAIN = 0.5
"""A guest is parked again when less than this part of its last parking time is left."""

START_WITHIN = 30.0
"""Seconds that a guest may take to start on a seat that looks free; then it is taken off the node."""


class GuestPass(Opinion):
    """Plans jobs that want a seat, after all others, and running guests that are to own their GPU, at their turn."""

    about = Matter.GUESTS

    def __init__(self, chooser: Chooser | None = None) -> None:
        """`chooser` has the jobs' profiles; without it, rules choose the seats."""
        super().__init__()
        self._chooser = chooser
        self._upgrades: dict[int, tuple[Guest, int]] = {}
        """By job: a running guest that is to get the GPU of its seat as its own, and its node."""
        self._left_now: seats.Left | None = None
        self._refused: set[tuple[object, ...]] = set()
        """Shapes for which no seat is left."""

    def begin(self, state: PassState) -> bool:
        super().begin(state)
        self._left_now = None
        self._refused.clear()
        self._upgrades.clear()
        if state.touched is None:
            state.isolation.group(state.ledger.at, self._find_upgrades)
        return True

    def _find_upgrades(self) -> None:
        guests = {one.job: (one, place) for place, there in self.book.cluster.sharers.items() for one in there.guests}
        for job in self.state.jobs if guests else ():
            if job.id in guests and job.state == "RUNNING" and UPGRADE in job.known:
                with suppress(FormatError):  # an unreadable job goes on as a guest
                    self.state.running.append(self.state.read(job, self.ledger.at))
                    self._upgrades[job.id] = guests[job.id]

    def owns(self, entry: Waiting) -> bool:
        return entry.guest.only or entry.job.id in self._upgrades

    def plan(self, entry: Waiting) -> None:
        if entry.job.id in self._upgrades:
            self._upgrade(entry, *self._upgrades[entry.job.id])

    def _upgrade(self, entry: Waiting, guest: Guest, place: int) -> None:
        """Gives a guest its GPU as its own, if no owner runs there and no job before it in line claims it.

        Slurm sees the GPU as free, and would start a job there that asks for no seat and is pinned there already. So
        the guest is not upgraded while such a job waits.
        """
        job, cluster = entry.job, self.book.cluster
        if any(_starts_over(one, guest, place) for one in self.state.queue):
            return
        left = max(1, int((job.end or cluster.at + entry.demand.limit) - cluster.at))
        demand = replace(entry.demand, limit=left)
        if self.book.start_of(demand, [place], guest.mask) != 0.0:
            return
        claim = claim_on(self.book.fleet, demand, [place], guest.mask, cluster.at)
        # While it runs, no job may be planned there that asks for no seat, as that job would not wait.
        self.book.claim(replace(claim, end=FAR))
        there = cluster.sharers[place]
        others = tuple(other for other in there.guests if other is not guest)
        cluster.sharers[place] = replace(there, guests=others)
        self.ledger.write(Own(job, "its turn has come, and no other job has or needs the GPU that it sits on"))

    def end(self) -> None:
        isolation, at = self.state.isolation, self.ledger.at
        guests = [one for one in self.state.present.guests if one.guest.only and not self._is_seated_elsewhere(one)]
        isolation.group(at, self._evict)
        isolation.group(at, self._look, guests)
        # Guests that have a seat come first, so that no other guest takes it.
        for entry in sorted(guests, key=lambda entry: not entry.nodes):
            isolation.job(entry.job, at, self._settle, entry)
        for entry in self.state.present.guests:
            if entry.guest.may_ride_from < FAR and not entry.guest.only:
                isolation.job(entry.job, at, self._offer, entry)

    def _is_seated_elsewhere(self, entry: Waiting) -> bool:
        """Tells whether a guest has its seat on a node that is not planned again: the book still has its claim."""
        touched = self.state.touched
        return touched is not None and bool(entry.last.place) and touched.isdisjoint(entry.last.place)

    def _evict(self) -> None:
        """Evicts the guests whose GPUs, CPUs or memory owners need now."""
        going = seats.to_evict(self.book, self.state.touched)
        if not going:
            return
        self.ledger.changes += [Evict(job, going[job.id]) for job in self.state.jobs if job.id in going]
        sharers = self.book.cluster.sharers
        for place, there in list(sharers.items()):
            stay = tuple(guest for guest in there.guests if guest.job not in going)
            if len(stay) < len(there.guests):
                # The owner has the seat from now on. A seat on a GPU that a host takes is not given away at once.
                sharers[place] = Sharers(there.hosts, stay)

    def _look(self, guests: Iterable[Waiting]) -> None:
        """Collects the jobs that want a seat and passes them to the chooser, before any seat is given."""
        if self._chooser is None or self.state.touched is not None:
            return
        at = self.book.cluster.at
        may = (one for one in self.state.present.guests if one.guest.may_ride_from <= at and not one.guest.only)
        offers = [one for one in may if self._wants_offer(one)]
        wanting = [one for one in guests if not one.nodes and one.may_start_at(at)]
        if wanting or offers:
            self._chooser.look(self._left, sorted([*wanting, *offers], key=lambda one: one.order))

    def _settle(self, entry: Waiting) -> None:
        """Keeps a waiting guest on its seat, gives it another one, or parks it."""
        if entry.job.tasks:
            self._spread(entry)
            return
        cluster = self.book.cluster
        entry.last.start, entry.last.place = None, ()
        if not entry.may_start_at(cluster.at):
            if entry.guest.parked is not None:
                self._park_again(entry)
            return
        if entry.nodes and entry.guest.seated:
            since = self.state.free_since.setdefault(entry.job.id, cluster.at)
            # It must be a seat that it could be given now.
            is_free = self._left.takes(entry.demand, entry.nodes[0], entry.mask)
            if is_free and cluster.at - since < START_WITHIN:
                self._take(entry, entry.nodes[0], entry.mask)
                return
        self.state.free_since.pop(entry.job.id, None)
        if not self._seat(entry):
            self._park_again(entry)

    def _offer(self, entry: Waiting) -> None:
        """Lets a job that waits for GPUs of its own begin as a guest, if it may.

        One without a place that is still pinned to the seat from which it was sent away loses that pin: Slurm would
        start it there again.
        """
        if self.book.cluster.at >= entry.guest.may_ride_from and self._wants_offer(entry) and self._seat(entry):
            return
        if entry.has_left_seat:
            self._park_again(entry)

    def _wants_offer(self, entry: Waiting) -> bool:
        job = entry.job
        return not (entry.last.start == 0.0 or job.tasks or job.het) and entry.may_start_at(self.book.cluster.at)

    def _seat(self, entry: Waiting) -> bool:
        found = self._find(entry)
        if found is None:
            return False
        pure = entry.demand.tier.name == OPPORTUNISTIC
        why = "a seat is free" if pure else "a seat is free, until GPUs of its own are"
        self._pin(entry, found, why)
        self._take(entry, found.berth.nodes[0], found.berth.mask)
        entry.nodes, entry.mask = found.berth.nodes, found.berth.mask
        entry.guest.seated = entry.guest.only = True
        return True

    def _pin(self, entry: Waiting, seat: seats.Seat, why: str, task: int | None = None) -> None:
        self.ledger.write(
            Move(entry.job, seat.berth, 0.0, why, task, entry.adopted, seat.way, seat.slope, seat.sms, seat.need)
        )

    def _find(self, entry: Waiting) -> seats.Seat | None:
        if not self.ledger.may_change:
            return None
        entry.guest.unfit = ""
        shape = (entry.shape, entry.demand.gpu_mem)
        if shape in self._refused:
            return None
        try:
            if self._chooser is not None:
                return self._chooser.find(entry, self._left)
            return self._left.find(entry.demand)
        except seats.Unfit as unfit:
            entry.guest.unfit = str(unfit)
            return None  # a seat may still fit other guests of this shape
        except NotNow:
            self._refused.add(shape)
            return None

    def _spread(self, entry: Waiting) -> None:
        """Gives tasks of an array of guests seats of their own; the others stay parked."""
        at = self.book.cluster.at
        if not entry.may_start_at(at):
            self._park_again(entry)
            return
        for (claim,) in entry.last.given.values():
            self._claim(entry, claim.nodes[0], claim.mask)
        tasks = [task for task in waiting_tasks(entry.job.tasks) if task not in entry.last.given]
        for task in tasks[: entry.job.at_once]:
            found = self._find(entry)
            if found is None:
                break
            self._pin(entry, found, "a seat is free", task)
            entry.last.given[task] = (self._claim(entry, found.berth.nodes[0], found.berth.mask),)
        else:
            return
        self._park_again(entry)

    @property
    def _left(self) -> seats.Left:
        if self._left_now is None:
            cluster, touched = self.book.cluster, self.state.touched
            chooser = self._chooser
            self._left_now = seats.Left(cluster, touched, chooser.need_of) if chooser else seats.Left(cluster, touched)
        return self._left_now

    def _take(self, entry: Waiting, node: int, mask: int) -> None:
        self._claim(entry, node, mask)
        entry.last.start, entry.last.place, entry.last.mask = 0.0, (node,), mask

    def _claim(self, entry: Waiting, node: int, mask: int) -> Claim:
        claim = seat_on(entry.demand, node, mask, self.book.cluster.at)
        self._left.take(node, mask, claim.cpus or 0, claim.mem or 0)
        self.book.claim(claim)
        return claim

    def _park_again(self, entry: Waiting) -> None:
        job, at = entry.job, self.book.cluster.at
        if not self.ledger.may_change:
            return
        is_put_off = entry.guest.parked != job.known.get(PARKED)
        if is_put_off or entry.nodes or (job.begin or 0.0) - at < PARK_AGAIN * PARKED_FOR:
            self.ledger.write(Park(job, "no seat is free for it"))
            entry.guest.parked = parked_until(job) or 0
            entry.nodes, entry.mask, entry.guest.seated = (), 0, False
            entry.guest.only = entry.demand.tier.name == OPPORTUNISTIC

    @staticmethod
    def reason(entry: Waiting, planned: Book, running: Book, policy: Policy) -> Reason | None:
        if not (entry.guest.only and entry.may_start_at(planned.at)):
            return None
        try:
            seats.Left(planned.cluster).find(entry.demand)
        except NotNow as nothing:
            return Reason("capacity", f"it waits for a seat: {nothing}", 501)
        return Reason("capacity", f"it waits for a seat: {entry.guest.unfit}", 501) if entry.guest.unfit else None


def _starts_over(entry: Waiting, guest: Guest, place: int) -> bool:
    """Tells whether Slurm would start a waiting job on the GPU of a guest."""
    without_seat = entry.demand.tier.name == GUARANTEED or entry.demand.share is not None
    return without_seat and place in entry.nodes and bool(entry.mask & guest.mask)
