# SPDX-License-Identifier: Apache-2.0
"""Says what made a job slow: a rank's GPU, a node, a stage of its pipeline, uneven data, pauses, or the program itself.

What-if analysis, as in "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): the own
times of ranks are replaced by ideal ones, the steps are simulated again, and the difference is what those times cost.
Causes are repaired one after the other, so that their costs add up to no more than what was lost. Pure.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from policy.formats.arrays import Bools, Floats
from policy.history.slowness.sources import StepRank, StepTimes

Cause = Literal["gpu", "node", "stage", "data", "pauses", "stalls"]
Blame = Literal["hardware", "software", "unknown"]

BLAMED: Mapping[Blame, str] = {
    "hardware": "the hardware is to blame",
    "software": "the program is to blame, no GPU",
    "unknown": "hardware or program",
}
LEAST_SHARE = 0.02
"""The least part of a job's time that counts as lost: less is what healthy GPUs differ by."""
_LEAST_SLOWER = 0.025
"""The least factor, as a logarithm, by which a rank is slower than the others."""
_SURE = 5.0
"""Standard errors by which a slow rank lies above the others."""
_WINDOWS, _LEAST_ROWS = 16, 5
"""Parts into which a job's time is cut, and rows of a part."""
_ALWAYS = 0.75
"""A rank that is slow in so much of the time counts as slow all the time."""
_SOUND = 0.4
"""The quantile of the ranks' times that a sound rank has."""
_BETWEEN = 1.03
"""Standard deviations between the first tenth and that quantile."""
_FEW, _TWO = 0.25, 2
"""If more than this part of the ranks, and more than two, are slower, they differ by what they have to do."""
_PAUSE, _PAUSE_SURE, _RARE = 0.25, 8.0, 0.10
"""A pause is so much longer (as a logarithm), by so many standard deviations, and in no more of the cells than this."""
_STALL = 0.25
"""A step counts as a stall of all ranks if it is longer than a typical one by this logarithm."""
_NO_TIME_MS = 1e-6
_JITTER = 0.02
"""Healthy ranks with equal work differ by a standard deviation below this from step to step."""
_ALIKE = 0.9
"""The correlation of forward and backward times from which on lengths of sequences explain them, as in the paper."""
_MAD_TO_SD = 1.4826
_OTHER_SLOWER = 1.02
"""The score, or the factor in other jobs, from which on a GPU is known to be slow."""


@dataclass(frozen=True, slots=True)
class Part:
    """One cause, and what it cost."""

    cause: Cause
    share: float
    """The part of the job's time that it cost."""
    blame: Blame
    text: str
    """One sentence without its end."""
    ranks: tuple[StepRank, ...] = ()
    factor: float = 1.0
    """Time of those ranks over that of the others."""
    during: tuple[float, float] = (0.0, 1.0)
    """From where to where of the job's time that was seen."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """Tells how much of a job's time was lost, and to which causes and ranks."""

    times: StepTimes
    slowdown: float
    """S of the paper: the time as it was over the time with each step's work spread evenly over the ranks."""
    lost: float
    """The part of the job's time that all causes together cost."""
    parts: tuple[Part, ...]
    """The causes, the dearest first; empty where nothing cost LEAST_SHARE or more."""

    @property
    def cause(self) -> Cause | Literal["even"]:
        """Returns the dearest cause."""
        return self.parts[0].cause if self.parts else "even"

    @property
    def doubtful(self) -> tuple[StepRank, ...]:
        """Returns the ranks of which only other jobs on their GPUs can tell whether hardware or program is to blame."""
        return tuple(rank for part in self.parts if part.blame == "unknown" for rank in part.ranks)

    @property
    def text(self) -> str:
        """Returns the cause that cost the job most time, as a sentence without its subject, the job."""
        if not self.parts:
            rows = f"{self.times.steps.sum():.0f} steps of {len(self.times.ranks)} ranks"
            return f"was not slowed: in {rows} nothing cost 2 % of its time"
        first = self.parts[0]
        more = f", of {self.lost:.0%} that it lost in all" if len(self.parts) > 1 else ""
        return f"lost {first.share:.0%} of its time because {first.text}{more} ({BLAMED[first.blame]})"


Known = Mapping[tuple[str, int], float]
"""By node and position, how many times as long as typical a GPU takes, by what is known beside this job."""


