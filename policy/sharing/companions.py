"""What is known of two jobs on one GPU before they meet: what they did together, else what the predictor says.

A job is looked up by whose it is, its name and its class. What a trial showed goes before any prediction, and a pair
that failed together is never put together again. Predictions are made for many pairs at once and kept, for whoever
plans asks for the same pairs second after second.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from policy.cluster.shared.sharers import Who
from policy.sharing import predictor
from policy.sharing.predictor import Fit
from policy.sharing.profiles import Key, Measured, Store, Verdict
from policy.sharing.sources import profile_for

LEAST = 0.95
"""The speed that a host has to be promised."""

LEVEL = 0.85
"""Part of the promises that hold."""

MOST_NEW = 3_000
"""Pairs predicted in one look, some milliseconds; the others come with the next."""

MOST_KEPT = 400_000


class Footing(StrEnum):
    """What the host is told before a guest comes."""

    PROMISED = "promised"
    """Both were measured alone, and the host is promised `LEAST`."""
    PROVEN = "proven"
    """It kept `LEAST` beside this guest."""
    UNSURE = "unsure"
    """Both were measured alone, and nothing is promised."""
    UNKNOWN = "unknown"
    """One of them was never measured."""
    HARMED = "harmed"
    """It suffered beside this guest."""
    FAULT = "fault"
    """They brought each other down."""


_SAFE = frozenset({Footing.PROMISED, Footing.PROVEN})
_BARRED = frozenset({Footing.HARMED, Footing.FAULT})


class Pair(NamedTuple):
    """A host and a guest."""

    host: float
    guest: float
    """Speeds beside each other, 1.0 being alone."""
    worth: float
    """The guest's, as far as it is likely that its host bears it."""
    footing: Footing
    unmeasured: str = ""
    """Of an unknown pair, who was never, as the beginning of a sentence."""

    @property
    def safe(self) -> bool:
        """Whether the host is known to bear the guest."""
        return self.footing in _SAFE

    @property
    def barred(self) -> bool:
        """Whether it is known that it does not."""
        return self.footing in _BARRED

    @property
    def text(self) -> str:
        """For `berth why`."""
        said = "measured beside each other" if self.footing is Footing.PROVEN else "predicted speeds"
        both = f"{said}: its host {self.host:.2f}, it {self.guest:.2f} of what each does alone"
        if self.footing is Footing.UNSURE:
            return f"{both}; the host is not promised {LEAST}, so its guard watches, and the guest moves if it suffers"
        if self.footing is Footing.UNKNOWN:
            return f"{self.unmeasured} measured alone, so a guard watches, and the guest moves if its host suffers"
        return both


_Numbers = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Job:
    key: Key
    numbers: _Numbers
    """As the predictor takes them, on its grid."""
    memory: float | None
    """MiB; None where neither it nor anybody said."""
    measured: bool


