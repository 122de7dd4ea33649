# SPDX-License-Identifier: Apache-2.0
"""The choice of seats: gives each waiting guest a seat by the profiles of guest and hosts.

Slurm's order decides which guest gets a seat; this module decides which seat. Guests that come one by one take the seat
with the greatest gain over its price. If several wait at once, another process matches them to seats. Until it
answers, these guests get no seats. The prices of a matching are used for the next minute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from policy.cluster.shared.sharers import NOBODY, Host, JobIdentity, who_is
from policy.formats.errors import NotNow
from policy.plan.opinions.guests.judge import HostJudge, HostKind
from policy.plan.opinions.guests.seats import FAR_MIB, Left, Seat, Unfit
from policy.plan.opinions.guests.trial_ledger import TrialLedger
from policy.sharing.companions import Companions, Pair
from policy.sharing.matching import Guests, Matching, Seats, Tables
from topology.sets.wiring import positions

if TYPE_CHECKING:
    from policy.formats.arrays import Bools
    from policy.plan.jobs.waiting import Shape, Waiting

MATCH_EVERY = 60.0
"""Seconds between two matchings of the same guests, while they wait for seats."""

WAITS_FOR_MATCH = 10.0
"""Seconds for which guests get no seats while their matching is under way; the first matching takes longest."""

MOST_GUESTS = 50
"""Guests in a matching: as many as get seats in one pass."""

MOST_PAIRS = 2_000
"""Pairs in a matching; each takes some microseconds of the pass that asks for it."""

MOST_JUDGED = 1_000
"""Pairs that one pass judges for guests that come one by one."""

FEWEST_GUESTS = 8

LOOKED_AT = 100
"""Guests, the first in line, for which a pass looks at seats."""

MOST_UNFIT = 30
"""Guests per pass that may find no fitting seat; after that, the pass judges no more hosts."""

AGAIN_AFTER = 60.0
"""Seconds after which a guest without a fitting seat is tried again, unless a matching gives it a seat before."""

_PROMISED = 1.0
"""Added to the worth of a preferred seat, so that it is worth more than any other seat."""

_FREE_GPU = ("idle",)


@dataclass(frozen=True, slots=True)
class Problem:
    """The input of a matching, and the meaning of its numbers."""

    seats: Seats
    guests: Guests
    tables: Tables
    places: tuple[tuple[int, int], ...]
    """Node and GPU of each seat."""
    kinds: tuple[HostKind, ...]
    """The kind of each seat's host, by what is known of it."""
    jobs: tuple[int, ...]
    """Job numbers of the guests."""


@dataclass(slots=True)
class _Asked:
    problem: Problem
    at: float
    jobs: frozenset[int]


