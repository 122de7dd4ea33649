# SPDX-License-Identifier: Apache-2.0
"""Predicts how long a job will run, from the jobs that ended: three quantiles and how far they can be trusted.

Each job belongs to several *groups*, from all jobs down to those of the same user, name and size. Each group keeps
windows of its latest run times, short ones for a user who submits the same job a hundred times and long ones for
habits, and each window is an *opinion* on each quantile. Where jobs have limits, the fraction of the limit that was
used is one more opinion. A prediction is the mean of the opinions on the logarithm of seconds, weighted by how well
each did of late for this very group; so a short history counts little until it has proved itself, and without any
history a fraction of the limit is left.

    >>> times = RunTimes()
    >>> asked = KnownAtSubmission("ann", "train", "lab", gpus=8, limit=86_400)
    >>> for _ in range(20):
    ...     times.learn(asked, 3_600.0)
    >>> round(times.predict(asked).median)
    3600
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from operator import mul

QUANTILES = (0.1, 0.5, 0.9)

_WINDOWS = (50, 200, 2_000)
"""Jobs in the windows of a job's own group; a wider group keeps one window."""
_WIDER = 200
_MOST_GROUPS = 50_000
"""Groups beyond that push out those unused for longest: users and names come and go."""

_KEPT = 0.98
"""Part of an opinion's losses that is left after each further job: some fifty jobs count."""
_SHARPNESS = 1.5
"""Strength with which weights follow losses."""
_FIRST_LOSS = 0.3
_NO_OPINION = 1.0
_TINY = 0.01
_ROUNDING = 1e-9

_DOUBT = (-0.5, 0.0, 0.1)
"""Standard deviations by which low and high move apart if opinions differ. Low moves more: a job is
far more often cut short than it overruns everything seen before."""

_TRUST_AFTER = 4.0
"""Jobs that a group must have had before its record outweighs the doubt."""

_WITHOUT_HISTORY = (60.0, 900.0, 28_800.0)
_OF_THE_LIMIT = (0.02, 0.3, 1.0)
"""Quantiles where no job has ended yet: seconds, and parts of the limit."""


@dataclass(frozen=True, slots=True)
class KnownAtSubmission:
    """The facts of a job that are known at its submission; unknown texts are empty."""

    user: str
    name: str
    account: str
    gpus: int
    limit: float = inf
    """Time limit in seconds."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds that a job will run."""

    low: float
    median: float
    high: float
    confidence: float
    """Share of such jobs, of late, that ended between low and high; near 0 where hardly any is known."""

    @property
    def mean(self) -> float:
        """Returns the expected run time, by Swanson's rule: few jobs run long, and they make up most of a sum."""
        return 0.3 * self.low + 0.4 * self.median + 0.3 * self.high


class _Window:
    """The latest values of a group, in order of time and of size."""

    __slots__ = ("_latest", "_most", "_quantiles", "_sorted")

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._quantiles: tuple[float, ...] | None = None

    def add(self, value: float) -> None:
        if len(self._latest) == self._most:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(value)
        insort(self._sorted, value)
        self._quantiles = None

    def quantiles(self) -> tuple[float, ...] | None:
        values = self._sorted
        count = len(values)
        if self._quantiles is not None or not count:
            return self._quantiles
        found = []
        for share in QUANTILES:
            place = min(max(share * (count + 1) - 1, 0.0), count - 1.0)
            below = int(place)
            above = min(below + 1, count - 1)
            found.append(values[below] + (place - below) * (values[above] - values[below]))
        self._quantiles = tuple(found)
        return self._quantiles


class _Record:
    """The record of each opinion for one group: losses by quantile, and how often low and high held the truth."""

    __slots__ = ("held", "losses", "seen")

    def __init__(self, losses: Sequence[Sequence[float]]) -> None:
        self.losses = [list(row) for row in losses]
        self.seen = 0.0
        self.held = 0.0