def analyse(times: StepTimes, known: Known | None = None) -> Slowness:
    """Returns what made a job slow; `known` says of GPUs what scores and other jobs tell."""
    # A rank without work in a step has no logarithm.
    own = np.maximum(times.own, _NO_TIME_MS)
    job = _Job(times, known or {})
    total = job.time(own)
    even = np.repeat(own.mean(axis=1, keepdims=True), own.shape[1], axis=1)
    parts: list[Part] = []
    now, left = own, total
    for repair in (_stages, _slow_ranks, _pauses, _uneven, _stalls) if len(job.ranks) > 1 else (_stalls,):
        repaired, found = repair(job, now)
        after = job.time(repaired)
        share = (left - after) / total
        if found and share >= LEAST_SHARE:
            parts += [replace(one, share=share * one.share) for one in found]
            now, left = repaired, after
    parts.sort(key=lambda one: -one.share)
    return Slowness(times, total / job.time(even), (total - left) / total, tuple(parts))


_Repaired = tuple[Floats, list[Part]]
"""The times without a cause, and the causes, each with its part of what they cost together; none without any."""


class _Job:
    """A job's ranks and the simulation of its steps."""

    def __init__(self, times: StepTimes, known: Known) -> None:
        self.times = times
        self.known = known
        self.ranks = times.ranks
        by_stage: dict[int, list[int]] = defaultdict(list)
        for column, rank in enumerate(times.ranks):
            by_stage[-1 if rank.stage is None else rank.stage].append(column)
        self.stages = [by_stage[stage] for stage in sorted(by_stage)]
        """The ranks of each stage; one stage where the source knows none."""
        self._chains = len({len(one) for one in self.stages}) == 1 and len(self.stages) > 1 and times.micro > 0

    def time(self, own: Floats) -> float:
        """Returns the job's time with these own times."""
        return float(np.sum(self._slowest(own) * self.times.steps))

    def _slowest(self, own: Floats) -> Floats:
        """Returns the length of each row.

        Ranks wait for the slowest. In a pipeline whose microbatches are known (1F1B), a replica takes one pass through
        all of its stages, and its slowest stage once more for each further microbatch.
        """
        if not self._chains:
            return np.asarray(own.max(axis=1))
        by_stage = np.stack([own[:, ranks] for ranks in self.stages], axis=1) / self.times.micro
        longest = by_stage.sum(axis=1) + (self.times.micro - 1) * by_stage.max(axis=1)
        return np.asarray(longest.max(axis=1))

    def typical(self, own: Floats) -> Floats:
        """Returns for each cell what is typical of its row and stage."""
        found = np.empty_like(own)
        for ranks in self.stages:
            found[:, ranks] = np.median(own[:, ranks], axis=1, keepdims=True)
        return found

    def apart(self, own: Floats) -> Floats:
        """Returns how far each cell is from what is typical, as a logarithm."""
        return np.asarray(np.log(own / self.typical(own)))

    def windows(self) -> list[slice]:
        """Cuts the rows into parts; rows that stand for many steps may be a part each."""
        rows = len(self.times.steps)
        least = 1 if self.times.source == "guard" else _LEAST_ROWS
        count = max(1, min(_WINDOWS, rows // least))
        edges = np.linspace(0, rows, count + 1).astype(int)
        return [slice(int(begin), int(end)) for begin, end in pairwise(edges)]


def _stages(job: _Job, own: Floats) -> _Repaired:
    """Spreads the work evenly over the stages of the pipeline."""
    if len(job.stages) < 2:
        return own, []
    levels = np.array([float(np.median(own[:, ranks])) for ranks in job.stages])
    repaired = own.copy()
    for level, columns in zip(levels, job.stages, strict=True):
        repaired[:, columns] *= levels.mean() / max(level, 1e-9)
    longest = int(levels.argmax())
    ranks = tuple(job.ranks[rank] for rank in job.stages[longest])
    factor = float(levels[longest] / np.delete(levels, longest).mean())
    last = ", the last one" if longest == len(levels) - 1 else ""
    text = f"stage {ranks[0].stage} of the pipeline{last} has {factor:.2f} times the work of the others"
    return repaired, [Part("stage", 1.0, "software", text, ranks, factor)]


def _slow_ranks(job: _Job, own: Floats) -> _Repaired:
    """Gives ranks that are slow for long, by themselves, the time of the others."""
    apart, windows = job.apart(own), job.windows()
    levels = np.array([np.median(apart[one], axis=0) for one in windows])
    for ranks in job.stages:
        # Not the median: of two nodes the slow one may be half of the ranks.
        levels[:, ranks] -= np.quantile(levels[:, ranks], _SOUND, axis=1, method="lower", keepdims=True)
    slow = _outliers(job, apart, levels, windows)
    if not slow.any():
        return own, []
    repaired = own.copy()
    for one, row, level in zip(windows, slow, levels, strict=True):
        repaired[one, row] /= np.exp(level[row])
    return repaired, _SlowRanks(job, own, levels, slow, windows).parts()


def _outliers(job: _Job, apart: Floats, levels: Floats, windows: Sequence[slice]) -> Bools:
    """Tells by window and rank whether a rank is slower by more than chance and the usual spread of GPUs."""
    slow = np.zeros(levels.shape, dtype=bool)
    for ranks in job.stages:
        some = levels[:, ranks]
        # How far a rank's median in a window is off by chance, and how far ranks lie apart that count as equally fast.
        rows = max(one.stop - one.start for one in windows)
        steps = np.diff(apart[:, ranks], axis=0) if len(apart) > 1 else np.zeros((1, len(ranks)))
        noise = _MAD_TO_SD * float(np.median(np.abs(steps))) / np.sqrt(2.0) * 1.25 / np.sqrt(rows)
        spread = 0.0
        if len(ranks) >= 4:
            # By the quicker ones alone: of two nodes the slow one may be half of the ranks.
            low, sound = np.quantile(np.median(some, axis=0), (0.1, _SOUND))
            spread = float(sound - low) / _BETWEEN
        bound = max(_LEAST_SLOWER, _SURE * noise, 3.0 * spread)
        flagged = some > bound
        if len(windows) > 2:
            # One part of the time alone may be chance, or a pause.
            before = np.vstack([np.zeros((1, len(ranks)), dtype=bool), flagged[:-1]])
            after = np.vstack([flagged[1:], np.zeros((1, len(ranks)), dtype=bool)])
            flagged &= before | after
        slow[:, ranks] = flagged
    return slow


@dataclass(frozen=True, slots=True)
class _SlowRanks:
    """The ranks that are slow for long: by window and rank their levels, and if they are slow."""

    job: _Job
    own: Floats
    levels: Floats
    slow: Bools
    windows: Sequence[slice]

    def parts(self) -> list[Part]:
        """Divides what they cost among them: by nodes of which all ranks are slow together, else by ranks."""
        ranks = self.job.ranks
        columns = [int(one) for one in np.flatnonzero(self.slow.any(axis=0))]
        nodes = self._whole_nodes(columns)
        if len(columns) > max(_TWO, _FEW * len(ranks)) and not nodes:
            factor = self._factor(columns)
            text = f"{len(columns)} of {len(ranks)} ranks need {factor:.2f} times as long as the others"
            them = tuple(ranks[one] for one in columns)
            return [Part("data", 1.0, "software", f"{text}: their work differs", them, factor)]
        groups: dict[str | int, list[int]] = defaultdict(list)
        for column in columns:
            groups[ranks[column].node if ranks[column].node in nodes else column].append(column)
        # The ranks of one node wait for the same steps: as a group they cost what the slowest of them costs.
        late = {key: sum(map(self._late, group)) / len(group) for key, group in groups.items()}
        total = sum(late.values()) or 1.0
        return [self._part(group, late[key] / total, whole=isinstance(key, str)) for key, group in groups.items()]

    def _whole_nodes(self, columns: Sequence[int]) -> set[str]:
        """Returns the nodes with two ranks or more, all of which are slow, if there are other nodes."""
        of_node: dict[str, list[int]] = defaultdict(list)
        for column, rank in enumerate(self.job.ranks):
            if rank.node:
                of_node[rank.node].append(column)
        found = {node for node, own in of_node.items() if len(own) > 1 and set(own) <= set(columns)}
        return found if len(of_node) >= max(2, 2 * len(found)) else set()

    def _late(self, column: int) -> float:
        """Returns the time by which a rank is late in all of its steps."""
        found = 0.0
        for one, slow, level in zip(self.windows, self.slow[:, column], self.levels[:, column], strict=True):
            if slow:
                late = self.own[one, column] * (1.0 - np.exp(-level))
                found += float(np.sum(late * self.job.times.steps[one]))
        return found

    def _factor(self, columns: Sequence[int]) -> float:
        return float(np.exp(np.median(self.levels[:, columns][self.slow[:, columns]])))

    def _part(self, columns: Sequence[int], share: float, *, whole: bool) -> Part:
        flagged = self.slow[:, columns].any(axis=1)
        first, last = int(np.flatnonzero(flagged)[0]), int(np.flatnonzero(flagged)[-1])
        rows = len(self.job.times.steps)
        always = bool(flagged.mean() >= _ALWAYS)
        during = (0.0, 1.0) if always else (self.windows[first].start / rows, self.windows[last].stop / rows)
        when = "all the time" if always else f"from {during[0]:.0%} to {during[1]:.0%} of the time"
        ranks, factor = tuple(self.job.ranks[one] for one in columns), self._factor(columns)
        longer = f"{factor:.2f} times as long as the others, {when}"
        if whole:
            text = f"all {len(ranks)} ranks on {ranks[0].node} need {longer}"
            return Part("node", share, "hardware", text, ranks, factor, during)
        blame, because = _blame(ranks[0], self.job.known, always=always)
        return Part("gpu", share, blame, f"{ranks[0].text} needs {longer}: {because}", ranks, factor, during)


def _blame(rank: StepRank, known: Known, *, always: bool) -> tuple[Blame, str]:
    """Tells a slow GPU from a rank that has more to do, by what is known of the GPU beside this job."""
    other = known.get((rank.node, rank.gpu)) if rank.gpu is not None else None
    if other is not None and other >= _OTHER_SLOWER:
        return "hardware", f"its GPU takes {other - 1:.0%} more time in other runs too"
    if not always:
        # The work of a rank stays the same for the whole run; that of a GPU that gets hot does not.
        return "hardware", "it was as fast as the others at other times"
    if other is not None:
        return "software", "its GPU is as fast as others in other runs, so that this rank has more to do"
    return "unknown", "its GPU is slow or it has more to do; no other run tells which"


def _pauses(job: _Job, own: Floats) -> _Repaired:
    """Takes out rare long steps of single ranks, as collections of garbage make them."""
    apart = job.apart(own)
    apart = apart - np.median(apart, axis=0)
    long = apart > max(_PAUSE, _PAUSE_SURE * _noise(apart))
    if not long.any() or long.mean() > _RARE:
        return own, []
    ranks = tuple(job.ranks[int(one)] for one in np.flatnonzero(long.any(axis=0)))
    rows, factor = float(long.any(axis=1).mean()), float(np.exp(np.median(apart[long])))
    who = f"one of {len(ranks)} ranks" if len(ranks) > 1 else ranks[0].text
    text = f"in {rows:.0%} of the steps {who} stood still, and all waited: collections of garbage, or the host"
    return np.where(long, job.typical(own), own), [Part("pauses", 1.0, "software", text, ranks, factor)]


def _noise(apart: Floats) -> float:
    """Returns the standard deviation of what ranks differ by from row to row, without what is always so."""
    return _MAD_TO_SD * float(np.median(np.abs(apart - np.median(apart, axis=0))))


def _uneven(job: _Job, own: Floats) -> _Repaired:
    """Spreads each step's work evenly over the ranks of a stage."""
    if _noise(job.apart(own)) < _JITTER:
        return own, []
    repaired = np.empty_like(own)
    for ranks in job.stages:
        repaired[:, ranks] = own[:, ranks].mean(axis=1, keepdims=True)
    lengths = _by_lengths(job)
    why = "the ranks' inputs differ in size, or their hosts are disturbed"
    if lengths is not None and lengths >= _ALIKE:
        why = f"forward and backward times go together ({lengths:.2f}), as lengths of sequences make them"
    return repaired, [Part("data", 1.0, "software", f"in each step another rank is the last: {why}")]


def _by_lengths(job: _Job) -> float | None:
    """Returns how far forward and backward times go together from cell to cell; None where they are not known."""
    forward, backward = job.times.ops.get("forward"), job.times.ops.get("backward")
    if forward is None or backward is None or min(forward.min(), backward.min()) <= 0.0:
        return None
    apart = [np.log(one) - np.log(one).mean(axis=0) for one in (forward, backward)]
    if min(float(np.std(one)) for one in apart) <= 0.0:
        return None
    return float(np.corrcoef(apart[0].ravel(), apart[1].ravel())[0, 1])


def _stalls(job: _Job, own: Floats) -> _Repaired:
    """Makes steps that were long on all ranks alike as long as typical ones."""
    middle = np.median(own, axis=1)
    usual = float(np.median(middle))
    long = np.log(middle / usual) > _STALL
    if not long.any():
        return own, []
    repaired = own.copy()
    repaired[long] *= (usual / middle[long])[:, None]
    rows = f"in {long.mean():.0%} of the steps" if job.times.source != "guard" else "for hours"
    text = f"{rows} all ranks alike took longer: {_what_grew(job, long)}"
    return repaired, [Part("stalls", 1.0, "software", text, (), float(np.median(middle[long]) / usual))]


def _what_grew(job: _Job, long: Bools) -> str:
    """Names the operation that made long steps long."""
    if len(job.times.ops) < 2:
        return "input, file system, checkpoints or larger batches; no GPU is to blame"
    grown = {
        kind: float(np.median(one[long]) - np.median(one[~long])) if (~long).any() else 0.0
        for kind, one in job.times.ops.items()
    }
    return f"their {max(grown, key=lambda kind: grown[kind])} did, and no GPU is to blame"
