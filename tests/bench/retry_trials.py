# SPDX-License-Identifier: Apache-2.0
"""Failing jobs drawn from Philly's published table of failures, and what each way of retrying makes of them.

The table is number 7 of "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads" (USENIX ATC
2019). Drawn from it: a failing job's class, its number of trials (geometric, with the published mean: that is what a
fixed number of retries led to), its size, and its run times to failure (log-normal through the three published
percentiles, and with the published GPU time). A deterministic failure takes the same time again, a transient one
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from operator import mul
from random import Random
from statistics import NormalDist, fmean

from policy.retry.classes import CLASSES, NO_SIGNATURE
from policy.retry.classify import Classification
from policy.retry.decision import Limits, Trial, decide

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
LONGEST_S = 30 * DAY
"""Of one trial: the fitted tails go on for ever, the study was of 75 days."""
STEPS = 1_000
"""Steps of probability of a class's run times."""
PREFLIGHT_S = 600.0
"""How long a job of several GPUs is tried on one."""
RECOGNISED = 0.92
"""Share of failures that the rules gave their true class on 121 logs of programs which they had not seen."""
NOT_ON_ONE = frozenset({"model_ckpt_error", "mpi_error", "mpi_runtime_failure", "job_preempted", "gpu_ecc_error"})
"""What a short run on one GPU cannot show."""


@dataclass(frozen=True, slots=True)
class Row:
    """A class in the table: trials, jobs, percentiles of the minutes to failure, trials by demand, GPU-minutes."""

    trials: int
    jobs: int
    percentiles: tuple[float, float, float]
    by_demand: tuple[int, int, int]
    gpu_minutes: float


PUBLISHED = {
    "cpu_out_of_memory": Row(12076, 2803, (13.45, 17.73, 33.97), (11465, 235, 376), 3982320),
    "incorrect_inputs": Row(9690, 4936, (1.87, 404.83, 2095.73), (5844, 2638, 1208), 11979474),
    "semantic_error": Row(2943, 2049, (2.72, 376.00, 1436.88), (1603, 494, 846), 8442835),
    "core_dump": Row(2912, 1784, (0.85, 72.75, 431.65), (1936, 496, 480), 1493632),
    "invalid_mem_access": Row(2602, 1235, (1.03, 403.50, 1357.38), (712, 774, 1116), 2352994),
    "model_ckpt_error": Row(1995, 948, (181.67, 3728.93, 8196.02), (743, 384, 868), 8080374),
    "cuda_failure": Row(1484, 571, (1.32, 19.87, 82.17), (133, 1153, 198), 357119),
    "syntax_error": Row(1132, 883, (0.58, 5.02, 12.00), (780, 184, 168), 130094),
    "traceback_from_crash": Row(777, 271, (1.02, 894.33, 1394.07), (356, 277, 144), 863130),
    "mpi_error": Row(634, 166, (1.62, 3015.27, 5143.98), (456, 54, 124), 613059),
    "gpu_out_of_memory": Row(487, 261, (18.53, 353.62, 2740.28), (237, 70, 180), 1040249),
    "mpi_runtime_failure": Row(478, 420, (1389.48, 13778.60, 18090.88), (240, 141, 97), 7593398),
    "permission_error": Row(299, 151, (1.00, 8.15, 15.85), (56, 202, 41), 15185),
    "import_error": Row(148, 148, (0.67, 4.58, 10.73), (108, 30, 10), 10803),
    "job_preempted": Row(147, 95, (559.08, 2682.85, 5892.23), (25, 95, 27), 2338772),
    "cuda_init_failed": Row(141, 69, (1.08, 2.18, 4.63), (16, 66, 59), 64512),
    "model_diverged": Row(84, 30, (1.48, 44.37, 76.53), (78, 5, 1), 2562),
    "cuda_version_mismatch": Row(49, 49, (0.83, 1.65, 1.67), (1, 1, 47), 421),
    "gpu_ecc_error": Row(10, 10, (26.82, 671.92, 2035.02), (1, 5, 4), 23575),
    "output_node_error": Row(3, 3, (0.85, 0.95, 0.95), (3, 0, 0), 2),
    "cannot_load_libs": Row(1, 1, (0.12, 0.12, 0.12), (1, 0, 0), 0.12),
    NO_SIGNATURE: Row(1684, 698, (1.87, 28.00, 95.17), (1235, 294, 155), 102138),
}