class RunTimes:
    """Learns as jobs end; some 20 microseconds for a prediction."""

    def __init__(self) -> None:
        self._windows: dict[Hashable, tuple[_Window, ...]] = {}
        self._records: dict[Hashable, _Record] = {}
        # What new groups start from: how the opinions do for all jobs together.
        self._all: dict[int, _Record] = {}

    def predict(self, asked: KnownAtSubmission) -> Prediction:
        """Returns what is expected of a job."""
        own, opinions = self._opinions(asked)
        record = self._record(own, len(opinions))
        low, median, high = _mixed(opinions, record, asked.limit)
        return Prediction(low, median, high, record.held / (record.seen + _TRUST_AFTER))

    def learn(self, asked: KnownAtSubmission, seconds: float) -> None:
        """A job has ended."""
        own, opinions = self._opinions(asked)
        value = log(max(seconds, 1.0))
        record = self._record(own, len(opinions))
        low, _, high = _mixed(opinions, record, asked.limit)
        record.seen = record.seen * _KEPT + 1
        # Jobs that run for the same time each are held too: quantiles come back from logarithms.
        record.held = record.held * _KEPT + (low * (1 - _ROUNDING) <= seconds <= high * (1 + _ROUNDING))
        for one in (record, self._all.setdefault(len(opinions), _Record(record.losses))):
            _judge(one.losses, opinions, value)
        for group, windows in self._groups(asked):
            # Kept from the first end on, since asking alone must not fill the memory; those used last stand last.
            self._windows[group] = self._windows.pop(group, windows)
            for window in windows:
                window.add(value - log(asked.limit) if _is_fraction(group) else value)
        while len(self._windows) > _MOST_GROUPS:
            self._records.pop(gone := next(iter(self._windows)), None)
            del self._windows[gone]
        self._records[own] = record

    def _opinions(self, asked: KnownAtSubmission) -> tuple[Hashable, list[tuple[float, ...] | None]]:
        """The job's own group, and the logarithms that each window names for the quantiles."""
        groups = self._groups(asked)
        opinions: list[tuple[float, ...] | None] = []
        for group, windows in groups:
            added = log(asked.limit) if _is_fraction(group) else 0.0
            for window in windows:
                named = window.quantiles()
                opinions.append(tuple(one + added for one in named) if named and added else named)
        return groups[0][0], opinions

    def _groups(self, asked: KnownAtSubmission) -> list[tuple[Hashable, tuple[_Window, ...]]]:
        """From the job's own group to all jobs; each once."""
        keys: list[Hashable] = [
            ("own", asked.account, asked.user, asked.name, asked.gpus),
            *([("user-size", asked.user, asked.gpus)] if asked.user and asked.name else []),
            *([("user", asked.user)] if asked.user else []),
            *([("account-size", asked.account, asked.gpus)] if asked.user else []),
            *([("account", asked.account)] if asked.account else []),
            ("size", asked.gpus),
            ("all",),
        ]
        if 0 < asked.limit < inf:
            keys.append((_FRACTION, asked.user or asked.account))
        found = []
        for key in keys:
            windows = self._windows.get(key)
            if windows is None:
                windows = tuple(_Window(most) for most in (_WINDOWS if key is keys[0] else (_WIDER,)))
            found.append((key, windows))
        return found

    def _record(self, own: Hashable, opinions: int) -> _Record:
        record = self._records.get(own)
        if record is None or len(record.losses[0]) != opinions:
            start = self._all.get(opinions)
            record = _Record(start.losses if start else [[_FIRST_LOSS] * opinions for _ in QUANTILES])
        return record


_FRACTION = "fraction"


def _is_fraction(group: Hashable) -> bool:
    return isinstance(group, tuple) and group[0] == _FRACTION


def _judge(losses: list[list[float]], opinions: Sequence[tuple[float, ...] | None], value: float) -> None:
    """Pinball loss of each opinion, the older ones forgotten bit by bit."""
    for place, share in enumerate(QUANTILES):
        row = losses[place]
        for number, opinion in enumerate(opinions):
            missed = _NO_OPINION
            if opinion is not None:
                short = value - opinion[place]
                missed = share * short if short > 0 else (share - 1) * short
            row[number] = _KEPT * row[number] + (1 - _KEPT) * missed


def _mixed(opinions: Sequence[tuple[float, ...] | None], record: _Record, limit: float) -> list[float]:
    """Seconds for each quantile, ascending and within the limit."""
    known = [number for number, opinion in enumerate(opinions) if opinion is not None]
    if not known:
        return [part * limit for part in _OF_THE_LIMIT] if 0 < limit < inf else list(_WITHOUT_HISTORY)
    named = [opinion for opinion in opinions if opinion is not None]
    seconds = []
    for place, doubt in enumerate(_DOUBT):
        losses = [record.losses[place][number] for number in known]
        least = min(losses)
        sharpness = _SHARPNESS / (least + _TINY)
        weights = [exp(sharpness * (least - loss)) for loss in losses]
        values = [opinion[place] for opinion in named]
        total = sum(weights)
        mean = sum(map(mul, weights, values)) / total
        if doubt:
            squares = [(value - mean) ** 2 for value in values]
            mean += doubt * sqrt(sum(map(mul, weights, squares)) / total)
        seconds.append(min(exp(mean), limit))
    return sorted(seconds)
