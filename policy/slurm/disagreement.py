# SPDX-License-Identifier: Apache-2.0
"""Compares a job's request in Slurm with the place that Berth gave it.

Both are written by one update, and only Slurm's own user and root may change either. If they do not agree, a user has
found a way around that: the job would pay for one part of a GPU and get another. Its node does not start it
(prolog_epilog/given.py); berthd checks it again in each reading.
"""

from collections.abc import Collection

from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import GPUS, NODES, SHARE, TIER, WHOLE
from policy.formats.slurm_facts import JobFacts, JobText
from policy.request.tiers import OPPORTUNISTIC
from policy.slurm import fields


def of_running(job: JobFacts, skipped: frozenset[str], trusted: Collection[int]) -> str:
    """Returns why a running job should not run; empty if it may.

    `trusted` users place jobs by hand, and shards in partitions that Berth skips are not checked.
    """
    if job.plan is None and (job.user in trusted or (not job.guest and job.partition in skipped)):
        return ""
    return _compared(job.share, job.guest, job.gpus, job.known)


def of_text(job: JobText, plan: JobPlan) -> str:
    """Returns the same for a job's record."""
    asked = job.tres_per_node
    gpus = fields.pinned(asked) or fields.pinned(job.tres_per_job)
    return _compared(fields.share(asked), fields.guest(asked), gpus, plan)


def _compared(share: int, guest: bool, gpus: int | None, plan: JobPlan) -> str:  # noqa: FBT001 - as facts say it
    placed = NODES in plan and GPUS in plan
    rides = placed and plan.get(TIER) == OPPORTUNISTIC
    part = plan.get(SHARE, 0) if placed and not rides and WHOLE not in plan else 0
    # A job with whole GPUs has what it pays for, whichever they are.
    same = (share, guest) == (part, rides) and (not (share or guest) or _mask(plan) == gpus)
    if same or not (placed or share or guest):
        return ""
    return f"Slurm gives it {_said(share, guest, gpus)}, and its place is {_said(part, rides, _mask(plan))}"


def _mask(plan: JobPlan) -> int:
    return sum(1 << gpu for gpu in plan.get(GPUS, ()))


def _said(share: int, guest: bool, gpus: int | None) -> str:  # noqa: FBT001 - as facts say it
    where = ",".join(str(gpu) for gpu in range(64) if (gpus or 0) >> gpu & 1)
    what = f"{share} % of " if share else "a seat on " if guest else ""
    return f"{what}GPU {where}" if where else f"{what}GPUs of Slurm's choice"