@dataclass(slots=True)
class _Wishes:
    seats: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node and GPU of each matched guest."""
    prices: dict[HostKind, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unfit:
    """A guest for which no free seat fitted."""

    until: float
    why: str
    hosts: frozenset[JobIdentity]
    """The hosts that had seats then; if other hosts have seats, the guest is tried again."""


class Chooser:
    """Keeps the matched seats and their prices from pass to pass."""

    def __init__(self, companions: Companions, *, tries: bool, trials_a_day: int = 50) -> None:
        """`tries`: whether guests may join a host whose speed cannot be promised; each owner bears so many a day."""
        self._companions = companions
        self.problem: Problem | None = None
        """The matching that is to be solved elsewhere, and its answer handed to `take`; None if none is due."""
        self._tries = tries
        self._trials = TrialLedger(companions, trials_a_day)
        self._asked: _Asked | None = None
        self._matched: dict[int, float] = {}
        """Time of each waiting guest's last matching."""
        self._wishes = _Wishes()
        self._unfit: dict[int, _Unfit] = {}
        self._unfit_now = self._judged_now = 0
        self._judges: dict[JobIdentity, HostJudge] = {}
        self._none_idle: set[Shape] = set()
        """Shapes for which no GPU is idle in this pass."""

    def need_of(self, host: Host) -> int | None:
        """Returns the MiB that a host needs, as it says or as was measured of such jobs; None if not known."""
        return self._companions.need_of(host.who)

    def look(self, left: Left, waiting: Sequence["Waiting"]) -> None:
        """Prepares a pass: predicts speeds, and states the next matching if one is due."""
        at = left.cluster.at
        self._unfit_now = self._judged_now = 0
        self._judges.clear()
        self._none_idle.clear()
        self._trials.look(at)
        present = {entry.job.id for entry in waiting}
        self._matched = {job: when for job, when in self._matched.items() if job in present}
        self._unfit = {job: one for job, one in self._unfit.items() if job in present and one.until > at}
        if self._asked is not None and at - self._asked.at >= WAITS_FOR_MATCH:
            self._asked = None
        if not left.whos or not waiting:
            return
        first = waiting[:LOOKED_AT]
        self._companions.learn(left.whos, [who_is(entry.job) for entry in first])
        due = [entry for entry in first if at - self._matched.get(entry.job.id, -MATCH_EVERY) >= MATCH_EVERY]
        due = [entry for entry in due if self._companions.knows(who_is(entry.job))]
        if self._asked is None and len(due) > 1:
            self._ask(left, due)

    def take(self, found: Matching) -> None:
        """Takes the answer of the last matching; one that comes too late is dropped."""
        if self._asked is None:
            return
        problem, prices = self._asked.problem, dict[HostKind, float]()
        for seat, kind in enumerate(found.kinds.of.tolist()):
            known, price = problem.kinds[seat], float(found.price[kind])
            prices[known] = min(price, prices.get(known, price))
        places = zip(problem.jobs, found.seat.tolist(), strict=True)
        self._wishes = _Wishes({job: problem.places[seat] for job, seat in places if seat >= 0}, prices)
        # A matched guest is offered its seat, even if no seat fitted it before.
        self._unfit = {job: one for job, one in self._unfit.items() if job not in self._wishes.seats}
        self._asked = None

    def find(self, entry: "Waiting", left: Left) -> Seat:
        """Returns a seat for a guest, or raises `NotNow`."""
        seat, guest = self._seat(entry, left), who_is(entry.job)
        if seat.beside is not None and not self._companions.pair(seat.beside, guest).safe:
            self._trials.begin(seat.beside, guest, left.cluster.at)
            # Others of the same kind, in this pass, must not begin the same trial.
            self._judges.clear()
        return seat

    def _seat(self, entry: "Waiting", left: Left) -> Seat:
        job, at = entry.job.id, left.cluster.at
        wish = self._wishes.seats.pop(job, None)
        if wish is not None and (found := self._wished(entry, left, wish)):
            return found
        if left.full:
            return left.find(entry.demand)
        asked = self._asked
        if asked is not None and job in asked.jobs and at - asked.at < WAITS_FOR_MATCH:
            raise Unfit("its seat is being chosen together with those of others")
        before = self._unfit.get(job)
        if before is not None and before.hosts.issuperset(left.whos):
            return self._idle(entry, left, before.why)
        judge = self._judge(entry, left)
        if judge is None:
            return self._idle(entry, left, "it is looked at after those before it in line")
        try:
            return left.find(entry.demand, judge)
        except Unfit as unfit:
            self._unfit[job] = _Unfit(at + AGAIN_AFTER, str(unfit), frozenset(left.whos))
            self._unfit_now += 1
            raise

    def _judge(self, entry: "Waiting", left: Left) -> "HostJudge | None":
        """Returns the judge of hosts for a guest; None if this pass has judged enough, or the guest is unknown."""
        who = who_is(entry.job)
        if self._unfit_now >= MOST_UNFIT:
            return None
        if who not in self._judges:
            if self._judged_now >= MOST_JUDGED or not self._companions.knows(who):
                return None
            self._judged_now += len(left.whos)
            self._judges[who] = self._new_judge(who)
        return self._judges[who]

    def _new_judge(self, who: JobIdentity) -> "HostJudge":
        return HostJudge(self._companions, who, self._wishes.prices, self._trials if self._tries else None)

    def _wished(self, entry: "Waiting", left: Left, wish: tuple[int, int]) -> Seat | None:
        judge = self._new_judge(who_is(entry.job))
        try:
            return left.at(entry.demand, wish[0], 1 << wish[1], judge)
        except Unfit:
            return None  # a newer profile of guest or host forbids the seat

    def _idle(self, entry: "Waiting", left: Left, why: str) -> Seat:
        """Returns an idle GPU for a guest that gets no seat beside a host now; raises `Unfit` if none is idle."""
        if entry.shape not in self._none_idle:
            try:
                return left.find_idle(entry.demand)
            except NotNow:
                self._none_idle.add(entry.shape)
        raise Unfit(why)

    def _ask(self, left: Left, due: Sequence["Waiting"]) -> None:
        problem = problem_of(left, due, self._companions, tries=self._tries)
        if problem is None:
            return
        self.problem = problem
        self._asked = _Asked(problem, left.cluster.at, frozenset(problem.jobs))
        self._matched.update(dict.fromkeys(problem.jobs, left.cluster.at))


