# SPDX-License-Identifier: Apache-2.0
"""Profiles of jobs: read from the profiles file, completed by guards, and written back every ten minutes.

An admin's tools may change the file while berthd runs: what guards reported meanwhile is added to what they wrote. If
the file cannot be read or written, that is logged, and berthd goes on.
"""

import pwd
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from policy.cluster.shared.sharers import who_is
from policy.daemon.hear.guards import Alone, GuardWord, Together
from policy.formats.errors import ConfigError, FormatError
from policy.formats.slurm_facts import JobFacts
from policy.request.share import Mate
from policy.sharing.companions import LEAST, Companions
from policy.sharing.neighbours import Neighbours, numbers_of
from policy.sharing.predictor import Fit
from policy.sharing.profiles import Measured, ProfileKey, Store, shared_out
from policy.site import log
from topology import atomic
from topology.errors import TopologyError

WRITE_EVERY = 600.0
"""Seconds between two writings; a pair that failed together is written at once."""

USED_AFTER = 600.0
"""Seconds for which figures of a job stay in use before newer ones replace them."""

ENOUGH_S = 30.0
"""Seconds beside each other from which on the figures of a pair count."""

MOST = 20_000
"""The most profiles, and pairs, that are kept. A user who gives each job a new name loses only own profiles."""

KNOWN_EVERY = 60.0
"""Seconds between two updates of what is known of packed jobs: each is sent to the answerer."""

MOST_NEIGHBOURS = 2_000
"""The most profiles by which packed jobs are put together, each user's latest; they cost the answerer milliseconds."""

_FULL_RUN_S = 600.0
"""Seconds alone on a GPU that count as one run."""

_MODE = 0o600
"""The file's mode: other users may not read which jobs users run."""