GPU_HOURS_EACH = sum(row.gpu_minutes for row in PUBLISHED.values()) / 60 / sum(row.jobs for row in PUBLISHED.values())
"""What one failing job lost, in the mean."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A job that fails; `seconds` are its trials' times, as many as Philly's retries made of it."""

    failure: str
    taken_for: str
    """The class that the rules would give it."""
    gpus: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a failing job: it waits for `after` seconds once the run before has ended."""

    gpus: int
    seconds: float
    after: float = 0.0
    fails: bool = True


def draw(number: int, sizes: Sequence[Sequence[int]], seed: int) -> list[Failing]:
    """Failing jobs; `sizes` are GPUs of jobs to draw from, of 1, 2 to 4, and more."""
    source = Random(seed)
    names = list(PUBLISHED)
    chosen = source.choices(names, [PUBLISHED[name].jobs for name in names], k=number)
    mistakes = [PUBLISHED[name].trials for name in names]
    means = [fmean(some) for some in sizes]
    times = {name: run_times(row, sum(map(mul, row.by_demand, means)) / row.trials) for name, row in PUBLISHED.items()}
    found = []
    for name in chosen:
        row = PUBLISHED[name]
        [demand] = source.choices((0, 1, 2), row.by_demand)
        trials = 1
        while source.random() < 1 - row.jobs / row.trials:
            trials += 1
        again = CLASSES[name].transient
        first = source.choice(times[name])
        seconds = (first, *(source.choice(times[name]) if again else first for _ in range(trials - 1)))
        taken_for = name if source.random() < RECOGNISED else source.choices(names, mistakes)[0]
        found.append(Failing(name, taken_for, source.choice(sizes[demand]), seconds))
    return found


def fixed(job: Failing) -> list[Run]:
    """As in Philly: every trial."""
    return [Run(job.gpus, seconds) for seconds in job.seconds]


def adaptive(job: Failing) -> list[Run]:
    """As long as another try is worth it. Excluding nodes is not counted as a gain: a trial fails all the same."""
    runs: list[Run] = []
    for seconds, wait in _tries(job):
        runs.append(Run(job.gpus, seconds, wait))
    return runs


def with_preflight(job: Failing) -> list[Run]:
    """Adaptive, and a job of several GPUs runs on one first."""
    runs: list[Run] = []
    for seconds, wait in _tries(job):
        on_one = job.gpus > 1 and not runs
        if on_one and seconds < PREFLIGHT_S and job.failure not in NOT_ON_ONE:
            runs.append(Run(1, seconds, wait))
            continue
        if on_one:
            runs.append(Run(1, PREFLIGHT_S, wait, fails=False))
        runs.append(Run(job.gpus, seconds, 0.0 if on_one else wait))
    return runs


def given_up(job: Failing) -> bool:
    """Whether a job that would have passed in the end got fewer tries than in Philly."""
    return CLASSES[job.failure].transient and len(_tries(job)) < len(job.seconds)


def _tries(job: Failing) -> list[tuple[float, float]]:
    """Each trial's time, and the wait before it."""
    kind = CLASSES[job.taken_for]
    seen = Classification(kind.name, kind.transient, "")
    trials: list[Trial] = []
    tries, wait = [], 0.0
    for number, seconds in enumerate(job.seconds):
        tries.append((seconds, wait))
        trials.append(Trial(seen, (f"n{number}",), seconds))
        decision = decide(trials, Limits())
        if not decision.again:
            break
        wait = decision.wait_s
    return tries


def run_times(row: Row, gpus: float) -> list[float]:
    """Times to failure at equal steps of probability, so that jobs of `gpus` in the mean lose what the table says.

    Up to the last percentile that is published they are log-normal between the percentiles. Where the class lost more
    than they give, the last 5 % are longer, of which nothing else is known; where it lost less, because its larger jobs
    fail sooner, all that is beyond the median is shorter.
    """
    normal = NormalDist()
    at_90, at_95 = normal.inv_cdf(0.90), normal.inv_cdf(0.95)
    p50, p90, p95 = (log(minutes * MINUTE) for minutes in row.percentiles)

    def at(share: float) -> float:
        score = normal.inv_cdf(share)
        if score < at_90:
            return exp(p50 + (p90 - p50) * score / at_90)
        return exp(p90 + (p95 - p90) * (score - at_90) / (at_95 - at_90))

    times = [min(LONGEST_S, at((step + 0.5) / STEPS)) for step in range(STEPS)]
    missing = row.gpu_minutes / row.trials * MINUTE / gpus * STEPS - sum(times)
    tail = sum(times[int(0.95 * STEPS) :])
    if missing > 0:
        return [time * (1 + missing / tail) if place >= 0.95 * STEPS else time for place, time in enumerate(times)]
    median = exp(p50)
    beyond = sum(time - median for time in times if time > median)
    kept = max(0.0, 1 + missing / beyond) if beyond else 1.0
    return [median + (time - median) * kept if time > median else time for time in times]
