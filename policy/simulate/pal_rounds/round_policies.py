# SPDX-License-Identifier: Apache-2.0
"""The part of placement policies in PAL's rounds: what they place first and together, and what they may move.

A placement policy only chooses a place for one job. A policy of another package may say the rest itself, by the names
that `RoundPolicy` has: `sticky`, `steady`, `order` and `place_together`. What it does not say is as in `RoundPolicy`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from policy.cluster.view import View
from policy.formats.errors import NotNow, UsageError
from policy.placement.base import Berth, Policy, take_off
from policy.placement.berth import BerthPolicy
from policy.placement.published.packed import PackedPolicy
from policy.placement.published.pm_first import PmFirstPolicy
from policy.placement.published.random import PinnedRandomPolicy
from policy.request.demand import Demand

_STEADY = (PackedPolicy, PinnedRandomPolicy, PmFirstPolicy)

CLASSES = ("compute", "mixed", "memory")
"""From the class that loses most on a slow GPU to the one that loses least; others follow by name."""


def in_rounds(policy: Policy, *, sticky: bool | None = None) -> "RoundPolicy":
    """Returns a policy as rounds use it; without `sticky` it is as published."""
    if hasattr(policy, "order") or hasattr(policy, "place_together"):
        return RoundPolicy(policy, sticky=sticky)
    if isinstance(policy, BerthPolicy):
        raise UsageError(
            f"{policy.name} gives a job one place, as Slurm keeps it: take --mode slurm or berthd; "
            "--mode pal-rounds plays published policies, and your own"
        )
    return (SensitiveFirst if isinstance(policy, PmFirstPolicy) else RoundPolicy)(policy, sticky=sticky)


class RoundPolicy:
    """Places the jobs of a round one after another, in the queue's order."""

    sticky: bool
    """True if a running job keeps its berth; a policy that is not sticky may place movable jobs anew."""

    steady: bool
    """True if a repeated call brings nothing new, so that a simulator can skip it.

    The calls must be about the same jobs, these must hold what the policy gave them, and nothing else may have changed.
    """

    def __init__(self, policy: Policy, *, sticky: bool | None = None) -> None:
        self.policy = policy
        self.name = policy.name
        # PM-First places running jobs anew, and PAL is a PM-First too.
        self.sticky = getattr(policy, "sticky", not isinstance(policy, PmFirstPolicy)) if sticky is None else sticky
        self.steady = getattr(policy, "steady", isinstance(policy, _STEADY))

    def order(self, demands: Sequence[Demand]) -> Sequence[int]:
        """Returns the order in which the jobs of one round are placed; the demands come in the queue's order."""
        own = getattr(self.policy, "order", None)
        found: Sequence[int] = own(demands) if own else range(len(demands))
        return found

    def place(self, demand: Demand, view: View) -> Berth:
        """Chooses nodes and GPUs for one job, or raises `NotNow` or `Never`."""
        return self.policy.place(demand, view)

    def place_together(
        self, demands: Sequence[Demand], view: View, held: Sequence[Berth | None] = ()
    ) -> list[Berth | None]:
        """Places jobs that can start in one round; None for one that has to wait.

        `held` are the berths of running jobs that may be moved; in `view` their GPUs count as free.
        """
        own = getattr(self.policy, "place_together", None)
        found: list[Berth | None] = own(demands, view, held) if own else self.one_by_one(demands, view)
        return found

    def one_by_one(self, demands: Sequence[Demand], view: View) -> list[Berth | None]:
        """Places one job after another."""
        # All jobs share one copy of the view, from which each berth is taken off.
        left = replace(view, free=view.free.copy(), cpus=view.cpus.copy(), mem=view.mem.copy())
        berths: list[Berth | None] = [None] * len(demands)
        for job in self.order(demands):
            with suppress(NotNow):
                berth = berths[job] = self.place(demands[job], left)
                take_off(left, demands[job], berth)
        return berths


class SensitiveFirst(RoundPolicy):
    """PM-First and PAL: jobs are placed in the order of their classes, the most sensitive first."""

    def order(self, demands: Sequence[Demand]) -> Sequence[int]:
        """Returns the most sensitive class first."""
        return sorted(range(len(demands)), key=lambda job: class_rank(demands[job].app_class))


def class_rank(app_class: str) -> tuple[int, str]:
    """Returns the sort key of a class, the most sensitive first."""
    return (CLASSES.index(app_class) if app_class in CLASSES else len(CLASSES), app_class)
