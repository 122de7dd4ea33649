# SPDX-License-Identifier: Apache-2.0
"""The `pal-rounds` simulator: places jobs once in each round, as PAL's published simulations do.

In each round the queue is sorted, and its longest head whose GPUs fit the cluster runs. With `backfill` a job that does
not fit is skipped instead of ending that head. Policies that are not sticky place all of these jobs anew. Sticky ones
keep what runs, and stop jobs of lower priority, the last first, where a new job needs their GPUs.

A job for which a policy finds no place waits for that round, and the GPUs counted for it stay empty. A running job does
`round / (true score x locality)` of work in a round, and ends with the round in which it completes.

Where nothing can change, rounds are skipped in one step, so simulated weeks take fractions of a second. That holds for
the same jobs, an order that does not depend on run times, and a policy that would answer the same.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.arrays import Floats
from policy.formats.errors import Never, NotNow
from policy.placement.base import Berth, Policy
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.orders import ORDERS, UNCHANGING, JobProgress
from policy.simulate.pal_rounds.round_policies import RoundPolicy, in_rounds
from policy.simulate.result import SimulationOutcome, Stretch
from policy.simulate.world import demand_of, view
from topology.sets.tables import Ints
from topology.sets.wiring import positions

_AN_HOUR = 3600.0
_PATIENCE = 10_000
"""Rounds in a row in which a policy may leave the whole cluster empty before the simulation gives up."""
_ROUNDING = 1e-9
"""Relative error of adding up rounds; a job that is this close to its end has ended."""


@dataclass(frozen=True, slots=True)
class RoundsSettings:
    """Settings of the rounds; the defaults are those of PAL's artifact on the Sia-Philly traces."""

    round_s: float = 360.0
    order: str = "fifo"
    backfill: bool = False
    """Skip jobs that do not fit, instead of stopping at the first."""
    move_cost_s: float = 0.0
    """Seconds that a job loses when it goes on elsewhere, or goes on after it was stopped."""
    repeat: float = 0.0
    """Jobs an hour (Poisson) that follow the trace, which repeats until all measured jobs have ended; 0: none.

    If they need more than the cluster can do, an order that favours young jobs never runs the old ones, and the
    simulation does not end. Use 0 then.
    """
    measured: range | None = None
    """The jobs of the trace that count in the figures, in order of arrival; None: all."""
    events: Sequence[NodeEvent] = ()
    seed: int = 1
    """The seed of the repeats' arrivals; the artifact's is 1."""


def run(
    jobs: Sequence[TraceJob],
    fleet: Fleet,
    policy: Policy | RoundPolicy,
    settings: RoundsSettings | None = None,
) -> SimulationOutcome:
    """Simulates a trace until all measured jobs have ended."""
    return Rounds(jobs, fleet, policy, settings or RoundsSettings()).run()


def arrivals(jobs: Sequence[TraceJob], per_hour: float, seed: int) -> Iterator[TraceJob]:
    """Yields the trace, then the same jobs again and again with Poisson arrivals, unless `per_hour` is 0.

    Arrivals are in whole seconds, and the draws are those of PAL's artifact.
    """
    yield from jobs
    draw = Random(seed)  # noqa: S311 - a simulation, not a secret
    at, again = jobs[-1].submit, 0
    while per_hour:
        again += 1
        for job in jobs:
            at += math.ceil(-math.log(1.0 - draw.random()) / per_hour * _AN_HOUR)
            yield replace(job, id=f"{job.id}~{again}", submit=at)


