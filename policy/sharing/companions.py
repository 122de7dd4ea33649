# SPDX-License-Identifier: Apache-2.0
"""Looks up how two jobs share one GPU: by their trials together, else by the predictor.

A job's profile is found by its user, its name and its class. A trial takes precedence over any prediction, and a pair
that failed together is never put together again. Predictions are made for many pairs at once and kept, because the
planner asks for the same pairs every second.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import NamedTuple

import numpy as np

from policy.cluster.shared.sharers import JobIdentity
from policy.sharing import predictor, trials
from policy.sharing.predictor import Fit
from policy.sharing.priors import profile_for
from policy.sharing.profiles import Measured, ProfileKey, Store, Verdict

LEAST = 0.95
"""The part of its speed alone that an owner must be promised."""

LEVEL = 0.85
"""Part of the cases in which a promise must hold."""

HELD_HARD = 0.5
"""A guest whose trial beside an owner reached less of its speed is better off on most other seats."""

MOST_NEW = 3_000
"""Most pairs that one call of `learn` predicts, which takes some milliseconds; the others come with the next calls."""

MOST_KEPT = 400_000

ENOUGH_PEAKS = 3
"""Runs, beside the newest one, from whose highest peak it is known how much GPU memory such jobs need."""

_MOST_LESSONS = 20
"""Users whose latest trial beside a job corrects its predictions: one user's many jobs teach as much as one job."""


class Footing(StrEnum):
    """The ways in which an owner's speed beside a guest is known before the guest starts."""

    PROMISED = "promised"
    """Both were measured alone, each is like a measured job or was tried, and the host is promised `LEAST`."""
    PROVEN = "proven"
    """A trial showed that the owner keeps `LEAST` beside this guest."""
    TRIAL = "trial"
    """The numbers would promise `LEAST`, but one of them is unlike all measured jobs and was hardly tried."""
    UNSURE = "unsure"
    """Both were measured alone, and nothing is promised."""
    UNKNOWN = "unknown"
    """At least one of them was never measured."""
    HARMED = "harmed"
    """A trial showed that the owner is slowed below `LEAST` beside this guest."""
    FAULT = "fault"
    """One of them failed because of the other."""


_SAFE = frozenset({Footing.PROMISED, Footing.PROVEN})
_BARRED = frozenset({Footing.HARMED, Footing.FAULT})


class Pair(NamedTuple):
    """The speeds of an owner and a guest beside each other, and how sure they are."""

    host: float
    guest: float
    """Speeds beside each other; 1.0 is the speed alone."""
    worth: float
    """The guest's speed, times the probability that the owner keeps `LEAST`."""
    footing: Footing
    unmeasured: str = ""
    """Names the job that was never measured, as the beginning of a sentence; set for an unknown pair only."""

    @property
    def safe(self) -> bool:
        """Tells whether the owner is promised `LEAST`, or kept it in a trial."""
        return self.footing in _SAFE

    @property
    def preferred(self) -> bool:
        """Tells whether the seat comes before all that are not safe: no trial showed a guest that was held hard."""
        return self.safe and (self.footing is Footing.PROMISED or self.guest >= HELD_HARD)

    @property
    def barred(self) -> bool:
        """Tells whether a trial showed harm or a fault."""
        return self.footing in _BARRED

    @property
    def text(self) -> str:
        """Returns the text that `berth why` shows for this pair."""
        said = "measured beside each other" if self.footing is Footing.PROVEN else "predicted speeds"
        both = f"{said}: its host {self.host:.2f}, it {self.guest:.2f} of what each does alone"
        if self.footing is Footing.TRIAL:
            return f"{both}; no such job was measured yet, so this is a trial: it moves if its host suffers in a minute"
        if self.footing is Footing.UNSURE:
            return f"{both}; the host is not promised {LEAST}, so its guard watches, and the guest moves if it suffers"
        if self.footing is Footing.UNKNOWN:
            return f"{self.unmeasured} measured alone, so a guard watches, and the guest moves if its host suffers"
        return both


_Numbers = tuple[float, float, float]


class _Said(NamedTuple):
    """A prediction: speeds, the host's bound for known and for new jobs, and the scale of errors."""

    host: float
    guest: float
    least: float
    chance: float
    spread: float
    least_known: float


@dataclass(frozen=True, slots=True)
class _Job:
    key: ProfileKey
    numbers: _Numbers
    """The job's profile as the predictor takes it, rounded to its grid."""
    memory: float | None
    """GPU memory in MiB; None where it was neither requested nor measured."""
    measured: bool
    need: int | None
    """MiB that it needs as an owner; None where it does not say and too few runs were measured."""


