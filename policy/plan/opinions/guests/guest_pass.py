"""The guest pass: after the owners are planned, it evicts guests, gives out seats, and upgrades guests to owners.

The book holds the claims of the owners. Guests get what is left, in Slurm's own order, and never move an owner.
A waiting guest is pinned only when its seat is free; until then it is parked, on no node.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from policy.cluster.shared.sharers import Guest, Sharers
from policy.formats.array_tasks import waiting_tasks
from policy.formats.arrays import FAR
from policy.formats.errors import FormatError, NotNow
from policy.formats.plan_fields import PARKED, UPGRADE
from policy.formats.slurm_facts import JobFacts
from policy.plan.jobs.waiting import Waiting
from policy.plan.jobs.waiting_jobs import Reader
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Evict, Move, Own, Park
from policy.plan.ledger.claims import claim_on, seat_on
from policy.plan.opinions.guests import seats
from policy.plan.opinions.guests.choosing import Chooser
from policy.request.settings import Settings
from policy.request.tiers import GUARANTEED, OPPORTUNISTIC

PARK_AGAIN = 0.5
"""A guest is parked again when less than this part of its last parking time is left."""

PARKED_FOR = 86_400
"""Seconds after which a parked guest starts as any job if it is not parked again, in case Berth is gone for good."""

START_WITHIN = 30.0
"""Seconds that a guest may take to start on a seat that looks free; then it is taken off the node."""


@dataclass(frozen=True, slots=True)
class Rider:
    """A running guest that is to get the GPU of its seat as its own, at its turn in the queue."""

    entry: Waiting
    guest: Guest
    place: int

    @property
    def order(self) -> tuple[int, int, int, int, float]:
        """Returns the sort key of Slurm's order, as for waiting jobs."""
        return self.entry.order


def riders(book: Book, jobs: Iterable[JobFacts], reader: Reader) -> list[Rider]:
    """Returns the running guests that want to be upgraded."""
    cluster = book.cluster
    guests = {guest.job: (guest, place) for place, one in cluster.sharers.items() for guest in one.guests}
    found = []
    for job in jobs if guests else ():
        if job.id in guests and job.state == "RUNNING" and UPGRADE in job.known:
            try:
                found.append(Rider(reader.read(job, cluster.at), *guests[job.id]))
            except FormatError:
                continue  # an unreadable job goes on as a guest
    return found


def upgrade(book: Book, rider: Rider, queue: Iterable[Waiting]) -> list[Own]:
    """Gives a guest its GPU as its own, if no owner runs there and no job before it in line claims it.

    Slurm sees the GPU as free, and would start a job there that asks for no seat and is pinned there already. So
    the guest is not upgraded while such a job waits.
    """
    job, cluster = rider.entry.job, book.cluster
    if any(_starts_over(entry, rider) for entry in queue):
        return []
    left = max(1, int((job.end or cluster.at + rider.entry.demand.limit) - cluster.at))
    demand = replace(rider.entry.demand, limit=left)
    if book.start_of(demand, [rider.place], rider.guest.mask) != 0.0:
        return []
    claim = claim_on(book.fleet, demand, [rider.place], rider.guest.mask, cluster.at)
    # While it runs, no job may be planned there that asks for no seat, as that job would not wait.
    book.claim(replace(claim, end=FAR))
    there = cluster.sharers[rider.place]
    others = tuple(guest for guest in there.guests if guest is not rider.guest)
    cluster.sharers[rider.place] = replace(there, guests=others)
    return [Own(job, "its turn has come, and nobody else has or needs the GPU that it sits on")]


def _starts_over(entry: Waiting, rider: Rider) -> bool:
    without_seat = entry.demand.tier.name == GUARANTEED or entry.demand.share is not None
    return without_seat and rider.place in entry.nodes and bool(entry.mask & rider.guest.mask)


