"""The guard's hand: ten times a second, all seats of the node. Nothing here waits for a device, berthd or Slurm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from prolog_epilog import arrivals, xids
from prolog_epilog.guard import metrics
from prolog_epilog.guard.errands import Errands
from prolog_epilog.guard.grip import Ground
from prolog_epilog.guard.heart import Rank
from prolog_epilog.guard.levels import Counts
from prolog_epilog.guard.losses import Losses
from prolog_epilog.guard.roll import Member, Roll
from prolog_epilog.guard.seat import Seat
from prolog_epilog.guard.senses import Look
from prolog_epilog.guard.settings import GuardSettings
from prolog_epilog.guard.step_times import StepTimes
from prolog_epilog.guard.thaws import Thaws
from prolog_epilog.injob import word
from prolog_epilog.injob.errors import WordError
from prolog_epilog.injob.word import Beat

__all__ = ["PERIOD", "Devices", "Keeper"]

PERIOD = 0.1
_METRICS_S = 5.0
_STEPS_S = 1.0
"""Time between two looks for new steps of guests."""


class Devices(Protocol):
    """What the keeper needs of the thread that looks at the devices."""

    looks: dict[str, Look]

    def watch(self, uuids: frozenset[str]) -> None:
        """Look at these."""

    def xids(self) -> list[tuple[str, int]]:
        """Xids since the last call."""


@dataclass(slots=True)
class Keeper:
    """All seats."""

    ground: Ground
    settings: GuardSettings
    errands: Errands
    devices: Devices
    say: Callable[[str], None]
    shares: Callable[[], Counts] = dict
    """How the shares of this node are held, for the metrics."""
    seats: dict[str, Seat] = field(default_factory=dict)
    steps: StepTimes = field(init=False)
    losses: Losses = field(init=False)
    _roll: Roll = field(init=False)
    _told: float = float("-inf")
    _thaws: Thaws = field(init=False)
    _stirred: set[int] = field(default_factory=set)
    _watched: float = float("-inf")

    def __post_init__(self) -> None:
        self._roll = Roll(self.ground.paths)
        self.steps = StepTimes(self.errands.notify)
        self.losses = Losses(self.errands.notify)
        self._thaws = Thaws(self.ground.cgroups)

    def turn(self, now: float) -> None:
        """One round."""
        self._seat(now)
        self._arrivals(now)
        for uuid, number in self.devices.xids():
            xids.note(self.ground.paths.xids, uuid, number)
            if uuid in self.seats:
                self.seats[uuid].xid(now, number)
        self._hear_slurm(now)
        hosts = {seat.host.job: seat.host for seat in self.seats.values() if seat.host is not None}
        words = {job: _beats(host) for job, host in hosts.items()}
        for uuid, seat in self.seats.items():
            heard = words[seat.host.job] if seat.host is not None else {}
            seat.turn(now, heard, self.devices.looks.get(uuid))
        self.steps.turn(now, self.seats, words, self.devices.looks)
        self.losses.turn(now, self._roll.node, words)
        self._stirred = self._strangers()
        self._measure(now)

    def release(self) -> None:
        """The guard ends: nobody is held any more."""
        for seat in self.seats.values():
            if seat.grip is not None:
                seat.grip.release()
        self._thaws.close()

    def _seat(self, now: float) -> None:
        places = self._roll.seatings()
        for uuid, place in places.items():
            seat = self.seats.get(uuid)
            if seat is None:
                mps = any(one is not None and one.way == "mps" for one in (place.host, place.guest))
                seat = Seat(self.ground, self.settings, self.errands, self.say, uuid, now, mps=mps)
                self.seats[uuid] = seat
            seat.node = self._roll.node
            seat.seat(now, place)
        for uuid, seat in list(self.seats.items()):
            if uuid not in places:
                seat.vacate(now)
                if seat.rests:
                    del self.seats[uuid]
        self.devices.watch(frozenset(places) | {uuid for uuid, seat in self.seats.items() if seat.recovers})

    def _hear_slurm(self, now: float) -> None:
        guests = {seat.grip.guest.job: seat for seat in self.seats.values() if seat.grip is not None}
        fresh: set[int] = set()
        if now - self._watched >= _STEPS_S:
            self._watched = now
            # One that has just begun may have been sent away already.
            fresh = self._thaws.watch(guests)
        for job in fresh | self._stirred | self._strangers():
            if job in guests:
                guests[job].stirs(now)

    def _strangers(self) -> set[int]:
        """The guests that somebody let go on; what the guard did to a freezer itself is no news."""
        ours = set()
        for seat in self.seats.values():
            if seat.grip is not None and seat.grip.wrote:
                seat.grip.wrote = False
                ours.add(seat.grip.guest.job)
        return self._thaws.heard() - (ours if self._thaws.hears_us else set())

    def _arrivals(self, now: float) -> None:
        for one in arrivals.pending(self.ground.paths):
            here = [self.seats[uuid] for uuid in one.uuids if uuid in self.seats]
            for seat in here:
                seat.arrives(now, one)
            if all(seat.is_safe(now) for seat in here):
                arrivals.answer(self.ground.paths, one.job)
            if all(seat.grip is None for seat in here):
                arrivals.forget(self.ground.paths, one.job)
                for seat in here:
                    seat.left()

    def _measure(self, now: float) -> None:
        if self.settings.metrics and now - self._told >= _METRICS_S:
            self._told = now
            problem = metrics.write(self.settings.metrics, list(self.seats.values()), self.shares())
            if problem:
                self.say(problem)


def _beats(host: Member) -> dict[Rank, Beat]:
    """What all processes of a host say, on all of its GPUs."""
    found: dict[Rank, Beat] = {}
    for uuid, page in host.words.items():
        with suppress(WordError, OSError):
            found |= {(uuid, beat.slot): beat for beat in word.read_beats(page) if beat.ready or beat.launches}
    return found
