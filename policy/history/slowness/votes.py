# SPDX-License-Identifier: Apache-2.0
"""Votes of jobs about GPUs: how much longer each took than the middle of its run, by GPU and user.

A report is a user's word, which may be false. So each user has one vote on a GPU, however many runs report.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from topology.calibrate.steps import ClockReport, JobReport, Rank
from topology.scores import Score

LEAST_USERS = 3
"""Votes from which on one false vote is not the median."""

Where = tuple[str, int, str]
"""Node, position, UUID."""
Users = Mapping[str, Sequence[float]]
"""By user, a logarithm for each run on one GPU."""


def user_of(app: str) -> str:
    """Returns the user of an application, which berthd names `1004-7f`; a log that an admin hands in stands for one."""
    user = app.partition("-")[0]
    return user if user.isdecimal() else app


def where_of(one: Rank | ClockReport | Score) -> Where:
    """Returns the place and the UUID of its GPU."""
    return one.node, one.position, one.uuid


def votes_of(
    jobs: Iterable[JobReport], score_of: Callable[[Where], float | None] = lambda _: 0.0
) -> Mapping[Where, Users]:
    """Returns how far each GPU was from the middle of its runs, beyond its score; `score_of` is a logarithm.

    A GPU whose score is None has no part in it.
    """
    found: dict[Where, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        scored = [(rank, score) for rank in job.ranks if (score := score_of(where_of(rank))) is not None]
        rest = [math.log(rank.own_ms) - score for rank, score in scored]
        middle = median(rest) if len(rest) > 1 else 0.0
        for (rank, _), value in zip(scored, rest, strict=True) if len(rest) > 1 else ():
            found[where_of(rank)][user_of(job.app)].append(value - middle)
    return found


def middle_of(users: Users) -> float:
    """Returns the middle of the users' votes on a GPU."""
    return median(median(values) for values in users.values())


def in_other_jobs(jobs: Iterable[JobReport], but: str) -> dict[tuple[str, int], float]:
    """Returns how many times as long as the other ranks GPUs took in other jobs, by node and position."""
    # Of two ranks nobody can tell the slow one from the quick one.
    others = [one for one in jobs if one.job != but and len(one.ranks) > 2]
    return {where[:2]: math.exp(middle_of(users)) for where, users in votes_of(others).items()}
