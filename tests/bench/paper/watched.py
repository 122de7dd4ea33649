# SPDX-License-Identifier: Apache-2.0
"""PAL's rounds where policies do not know all: true scores apart from believed ones, and a watch that learns them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from policy.simulate.pal_rounds.orders import JobProgress
from policy.simulate.pal_rounds.rounds import Rounds, RoundsSettings
from policy.simulate.world import view

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.arrays import Floats
    from policy.placement.base import Berth, Policy
    from policy.request.demand import Demand
    from policy.simulate.jobs import TraceJob
    from policy.simulate.pal_rounds.round_policies import RoundPolicy


@dataclass(frozen=True, slots=True)
class RoundShowed:
    """The measured times of a job that ran in a round."""

    job: str
    demand: "Demand"
    berth: "Berth"
    times: "Floats"
    """Time for a unit of work on each of its GPUs, without waits for each other; by node, then position."""


class RoundWatch(Protocol):
    """Learns from the times of running jobs, and sets the scores that policies use."""

    def observe(self, at: float, running: Sequence[RoundShowed]) -> None:
        """Takes the times of a round; called at the end of each round."""

    def scores(self, at: float) -> "Mapping[str, Floats] | None":
        """Returns the scores that policies use from now on; None: no change. Called before each placement."""


class WatchedRounds(Rounds):
    """Jobs progress by the true scores; policies use those of the fleet, or what the watch tells."""

    def __init__(
        self,
        jobs: "Sequence[TraceJob]",
        fleet: "Fleet",
        policy: "Policy | RoundPolicy",
        settings: RoundsSettings,
        *,
        truth: "Mapping[str, Floats] | None" = None,
        watch: RoundWatch | None = None,
        noise: float = 0.0,
        exact_end: bool = False,
    ) -> None:
        """Takes the relative standard deviation of the times that the watch gets as `noise`.

        With `exact_end` a job ends when its work is done; its GPUs stay taken until the round ends all the same.
        """
        super().__init__(jobs, fleet, policy, settings)
        self.truth = fleet.scores if truth is None else truth
        self.watch, self.noise, self.exact_end = watch, noise, exact_end
        self.draw = np.random.default_rng(settings.seed)
        self.jumps = self.jumps and watch is None

    def _weather(self, at: float) -> None:
        super()._weather(at)
        believed = self.watch.scores(at) if self.watch else None
        if believed is not None:
            self.fleet = replace(self.fleet, scores=believed)
            self.everything = view(self.fleet, self.fleet.full)
            self.last = None

    def _advance(self, at: float, rounds: int) -> None:
        span = rounds * self.settings.round_s
        ran = list(self.running)
        exact = {one.job.id: at + min(one.debt, span) + one.left * one.slowdown for one in ran}
        super()._advance(at, rounds)
        if self.watch:
            self.watch.observe(at + span, [self._shown(one) for one in ran])
        if self.exact_end:
            self.ends.update((job, end) for job, end in exact.items() if job in self.ends)

    def _shown(self, one: JobProgress) -> RoundShowed:
        assert one.berth, "only what runs shows times"
        times = self._times(one)
        if self.noise:
            times = times * np.maximum(self.draw.normal(1.0, self.noise, times.size), 0.01)
        return RoundShowed(one.job.id, one.demand, one.berth, times)
