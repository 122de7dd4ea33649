# SPDX-License-Identifier: Apache-2.0
"""The keeper: handles all seats of the node ten times a second. It never waits for a device, berthd or Slurm.

Each seat is handled by itself. A failure at one seat, above all through what users write into their jobs' pages, does
not affect the next one.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from prolog_epilog.errors import NodeError
from prolog_epilog.guard.hold.freezer_watch import FreezerWatch
from prolog_epilog.guard.hold.guest_hold import Ground
from prolog_epilog.guard.hold.levels import Counts
from prolog_epilog.guard.measure import xids
from prolog_epilog.guard.measure.device_reader import Look
from prolog_epilog.guard.measure.heartbeat import Rank
from prolog_epilog.guard.mishaps import Mishaps
from prolog_epilog.guard.roll import Member, Roll
from prolog_epilog.guard.seats import metrics
from prolog_epilog.guard.seats.seat import GuardedSeat
from prolog_epilog.guard.seats.step_times import ToldStepTimes
from prolog_epilog.guard.tell.slow_work import SlowWork
from prolog_epilog.injob import word
from prolog_epilog.injob.errors import WordError
from prolog_epilog.injob.word import WordBeat
from prolog_epilog.settings.guard_keys import GuardSettings
from prolog_epilog.tenants import arrivals
from prolog_epilog.tenants.arrivals import Arrival

PERIOD = 0.1
_METRICS_S = 5.0
_STEPS_S = 1.0
"""Seconds between two looks for new steps of guests."""


class Devices(Protocol):
    """The interface that the keeper needs of the thread that reads the devices."""

    looks: dict[str, Look]

    def watch(self, uuids: frozenset[str]) -> None:
        """Reads these GPUs from now on."""

    def xids(self) -> list[tuple[str, int]]:
        """Returns the Xids since the last call."""


@dataclass(slots=True)
class Keeper:
    """The keeper of all seats of the node."""

    ground: Ground
    settings: GuardSettings
    slow_work: SlowWork
    devices: Devices
    say: Callable[[str], None]
    shares: Callable[[], Counts] = dict
    """Returns how the shares of this node are held, for the metrics."""
    doubted: Callable[[], Collection[int]] = tuple
    """Returns the owners that may have gone before anybody looked."""
    seats: dict[str, GuardedSeat] = field(default_factory=dict)
    steps: ToldStepTimes = field(init=False)
    _roll: Roll = field(init=False)
    _told: float = float("-inf")
    _freezer_watch: FreezerWatch = field(init=False)
    _stirred: set[int] = field(default_factory=set)
    _watched: float = float("-inf")
    _mishaps: Mishaps = field(init=False)

    def __post_init__(self) -> None:
        self._mishaps = Mishaps(self.say)
        self._roll = Roll(self.ground.paths)
        self.steps = ToldStepTimes(self.slow_work.notify)
        self._freezer_watch = FreezerWatch(self.ground.cgroups)

    def turn(self, now: float) -> None:
        """Handles all seats once."""
        attempt, looks = self._mishaps.attempt, self.devices.looks
        attempt("who sits where", partial(self._seat, now))
        attempt("who arrives", partial(self._arrivals, now))
        attempt("faults of the devices", partial(self._faults, now))
        attempt("whom Slurm ends", partial(self._hear_slurm, now))
        words: dict[int, dict[Rank, WordBeat]] = {}
        attempt("what owners tell", partial(self._hear_owners, words))
        for uuid, seat in self.seats.items():
            heard = words.get(seat.host.job, {}) if seat.host is not None else {}
            self._attempt(now, seat, partial(seat.turn, now, heard, looks.get(uuid)))
        attempt("step times", partial(self.steps.turn, now, self.seats, words, looks))
        attempt("who was thawed", self._note_strangers)
        attempt("metrics", partial(self._measure, now))

    def _attempt(self, now: float, seat: GuardedSeat, part: Callable[[], object]) -> None:
        """Runs a part for one seat; notes a failure, and mistrusts the seat if the failure is unexpected."""
        try:
            part()
        except (NodeError, OSError) as problem:
            # The node has a problem, such as a full /run: what was heard of the jobs stays true.
            self._mishaps.note(_whose(seat), problem)
        except Exception as problem:  # noqa: BLE001 - a page may be filled with anything
            self._mishaps.note(_whose(seat), problem)
            self._mishaps.attempt(_whose(seat), partial(seat.mistrust, now))

    def _hear_owners(self, words: dict[int, dict[Rank, WordBeat]]) -> None:
        """Puts the beats of the processes of each owner into `words`."""
        for host in (seat.host for seat in self.seats.values()):
            if host is not None and host.job not in words:
                self._mishaps.attempt(f"what job {host.job} tells", partial(_hear, words, host))

    def _note_strangers(self) -> None:
        self._stirred = self._strangers()

    def _faults(self, now: float) -> None:
        for uuid, number in self.devices.xids():
            xids.note(self.ground.paths.xids, uuid, number)
            if uuid in self.seats:
                self._attempt(now, self.seats[uuid], partial(self.seats[uuid].xid, now, number))

    def release(self) -> None:
        """Releases all guests because the guard ends."""
        for seat in self.seats.values():
            if seat.held is not None:
                self._mishaps.attempt(_whose(seat), seat.held.release)
        self._freezer_watch.close()

    def _seat(self, now: float) -> None:
        places = self._roll.seatings()
        for uuid, place in places.items():
            seat = self.seats.get(uuid)
            if seat is None:
                mps = any(one is not None and one.way == "mps" for one in (place.host, place.guest))
                seat = GuardedSeat(self.ground, self.settings, self.slow_work, self.say, uuid, now, mps=mps)
                self.seats[uuid] = seat
            seat.node = self._roll.node
            self._attempt(now, seat, partial(seat.seat, now, place))
        for uuid, seat in list(self.seats.items()):
            if uuid not in places:
                self._attempt(now, seat, partial(seat.vacate, now))
                if seat.rests:
                    del self.seats[uuid]
        self.devices.watch(frozenset(places) | {uuid for uuid, seat in self.seats.items() if seat.recovers})

    def _hear_slurm(self, now: float) -> None:
        guests = {seat.held.guest.job: seat for seat in self.seats.values() if seat.held is not None}
        fresh: set[int] = set()
        if now - self._watched >= _STEPS_S:
            self._watched = now
            # A guest that has just begun may have been sent away already.
            fresh = self._freezer_watch.watch(guests)
        for job in fresh | self._stirred | self._strangers():
            if job in guests:
                guests[job].stirs(now)

    def _strangers(self) -> set[int]:
        """Returns the guests that another process thawed; writes by the guard itself are left out."""
        ours = set()
        for seat in self.seats.values():
            if seat.held is not None and seat.held.wrote:
                seat.held.wrote = False
                ours.add(seat.held.guest.job)
        return self._freezer_watch.heard() - (ours if self._freezer_watch.hears_us else set())

    def _arrivals(self, now: float) -> None:
        doubted, pending = self.doubted(), arrivals.pending(self.ground.paths)
        for seat in self.seats.values():
            seat.left(pending)
        for one in pending:
            if one.job in doubted:
                continue
            self._mishaps.attempt(f"job {one.job}, which arrives", partial(self._arrival, now, one))

    def _arrival(self, now: float, one: Arrival) -> None:
        here = [self.seats[uuid] for uuid in one.uuids if uuid in self.seats]
        for seat in here:
            self._attempt(now, seat, partial(seat.arrives, now, one))
        if all(seat.is_safe for seat in here):
            arrivals.answer(self.ground.paths, one.job)
        if all(seat.held is None for seat in here):
            arrivals.forget(self.ground.paths, one.job)

    def _measure(self, now: float) -> None:
        if self.settings.metrics and now - self._told >= _METRICS_S:
            self._told = now
            seats, bound = list(self.seats.values()), self.settings.bound.slowdown
            problem = metrics.write(self.settings.metrics, seats, self.shares(), bound)
            if problem:
                self._mishaps.note("metrics", NodeError(problem))


def _whose(seat: GuardedSeat) -> str:
    host, guest = seat.place.host, seat.place.guest
    jobs = [f"{role} job {one.job}" for role, one in (("host", host), ("guest", guest)) if one is not None]
    return f"GPU {seat.uuid}, {' and '.join(jobs) or 'without a job'}"


def _hear(words: dict[int, dict[Rank, WordBeat]], host: Member) -> None:
    words[host.job] = _beats(host)


def _beats(host: Member) -> dict[Rank, WordBeat]:
    """Returns the beats of all processes of an owner, on all of its GPUs."""
    found: dict[Rank, WordBeat] = {}
    for uuid, page in host.words.items():
        with suppress(WordError, OSError):
            beats = word.read_beats(page)
            found |= {(uuid, beat.slot): beat for beat in beats if beat.ready or beat.launches or beat.lacking}
    return found
