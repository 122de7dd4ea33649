# SPDX-License-Identifier: Apache-2.0
"""Runs of several policies on the same cases, and what can be said of them together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt

from policy.placement.base import Policy
from policy.placement.registry import create
from policy.simulate.pal_rounds.rounds import RoundsSettings
from policy.simulate.report.chance import resampled
from tests.bench.paper.joint.policy import JointBerth
from tests.bench.paper.relaxation import Relaxation
from tests.bench.paper.slowness import Slowness
from tests.bench.paper.watched import WatchedRounds
from tests.bench.placement_families import Case, Family, case, traces_of

Array = npt.NDArray[np.float64]

ORDERS = ("fifo", "srsf")
METRICS = ("geomean_jct_s", "avg_jct_s", "p99_jct_s", "makespan_s")
SEEN_NOISE = 0.03
"""Relative error of the step times that the detector sees: what runs on one GPU of Longhorn differ by."""
NO_ROOM = 1e-3
"""A bound that gains less is no measure for anybody."""


@dataclass(frozen=True, slots=True)
class Pair:
    """All policies on one case."""

    family: str
    order: str
    trace: int
    seed: int
    figures: Mapping[str, Mapping[str, float]]
    """By policy, then by figure."""


def contestants(family: Family, seed: int) -> Iterator[tuple[str, Policy, bool]]:
    """Names, policies, and whether each is told what the detector finds."""
    watched = family.weather is not None
    yield "berth", JointBerth(family.move_s), watched
    yield "pal", create("pal"), False
    yield "pinned-random", create("pinned-random", seed=seed), False
    if watched:
        yield "pal, our scores", create("pal"), True
    else:
        yield "relaxation", Relaxation(), False


def one_pair(family: Family, order: str, trace: int, seed: int) -> Pair:
    """Run them all."""
    here = case(family, trace, seed)
    settings = RoundsSettings(
        order=order,
        backfill=family.backfill,
        move_cost_s=family.move_s,
        events=here.events,
        seed=seed,
    )
    found = {name: _figures(here, policy, settings, told) for name, policy, told in contestants(family, seed)}
    return Pair(family.name, order, trace, seed, found)


def _figures(here: Case, policy: Policy, settings: RoundsSettings, told: bool) -> dict[str, float]:
    # What a bound takes for the best GPUs must be what really is best.
    fleet = replace(here.fleet, scores=here.truth) if isinstance(policy, Relaxation) else here.fleet
    watch = Slowness(fleet) if told else None
    rounds = WatchedRounds(here.jobs, fleet, policy, settings, truth=here.truth, watch=watch, noise=SEEN_NOISE)
    outcome = rounds.run().figures()
    return {name: float(str(outcome[name])) for name in (*METRICS, "moves", "jobs", "wall_s")}


def all_pairs(
    families: Sequence[Family], pairs: int, workers: int, tick: Callable[[int, int], None]
) -> dict[tuple[str, str], list[Pair]]:
    """At least so many pairs of each family and order, over several processes."""
    asked = [
        (family, order, trace, seed)
        for family in families
        for order in ORDERS
        for seed in range(-(-pairs // traces_of(family)))
        for trace in range(traces_of(family))
    ]
    found: dict[tuple[str, str], list[Pair]] = {(family.name, order): [] for family in families for order in ORDERS}
    # One thread each: the arrays are small, and the workers fill the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = [pool.submit(one_pair, *one) for one in asked]
        for done, future in enumerate(as_completed(futures), 1):
            pair = future.result()
            found[pair.family, pair.order].append(pair)
            tick(done, len(asked))
    return {key: sorted(some, key=lambda one: (one.trace, one.seed)) for key, some in found.items()}


@dataclass(frozen=True, slots=True)
class Gain:
    """How much less one policy takes than another, in the geometric mean over pairs, and 95 % over traces."""

    value: float
    lower: float
    upper: float


class Comparison:
    """All pairs of one family and order."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self._traces = [pair.trace for pair in pairs]

    def logs(self, policy: str, metric: str) -> Array:
        return np.log([pair.figures[policy][metric] for pair in self.pairs])

    def has(self, policy: str) -> bool:
        return policy in self.pairs[0].figures

    def gain(self, policy: str, metric: str, peer: str = "pal") -> Gain:
        """1 - policy / peer."""
        ratios = self.logs(policy, metric) - self.logs(peer, metric)
        lower, upper = 1.0 - np.exp(np.percentile(resampled(ratios, self._traces), (97.5, 2.5)))
        return Gain(1.0 - float(np.exp(ratios.mean())), float(lower), float(upper))

    def ratio(self, policy: str, metric: str, peer: str = "pal") -> Gain:
        """policy / peer."""
        gain = self.gain(policy, metric, peer)
        return Gain(1.0 - gain.value, 1.0 - gain.upper, 1.0 - gain.lower)

    def null(self, policy: str, metric: str) -> float:
        """The factor by which a policy differs from itself on the next draw of each trace, in 19 of 20 cases."""
        logs, traces = self.logs(policy, metric), np.array(self._traces)
        beside = np.concatenate([(some := logs[traces == one]) - np.roll(some, 1) for one in np.unique(traces)])
        # Within a trace these differences are 0 in the mean: single pairs are drawn.
        return float(np.exp(np.percentile(np.abs(resampled(beside)), 95.0)))

    def gap_closed(self, peer: str = "relaxation", metric: str = METRICS[0]) -> Gain | None:
        """(PAL - berth) / (PAL - relaxation) in geomean JCT; None where the relaxation gains next to nothing."""
        ours, bound = (self.logs(name, metric) - self.logs("pal", metric) for name in ("berth", peer))
        if 1.0 - np.exp(bound.mean()) < NO_ROOM:
            return None
        drawn = _share(resampled(ours, self._traces), resampled(bound, self._traces))
        lower, upper = np.percentile(drawn, (2.5, 97.5))
        return Gain(float(_share(ours.mean(), bound.mean())), float(lower), float(upper))

    def moves(self, policy: str) -> float:
        """Moves per job."""
        return float(np.mean([pair.figures[policy]["moves"] / pair.figures[policy]["jobs"] for pair in self.pairs]))

    def wall_s(self, policy: str) -> float:
        """Mean time of a run."""
        return float(np.mean([pair.figures[policy]["wall_s"] for pair in self.pairs]))


def _share(ours: Array, bound: Array) -> Array:
    """Of log ratios to PAL: how much of what the bound gains is gained."""
    share: Array = (1.0 - np.exp(ours)) / np.maximum(1.0 - np.exp(bound), NO_ROOM)
    return share
