# SPDX-License-Identifier: Apache-2.0
"""Run-time prediction on Philly, by time: each prediction knows only jobs that had ended when the job came.

The trace has no users and no names, so account and size are all there is to learn from. The constants of
policy/history/runtime.py were chosen on jobs of the second half; the figures are about jobs before it, from a fifth on.
Pinball loss is on the natural logarithm of seconds, where 0.1 is about 10 %, and in seconds beside it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from time import perf_counter
from typing import Protocol

from policy.history.runtime import QUANTILES, KnownAtSubmission, RunTimes
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.philly import with_limits
from tests.bench import philly_data
from tests.bench.table import Figure, at_most, report

FIRST, LAST = 0.2, 0.5
"""The part of the trace, in order of submission, that figures are about."""


class Guesser(Protocol):
    def guess(self, job: TraceJob) -> Sequence[float]: ...

    def learn(self, job: TraceJob) -> None: ...


class Ours:
    def __init__(self) -> None:
        self._times = RunTimes()
        self.took: list[float] = []

    def guess(self, job: TraceJob) -> Sequence[float]:
        began = perf_counter()
        guess = self._times.predict(KnownAtSubmission("", "", job.account, job.gpus))
        self.took.append(perf_counter() - began)
        return guess.low, guess.median, guess.high

    def learn(self, job: TraceJob) -> None:
        self._times.learn(KnownAtSubmission("", "", job.account, job.gpus), job.work)


class OursWithLimits:
    def __init__(self) -> None:
        self._times = RunTimes()

    def guess(self, job: TraceJob) -> Sequence[float]:
        guess = self._times.predict(KnownAtSubmission("", "", job.account, job.gpus, job.limit or 0))
        return guess.low, guess.median, guess.high

    def learn(self, job: TraceJob) -> None:
        self._times.learn(KnownAtSubmission("", "", job.account, job.gpus, job.limit or 0), job.work)


@dataclass
class Kept:
    """All run times of an account and size; `pick` makes three guesses of them."""

    pick: Callable[[list[float]], Sequence[float]]
    in_order: bool = False
    _seen: defaultdict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def guess(self, job: TraceJob) -> Sequence[float]:
        seen = self._seen[job.account, job.gpus]
        return self.pick(seen) if seen else (60.0, 900.0, 28_800.0)

    def learn(self, job: TraceJob) -> None:
        seen = self._seen[job.account, job.gpus]
        seen.append(job.work) if self.in_order else insort(seen, job.work)


class Limits:
    """What plain Slurm believes."""

    def guess(self, job: TraceJob) -> Sequence[float]:
        return (job.limit or 0.0,) * 3

    def learn(self, job: TraceJob) -> None: ...


def quantiles(seen: list[float]) -> Sequence[float]:
    return [seen[min(len(seen) - 1, int(share * len(seen)))] for share in QUANTILES]


def median(seen: list[float]) -> Sequence[float]:
    return (seen[len(seen) // 2],) * 3


def last_two(seen: list[float]) -> Sequence[float]:
    return (sum(seen[-2:]) / len(seen[-2:]),) * 3


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean pinball losses by quantile, and the share of jobs that ended between low and high."""

    logs: tuple[float, ...]
    seconds: tuple[float, ...]
    held: float

    @property
    def total(self) -> float:
        return sum(self.logs)


def judge(jobs: Sequence[TraceJob], guesser: Guesser) -> Loss:
    """Play the trace once. Waits are not in it, so each job ends its run time after it came."""
    ends: list[tuple[float, int]] = []
    logs, seconds = [0.0] * len(QUANTILES), [0.0] * len(QUANTILES)
    held = count = 0
    for number, job in enumerate(jobs):
        while ends and ends[0][0] <= job.submit:
            guesser.learn(jobs[heapq.heappop(ends)[1]])
        heapq.heappush(ends, (job.submit + job.work, number))
        if not FIRST * len(jobs) <= number < LAST * len(jobs):
            continue
        guesses = guesser.guess(job)
        count += 1
        held += guesses[0] <= job.work <= guesses[-1]
        for place, (share, guess) in enumerate(zip(QUANTILES, guesses, strict=True)):
            logs[place] += pinball(share, log(max(job.work, 1.0)) - log(max(guess, 1.0)))
            seconds[place] += pinball(share, job.work - guess)
    return Loss(tuple(one / count for one in logs), tuple(one / count for one in seconds), held / count)


def pinball(share: float, short: float) -> float:
    """Loss of a quantile that was too short by so much."""
    return share * short if short > 0 else (share - 1) * short


def main() -> None:
    philly_data.need(philly_data.ALL)
    jobs = with_limits(philly_data.jobs(philly_data.ALL))
    ours = Ours()
    losses = {
        "ours": judge(jobs, ours),
        "ours, limits known": judge(jobs, OursWithLimits()),
        "quantiles of account and size": judge(jobs, Kept(quantiles)),
        "median of account and size": judge(jobs, Kept(median)),
        "mean of the last two runs": judge(jobs, Kept(last_two, in_order=True)),
        "limits": judge(jobs, Limits()),
    }
    mine, known = losses["ours"], losses["ours, limits known"]
    # The limits are drawn from the true run times, so they are compared with what knows them as well.
    peers = {name: loss for name, loss in losses.items() if not name.startswith("ours") and name != "limits"}
    best = min(peers, key=lambda name: peers[name].total)
    figures = [at_most("pinball_log", mine.total, peers[best].total, "log s", best, peers[best].total)]
    for place, share in enumerate(QUANTILES):
        best = min(peers, key=lambda name: peers[name].logs[place])
        peer = peers[best].logs[place]
        figures.append(at_most(f"pinball_log_{share:g}", mine.logs[place], peer, "log s", best, peer))
        best = min(peers, key=lambda name: peers[name].seconds[place])
        peer = peers[best].seconds[place]
        figures.append(at_most(f"pinball_s_{share:g}", mine.seconds[place], peer, "s", best, peer))
    for name, loss in peers.items():
        figures.append(
            at_most("median_vs_" + name.replace(" ", "_"), mine.logs[1], loss.logs[1], "log s", name, loss.logs[1])
        )
    limits = losses["limits"]
    for place, share in enumerate(QUANTILES):
        peer = limits.logs[place]
        figures.append(at_most(f"limits_known_log_{share:g}", known.logs[place], peer, "log s", "limits", peer))
    figures += [
        Figure("held", mine.held, "share", "aim", 0.8),
        at_most("prediction_us", 1e6 * sum(ours.took) / len(ours.took), 50, "us"),
    ]
    report("runtime", "Run-time prediction on Philly", figures, {"jobs": str(len(jobs)), "part": f"{FIRST} to {LAST}"})


if __name__ == "__main__":
    main()
