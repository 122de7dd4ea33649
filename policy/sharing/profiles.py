# SPDX-License-Identifier: Apache-2.0
"""Stores what was measured of jobs: alone and beside others; and the results of trials of pairs.

A profile belongs to a key: user, account, and the job's name or its application class. Measurements are merged by
weights that halve every 30 days, so a job that changed is followed after a few runs. The store's text is
`berth-profiles/1`, one JSON object a line (docs/research/sharing.md).

    >>> store = Store()
    >>> store.add(ProfileKey("ann", "lab", "train"), Measured(at=0.0, runs=1, busy=0.4, bandwidth=0.2, memory=3_000.0))
    >>> store.best_for(ProfileKey("ann", "other", "train")).busy
    0.4
    >>> store.best_for(ProfileKey("bob", "lab", "train")) is None
    True
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from math import isfinite
from typing import Any, Self, TypeVar

from policy.formats.errors import FormatError, nearest

FORMAT = "berth-profiles/1"

Item = TypeVar("Item")

_HALF = 30 * 86_400.0
"""Seconds in which a measurement loses half of its weight."""
_FORGOTTEN = 0.02
"""Profiles and trials whose weight falls below this are dropped."""
_TRIALS = 20.0
"""Most trials of a pair that count, so that the latest trial still matters."""


@dataclass(frozen=True, slots=True, order=True)
class ProfileKey:
    """The key of a profile; `name` is the job's name, or `class:NAME` for an application class."""

    user: str
    account: str
    name: str

    def __str__(self) -> str:
        return f"{self.user}/{self.account}/{self.name}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The profile of a job alone on a typical GPU; None stands for values that were never measured."""

    at: float
    """Time of the last measurement, seconds since 1970."""
    runs: float
    """Number of measurements behind it, weighted by age."""
    busy: float | None = None
    """Part of the time in which kernels ran."""
    sms: float | None = None
    """Mean part of the SMs that were active."""
    bandwidth: float | None = None
    """Part of the time in which the GPU's memory was read or written."""
    pipes: float | None = None
    """Part of the time in which the busiest kind of arithmetic pipe worked."""
    dram: float | None = None
    """Part of the memory's bandwidth that was used."""
    memory: float | None = None
    """Peak GPU memory, MiB; later runs count more."""
    peak: float | None = None
    """Highest peak of GPU memory in any run, MiB."""
    peaks: float | None = None
    """Runs before the newest one that `peak` is of."""
    newest: float | None = None
    """Start of the newest of them, seconds since 1970: one that began earlier counts no more, so none counts twice."""
    step: float | None = None
    """Seconds of a step alone."""
    step_shared: float | None = None
    """Seconds of a step beside other jobs."""


class Verdict(StrEnum):
    """The result of the trials of two jobs on one GPU."""

    UNKNOWN = "unknown"
    GOOD = "good"
    HARMED = "harmed"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Tried:
    """The merged trials of an owner and a guest."""

    at: float
    trials: float
    host_speed: float
    guest_speed: float
    fault: bool = False