class Companions:
    """Answers questions about pairs of jobs from profiles, trials and the predictor."""

    def __init__(self, store: Store, fit: Fit, name_of: Callable[[int], str]) -> None:
        """Starts with the profiles of `store`; `name_of` returns the name of a user id."""
        self._fit = fit
        self._name_of = name_of
        self._jobs: dict[JobIdentity, _Job] = {}
        self._speeds: dict[tuple[_Numbers, _Numbers], _Said] = {}
        self._familiar: dict[_Numbers, bool] = {}
        self._rows: frozenset[_Numbers] = frozenset()
        self._columns: set[_Numbers] = set()
        """Guests whose pairs with all of `_rows` are predicted."""
        self.renew(store)

    def renew(self, store: Store) -> None:
        """Replaces all profiles and trials; predictions stay, because they depend on numbers only."""
        self.store = store
        self._jobs.clear()
        self._hosts = {host for host, _ in store.tried}
        self._trials: dict[ProfileKey, set[tuple[ProfileKey, ProfileKey]]] = {}
        """The trials of each job, in either role."""
        for pair in store.tried:
            self._note(pair)
        self._errors: dict[tuple[ProfileKey, bool], list[float]] = {}
        """Errors of the predicted owners' speeds, in the trials of each job as an owner (True) or as a guest."""
        self._own: dict[str, Store] = {}
        for key, one in store.measured.items():
            self._own.setdefault(key.user, Store()).measured[key] = one

    def learned(self, key: ProfileKey) -> None:
        """Takes over a changed profile of a job alone from the store."""
        self._own.setdefault(key.user, Store()).measured[key] = self.store.measured[key]
        self._errors.clear()
        # The profile may stand for other jobs of the same user too.
        self._jobs = {who: job for who, job in self._jobs.items() if job.key.user != key.user}

    def tried(self, host: ProfileKey, guest: ProfileKey) -> None:
        """Notes that the store has a new trial of this owner and this guest."""
        self._hosts.add(host)
        self._note((host, guest))
        self._errors.pop((host, True), None)
        self._errors.pop((guest, False), None)

    def _note(self, pair: tuple[ProfileKey, ProfileKey]) -> None:
        for key in pair:
            self._trials.setdefault(key, set()).add(pair)

    def key_of(self, who: JobIdentity) -> ProfileKey:
        """Returns the key of the profile that a job's measurements belong to, by its user, account and name."""
        return ProfileKey(self._name_of(who.user), who.account, who.name)

    def kind_of(self, who: JobIdentity) -> tuple[object, ...]:
        """Returns a key that is equal for jobs which no guest can tell apart.

        Such jobs have the same numbers, both or none were measured, and none was tried with a guest. A job with trials
        is a kind of its own.
        """
        job = self._job(who)
        return (job.key,) if job.key in self._hosts else (*job.numbers, job.measured)

    def memory_of(self, who: JobIdentity) -> float | None:
        """Returns the MiB that a job needs, as requested or as measured; None where neither is known."""
        return self._job(who).memory

    def need_of(self, who: JobIdentity) -> int | None:
        """Returns the MiB that a job needs as an owner, as it says or as its runs have shown; None if not known."""
        return self._job(who).need

    def measured(self, who: JobIdentity) -> Measured | None:
        """Returns the profile of a job, or the one that stands for it; None where nothing was measured."""
        key = self.key_of(who)
        return self._own.get(key.user, _NO_PROFILES).best_for(key, who.app_class)

    def learn(self, hosts: Iterable[JobIdentity], guests: Iterable[JobIdentity]) -> None:
        """Predicts the pairs that are not known yet, at most about `MOST_NEW` in one call."""
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

    def knows(self, guest: JobIdentity) -> bool:
        """Tells whether all pairs of this guest with the owners of the last `learn` are predicted."""
        return self._job(guest).numbers in self._columns

    def pair(self, host: JobIdentity, guest: JobIdentity) -> Pair:
        """Returns what is known of two jobs: the result of their trials, else the prediction."""
        one, other = self._job(host), self._job(guest)
        if one.key in self._hosts:
            verdict = self.store.verdict(one.key, other.key, LEAST)
            if verdict is not Verdict.UNKNOWN:
                tried = self.store.tried[one.key, other.key]
                return Pair(tried.host_speed, tried.guest_speed, tried.guest_speed, _FOOTINGS[verdict])
        return self._predicted(one, other, learnt=True)

    def predicted(self, host: JobIdentity, guest: JobIdentity) -> Pair:
        """Returns the prediction for two jobs, whatever their trials showed."""
        return self._predicted(self._job(host), self._job(guest))

    def _predicted(self, one: _Job, other: _Job, *, learnt: bool = False) -> Pair:
        """Returns the prediction, corrected by what the trials of both taught if `learnt`."""
        said = self._said(one.numbers, other.numbers)
        host_speed, least = said.host, said.least
        if one.measured and other.measured:
            known = self._is_known(one) and self._is_known(other)
            if learnt and (taught := self._taught(one.key, other.key)):
                host_speed = min(1.0, max(0.0, host_speed + taught * said.spread))
                least = (said.least_known if known else least) + taught * said.spread
            footing = Footing.UNSURE
            if least >= LEAST:
                footing = Footing.PROMISED if known else Footing.TRIAL
            return Pair(host_speed, said.guest, said.guest * said.chance, footing)
        unmeasured = "its host was never" if other.measured else "it was never"
        if not (one.measured or other.measured):
            unmeasured = "neither it nor its host was ever"
        return Pair(host_speed, said.guest, said.guest * said.chance, Footing.UNKNOWN, unmeasured)

    def _is_known(self, job: _Job) -> bool:
        """Tells whether a job is like one that was measured beside others, or was tried itself."""
        if job.numbers not in self._familiar:
            self._familiar[job.numbers] = bool(predictor.familiar(self._fit, np.array([job.numbers]))[0])
        return self._familiar[job.numbers] or len(self._trials.get(job.key, ())) >= trials.ENOUGH

    def _taught(self, host: ProfileKey, guest: ProfileKey) -> float:
        """Returns what the trials of an owner and of a guest, with others, say of their prediction, in spreads."""
        if host not in self._trials and guest not in self._trials:
            return 0.0
        return trials.lesson([*self._errors_of(host, as_host=True), *self._errors_of(guest, as_host=False)])

    def _errors_of(self, key: ProfileKey, *, as_host: bool) -> list[float]:
        mine = [pair for pair in self._trials.get(key, ()) if pair[not as_host] == key]
        if not mine:
            return []
        if (key, as_host) not in self._errors:
            last = sorted(mine, key=lambda pair: (self._tried_at(pair), pair))
            known = {pair[as_host].user: error for pair in last if (error := self._error(pair)) is not None}
            self._errors[key, as_host] = list(known.values())[-_MOST_LESSONS:]
        return self._errors[key, as_host]

    def _tried_at(self, pair: tuple[ProfileKey, ProfileKey]) -> float:
        tried = self.store.tried.get(pair)
        return tried.at if tried is not None else 0.0

    def _error(self, pair: tuple[ProfileKey, ProfileKey]) -> float | None:
        """Returns the error of one trial; None for a fault, and where a job's profile is gone."""
        tried, (host, guest) = self.store.tried.get(pair), pair
        numbers = [self._numbers_of_key(key) for key in (host, guest)]
        if tried is None or not tried.trials or numbers[0] is None or numbers[1] is None:
            return None
        said = self._said(numbers[0], numbers[1])
        return (min(tried.host_speed, 1.0) - said.host) / said.spread

    def _numbers_of_key(self, key: ProfileKey) -> _Numbers | None:
        one = self._own.get(key.user, _NO_PROFILES).measured.get(key)
        if one is None or one.busy is None or one.bandwidth is None or one.memory is None:
            return None
        busy, bandwidth, memory = predictor.rounded(predictor.profile(one.busy, one.bandwidth, one.memory)).tolist()
        return busy, bandwidth, memory

    def _said(self, one: _Numbers, other: _Numbers) -> _Said:
        if (one, other) not in self._speeds:
            self._predict([one], [other])
        return self._speeds[one, other]

    def _predict(self, rows: list[_Numbers], columns: list[_Numbers]) -> None:
        hosts, guests = np.array(rows), np.array(columns)
        speeds = predictor.predict(self._fit, hosts, guests, LEVEL)
        chance = predictor.chances(self._fit, hosts, guests, LEAST)
        spread = predictor.spread(predictor.law(self._fit.law, predictor.rounded(hosts), predictor.rounded(guests)))
        sure = speeds.host - self._fit.margins.of(LEVEL, np.ones_like(speeds.familiar)) * spread
        # A guest cannot speed up its owner: training pairs that show more than 1 were measured alone at a bad moment.
        found = [np.clip(one, 0.0, 1.0) for one in (speeds.host, speeds.guest, speeds.host_least, chance)]
        table = np.stack([*found, spread, np.clip(sure, 0.0, 1.0)], axis=2).tolist()
        for row, one in enumerate(rows):
            for column, other in enumerate(columns):
                self._speeds[one, other] = _Said(*table[row][column])

    def _job(self, who: JobIdentity) -> _Job:
        known = self._jobs.get(who)
        if known is None:
            if len(self._jobs) > MOST_KEPT:
                self._jobs.clear()
            known = self._jobs[who] = self._look_up(who)
        return known

    def _look_up(self, who: JobIdentity) -> _Job:
        key = self.key_of(who)
        profiles = self._own.get(key.user, _NO_PROFILES)
        own = profiles.best_for(key, who.app_class)
        profile = profile_for(profiles, key, who.app_class, who.gpu_mem)
        numbers = predictor.profile(profile.busy or 0.0, profile.bandwidth or 0.0, profile.memory or 0.0)
        busy, bandwidth, memory = predictor.rounded(numbers).tolist()
        needs = who.gpu_mem if who.gpu_mem is not None else own.memory if own else None
        need = who.gpu_mem
        if need is None and own is not None and own.peak is not None and (own.peaks or 0.0) >= ENOUGH_PEAKS:
            need = ceil(own.peak)
        return _Job(key, (busy, bandwidth, memory), needs, own is not None and own.busy is not None, need)


_NO_PROFILES = Store()

_FOOTINGS = {Verdict.GOOD: Footing.PROVEN, Verdict.HARMED: Footing.HARMED, Verdict.FAULT: Footing.FAULT}
