# SPDX-License-Identifier: Apache-2.0
"""Computes scores from runs: node effect plus GPU effect, shrunk to the typical where little is known.

The estimate is the posterior mean of a model in which nodes, GPUs and runs differ (`posterior`), with variances by
REML (`variances`). Runs that a reason spoils do not count; runs that are spoilt for a reason that was not seen are
found by their times, given how the node's other runs were. A GPU whose node waits keeps its score: waiting is told by
its own signs and is a matter of now, not of the chip.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topology.calibrate.changes import changes_in, steps
from topology.calibrate.links import SlowLink, slow_links
from topology.calibrate.peers import GpuPlace, PeerKey, Peers, peers_of
from topology.calibrate.posterior import Fitted, Floats, Rarities, Variances, fit, learnt
from topology.calibrate.runs import Verdict, Visit, seconds_of
from topology.calibrate.variances import PUBLISHED, reml
from topology.scores import Score

SLOW_FROM = 1.10
"""A GPU that takes so many times the typical is called slow."""

_DAY_S = 86_400.0
_AGING = 0.01**2 / 90.0
"""Variance that a day of age adds to a run: chips change by about a percent in a quarter of a year."""
_REFITS = 4
_STEP_RUNS_GPU, _STEP_RUNS_NODE = 2, 3
"""Runs in the new state before a step is believed; a node's runs vary more, and whole nodes wait now and then."""
_TELLING = 0.5


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of one GPU for one application class."""

    place: GpuPlace
    app_class: str
    score: float
    error: float
    """Standard error of the score, as a part of it."""
    node_part: float
    gpu_part: float
    """Score = node part x GPU part."""
    slow: float
    """Probability that it always takes SLOW_FROM times the typical or more."""
    outlier: float
    """Probability that its time is none of those that are typical, be it by little."""
    runs: int
    """Runs that count."""
    left_out: int
    """Runs that do not, for a reason that was seen or for their times."""
    spread: float
    """Standard deviation between the runs that count, as a part of the score."""
    at: str
    """Last run that counts."""
    age_days: float
    now: Verdict
    """Verdict of the last visit; empty: nothing was wrong."""
    peers: int
    """GPUs it was compared with, itself too."""


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A step or a drift that is announced."""

    node: str
    place: GpuPlace | None
    """None: the whole node."""
    app_class: str
    kind: str
    """`step` or `drift`."""
    factor: float
    """Time after over time before."""
    since: str
    """First visit of the new state, or of the drift."""

    def __str__(self) -> str:
        what = f"GPU {self.place.position} of {self.node}" if self.place else f"node {self.node}"
        percent = abs(self.factor - 1.0)
        way = "slower" if self.factor > 1 else "faster"
        how = "became" if self.kind == "step" else "grew"
        return f"{what} {how} {percent:.1%} {way} for {self.app_class} since {self.since}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """All that the visits say."""

    estimates: tuple[Estimate, ...]
    changes: tuple[SpeedChange, ...]
    variances: tuple[tuple[PeerKey, Variances], ...]
    told: dict[tuple[GpuPlace, str], tuple[tuple[str, Verdict], ...]]
    """By GPU and class, when it was visited and what was wrong."""
    links: tuple[SlowLink, ...] = ()


def calibrate(visits: Iterable[Visit], now: float | None = None) -> Calibration:
    """Estimate all GPUs from all visits; `now` is in seconds since 1970."""
    today = (time.time() if now is None else now) / _DAY_S
    estimates: dict[tuple[str, str], tuple[Estimate, float]] = {}
    changes: list[SpeedChange] = []
    variances, told = [], {}
    visits = sorted(visits, key=lambda visit: seconds_of(visit.at))
    last_at = {(visit.node, gpu.position): gpu.uuid for visit in visits for gpu in visit.gpus}

    def stays(one: GpuPlace | SlowLink) -> bool:
        # Where a GPU was exchanged, what the old one told is over.
        return last_at[one.node, one.position] == one.uuid

    for peers in peers_of(visits):
        fitted, found, kept, announced = _fitted(peers, today)
        variances.append((peers.key, found))
        changes += announced
        for place, seen in peers.verdicts.items():
            if stays(place):
                told[place, peers.key.app_class] = seen
        for one, last in _estimates(peers, fitted, kept, today):
            name = one.place.uuid or f"{one.place.node}:{one.place.position}"
            known = estimates.get((name, one.app_class))
            # A GPU that moved, or has another kernel or power limit since, is judged by where and how it is now.
            if stays(one.place) and (known is None or last > known[1]):
                estimates[name, one.app_class] = (one, last)
    ordered = sorted((one for one, _ in estimates.values()), key=lambda one: (one.place, one.app_class))
    return Calibration(tuple(ordered), tuple(changes), tuple(variances), told, tuple(filter(stays, slow_links(visits))))


def table(estimates: Iterable[Estimate]) -> tuple[Score, ...]:
    """Returns the score table of these estimates."""
    return tuple(
        Score(
            one.place.node,
            one.place.position,
            one.place.uuid,
            one.app_class,
            round(one.score, 4),
            one.runs,
            round(one.spread, 4),
            one.at,
            round(one.error, 4),
        )
        for one in estimates
        if one.runs
    )


def probability(fitted: Fitted, centre: float, factor: float) -> Floats:
    """Returns the probability, by node and GPU, that the true score is at least this."""
    weights, means, variances = fitted.parts()
    above = (means - centre - math.log(factor)) / np.sqrt(2.0 * variances)
    erf = np.vectorize(math.erf, otypes=[np.float64])
    found: Floats = (weights * 0.5 * (1.0 + erf(above))).sum(axis=0)
    return found


def _fitted(peers: Peers, today: float) -> tuple[Fitted, Variances, Floats, list[SpeedChange]]:
    """Returns posteriors, variances, the times that they rest on, and changes."""
    published = PUBLISHED.get(peers.key.app_class, PUBLISHED["compute"])
    aged = (_AGING * np.maximum(today - np.nan_to_num(peers.days, nan=today), 0.0))[:, None, :]
    times, fitted, variances = _refitted(peers.times, published, aged)
    kept, changes = _unchanged(peers, times, fitted, variances)
    if changes:
        times, fitted, variances = _refitted(kept, variances, aged)
    return fitted, variances, times, changes


def _refitted(times: Floats, variances: Variances, aged: Floats) -> tuple[Floats, Fitted, Variances]:
    """Returns posteriors and variances, each from the other, until both stand; times over the centre."""
    published, rarities, there = variances, Rarities(), np.isfinite(times)
    for _ in range(_REFITS):
        fitted = fit(times, variances, aged, rarities)
        rarities = learnt(fitted, there)
        variances, centre = reml(_clean(times, fitted), published)
        times = times - centre
    return times, fit(times, variances, aged, rarities), variances


def _clean(times: Floats, fitted: Fitted) -> Floats:
    """Returns times without outliers and disturbed runs, whose excess is no variance of the typical."""
    clean = times.copy()
    clean[fitted.gpus.odds.reshape(times.shape[:2]) > _TELLING] = np.nan
    clean[fitted.nodes.odds > _TELLING] = np.nan
    clean[np.broadcast_to((fitted.nodes.disturbed > _TELLING)[:, None, :], times.shape)] = np.nan
    clean[fitted.gpus.disturbed.reshape(times.shape) > _TELLING] = np.nan
    return clean


def _unchanged(peers: Peers, times: Floats, fitted: Fitted, variances: Variances) -> tuple[Floats, list[SpeedChange]]:
    """Returns times adjusted to the present state: without runs before a step, and with drifts taken out."""
    _, gpus, runs = times.shape
    changes: list[SpeedChange] = []
    kept = times.copy()
    app_class = peers.key.app_class

    def note(row: int, gpu: int | None, kind: str, size: float, column: int) -> None:
        place = None if gpu is None else peers.places[row][gpu]
        changes.append(
            SpeedChange(peers.nodes[row], place, app_class, kind, math.exp(size), _date(peers.days[row, column]))
        )

    levels = np.where(np.isfinite(times).any(axis=1), fitted.levels, np.nan)
    of_nodes = steps(levels, variances.node_run + variances.gpu_run / gpus, _STEP_RUNS_NODE)
    for row in np.flatnonzero(of_nodes.first):
        kept[row, :, : of_nodes.first[row]] = np.nan
        note(int(row), None, "step", float(of_nodes.size[row]), int(of_nodes.first[row]))
    # Against the node's other GPUs: a level that a GPU has a part in follows it a little.
    others = np.maximum(np.isfinite(times).sum(axis=1, keepdims=True) - 1.0, 0.0)
    alone = (times - fitted.levels[:, None, :]) * np.divide(1.0 + others, others, where=others > 0, out=0.0 * others)
    alone = alone.reshape(-1, runs)
    noise = variances.gpu_run * gpus / max(gpus - 1, 1)
    days = np.repeat(peers.days[:, None, :], gpus, axis=1).reshape(-1, runs)
    of_gpus, grown = changes_in(alone, days, noise, _STEP_RUNS_GPU)
    for index in np.flatnonzero(of_gpus.first):
        row, gpu = divmod(int(index), gpus)
        kept[row, gpu, : of_gpus.first[index]] = np.nan
        note(row, gpu, "step", float(of_gpus.size[index]), int(of_gpus.first[index]))
    for index in np.flatnonzero(grown.total):
        row, gpu = divmod(int(index), gpus)
        kept[row, gpu] += grown.per_day[index] * (np.nanmax(days[index]) - days[index])
        note(row, gpu, "drift", float(grown.total[index]), int(np.flatnonzero(np.isfinite(alone[index]))[0]))
    return kept, changes


def _estimates(peers: Peers, fitted: Fitted, times: Floats, today: float) -> Iterator[tuple[Estimate, float]]:
    """Estimates, each with the time of the GPU's last visit."""
    nodes, gpus, _ = times.shape
    logs = fitted.mean()
    real = np.array([[place is not None for place in row] for row in peers.places])
    centre = float(np.median(logs[real]))
    weights, means, variances = fitted.parts()
    error = np.sqrt((weights * (variances + means**2)).sum(axis=0) - (weights * means).sum(axis=0) ** 2)
    slow = probability(fitted, centre, SLOW_FROM)
    outlier = 1.0 - (1.0 - fitted.gpus.odds.reshape(nodes, gpus)) * (1.0 - fitted.nodes.odds[:, None])
    disturbed = fitted.gpus.disturbed.reshape(times.shape)
    counts = np.isfinite(times) & (disturbed <= _TELLING) & (fitted.nodes.disturbed <= _TELLING)[:, None, :]
    middle = float(np.median(fitted.nodes.mean))
    for row in range(nodes):
        for gpu in range(gpus):
            place = peers.places[row][gpu]
            if place is None:
                continue
            told = peers.verdicts[place]
            mine = counts[row, gpu]
            shown = times[row, gpu, mine]
            of_node = math.exp(float(fitted.nodes.mean[row]) - middle)
            score = math.exp(float(logs[row, gpu]) - centre)
            day = float(peers.days[row][mine].max()) if mine.any() else math.nan
            yield (
                Estimate(
                    place,
                    peers.key.app_class,
                    score,
                    float(error[row, gpu]),
                    of_node,
                    score / of_node,
                    float(slow[row, gpu]),
                    float(outlier[row, gpu]),
                    int(mine.sum()),
                    len(told) - int(mine.sum()),
                    float(shown.std(ddof=1)) if shown.size > 1 else 0.0,
                    _date(day),
                    today - day,
                    _now(told, peers.days[row], disturbed[row, gpu], fitted.nodes.disturbed[row]),
                    int(real.sum()),
                ),
                seconds_of(told[-1][0]),
            )


def _now(told: Sequence[tuple[str, Verdict]], days: Floats, of_gpu: Floats, of_node: Floats) -> Verdict:
    """Returns the verdict of the last visit, also if only the time shows it."""
    _, last = told[-1]
    if last:
        return last
    column = int(np.nanargmax(days))
    return "waiting" if max(of_gpu[column], of_node[column]) > _TELLING else ""


def _date(day: float) -> str:
    if not math.isfinite(day):
        return ""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(round(day * _DAY_S)))