@dataclass(slots=True)
class Store:
    """The store of all profiles and all trials."""

    measured: dict[ProfileKey, Measured] = field(default_factory=dict)
    tried: dict[tuple[ProfileKey, ProfileKey], Tried] = field(default_factory=dict)

    def add(self, key: ProfileKey, new: Measured) -> None:
        """Merges a measurement into the profile; the older one loses weight with age."""
        old = self.measured.get(key)
        self.measured[key] = new if old is None else _merge(old, new)

    def best_for(self, key: ProfileKey, app_class: str = "") -> Measured | None:
        """Returns the profile of this key, else of the same user and name in another account, else of the user's class.

        Other users' profiles are never used: they are private, and a name says nothing about what others run.
        """
        if key in self.measured:
            return self.measured[key]
        own = self.seen_by(key.user)
        for name in (key.name, f"class:{app_class}"):
            same = [one for other, one in own.items() if other.name == name]
            if same:
                return max(same, key=lambda one: one.at)
        return None

    def seen_by(self, user: str) -> dict[ProfileKey, Measured]:
        """Returns the profiles that a user may see: the user's own."""
        return {key: one for key, one in self.measured.items() if key.user == user}

    def trial(self, host: ProfileKey, guest: ProfileKey, speeds: tuple[float, float], at: float) -> None:
        """Merges a trial of a minute beside each other: the owner's and the guest's speed."""
        old = self.tried.get((host, guest))
        before = old.trials * _left(at - old.at) if old else 0.0
        part = 1 / (before + 1)
        was = (old.host_speed, old.guest_speed) if old and old.trials else speeds
        host_speed, guest_speed = ((1 - part) * then + part * now for then, now in zip(was, speeds, strict=True))
        trials, faulty = min(before + 1, _TRIALS), old is not None and old.fault
        self.tried[host, guest] = Tried(at, trials, host_speed, guest_speed, faulty)

    def fault(self, one: ProfileKey, other: ProfileKey, at: float) -> None:
        """Records that one failed because of the other: they never share a GPU again, in either role."""
        for pair in ((one, other), (other, one)):
            old = self.tried.get(pair)
            self.tried[pair] = replace(old, at=at, fault=True) if old else Tried(at, 0.0, 0.0, 0.0, fault=True)

    def verdict(self, host: ProfileKey, guest: ProfileKey, bound: float = 0.95) -> Verdict:
        """Returns the result of the trials, which takes precedence over any prediction."""
        known = self.tried.get((host, guest))
        if known is None:
            return Verdict.UNKNOWN
        if known.fault:
            return Verdict.FAULT
        return Verdict.GOOD if known.host_speed >= bound else Verdict.HARMED

    def age(self, now: float) -> None:
        """Drops profiles and trials that are too old; faults stay."""
        self.measured = {key: one for key, one in self.measured.items() if one.runs * _left(now - one.at) >= _FORGOTTEN}
        self.tried = {
            pair: one for pair, one in self.tried.items()
            if one.fault or one.trials * _left(now - one.at) >= _FORGOTTEN
        }  # fmt: skip

    def trim(self, most: int) -> bool:
        """Keeps at most `most` profiles and pairs, shared out among users; tells whether any were dropped.

        A user's latest measured come first, and of pairs the faults. A pair counts for that one of its two users who
        has more pairs.
        """
        before = len(self.measured), len(self.tried)
        self.measured = dict(
            shared_out(
                sorted(self.measured.items(), key=lambda item: item[1].at, reverse=True),
                lambda item: item[0].user,
                most,
            )
        )
        pairs = Counter(user for pair in self.tried for user in {key.user for key in pair})
        self.tried = dict(
            shared_out(
                sorted(self.tried.items(), key=lambda item: (item[1].fault, item[1].at), reverse=True),
                lambda item: max((key.user for key in item[0]), key=lambda user: (pairs[user], user)),
                most,
            )
        )
        return before != (len(self.measured), len(self.tried))

    def write(self) -> str:
        """Returns the store's text."""
        lines: list[dict[str, Any]] = [{"format": FORMAT}]
        lines += [{"profile": _words(key), **fields_of(one)} for key, one in sorted(self.measured.items())]
        lines += [
            {"host": _words(host), "guest": _words(guest), **asdict(one)}
            for (host, guest), one in sorted(self.tried.items())
        ]
        return "".join(json.dumps(line) + "\n" for line in lines)

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads a store from its text."""
        store = cls()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                store._take(number, json.loads(line))
            except FormatError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError) as problem:
                raise FormatError(f"line {number} of the profiles is not as {FORMAT} says ({problem})") from None
        return store

    def _take(self, number: int, line: dict[str, Any]) -> None:
        if number == 1:
            if line.get("format") != FORMAT:
                raise FormatError(f"the profiles are written as {line.get('format')!r}; this Berth reads {FORMAT}")
        elif "profile" in line:
            key = ProfileKey(*map(str, line.pop("profile")))
            self.measured[key] = Measured(**_checked(number, line, Measured))
        else:
            pair = ProfileKey(*map(str, line.pop("host"))), ProfileKey(*map(str, line.pop("guest")))
            self.tried[pair] = Tried(**_checked(number, line, Tried))


def shared_out(items: Iterable[Item], user_of: Callable[[Item], str], most: int) -> list[Item]:
    """Returns at most `most` of the items, best first: the first of each user before the second of any.

    >>> shared_out(["a1", "a2", "a3", "b1"], lambda item: item[0], 3)
    ['a1', 'b1', 'a2']
    """
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, Item]] = []
    for item in items:
        user = user_of(item)
        ranked.append((seen[user], item))
        seen[user] += 1
    return [item for _, item in sorted(ranked, key=lambda one: one[0])[:most]]


def fields_of(one: Measured) -> dict[str, float]:
    """Returns the measured values, without those that are None."""
    return {name: value for name, value in asdict(one).items() if value is not None}


def describe(one: Measured) -> str:
    """Returns a profile as one readable line."""
    texts = (
        (one.busy, "kernels {:.0%} of the time"), (one.sms, "{:.0%} of the SMs"), (one.bandwidth, "memory busy {:.0%}"),
        (one.memory, "{:.0f} MiB"), (one.step, "{:.3g} s a step"), (one.step_shared, "{:.3g} s beside others"),
    )  # fmt: skip
    known = [text.format(value) for value, text in texts if value is not None]
    return ", ".join([*known, f"{one.runs:.1f} runs"])


def _merge(old: Measured, new: Measured) -> Measured:
    if new.at < old.at:
        old, new = new, old
    kept = old.runs * _left(new.at - old.at)
    merged: dict[str, Any] = {"at": new.at, "runs": kept + new.runs}
    for name in (one.name for one in fields(Measured) if one.name not in merged):
        was, now = getattr(old, name), getattr(new, name)
        if was is None or now is None:
            merged[name] = was if now is None else now
        elif name == "memory":
            merged[name] = max(now, now + kept / (kept + new.runs) * (was - now))
        elif name in {"peak", "newest"}:
            merged[name] = max(was, now)
        elif name == "peaks":
            merged[name] = max(was + ((new.newest or 0.0) > (old.newest or 0.0)), now)
        else:
            merged[name] = (kept * was + new.runs * now) / (kept + new.runs)
    return Measured(**merged)


def _left(age: float) -> float:
    return float(0.5 ** (max(age, 0.0) / _HALF))


def _words(key: ProfileKey) -> list[str]:
    return [key.user, key.account, key.name]


def _checked(number: int, line: Mapping[str, Any], kind: type) -> dict[str, Any]:
    known = [one.name for one in fields(kind)]
    for name, value in line.items():
        if name not in known:
            raise FormatError(f"line {number} of the profiles has an unknown field {name!r}{nearest(name, known)}")
        if name == "fault":
            if not isinstance(value, bool):
                raise FormatError(f"line {number} of the profiles: fault is true or false, not {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise FormatError(f"line {number} of the profiles: {name} is a number of 0 or more, not {value!r}")
    return dict(line)