class Companions:
    """Profiles, trials and the predictor, asked for pairs."""

    def __init__(self, store: Store, fit: Fit, name_of: Callable[[int], str]) -> None:
        """`name_of` gives a user's name."""
        self._fit = fit
        self._name_of = name_of
        self._jobs: dict[Who, _Job] = {}
        self._speeds: dict[tuple[_Numbers, _Numbers], tuple[float, float, float, float]] = {}
        self._rows: frozenset[_Numbers] = frozenset()
        self._columns: set[_Numbers] = set()
        """Guests whose pairs with all of `_rows` are predicted."""
        self.renew(store)

    def renew(self, store: Store) -> None:
        """All profiles are others; what was predicted from numbers stays."""
        self.store = store
        self._jobs.clear()
        self._hosts = {host for host, _ in store.tried}
        self._own: dict[str, Store] = {}
        for key, one in store.measured.items():
            self._own.setdefault(key.user, Store()).measured[key] = one

    def learned(self, key: Key) -> None:
        """The store has something new of a job alone."""
        self._own.setdefault(key.user, Store()).measured[key] = self.store.measured[key]
        # It may stand for other jobs of its user too.
        self._jobs = {who: job for who, job in self._jobs.items() if job.key.user != key.user}

    def tried(self, host: Key) -> None:
        """The store has something new of a host beside a guest."""
        self._hosts.add(host)

    def key_of(self, who: Who) -> Key:
        """Whose profile a job's measurements belong to: that of its name."""
        return Key(self._name_of(who.user), who.account, who.name)

    def numbers_of(self, who: Who) -> _Numbers:
        """A job alone as the predictor sees it; jobs with the same numbers are alike."""
        return self._job(who).numbers

    def kind_of(self, who: Who) -> tuple[object, ...]:
        """The same for jobs that no guest can tell apart: alike in numbers, and neither ever beside a guest."""
        job = self._job(who)
        return (job.key,) if job.key in self._hosts else (*job.numbers, job.measured)

    def memory_of(self, who: Who) -> float | None:
        """MiB that a job needs, as it says or as was measured; None where nobody knows."""
        return self._job(who).memory

    def measured(self, who: Who) -> Measured | None:
        """What was measured of a job, or of what stands for it; None where nothing was."""
        key = self.key_of(who)
        return self._own.get(key.user, _NO_PROFILES).best_for(key, who.app_class)

    def learn(self, hosts: Iterable[Who], guests: Iterable[Who]) -> None:
        """Predict what is not known yet of these pairs, as many as one look may take."""
        rows = frozenset(self._job(who).numbers for who in hosts)
        if rows != self._rows or len(self._speeds) > MOST_KEPT:
            self._rows, self._columns = rows, set()
        if len(self._speeds) > MOST_KEPT:
            self._speeds.clear()
        columns = {self._job(who).numbers for who in guests} - self._columns
        some = sorted(columns)[: max(1, MOST_NEW // max(1, len(rows)))]
        new = [column for column in some if any((row, column) not in self._speeds for row in rows)]
        if new:
            self._predict(sorted(rows), new)
        self._columns.update(some)

    def knows(self, guest: Who) -> bool:
        """Whether all is predicted of this guest beside the hosts that were last learned of."""
        return self._job(guest).numbers in self._columns

    def pair(self, host: Who, guest: Who) -> Pair:
        """What is known of two jobs."""
        one, other = self._job(host), self._job(guest)
        if one.key in self._hosts:
            verdict = self.store.verdict(one.key, other.key, LEAST)
            if verdict is not Verdict.UNKNOWN:
                tried = self.store.tried[one.key, other.key]
                return Pair(tried.host_speed, tried.guest_speed, tried.guest_speed, _FOOTINGS[verdict])
        return self._predicted(one, other)

    def predicted(self, host: Who, guest: Who) -> Pair:
        """What the predictor says of two jobs, whatever they did together."""
        return self._predicted(self._job(host), self._job(guest))

    def _predicted(self, one: _Job, other: _Job) -> Pair:
        place = one.numbers, other.numbers
        said = self._speeds.get(place)
        if said is None:
            self._predict([one.numbers], [other.numbers])
            said = self._speeds[place]
        host_speed, guest_speed, least, chance = said
        if one.measured and other.measured:
            footing = Footing.PROMISED if least >= LEAST else Footing.UNSURE
            return Pair(host_speed, guest_speed, guest_speed * chance, footing)
        unmeasured = "its host was never" if other.measured else "it was never"
        if not (one.measured or other.measured):
            unmeasured = "neither it nor its host was ever"
        return Pair(host_speed, guest_speed, guest_speed * chance, Footing.UNKNOWN, unmeasured)

    def _predict(self, rows: list[_Numbers], columns: list[_Numbers]) -> None:
        hosts, guests = np.array(rows), np.array(columns)
        speeds = predictor.predict(self._fit, hosts, guests, LEVEL)
        chance = predictor.chances(self._fit, hosts, guests, LEAST)
        # A guest adds nothing to its host, and the fit's pairs that say so were measured alone at a bad moment.
        found = (np.clip(one, 0.0, 1.0) for one in (speeds.host, speeds.guest, speeds.host_least, chance))
        host, guest, least, likely = (one.tolist() for one in found)
        for row, one in enumerate(rows):
            for column, other in enumerate(columns):
                said = host[row][column], guest[row][column], least[row][column], likely[row][column]
                self._speeds[one, other] = said

    def _job(self, who: Who) -> _Job:
        known = self._jobs.get(who)
        if known is None:
            if len(self._jobs) > MOST_KEPT:
                self._jobs.clear()
            known = self._jobs[who] = self._look_up(who)
        return known

    def _look_up(self, who: Who) -> _Job:
        key = self.key_of(who)
        profiles = self._own.get(key.user, _NO_PROFILES)
        own = profiles.best_for(key, who.app_class)
        profile = profile_for(profiles, key, who.app_class, who.gpu_mem)
        numbers = predictor.profile(profile.busy or 0.0, profile.bandwidth or 0.0, profile.memory or 0.0)
        busy, bandwidth, memory = predictor.rounded(numbers).tolist()
        needs = who.gpu_mem if who.gpu_mem is not None else own.memory if own else None
        return _Job(key, (busy, bandwidth, memory), needs, own is not None and own.busy is not None)


_NO_PROFILES = Store()

_FOOTINGS = {Verdict.GOOD: Footing.PROVEN, Verdict.HARMED: Footing.HARMED, Verdict.FAULT: Footing.FAULT}
