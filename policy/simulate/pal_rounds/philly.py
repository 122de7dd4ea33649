# SPDX-License-Identifier: Apache-2.0
"""Draws from a seed what traces such as Philly's lack: time limits, models, quotas.

The trace has each job's arrival, GPUs and run time; its virtual cluster is the account. Users' time limits are missing.
They are drawn as users set them: 1.5 to 5 times the run time, rounded up to a usual length. Models are drawn for jobs
of several GPUs only, so that distance has a cost.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from policy.cluster.cost import PUBLISHED, Table, Widths
from policy.simulate.jobs import TraceJob

HOUR = 3_600.0

USUAL_LIMITS = tuple(hours * HOUR for hours in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168, 336, 720, 1_440, 2_880))
"""15 minutes to four months."""


def _other_node(measured: Widths) -> dict[str, Widths]:
    """Makes a row from the cost of "another node" by width.

    No published data tells leaves and pods apart. What was measured on nodes of a public cloud, which may be anywhere,
    stands for `any`. `leaf` and `pod` are *interpolated*, one third and two thirds of the way there.
    """

    def part_of(way: float) -> dict[int, float]:
        return {width: round(1 + way * (factor - 1), 2) for width, factor in measured.items()}

    return {"leaf": part_of(1 / 3), "pod": part_of(2 / 3), "any": dict(measured)}


LOCALITIES: Table = {
    **PUBLISHED,
    # V100s of Gavel (github.com/stanford-futuredata/gavel, simulation_throughputs.json, MIT): throughput on one node
    # over throughput on many, mean over its batch sizes, for 2, 4 and 8 GPUs.
    "resnet18": _other_node({2: 1.47, 4: 1.89, 8: 3.0}),
    "transformer": _other_node({2: 1.67, 4: 1.69, 8: 2.44}),
    # 4.2, 3.0 and 7.1 were measured; the least is taken, because the others are too slow for any use.
    "lm": _other_node({2: 3.0}),
    # T4s of Pollux (github.com/petuum/adaptdl, osdi21-artifact): 4 GPUs on 2 to 4 nodes, the least of the three.
    "bert": _other_node({2: 1.72}),
    "yolov3": _other_node({2: 1.39}),
}
"""The locality factor of each model at each level; `resnet50` and `PointNet` are PAL's."""

MODELS = ("resnet50", "PointNet", "resnet18", "transformer", "lm", "bert", "yolov3")
"""The models that are drawn."""


def with_limits(jobs: Sequence[TraceJob], seed: int = 0) -> list[TraceJob]:
    """Returns the jobs with limits as users set them."""
    draw = Random(seed)  # noqa: S311 - a workload, not a secret
    limits = [draw.uniform(1.5, 5.0) * job.work for job in jobs]
    return [replace(job, limit=_usual(limit)) for job, limit in zip(jobs, limits, strict=True)]


def with_models(jobs: Sequence[TraceJob], models: Sequence[str] = MODELS, seed: int = 0) -> list[TraceJob]:
    """Returns the jobs, where those of several GPUs have models, all equally likely."""
    draw = Random(seed)  # noqa: S311 - a workload, not a secret
    drawn = [draw.choice(models) for _ in jobs]
    return [replace(job, model=model) if job.gpus > 1 else job for job, model in zip(jobs, drawn, strict=True)]


def _usual(seconds: float) -> float:
    return next((limit for limit in USUAL_LIMITS if limit >= seconds), seconds)
