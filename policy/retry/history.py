# SPDX-License-Identifier: Apache-2.0
"""A job's failed runs as they stand in its plan, so that no restart of berthd forgets one.

    >>> lost = Trial(Classification("cuda_failure", transient=True, reason=""), nodes=("n1",), ran_s=312.4)
    >>> written([lost]).into("")
    '[berth/1 tried=cuda_failure:312:n1]'
    >>> [trial.nodes for trial in trials(written([lost, lost]))]
    [('n1',), ('n1',)]

Only the last runs are kept in full; of those before them it is enough to know how many they were.
"""

from collections.abc import Sequence

from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome
from policy.formats.plan_fields import TRIED, TRIED_BEFORE
from policy.retry.classes import CLASSES
from policy.retry.classify import Classification
from policy.retry.decision import Trial

KEPT = 6
"""Runs of which the class, the time and the nodes are kept."""

_MOST_NODES = 8
"""Most nodes kept of each run; if many failed together, none of them is the suspect."""

_COUNTED = "traceback_from_crash"
"""The class of runs of which only the number is kept: it accuses no node."""


def trials(plan: JobPlan) -> list[Trial]:
    """Returns the failed runs of a plan, in order; what cannot be read is left out."""
    count = min(plan.get(TRIED_BEFORE, 0), 1_000)
    found = [Trial(_of_class(_COUNTED), (), 0.0)] * count
    for item in filter(None, plan.get(TRIED, "").split(";")):
        failure, _, rest = item.partition(":")
        seconds, _, nodes = rest.partition(":")
        if failure in CLASSES and seconds.isascii() and seconds.isdigit():
            found.append(Trial(_of_class(failure), tuple(filter(None, nodes.split(","))), float(seconds)))
    return found


def with_last(plan: JobPlan, found: Outcome, failure: Classification) -> list[Trial]:
    """Returns the failed runs of a plan, and the one that has just failed."""
    return [*trials(plan), Trial(failure, found.nodes, found.ended - found.started, found.state)]


def written(runs: Sequence[Trial]) -> JobPlan:
    """Returns what a plan keeps of the runs."""
    before = len(runs) - KEPT
    last = [f"{run.failure.failure}:{max(0, round(run.ran_s))}:{','.join(run.nodes[:_MOST_NODES])}" for run in runs]
    return JobPlan.of(TRIED(";".join(last[-KEPT:])), TRIED_BEFORE(before if before > 0 else None))


def _of_class(name: str) -> Classification:
    return Classification(name, CLASSES[name].transient, "")