class Riding:
    """One pass over all guests, or over those of some nodes."""

    def __init__(
        self,
        book: Book,
        settings: Settings,
        free_since: dict[int, float],
        changes: list[Change],
        chooser: Chooser | None = None,
        places: Iterable[int] | None = None,
    ) -> None:
        """`chooser` has the jobs' profiles; without it, rules choose the seats. `places`: only these nodes."""
        self._book = book
        self._places = places
        self._chooser = chooser
        self._settings = settings
        self._free_since = free_since
        self._changes = changes
        self._left_now: seats.Left | None = None
        self._refused: set[tuple[object, ...]] = set()
        """Shapes for which no seat is left."""

    def evict(self, jobs: Iterable[JobFacts], places: Iterable[int] | None = None) -> None:
        """Evicts the guests whose GPUs, CPUs or memory owners need now."""
        going = {one.guest.job: one for one in seats.to_evict(self._book, places)}
        if not going:
            return
        self._changes += [Evict(job, going[job.id].reason) for job in jobs if job.id in going]
        sharers = self._book.cluster.sharers
        for place, there in list(sharers.items()):
            stay = tuple(guest for guest in there.guests if guest.job not in going)
            if len(stay) < len(there.guests):
                # The owner has the seat from now on. A seat on a GPU that a host takes is not given away at once.
                sharers[place] = Sharers(there.hosts, stay)

    def look(self, guests: Iterable[Waiting], queue: Iterable[Waiting]) -> None:
        """Collects the jobs that want a seat and passes them to the chooser, before any seat is given."""
        if self._chooser is None or self._places is not None:
            return
        at = self._book.cluster.at
        offers = [
            one for one in queue if one.guest.may_ride_from <= at and not one.guest.only and self._wants_offer(one)
        ]
        wanting = [one for one in guests if not one.nodes and one.may_start_at(at)]
        if wanting or offers:
            self._chooser.look(self._left, sorted([*wanting, *offers], key=lambda one: one.order))

    def settle(self, entry: Waiting) -> None:
        """Keeps a waiting guest on its seat, gives it another one, or parks it."""
        if entry.job.tasks:
            self._spread(entry)
            return
        cluster = self._book.cluster
        entry.last.start, entry.last.place = None, ()
        if not entry.may_start_at(cluster.at):
            if entry.guest.parked is not None:
                self._park_again(entry)
            return
        if entry.nodes and entry.guest.seated:
            since = self._free_since.setdefault(entry.job.id, cluster.at)
            if self._is_free(entry) and cluster.at - since < START_WITHIN:
                self._take(entry, entry.nodes[0], entry.mask)
                return
        self._free_since.pop(entry.job.id, None)
        if not self._seat(entry):
            self._park_again(entry)

    def offer(self, entry: Waiting) -> None:
        """Lets a job that waits for GPUs of its own begin as a guest, if it may.

        One without a place that is still pinned to the seat from which it was sent away loses that pin: Slurm would
        start it there again.
        """
        if self._book.cluster.at >= entry.guest.may_ride_from and self._wants_offer(entry) and self._seat(entry):
            return
        if entry.has_left_seat:
            self._park_again(entry)

    def _wants_offer(self, entry: Waiting) -> bool:
        job = entry.job
        return not (entry.last.start == 0.0 or job.tasks or job.het) and entry.may_start_at(self._book.cluster.at)

    def _seat(self, entry: Waiting) -> bool:
        found = self._find(entry)
        if found is None:
            return False
        pure = entry.demand.tier.name == OPPORTUNISTIC
        why = "a seat is free" if pure else "a seat is free, until GPUs of its own are"
        self._changes.append(
            Move(
                entry.job, found.berth, 0.0, why, adopted=entry.adopted, way=found.way, slope=found.slope, sms=found.sms
            )
        )
        self._take(entry, found.berth.nodes[0], found.berth.mask)
        entry.nodes, entry.mask = found.berth.nodes, found.berth.mask
        entry.guest.seated = entry.guest.only = True
        return True

    def _find(self, entry: Waiting) -> seats.Seat | None:
        if len(self._changes) >= self._settings.most_moves:
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
        at = self._book.cluster.at
        if not entry.may_start_at(at):
            self._park_again(entry)
            return
        for node, mask in ((nodes[0], mask) for nodes, mask in entry.last.given.values()):
            self._claim(entry, node, mask)
        tasks = [task for task in waiting_tasks(entry.job.tasks) if task not in entry.last.given]
        for task in tasks[: entry.job.at_once]:
            found = self._find(entry)
            if found is None:
                break
            self._changes.append(
                Move(
                    entry.job, found.berth, 0.0, "a seat is free", task, way=found.way, slope=found.slope, sms=found.sms
                )
            )
            entry.last.given[task] = found.berth.nodes, found.berth.mask
            self._claim(entry, found.berth.nodes[0], found.berth.mask)
        else:
            return
        self._park_again(entry)

    def _is_free(self, entry: Waiting) -> bool:
        """Tells whether a guest can still start on its seat: it must be a seat that it could be given now."""
        return self._left.takes(entry.demand, entry.nodes[0], entry.mask)

    @property
    def _left(self) -> seats.Left:
        if self._left_now is None:
            self._left_now = seats.Left(self._book.cluster, self._places)
        return self._left_now

    def _take(self, entry: Waiting, node: int, mask: int) -> None:
        self._claim(entry, node, mask)
        entry.last.start, entry.last.place, entry.last.mask = 0.0, (node,), mask

    def _claim(self, entry: Waiting, node: int, mask: int) -> None:
        claim = seat_on(entry.demand, node, mask, self._book.cluster.at)
        self._left.take(node, mask, claim.cpus or 0, claim.mem or 0)
        self._book.claim(claim)

    def _park_again(self, entry: Waiting) -> None:
        job, at = entry.job, self._book.cluster.at
        if len(self._changes) >= self._settings.most_moves:
            return
        if entry.guest.parked is None or entry.nodes or (job.begin or 0.0) - at < PARK_AGAIN * PARKED_FOR:
            self._changes.append(Park(job, "no seat is free for it"))
            entry.guest.parked = float(job.known.get(PARKED, 0))
            entry.nodes, entry.mask, entry.guest.seated = (), 0, False
            entry.guest.only = entry.demand.tier.name == OPPORTUNISTIC


def in_order(queue: Sequence[Waiting], going: Sequence[Rider]) -> Iterable[Waiting | Rider]:
    """Merges the waiting jobs and the guests to be upgraded, in Slurm's order."""
    return sorted([*queue, *going], key=lambda one: one.order) if going else queue
