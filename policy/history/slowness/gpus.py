# SPDX-License-Identifier: Apache-2.0
"""Scores between calibrations: refreshed by the step times that jobs report and by the clocks that the guard saw.

In logarithms a rank's step time is application + run + node in this run + GPU + noise. What an application takes and
how long a run took are not known, so that a report says how its GPUs differ, and several runs of one application also
say how their sets of GPUs differ. The score table is what is known before; what is known afterwards is exact for this
model, by application class. Two things lie outside of it, and are looked for first: a GPU that has changed since, to
which its old score must not cling, and a host that is late, for which no GPU is to blame.

A score stays within `_WORTH` of the median of the users' votes (votes.py), and within `_WORTH` of the table until
`LEAST_USERS` have voted.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri

from policy.history.slowness.votes import LEAST_USERS, Users, Where, middle_of, user_of, votes_of, where_of
from topology.calibrate.posterior import Floats, Variances
from topology.calibrate.runs import seconds_of
from topology.calibrate.steps import ClockReport, JobReport, Rank, Report
from topology.calibrate.variances import PUBLISHED
from topology.scores import Score

_RUN_SD = 0.05
"""Standard deviation between two runs of one application as a whole, in logarithms."""
_UNKNOWN_SD = 0.03
"""Assumed standard error of a score without an error in the table."""
_CHANGED_SD = 0.20
"""Standard deviation of the score of a GPU that has changed."""
_SURE, _WORTH, _LEAST_RUNS = 4.5, 0.03, 3
"""A change is believed from so many standard errors, so much (as a logarithm) and so many runs on."""
_LATE_SHARE = 0.5
"""If more than this part of a node's GPUs became slower together, the host is the cause."""
_CLOCK_SD, _CLOCK_OWN_SD = 0.010, 0.010
"""Errors of the time derived from the clock at the power limit: one constant, one new at each sample."""
_LEAST_CLOCK_S, _LEAST_CLOCKS = 10.0, 8
"""Seconds that a look must have lasted, and GPUs of a model that make it comparable."""
_DAY_S, _MOST_DAYS = 86_400.0, 30.0
_MAD_TO_SD = 1.4826

Told = Literal["", "changed", "host"]
Clocks = dict[Where, dict[str, float]]
"""By GPU and user."""


@dataclass(frozen=True, slots=True)
class ScoreNow:
    """A score as it is now."""

    score: Score
    before: float
    """The score in the table."""
    reports: int
    """Number of job runs with information about this GPU."""
    clocks: int
    """Number of users under whose jobs the guard saw the clock."""
    told: Told = ""
    """`changed`: no longer what was calibrated, measure it again; `host`: its node is late, the score is kept."""


def refresh(scores: Sequence[Score], reports: Iterable[Report], now: float) -> tuple[ScoreNow, ...]:
    """Returns the table's scores as they are now (`now` in seconds since 1970), and what they rest on."""
    lately = [one for one in reports if 0.0 <= now - seconds_of(one.at) <= _MOST_DAYS * _DAY_S]
    since = {where_of(one): seconds_of(one.at) for one in scores if one.at}
    looks = [one for one in lately if isinstance(one, ClockReport)]
    clocks = _clock_times([one for one in looks if _new(one, one.at, since)])
    found: dict[tuple[Where, str], ScoreNow] = {}
    for app_class in dict.fromkeys(one.app_class for one in scores):
        mine = [one for one in scores if one.app_class == app_class]
        jobs = [_later(one, since) for one in lately if isinstance(one, JobReport) and one.app_class == app_class]
        # The clock carries no information about memory-bound work, nor such work about the clock.
        seen = clocks if app_class == "compute" else {}
        found |= {(where_of(one.score), app_class): one for one in _refreshed(mine, jobs, seen)}
    return tuple(found[where_of(one), one.app_class] for one in scores)


def _new(one: Rank | ClockReport, at: str, since: dict[Where, float]) -> bool:
    """Returns True if it was seen after the GPU's last calibration: earlier faults may have been repaired."""
    return seconds_of(at) >= since.get(where_of(one), 0.0)


def _later(job: JobReport, since: dict[Where, float]) -> JobReport:
    """Returns the report without ranks whose GPUs were calibrated since."""
    return replace(job, ranks=tuple(rank for rank in job.ranks if _new(rank, job.at, since)))


