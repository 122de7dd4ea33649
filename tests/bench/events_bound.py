# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=events`: what knowing slow nodes at once and exactly would bring, beside what the detector brings.

The bound on any detector: Berth and PAL are told each event in the round in which it begins and ends. Cases are those
of `make bench NAME=placement`'s family with slow nodes.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.placement.registry import create
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.rounds import RoundsSettings
from tests.bench.paper.joint.policy import JointBerth
from tests.bench.paper.slowness import Slowness
from tests.bench.paper.watched import RoundShowed, RoundWatch, WatchedRounds
from tests.bench.placement_families import Case, case, families
from tests.bench.placement_pairs import ORDERS, SEEN_NOISE
from tests.bench.table import Figure, report

FAMILY = "slow-node events"
CONTESTANTS = (("berth", "oracle"), ("pal", "oracle"), ("berth", "detector"), ("pal", "detector"), ("pal", "nobody"))
"""Policy, and who tells it."""


class Oracle:
    """Tells the true scores, events included."""

    def __init__(self, fleet: Fleet, events: Sequence[NodeEvent]) -> None:
        self._fleet, self._events = fleet, events
        self._told: tuple[float, ...] = ()

    def observe(self, at: float, running: Sequence[RoundShowed]) -> None:
        """An oracle needs no observation."""

    def scores(self, at: float) -> Mapping[str, Floats] | None:
        factors = np.ones(len(self._fleet.names))
        for event in self._events:
            if event.start <= at < event.end:
                factors[event.node] *= event.factor
        if tuple(factors) == self._told:
            return None
        self._told = tuple(factors)
        return {name: table * factors[:, None] for name, table in self._fleet.scores.items()}


def mean_times(order: str, trace: int, seed: int) -> list[float]:
    """The mean JCT of each contestant on one case, and of PAL without events."""
    family = next(one for one in families() if one.name == FAMILY)
    here = case(family, trace, seed)
    settings = RoundsSettings(order=order, backfill=True, events=here.events, seed=seed)
    slowed = [_mean(here, name, settings, teller) for name, teller in CONTESTANTS]
    return [*slowed, _mean(here, "pal", replace(settings, events=()), "nobody")]


def _mean(here: Case, name: str, settings: RoundsSettings, teller: str) -> float:
    fleet = replace(here.fleet, scores=here.truth)
    tellers: dict[str, RoundWatch] = {"oracle": Oracle(fleet, here.events), "detector": Slowness(fleet)}
    policy = JointBerth() if name == "berth" else create(name)
    watch = tellers.get(teller)
    rounds = WatchedRounds(here.jobs, fleet, policy, settings, truth=here.truth, watch=watch, noise=SEEN_NOISE)
    return float(str(rounds.run().figures()["avg_jct_s"]))


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=32, help="pairs of each order (default: 32)")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    args = parser.parse_args()
    found = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for order in ORDERS:
            asked = [(order, trace, seed) for seed in range(-(-args.pairs // 4)) for trace in range(4)]
            times = np.log(np.array(list(pool.map(mean_times, *zip(*asked, strict=True)))))
            best, pal_best, ours, pal, static, calm = times.mean(axis=0)
            found += [
                Figure(f"{order}_delay", float(np.exp(static - calm)), "PAL's mean JCT with events over without"),
                Figure(f"{order}_told", 1 - float(np.exp(ours - pal)), "of PAL, both told by the detector"),
                Figure(
                    f"{order}_bound", 1 - float(np.exp(best - pal)), "of PAL told by the detector, Berth by an oracle"
                ),
                Figure(f"{order}_oracle", 1 - float(np.exp(best - pal_best)), "of PAL, both told by an oracle"),
                Figure(f"{order}_detector", float(np.exp(best - ours)), "oracle's mean JCT over the detector's, Berth"),
            ]
    notes = {"pairs": str(args.pairs), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    report("events", "Slow nodes: what a detector could bring at best, mean JCT", found, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