def problem_of(left: Left, due: Sequence["Waiting"], companions: Companions, *, tries: bool) -> Problem | None:
    """Returns the matching for the first guests in line; None if there is nothing to choose."""
    cluster = left.cluster
    open_now = zip(left.place.tolist(), left.hosts, left.free.tolist(), left.room.tolist(), strict=True)
    there = [(place, host, mask, room) for place, host, mask, room in open_now if mask]
    free_gpus = _idle(left, due[0])
    if not there or len(due) <= len(free_gpus):
        return None
    # Guests of one shape may go to the same nodes.
    groups = {entry.shape: left.enough(entry.demand) for entry in due[:MOST_GUESTS]}
    group_of = {shape: number for number, shape in enumerate(groups)}
    open_to = np.array(list(groups.values()))
    patterns: dict[bytes, int] = {}
    rows: dict[tuple[HostKind, int], tuple[int, JobIdentity, Bools]] = {}
    profile, memory, places, kinds = [], [], [], []
    whole = cluster.fleet.gpu_mem_for_shares
    idle = ((place, None, 1 << gpu, whole(place) or FAR_MIB) for place, gpu in free_gpus)
    for place, host, mask, room in (*idle, *there):
        nodes = open_to[:, place]
        if not nodes.any():
            continue
        who = host.who if host else NOBODY
        kind = companions.kind_of(who) if host else _FREE_GPU
        row = kind, patterns.setdefault(nodes.tobytes(), len(patterns))
        if row not in rows and len(rows) >= MOST_PAIRS // FEWEST_GUESTS:
            continue
        number, _, _ = rows.setdefault(row, (len(rows), who, nodes))
        for gpu in positions(mask):
            profile.append(number)
            memory.append(room / 1_024)
            places.append((place, gpu))
            kinds.append(kind)
    if not rows:
        return None
    guests = due[: max(FEWEST_GUESTS, min(MOST_GUESTS, len(profile), MOST_PAIRS // len(rows)))]
    columns = [who_is(entry.job) for entry in guests]
    groups_of = [group_of[entry.shape] for entry in guests]
    tables = _tables([row[1:] for row in rows.values()], columns, groups_of, companions, tries=tries)
    return Problem(
        Seats.of(profile, memory),
        Guests.of(
            profile=range(len(guests)),
            memory=[(companions.memory_of(who) or 0.0) / 1_024 for who in columns],
            age=[max(0.0, cluster.at - entry.job.submitted) / 3_600 for entry in guests],
            # The weight class follows Slurm's order: the first quarter of the line counts most.
            weight=[2.0 - 0.25 * (4 * place // len(guests)) for place in range(len(guests))],
        ),
        tables,
        tuple(places),
        tuple(kinds),
        tuple(entry.job.id for entry in guests),
    )


def _tables(
    rows: Sequence[tuple[JobIdentity, "Bools"]],
    columns: Sequence[JobIdentity],
    groups: Sequence[int],
    companions: Companions,
    *,
    tries: bool,
) -> Tables:
    """Returns the worth of each guest on each kind of seat, and which pairs are allowed."""
    worth, allowed = np.ones((len(rows), len(columns))), np.zeros((len(rows), len(columns)), np.bool_)
    for row, (who, nodes) in enumerate(rows):
        for column, guest in enumerate(columns):
            if not nodes[groups[column]]:
                continue
            if who is NOBODY:
                worth[row, column], allowed[row, column] = 1.0 + _PROMISED, True
                continue
            pair = companions.pair(who, guest)
            allowed[row, column] = _may(pair, tries=tries)
            worth[row, column] = pair.guest + _PROMISED if pair.preferred else pair.worth
    return Tables(worth, allowed)


def _may(pair: Pair, *, tries: bool) -> bool:
    return pair.safe or (tries and not pair.barred)


def _idle(left: Left, first: "Waiting") -> list[tuple[int, int]]:
    """Returns idle GPUs, at most as many as a matching has guests."""
    found: list[tuple[int, int]] = []
    for place in np.flatnonzero(left.enough(first.demand) & (left.idle != 0)).tolist():
        found += [(place, gpu) for gpu in positions(int(left.idle[place]))]
        if len(found) >= MOST_GUESTS:
            break
    return found[:MOST_GUESTS]