def _clock_times(reports: Sequence[ClockReport]) -> Clocks:
    """Returns by GPU and user the time derived from clocks: logarithms over the median of its model, limit and work."""
    peers: dict[tuple[str, float, str], list[ClockReport]] = defaultdict(list)
    for one in reports:
        if one.seconds >= _LEAST_CLOCK_S:
            peers[one.model, one.power_limit_w, one.app].append(one)
    found: dict[Where, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (_, _, app), some in peers.items():
        by_gpu: dict[Where, list[float]] = defaultdict(list)
        for one in some:
            by_gpu[where_of(one)].append(one.sm_mhz)
        if len(by_gpu) >= _LEAST_CLOCKS:
            typical = median(median(clocks) for clocks in by_gpu.values())
            for where, clocks in by_gpu.items():
                found[where][user_of(app)] += [math.log(typical / clock) for clock in clocks]
    return {where: {user: median(seen) for user, seen in users.items()} for where, users in found.items()}


def _refreshed(scores: Sequence[Score], jobs: Sequence[JobReport], clocks: Clocks) -> list[ScoreNow]:
    """Returns all scores of one class."""
    index = {where_of(one): place for place, one in enumerate(scores)}
    mean = np.log([one.score for one in scores])
    prior = np.array([one.error or _UNKNOWN_SD for one in scores]) ** 2
    noise = PUBLISHED.get(scores[0].app_class, PUBLISHED["compute"])
    said = votes_of(jobs, {where: float(mean[place]) for where, place in index.items()}.get)
    votes = {index[where]: users for where, users in said.items()}
    told = _changed(votes, scores, mean, prior, noise, clocks)
    wide = np.array([told.get(place) == "changed" for place in range(len(scores))])
    start = np.where(wide, prior + _CHANGED_SD**2, prior)
    late = {place for place, what in told.items() if what == "host"}
    after, variance, counts = _posterior(_runs_of(jobs, index, late), mean, start, noise, index, clocks)
    after = _bounded(after, mean, {place: one for place, one in votes.items() if place not in late}, clocks, index)
    made = []
    for place, one in enumerate(scores):
        looks = len(clocks.get(where_of(one), ()))
        known = counts[place] + looks
        score = one
        if known:
            score = replace(
                one, score=round(math.exp(after[place]), 4), error=round(float(np.sqrt(variance[place])), 4)
            )
        made.append(ScoreNow(score, one.score, int(counts[place]), looks, told.get(place, "")))
    return made


@dataclass(frozen=True, slots=True)
class _Job:
    """One run: its GPUs, their nodes, and the logarithms of their times."""

    app: str
    gpus: np.ndarray[tuple[int], np.dtype[np.int64]]
    nodes: np.ndarray[tuple[int], np.dtype[np.int64]]
    times: Floats


def _runs_of(jobs: Sequence[JobReport], index: Mapping[Where, int], late: Collection[int]) -> list[_Job]:
    """Returns the runs of jobs, without GPUs that have no score or whose host is late."""
    names: dict[str, int] = {}
    found = []
    for job in jobs:
        known = [(index.get(where_of(rank)), rank) for rank in job.ranks]
        mine = [(place, rank) for place, rank in known if place is not None and place not in late]
        if mine:
            nodes = [names.setdefault(rank.node, len(names)) for _, rank in mine]
            times = np.log([rank.own_ms for _, rank in mine])
            found.append(_Job(job.app, np.array([place for place, _ in mine]), np.array(nodes), times))
    return found


def _changed(
    votes: Mapping[int, Users],
    scores: Sequence[Score],
    mean: Floats,
    prior: Floats,
    noise: Variances,
    clocks: Clocks,
) -> dict[int, Told]:
    """Finds GPUs whose times differ surely from their score, run after run, with the cause: GPU or host."""
    sd = math.sqrt(noise.node_run + noise.gpu_run)
    moved: dict[int, float] = {}
    for place, users in votes.items():
        middle = middle_of(users)
        runs = sum(map(len, users.values()))
        # A median's variance is pi / 2 times a mean's.
        sure = _SURE * math.sqrt(prior[place] + 1.57 * sd**2 / runs)
        if runs >= _LEAST_RUNS and abs(middle) > max(sure, _WORTH):
            moved[place] = middle
    by_node: dict[str, list[int]] = defaultdict(list)
    for place in votes:
        by_node[scores[place].node].append(place)
    told: dict[int, Told] = {}
    for place, shift in moved.items():
        siblings = by_node[scores[place].node]
        together = sum(moved.get(one, 0.0) * shift > 0 for one in siblings)
        looks = clocks.get(where_of(scores[place]))
        if looks:
            # A chip that is slower shows it in its clock; one that is kept waiting does not.
            by_host = shift > 0 and median(looks.values()) - mean[place] < 0.5 * shift
        else:
            by_host = shift > 0 and together > _LATE_SHARE * len(siblings) > 1
        told[place] = "host" if by_host else "changed"
    return told


def _bounded(
    after: Floats, mean: Floats, votes: Mapping[int, Users], clocks: Clocks, index: dict[Where, int]
) -> Floats:
    """Returns the scores, as logarithms, held within what the users' votes on each GPU allow."""
    middle = np.zeros(mean.size)
    for where, place in index.items():
        said = {user: median(values) for user, values in votes.get(place, {}).items()}
        said |= {user: value - mean[place] for user, value in clocks.get(where, {}).items()}
        if len(said) >= LEAST_USERS:
            middle[place] = median(said.values())
    held: Floats = np.clip(after, mean + middle - _WORTH, mean + middle + _WORTH)
    return held


def _posterior(
    jobs: Sequence[_Job],
    mean: Floats,
    prior: Floats,
    noise: Variances,
    index: dict[Where, int],
    clocks: Clocks,
) -> tuple[Floats, Floats, Floats]:
    """Returns means, variances and numbers of runs. Only GPUs with data are in the system of equations."""
    counts = np.zeros(mean.size)
    runs = Counter(job.app for job in jobs)
    for job in jobs:
        # The only run of an application, on one GPU, has nothing to be compared with.
        counts[job.gpus] += job.gpus.size > 1 or runs[job.app] > 1
    looked = {index[where]: looks for where, looks in clocks.items() if where in index}
    touched = np.array(sorted({*np.flatnonzero(counts).tolist(), *looked}), np.int64)
    row = {int(place): number for number, place in enumerate(touched)}
    precision = np.diag(1.0 / prior[touched])
    linear = np.zeros(touched.size)
    for place, looks in looked.items():
        weight = 1.0 / (_CLOCK_SD**2 + _CLOCK_OWN_SD**2 / len(looks))
        precision[row[place], row[place]] += weight
        linear[row[place]] += weight * (float(np.mean(list(looks.values()))) - mean[place])
    by_app: dict[str, list[_Job]] = defaultdict(list)
    for job in jobs:
        by_app[job.app].append(job)
    for some in by_app.values():
        _add(some, row, mean, noise, precision, linear)
    after, variance = mean.copy(), prior.copy()
    if touched.size:
        # In place, for with all GPUs of a large cluster the matrix has half a gigabyte.
        factor, lower = cho_factor(precision.T, overwrite_a=True, check_finite=False)
        after[touched] += cho_solve((factor, lower), linear, check_finite=False)
        variance[touched] = np.diag(dpotri(factor, lower=lower, overwrite_c=True)[0])
    return after, variance, counts


def _add(
    jobs: Sequence[_Job], row: dict[int, int], mean: Floats, noise: Variances, precision: Floats, linear: Floats
) -> None:
    """Adds the runs of one application; its time on a typical GPU is unknown and is eliminated."""
    shared, total, summed = np.zeros(linear.size), 0.0, 0.0
    for job in jobs:
        rows = np.array([row.get(place, -1) for place in job.gpus.tolist()])
        if (rows < 0).any():
            return
        rest = job.times - mean[job.gpus]
        weights = _weights(rest, noise)
        covariance = np.diag(noise.gpu_run / weights) + noise.node_run * (job.nodes[:, None] == job.nodes) + _RUN_SD**2
        inverse = np.linalg.inv(covariance)
        np.add.at(precision, (rows[:, None], rows[None, :]), inverse)
        solved = inverse @ rest
        np.add.at(linear, rows, solved)
        np.add.at(shared, rows, inverse.sum(axis=1))
        total += float(inverse.sum())
        summed += float(solved.sum())
    some = np.flatnonzero(shared)
    precision[np.ix_(some, some)] -= np.outer(shared[some], shared[some]) / total
    linear -= shared * (summed / total)


def _weights(rest: Floats, noise: Variances) -> Floats:
    """Returns weights: 1 within 3 deviations, less for ranks far from the others of their run (disturbed)."""
    middle = np.median(rest)
    spread = max(_MAD_TO_SD * float(np.median(np.abs(rest - middle))), math.sqrt(noise.gpu_run + noise.node_run), 1e-6)
    far = np.abs(rest - middle) / (3.0 * spread)
    found: Floats = 1.0 / np.maximum(far, 1.0) ** 2
    return found