class Profiles:
    """The profiles by which berthd places guests and packed jobs."""

    def __init__(self, path: Path, fit: str = "", name_of: Callable[[int], str] | None = None) -> None:
        self._path = path
        self._names: dict[int, str] = {}
        self._uids: dict[str, int | None] = {}
        self._find_name = name_of or _name_of
        self._mark: tuple[int, int] | None = None
        self._new = Store()
        """Figures measured since the file was read or written, which the file lacks."""
        self._new_pairs: set[tuple[ProfileKey, ProfileKey]] = set()
        self._written = 0.0
        self._urgent = self._writes = False
        self._used: dict[ProfileKey, float] = {}
        """By job, the time since which its last figures have been in use; if it is missing, new ones may be used."""
        self._writer: threading.Thread | None = None
        self.foes: frozenset[tuple[Mate, Mate]] = frozenset()
        self.neighbours: Neighbours | None = None
        """The figures of packed jobs; a new object after each change."""
        self._neighbours_at = -KNOWN_EVERY
        self._news = True
        self.store = Store()
        self._fit = load_fit(fit)
        self.companions = Companions(self.store, self._fit, self.name_of)

    def name_of(self, user: int) -> str:
        """Returns a user's name, and remembers it."""
        if user not in self._names:
            self._names[user] = self._find_name(user)
        return self._names[user]

    def refresh(self, at: float, *, writes: bool) -> None:
        """Reads the file if another program wrote it; with `writes`, writes it when that is due."""
        self._written, self._writes = self._written or at, writes
        if self._writer is not None and self._writer.is_alive():
            return
        mark = _stamp(self._path)
        if mark != self._mark:
            self._read(mark)
        if writes and self._is_new and (self._urgent or at - self._written >= WRITE_EVERY):
            self._written, self._urgent = at, False
            self._writer = threading.Thread(target=self._save, args=(self._to_write(at),), name="berth-profiles")
            self._writer.start()

    def know_neighbours(self, at: float, least: float, *, capped: bool) -> None:
        """Updates `neighbours` if there are new figures, at most once a minute."""
        if not self._news or at - self._neighbours_at < KNOWN_EVERY:
            return
        self._news, self._neighbours_at = False, at
        named = (item for item in self.store.measured.items() if not item[0].name.startswith("class:"))
        measured = [item for item in named if item[1].busy is not None]
        measured.sort(key=lambda item: item[1].at, reverse=True)
        kept = shared_out(measured, lambda item: item[0].user, MOST_NEIGHBOURS)
        # If several profiles have one name, the one measured last counts.
        last = sorted(kept, key=lambda item: item[1].at)
        known = {mate: numbers_of(one) for key, one in last if (mate := self._mate(key)) is not None}
        if self.neighbours is None or known != self.neighbours.known:
            self.neighbours = Neighbours(known, self._fit, least=least, capped=capped)

    def close(self, at: float) -> None:
        """Writes the figures that are not yet written."""
        if self._writer is not None:
            self._writer.join()
        if self._is_new and self._writes:
            self._save(self._to_write(at))

    def hear(self, word: GuardWord, jobs: Mapping[int, JobFacts], at: float) -> str:
        """Adds a guard's figures; returns the reason why its guest should move, or an empty text."""
        if word.alone is not None and word.alone.job in jobs:
            self._learn_alone(jobs[word.alone.job], word.alone, at)
        together = word.together
        if together is None or together.seconds < ENOUGH_S or not {together.host, word.job} <= jobs.keys():
            return ""
        self._learn_together(jobs[together.host], jobs[word.job], together, at)
        if together.speed >= LEAST:
            return ""
        return f"its host ran at {together.speed:.2f} of its speed beside it, and the two are not put together again"

    def fault(self, culprit: JobFacts, others: Iterable[JobFacts], at: float) -> None:
        """Notes that a job brought others down: none of them is put beside it again."""
        one = self._key(culprit)
        for other in {self._key(job) for job in others}:
            self.store.fault(one, other, at)
            self._new_pairs |= {(one, other), (other, one)}
            self._urgent = True
            self.companions.tried(one, other)
            self.companions.tried(other, one)
        self._find_foes()

    def _find_foes(self) -> None:
        pairs = [pair for pair, tried in self.store.tried.items() if tried.fault]
        mates = {key: self._mate(key) for pair in pairs for key in pair}
        known = [(mates[one], mates[other]) for one, other in pairs]
        self.foes = frozenset((one, other) for one, other in known if one is not None and other is not None)

    def _mate(self, key: ProfileKey) -> Mate | None:
        """Returns the uid and name of a profile's job; None if the user is gone."""
        if key.user not in self._uids:
            user = next((uid for uid, name in self._names.items() if name == key.user), None)
            self._uids[key.user] = _uid_of(key.user) if user is None else user
        found = self._uids[key.user]
        return None if found is None else (found, key.name)

    @property
    def _is_new(self) -> bool:
        return bool(self._new.measured or self._new_pairs)

    def _key(self, job: JobFacts) -> ProfileKey:
        return self.companions.key_of(who_is(job))

    def _learn_alone(self, job: JobFacts, said: Alone, at: float) -> None:
        new = Measured(
            at=at,
            runs=min(1.0, said.seconds / _FULL_RUN_S),
            busy=_part(said.busy),
            sms=_part(said.sms),
            bandwidth=_part(said.bandwidth),
            pipes=_part(said.pipes),
            dram=_part(said.dram),
            memory=said.memory,
            step=said.step,
            **_peak_of(said.memory, float(job.start or at)),
        )
        who, key = who_is(job), self._key(job)
        for one in (key, replace(key, name=f"class:{who.app_class}")) if who.app_class else (key,):
            self.store.add(one, new)
            self._new.add(one, new)
            if at - self._used.get(one, 0.0) >= USED_AFTER:
                self._used[one], self._news = at, True
                self.companions.learned(one)

    def _learn_together(self, host: JobFacts, guest: JobFacts, said: Together, at: float) -> None:
        # The guest's own speed is not reported: its predicted speed beside this host counts, times its duty.
        speed = said.duty * self.companions.predicted(who_is(host), who_is(guest)).guest
        pair = self._key(host), self._key(guest)
        self.store.trial(*pair, (said.speed, speed), at)
        self._new_pairs.add(pair)
        self.companions.tried(*pair)

    def _read(self, mark: tuple[int, int] | None) -> None:
        self._mark = mark
        store = Store()
        try:
            if mark is not None:
                store = Store.read(self._path.read_text())
        except (OSError, UnicodeDecodeError) as problem:
            log.error(
                f"the profiles in {self._path} cannot be read: {problem}; what is known already stays in use", 642
            )
            return
        except FormatError as problem:
            log.error(f"{self._path}: {problem}; what is known already stays in use", 642)
            return
        for key, one in self._new.measured.items():
            store.add(key, one)
        for pair in self._new_pairs:
            store.tried[pair] = self.store.tried[pair]
        log.info(f"{len(store.measured)} profiles and {len(store.tried)} pairs of jobs in {self._path}", 643)
        self.store, self._news = store, True
        self.companions.renew(store)
        self._find_foes()

    def _to_write(self, at: float) -> Store:
        """Returns a copy of the profiles for the file, which does not change while it is written."""
        self._new, self._new_pairs = Store(), set()
        self._used = {key: since for key, since in self._used.items() if at - since < USED_AFTER}
        self.store.age(at)
        if max(len(self.store.measured), len(self.store.tried)) > MOST and self.store.trim(MOST):
            self.companions.renew(self.store)
        return Store(dict(self.store.measured), dict(self.store.tried))

    def _save(self, store: Store) -> None:
        """Writes the file, in a thread: thousands of lines take a while, and so may a disk."""
        try:
            atomic.replace(self._path, store.write().encode(), _MODE)
            self._mark = _stamp(self._path)
        except TopologyError as problem:
            log.error(f"{problem}; what guards measure is kept in memory alone", 642)


def load_fit(path: str = "") -> Fit:
    """Returns the predictor's fit: the site's own, or the one that ships."""
    try:
        return Fit.read(Path(path).read_text() if path else files("policy.sharing").joinpath("fit.json").read_text())
    except OSError as problem:
        raise ConfigError(f"[sharing] fit: {problem}") from None


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _uid_of(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return int(name) if name.isdecimal() else None


def _peak_of(memory: float | None, start: float) -> dict[str, float]:
    """Returns the fields of a profile that say how much memory one run took at most."""
    return {} if memory is None else {"peak": memory, "peaks": 0.0, "newest": start}


def _part(value: float | None) -> float | None:
    return None if value is None else min(value, 1.0)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