class Rounds:
    """The state of one run."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        fleet: Fleet,
        policy: Policy | RoundPolicy,
        settings: RoundsSettings,
    ) -> None:
        trace = sorted(jobs, key=lambda job: job.submit)
        self.fleet, self.settings = fleet, settings
        self.policy = policy if isinstance(policy, RoundPolicy) else in_rounds(policy)
        self.truth = fleet.scores
        """The scores by which jobs progress; a subclass may let policies believe others."""
        self.width = int(fleet.size.max())
        self.capacity = int(fleet.size.sum())
        self.measured = [trace[place] for place in settings.measured or range(len(trace))]
        self.unfinished = {job.id for job in self.measured}
        self.arrivals = arrivals(trace, settings.repeat, settings.seed)
        self.next = next(self.arrivals, None)
        self.order = ORDERS[settings.order]
        self.everything: View = view(fleet, fleet.full)
        self.queue: list[JobProgress] = []
        self.running: list[JobProgress] = []
        self.last: list[JobProgress] | None = None
        self.factors: tuple[float, ...] = ()
        self.true: dict[str, Floats] = {}
        self.arrived = self.moves = self.rounds = self.idle = 0
        self.gpu_seconds = 0.0
        self.starts: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.stretches: list[Stretch] = []
        static = settings.order in UNCHANGING and not settings.events
        self.jumps = static and (self.policy.sticky or self.policy.steady)

    def run(self) -> SimulationOutcome:
        """Runs all rounds."""
        began, number = time.perf_counter(), 0
        while self.unfinished and (self.queue or self.next):
            at = number * self.settings.round_s
            self._admit(at)
            if not self.queue:
                number += self._rounds_to_arrival(at)
                continue
            self._weather(at)
            chosen = self._chosen()
            (self._place_new if self.policy.sticky else self._place_all)(chosen, at)
            rounds = self._calm(at, chosen)
            self._advance(at, rounds)
            number += rounds
            self.rounds += rounds
        # Jobs that are not measured may still run.
        for one in self.running:
            self._close(one, number * self.settings.round_s)
        return self._outcome(time.perf_counter() - began)

    def _outcome(self, wall_s: float) -> SimulationOutcome:
        ended = [job for job in self.measured if job.id in self.ends]
        left = len(self.measured) - len(ended)
        return SimulationOutcome(
            policy=self.policy.name,
            jobs=ended,
            starts=self.starts,
            ends=self.ends,
            stretches=self.stretches,
            gpus=self.capacity,
            gpu_seconds_held=self.gpu_seconds,
            wall_s=wall_s,
            moves=self.moves,
            extra={"rounds": self.rounds} | ({"never_started": left} if left else {}),
        )

    def _admit(self, at: float) -> None:
        while self.next and self.next.submit <= at:
            if self.next.gpus > self.capacity:
                raise Never(f"job {self.next.id} asks for {self.next.gpus} GPUs of {self.capacity}; leave it out")
            self.queue.append(JobProgress(self.next, self.arrived, demand_of(self.next, self.fleet)))
            self.arrived += 1
            self.next = next(self.arrivals, None)

    def _rounds_to_arrival(self, at: float) -> int:
        assert self.next is not None, "asked only while jobs are to come"  # noqa: S101 - narrows the type
        return max(1, math.ceil((self.next.submit - at) / self.settings.round_s))

    def _chosen(self) -> list[JobProgress]:
        """Returns the jobs that run in this round: the head of the queue that fits by its number of GPUs."""
        left, chosen = self.capacity, []
        for one in sorted(self.queue, key=lambda one: (-one.job.priority, self.order(one))):
            if one.demand.gpus <= left:
                chosen.append(one)
                left -= one.demand.gpus
            elif not self.settings.backfill:
                break
            if not left:
                break
        return chosen

    def _weather(self, at: float) -> None:
        """Applies the events that are in force in this round."""
        if not self.settings.events:
            return
        factors = [1.0] * len(self.fleet.names)
        for event in self.settings.events:
            if event.start <= at < event.end:
                factors[event.node] *= event.factor
        if tuple(factors) != self.factors:
            self.factors = tuple(factors)
            self.true.clear()
            for one in self.running:
                one.slowdown = self._slowdown(one)

    def _place_all(self, chosen: list[JobProgress], at: float) -> None:
        """Places all jobs of the round anew, whether they run or not."""
        if self.policy.steady and chosen == self.last:
            return
        held = [one.berth for one in chosen]
        berths = self.policy.place_together([one.demand_now() for one in chosen], self.everything, held)
        staying = set(chosen)
        for one in self.running:
            if one not in staying:
                self._assign(one, None, at)
        for one, berth in zip(chosen, berths, strict=True):
            self._assign(one, berth, at)
        self.last = chosen
        self.running = [one for one in chosen if one.berth]

    def _place_new(self, chosen: list[JobProgress], at: float) -> None:
        """Keeps running jobs that are chosen, and places the other chosen jobs.

        Running jobs that are not chosen are stopped, but only when their GPUs are needed. In the end all of them are
        stopped. They come after a job that did not fit, and the artifact stops such jobs even where it gains nothing.
        """
        staying = set(chosen)
        new = [one for one in chosen if not one.berth]
        leaving = [one for one in self.running if one not in staying]
        leaving.sort(key=lambda one: (-one.job.priority, self.order(one), one.number))
        if new:
            free = self._free()
            while leaving and new:
                one = new.pop(0)
                berth = self._place_one(one, free)
                while berth is None and leaving:
                    last = leaving.pop()
                    _give_back(free, last)
                    self._assign(last, None, at)
                    berth = self._place_one(one, free)
                self._assign(one, berth, at)
                if berth:
                    free[list(berth.nodes)] &= ~np.array(berth.masks, np.int64)
            berths = self.policy.place_together([one.demand_now() for one in new], self.everything.with_free(free))
            for one, berth in zip(new, berths, strict=True):
                self._assign(one, berth, at)
        for one in leaving:
            self._assign(one, None, at)
        self.running = [one for one in chosen if one.berth]

    def _place_one(self, one: JobProgress, free: Ints) -> Berth | None:
        return self.policy.place_together([one.demand_now()], self.everything.with_free(free))[0]

    def _free(self) -> Ints:
        free = self.fleet.full.copy()
        for one in self.running:
            assert one.berth, "what runs has a berth"  # noqa: S101 - narrows the type
            free[list(one.berth.nodes)] &= ~np.array(one.berth.masks, np.int64)
        return free

    def _assign(self, one: JobProgress, berth: Berth | None, at: float) -> None:
        """Gives a job a berth, or takes it away."""
        if one.berth is not None:
            if berth is not None and _same(one.berth, berth):
                one.berth = berth
                return
            self._close(one, at)
        one.berth = berth
        if berth is None:
            return
        one.since = at
        one.slowdown = self._slowdown(one)
        if one.start is None:
            one.start = self.starts[one.job.id] = at
        else:
            self.moves += 1
            one.debt = self.settings.move_cost_s

    def _close(self, one: JobProgress, at: float) -> None:
        assert one.berth, "only what runs can end"  # noqa: S101 - narrows the type
        gpus = tuple(
            node * self.width + place
            for node, mask in sorted(zip(one.berth.nodes, one.berth.masks, strict=True))
            for place in positions(mask)
        )
        self.stretches.append(Stretch(one.job.id, one.since, at, gpus))

    def _slowdown(self, one: JobProgress) -> float:
        assert one.berth, "only what runs is slowed down"  # noqa: S101 - narrows the type
        demand = one.demand
        locality = self.fleet.costs.locality(demand.model, demand.app_class, one.berth.level, demand.gpus)
        return float(self._times(one).max()) * locality

    def _times(self, one: JobProgress) -> Floats:
        """Returns the true scores of a job's GPUs, events included."""
        assert one.berth, "only what runs has GPUs"  # noqa: S101 - narrows the type
        table = self.true.get(one.demand.app_class)
        if table is None:
            given = self.truth.get(one.demand.app_class)
            table = np.ones((len(self.fleet.names), self.width)) if given is None else given
            if self.factors:
                table = table * np.array(self.factors)[:, None]
            self.true[one.demand.app_class] = table
        gpus = [
            (node, place)
            for node, mask in zip(one.berth.nodes, one.berth.masks, strict=True)
            for place in positions(mask)
        ]
        rows, columns = zip(*gpus, strict=True)
        return table[rows, columns]

    def _leave_out(self, chosen: list[JobProgress]) -> None:
        """Leaves jobs out that the policy does not place on an empty cluster."""
        if len(self.unfinished) <= len(chosen) and not self.ends:
            raise NotNow(f"{self.policy.name} places none of {len(chosen)} jobs on an empty cluster")
        self.queue = [one for one in self.queue if one not in chosen]
        self.unfinished -= {one.job.id for one in chosen}
        self.last, self.idle = None, 0

    def _calm(self, at: float, chosen: list[JobProgress]) -> int:
        """Returns the number of rounds in which nothing can change."""
        if not self.running:
            self.idle += 1
            if self.idle > _PATIENCE or (self.jumps and self.next is None):
                self._leave_out(chosen)
        else:
            self.idle = 0
        if not self.jumps or (len(self.running) < len(chosen) and not self.policy.steady):
            return 1
        round_s = self.settings.round_s
        # A job that ends within rounding error of a round's end, ends there, as it does round by round.
        rounds = [max(1, math.ceil((one.debt + one.left * one.slowdown) / round_s - _ROUNDING)) for one in self.running]
        if self.next is not None:
            rounds.append(self._rounds_to_arrival(at))
        return min(rounds)

    def _advance(self, at: float, rounds: int) -> None:
        """Advances the running jobs by some rounds."""
        span = rounds * self.settings.round_s
        ended = []
        for one in self.running:
            paid = min(one.debt, span)
            one.debt -= paid
            one.done += (span - paid) / one.slowdown
            one.service += span
            self.gpu_seconds += span * one.demand.gpus
            if one.left <= _ROUNDING * one.job.work:
                ended.append(one)
                self.ends[one.job.id] = at + span
        for one in ended:
            self._close(one, at + span)
            self.running.remove(one)
            self.queue.remove(one)
            self.unfinished.discard(one.job.id)


def _give_back(free: Ints, one: JobProgress) -> None:
    assert one.berth, "only what runs holds GPUs"  # noqa: S101 - narrows the type
    free[list(one.berth.nodes)] |= np.array(one.berth.masks, np.int64)


def _same(one: Berth, other: Berth) -> bool:
    """Tells whether two berths are the same GPUs."""
    if one.nodes == other.nodes:
        return one.masks == other.masks
    return dict(zip(one.nodes, one.masks, strict=True)) == dict(zip(other.nodes, other.masks, strict=True))
