# SPDX-License-Identifier: Apache-2.0
"""Seeded workloads and machines for simulations: what real ones differ in, without their files.

Everything drawn here depends on its seed alone. Measured runs have the form that `--scores CLASS=FILE` takes, so a
machine that is made up is read, and drawn from, as a real one is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policy.formats.arrays import Floats
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent

_AN_HOUR, _A_DAY = 3600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Variability:
    """How the runs of one application differ: standard deviations relative to the typical time."""

    nodes: float
    """Between nodes: the GPUs of a node are alike in what is measured."""
    gpus: float
    """Between the GPUs of a node."""
    runs: float
    """Between runs on the same GPU."""
    hiccups: float = 0.0
    """Share of runs in which the whole node was slow for another reason."""


# Sizes as in the Longhorn profiles of PAL's artifact: ResNet-50, BERT twice, PageRank.
VARIABILITIES: Mapping[str, Variability] = {
    "compute": Variability(0.026, 0.010, 0.036, 0.014),
    "mixed": Variability(0.008, 0.001, 0.014),
    "memory": Variability(0.008, 0.001, 0.014),
    "D": Variability(0.0002, 0.0004, 0.0005),
}
"""By application class."""

_REAL_NODES, _REAL_GPUS, _REAL_RUNS = 84, 4, 4
_HICCUP = (1.5, 2.9)


def measured_runs(app_class: str, seed: int) -> list[str]:
    """Lines of a CSV file with the runs of one class on a machine that is made up."""
    sizes = VARIABILITIES[app_class]
    draw = np.random.default_rng([seed, *app_class.encode()])
    lines = ["uuid,node,perf"]
    for node in range(_REAL_NODES):
        of_node = draw.normal(1.0, sizes.nodes)
        of_gpus = draw.normal(0.0, sizes.gpus, _REAL_GPUS)
        for _ in range(_REAL_RUNS):
            hiccup = draw.uniform(*_HICCUP) if draw.random() < sizes.hiccups else 1.0
            for gpu, of_gpu in enumerate(of_gpus):
                # Times have a long upper tail, and none is far below the typical one.
                time = (of_node + of_gpu) * math.exp(abs(draw.normal(0.0, sizes.runs))) * hiccup
                lines.append(f"{node}-{gpu},{node},{100.0 * time:.4f}")
    return lines


_WIDTHS, _SHARES = (1, 4, 6, 8, 12, 16, 24), (0.42, 0.05, 0.14, 0.13, 0.16, 0.09, 0.01)
"""GPUs of a job, and how often: as in the Sia-Philly traces."""
_MODELS = {"resnet50": "compute", "BERT": "mixed", "vgg19": "memory", "PointNet": "D"}
_GPU_HOURS = (0.05, 100.0)


def drawn_jobs(count: int, hours: float, seed: int) -> list[TraceJob]:
    """Jobs that arrive over some hours: widths as in the Sia-Philly traces, GPU hours spread over three decades."""
    draw = np.random.default_rng(seed)
    submits = np.sort(draw.uniform(0.0, hours * _AN_HOUR, count))
    jobs = []
    for number, submit in enumerate(submits.tolist()):
        gpus = int(draw.choice(_WIDTHS, p=_SHARES))
        low, high = _GPU_HOURS
        size = low * (high / low) ** draw.random() ** 1.5
        model = str(draw.choice(list(_MODELS)))
        jobs.append(TraceJob(str(number), gpus, submit, size * _AN_HOUR / gpus, model, _MODELS[model]))
    return jobs


def whole_nodes(scores: Mapping[str, Floats], nodes: int, seed: int) -> dict[str, Floats]:
    """Nodes of a real machine, each once before any comes again; a node keeps its scores of all classes."""
    draw = np.random.default_rng(seed)
    real = len(next(iter(scores.values())))
    rounds = -(-nodes // real)
    rows = np.concatenate([draw.permutation(real) for _ in range(rounds)])[:nodes]
    return {app_class: table[rows] for app_class, table in scores.items()}


def noisy(scores: Mapping[str, Floats], spread: float, seed: int) -> dict[str, Floats]:
    """What one would believe of these scores if they were measured with a relative error."""
    draw = np.random.default_rng(seed)
    return {
        app_class: table * np.maximum(draw.normal(1.0, spread, table.shape), 0.5) for app_class, table in scores.items()
    }


@dataclass(frozen=True, slots=True)
class Weather:
    """How often nodes become slow, for how long, and how slow."""

    days_between: float
    """Mean time of a node between two events, in days."""
    hours: tuple[float, float] = (0.5, 12.0)
    factor: tuple[float, float] = (1.5, 3.0)


def slow_nodes(nodes: int, weather: Weather, until: float, seed: int) -> list[NodeEvent]:
    """Events up to a time in seconds: Poisson for each node, lengths and factors uniform."""
    draw = np.random.default_rng(seed)
    events = []
    for node in range(nodes):
        at = draw.exponential(weather.days_between * _A_DAY)
        while at < until:
            end = at + draw.uniform(*weather.hours) * _AN_HOUR
            events.append(NodeEvent(node, at, end, float(draw.uniform(*weather.factor))))
            at = end + draw.exponential(weather.days_between * _A_DAY)
    return events
