"""What traces such as Philly's leave out, drawn from a seed: time limits, models, quotas.

The trace says when a job came, how many GPUs it held and for how long; its virtual cluster is the account. Users' time
limits are not in it. They are drawn as users give them: 1.5 to 5 times the run time, rounded up to a usual length.
Models are drawn for jobs of several GPUs only, so that nearness has a price.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from policy.cost import PUBLISHED, Table
from policy.simulate.jobs import Job

HOUR = 3_600.0

USUAL_LIMITS = tuple(hours * HOUR for hours in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168, 336, 720, 1_440, 2_880))
"""15 minutes to four months."""

MODELS = ("resnet50", "PointNet", "vgg19", "bert", "lm")

LOCALITIES: Table = {
    **PUBLISHED,
    # V100s of Gavel's table (github.com/stanford-futuredata/gavel, MIT), throughput on one node over that on many:
    # ResNet-18 1 / 0.68 to 1 / 0.53, Transformer 1 / 0.60, language model 1 / 0.24 to 1 / 0.14, here cut at 3.
    "vgg19": {"leaf": {2: 1.2, 8: 1.35}, "pod": {2: 1.35, 8: 1.6}, "any": {2: 1.47, 8: 1.9}},
    "bert": {"leaf": {2: 1.25}, "pod": {2: 1.45}, "any": {2: 1.67}},
    "lm": {"leaf": {2: 1.6}, "pod": {2: 2.2}, "any": {2: 3.0}},
}
"""What each model pays for each level; measured tables know only "another node", so nearer levels lie between."""


def with_limits(jobs: Sequence[Job], seed: int = 0) -> list[Job]:
    """The jobs with limits as users give them."""
    draw = Random(seed)  # noqa: S311 - a workload, not a secret
    limits = [draw.uniform(1.5, 5.0) * job.work for job in jobs]
    return [replace(job, limit=_usual(limit)) for job, limit in zip(jobs, limits, strict=True)]


def with_models(jobs: Sequence[Job], models: Sequence[str] = MODELS, seed: int = 0) -> list[Job]:
    """The jobs of several GPUs with models, all equally likely."""
    draw = Random(seed)  # noqa: S311 - a workload, not a secret
    drawn = [draw.choice(models) for _ in jobs]
    return [replace(job, model=model) if job.gpus > 1 else job for job, model in zip(jobs, drawn, strict=True)]


def quotas(nodes: Mapping[str, int], accounts: Iterable[str], gpus: int) -> dict[str, int]:
    """GPUs of each account, in proportion to the nodes that each once had, by largest remainder."""
    named = sorted(set(accounts))
    whole = sum(nodes[name] for name in named)
    exact = {name: gpus * nodes[name] / whole for name in named}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(named, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: gpus - sum(shares.values())]:
        shares[name] += 1
    return shares


def _usual(seconds: float) -> float:
    return next((limit for limit in USUAL_LIMITS if limit >= seconds), seconds)
