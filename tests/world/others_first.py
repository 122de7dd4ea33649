# SPDX-License-Identifier: Apache-2.0
"""Laws of the jobs that let others go first: a bound, a reason for their users, and the order of equal jobs."""

from __future__ import annotations

from collections.abc import Hashable

from policy.daemon.passes.planner import Planner
from policy.plan.jobs.waiting import Waiting
from policy.plan.opinions.others_first import LetsOthers, OthersFirst
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from tests.world.checks import ViolationError


def held_right(planner: Planner, let_go: set[int]) -> None:
    """After a pass a job lets others go first within its promise, with a reason, and no equal one starts before it.

    A job in `let_go` could start before that pass; it is not called back.
    """
    if problem := _held_wrong(planner, let_go):
        raise ViolationError(problem)


def _held_wrong(planner: Planner, let_go: set[int]) -> str:
    plan, tracker = planner._plan, planner._tracker
    memory = known(plan)
    if plan.book is None or tracker is None or not memory:
        return ""
    at, held = plan.book.cluster.at, dict[Hashable, float]()
    for entry in plan.queue:
        lets, kind = entry.last.lets, equal(entry, at)
        if lets is None:
            if kind in held and entry.last.start == 0.0 and entry.job.id not in let_go:
                return f"job {entry.job.id} starts before an equal one that lets others go first"
            continue
        promise = memory[entry.job.id].promise
        until = held.setdefault(kind, promise.latest if promise else at)
        if not at <= lets.until <= until:
            return f"job {entry.job.id} lets others go first at {at} until {lets.until}, and was promised {promise}"
        reason = why(entry, plan.book, tracker.book(), plan._policy, plan.queue)
        if reason is None or reason.number != 517:
            return f"job {entry.job.id} lets others go first, and its user reads {reason}"
    return ""


def let_go(planner: Planner) -> set[int]:
    """Returns the jobs that have a place on which they may start at once."""
    return {number for number, one in known(planner._plan).items() if one.goes_to}


def known(plan: Plan) -> dict[int, LetsOthers]:
    """What the plan keeps of the jobs that may let others go first."""
    return next((one.memory for one in plan.opinions if isinstance(one, OthersFirst)), {})


def equal(entry: Waiting, at: float) -> Hashable:
    """A value that jobs share that ask for the same and have one user."""
    demand, _ = entry.demand_at(at)
    return entry.job.user, demand.n, demand.k, demand.limit, demand.candidates.tobytes()
