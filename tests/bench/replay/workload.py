# SPDX-License-Identifier: Apache-2.0
"""The jobs of a replay: drawn from a seed, the same for every system."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

T = TypeVar("T")

GPUS_PER_NODE = 8
CLUSTER_GPUS = 512

WIDTHS = {1: 38, 2: 18, 4: 16, 8: 16, 16: 6, 32: 6}
"""GPUs of a job, and their share of GPU jobs in percent."""
CORES = {1: 40, 2: 25, 4: 25, 8: 10}
"""Cores of a CPU-only job."""
CLASSES = {"compute": 40, "mixed": 35, "memory": 25}

SPREAD = 0.8
"""Of the durations' logarithm."""
SHORTEST = 5.0
LONGEST_OVER_MEAN = 3.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What can be chosen about a replay's jobs."""

    jobs: int = 1500
    load: float = 1.1
    """GPU-seconds that arrive each second on ideal GPUs, over the GPUs of the cluster."""
    mean: float = 25.0
    """Seconds that a job takes on ideal GPUs."""
    cpu_only: float = 1 / 3
    widths: Mapping[int, int] = field(default_factory=lambda: WIDTHS)
    switch_wait: int = 15
    """Seconds for which users let a multi-node job wait for one leaf."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its user thinks of it."""

    name: str
    at: float
    """Seconds from the start of the replay."""
    seconds: float
    app_class: str
    """`-` for a job without GPUs."""
    nodes: int
    gpus: int
    """On each node."""
    cpus: int
    """On each node."""
    limit: int
    """Minutes."""
    leaf_wait: int = 0
    """Seconds for which it waits for nodes of one leaf; 0: any nodes do."""

    @property
    def width(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus


def draw(seed: int, shape: Shape) -> tuple[Job, ...]:
    """The jobs of a seed. The arrivals are Poisson, given their number and the load."""
    draws = Random(seed)
    jobs = [_draw_one(draws, number, shape) for number in range(shape.jobs)]
    work = sum(job.width * job.seconds for job in jobs)
    span = work / (shape.load * CLUSTER_GPUS)
    moments = sorted(draws.uniform(0, span) for _ in jobs)
    return tuple(replace(job, at=round(moment, 3)) for job, moment in zip(jobs, moments, strict=True))


def draw_adversary(seed: int, shape: Shape) -> tuple[Job, ...]:
    """A stream of jobs of one GPU or two that never lets four nodes fall empty, and now and then one of 32 GPUs."""
    # Small jobs are longer: as many starts a second as in a replay.
    small = draw(seed, replace(shape, cpu_only=0.0, widths={1: 60, 2: 40}, mean=3 * shape.mean))
    span = small[-1].at
    big = [
        Job(f"big{number}", round(span * part, 3), shape.mean, "mixed", nodes=4, gpus=8, cpus=8, limit=2)
        for number, part in enumerate((0.4, 0.52, 0.64, 0.76, 0.88))
    ]
    return tuple(sorted([*small, *big], key=lambda job: job.at))


def _draw_one(draws: Random, number: int, shape: Shape) -> Job:
    middle = math.log(shape.mean) - SPREAD**2 / 2
    seconds = min(max(draws.lognormvariate(middle, SPREAD), SHORTEST), LONGEST_OVER_MEAN * shape.mean)
    limit = math.ceil(max(1.0, draws.uniform(1.5, 4.0) * seconds / 60))
    name = f"r{number:05d}"
    if draws.random() < shape.cpu_only:
        cpus = _pick(draws, CORES)
        return Job(name, 0.0, round(seconds, 3), "-", 1, 0, cpus, limit)
    width, app_class = _pick(draws, shape.widths), _pick(draws, CLASSES)
    nodes = max(1, width // GPUS_PER_NODE)
    gpus = width // nodes
    return Job(name, 0.0, round(seconds, 3), app_class, nodes, gpus, gpus, limit, shape.switch_wait * (nodes > 1))


def _pick(draws: Random, weights: Mapping[T, int]) -> T:
    return draws.choices(list(weights), weights=list(weights.values()))[0]


def plan_text(jobs: Iterable[Job], *, berth: bool) -> str:
    """The jobs as replay_submit reads them: with Berth's flags, or with what plain Slurm offers for the same."""
    return "".join(_plan_line(job, berth=berth) for job in jobs)


def _plan_line(job: Job, *, berth: bool) -> str:
    flags = []
    if berth and job.gpus:
        flags.append(f"app-class={job.app_class}")
        if job.leaf_wait:
            flags.append(f"locality=leaf@{job.leaf_wait // 60}:{job.leaf_wait % 60:02d}")
    switches = "0 0" if berth or not job.leaf_wait else f"1 {job.leaf_wait}"
    words = (
        f"{job.at:.3f} {job.name} {job.seconds:.3f} {job.app_class} {job.nodes} {job.gpus} {job.cpus} {job.limit}",
        switches,
        ",".join(flags) or "-",
    )
    return " ".join(words) + "\n"
