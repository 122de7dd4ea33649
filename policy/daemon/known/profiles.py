# SPDX-License-Identifier: Apache-2.0
"""Profiles of jobs: read from the profiles file, completed by guards, and written back now and then.

The file is its owner's: an admin's tools may change it while berthd runs, and what guards said meanwhile is added to
what they wrote. A file that cannot be read or written is logged and costs the profiles, nothing more.
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
from policy.sharing.sources import peak_of
from policy.site import log
from topology import atomic
from topology.errors import TopologyError

WRITE_EVERY = 600.0
"""Seconds between two writings; a pair that failed together is written at once."""

USED_AFTER = 600.0
"""Seconds after which new figures of a job whose profile is in use are used as well."""

ENOUGH_S = 30.0
"""Seconds beside each other that say something about a pair."""

MOST = 20_000
"""Profiles, and pairs, that are kept: some users give each job a name of its own, and only lose their own ones."""

KNOWN_EVERY = 60.0
"""Seconds between two looks at what is new of packed jobs: it travels to the answerer."""

MOST_NEIGHBOURS = 2_000
"""Profiles by which packed jobs are put together, each user's latest: some milliseconds of the answerer's."""

_FULL_RUN_S = 600.0
"""As many seconds alone count as one run."""

_MODE = 0o600
"""Other users may not read it: it names what users run."""


class Profiles:
    """The store that berthd places guests by."""

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
        """Since when a job's last figures have been in use; a job that is not in here has waited long enough."""
        self._writer: threading.Thread | None = None
        self.foes: frozenset[tuple[Mate, Mate]] = frozenset()
        self.neighbours: Neighbours | None = None
        """The knowledge of packed jobs; replaced whenever something new is known."""
        self._neighbours_at = -KNOWN_EVERY
        self._news = True
        self.store = Store()
        self._fit = load_fit(fit)
        self.companions = Companions(self.store, self._fit, self.name_of)

    def name_of(self, user: int) -> str:
        """A user's name, asked for once."""
        if user not in self._names:
            self._names[user] = self._find_name(user)
        return self._names[user]

    def refresh(self, at: float, *, writes: bool) -> None:
        """Read the file if another wrote it, and write it if it is time; `writes`: whether this berthd may."""
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
        """Bring what is known of packed jobs up to date, now and then."""
        if not self._news or at - self._neighbours_at < KNOWN_EVERY:
            return
        self._news, self._neighbours_at = False, at
        named = (item for item in self.store.measured.items() if not item[0].name.startswith("class:"))
        measured = [item for item in named if item[1].busy is not None]
        measured.sort(key=lambda item: item[1].at, reverse=True)
        kept = shared_out(measured, lambda item: item[0].user, MOST_NEIGHBOURS)
        # The last measured one counts, if one name has several.
        last = sorted(kept, key=lambda item: item[1].at)
        known = {mate: numbers_of(one) for key, one in last if (mate := self._mate(key)) is not None}
        if self.neighbours is None or known != self.neighbours.known:
            self.neighbours = Neighbours(known, self._fit, least=least, capped=capped)

    def close(self, at: float) -> None:
        """Write what is not written yet."""
        if self._writer is not None:
            self._writer.join()
        if self._is_new and self._writes:
            self._save(self._to_write(at))

    def hear(self, word: GuardWord, jobs: Mapping[int, JobFacts], at: float) -> str:
        """Learn what a guard measured; why its guest should go elsewhere, or empty."""
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
        """A job brought others down: no such pair comes together again."""
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
        """Returns the user in Slurm's records; None where the user is gone."""
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
            **peak_of(said.memory, float(job.start or at)),
        )
        who, key = who_is(job), self._key(job)
        for one in (key, replace(key, name=f"class:{who.app_class}")) if who.app_class else (key,):
            self.store.add(one, new)
            self._new.add(one, new)
            if at - self._used.get(one, 0.0) >= USED_AFTER:
                self._used[one], self._news = at, True
                self.companions.learned(one)

    def _learn_together(self, host: JobFacts, guest: JobFacts, said: Together, at: float) -> None:
        # What the guest did is not heard: it did what it can beside this host, for as long as it was let.
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
        """Returns what the file is to hold: a copy, which does not change meanwhile."""
        self._new, self._new_pairs = Store(), set()
        self._used = {key: since for key, since in self._used.items() if at - since < USED_AFTER}
        self.store.age(at)
        if max(len(self.store.measured), len(self.store.tried)) > MOST and self.store.trim(MOST):
            self.companions.renew(self.store)
        return Store(dict(self.store.measured), dict(self.store.tried))

    def _save(self, store: Store) -> None:
        """In a thread: thousands of lines take a while, and so may a disk."""
        try:
            atomic.replace(self._path, store.write().encode(), _MODE)
            self._mark = _stamp(self._path)
        except TopologyError as problem:
            log.error(f"{problem}; what guards measure is kept in memory alone", 642)


def load_fit(path: str = "") -> Fit:
    """The predictor's fit: the site's own, or the one that ships."""
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


def _part(value: float | None) -> float | None:
    return None if value is None else min(value, 1.0)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
