# SPDX-License-Identifier: Apache-2.0
"""Rules of Berth's placement, each turned off by itself, under Slurm's own rules: what does each one bring?

`python -m tests.bench.placement_rules [--draws 4] [--family NAME]`: mean JCT without a rule over mean JCT with all of
them, over pairs of a trace and a draw, as in tests/bench/placement_slurm.py. Where the interval holds 1, the rule
brings no more here than chance would.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from policy.placement import berth as one_node
from policy.placement import gang, speed
from policy.placement.berth import BerthPolicy
from policy.simulate.play import run
from policy.simulate.slurm.settings import SlurmSettings
from tests.bench import placement_slurm
from tests.bench.placement_pairs import METRICS, Comparison, Pair
from tests.bench.placement_slurm import QUICK_DRAWS, TRACES, SlurmFamily, fleet_of, jobs_of

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.cluster.view import View
    from policy.formats.arrays import Bools, Floats
    from policy.placement.base import Berth
    from policy.request.demand import Demand
    from topology.sets.tables import Ints

ALL = "all rules"


class _NoWait(BerthPolicy):
    def worthwhile(self, demand: Demand, fleet: Fleet) -> Bools:  # noqa: ARG002 - that is the rule
        return demand.candidates


class NoScores(_NoWait):
    def __init__(self) -> None:
        super().__init__()
        self._blind: Fleet | None = None

    def place(self, demand: Demand, view: View) -> Berth:
        if self._blind is None:
            self._blind = replace(view.fleet, scores={})
        return super().place(demand, replace(view, fleet=self._blind))


def _first(demand: Demand, view: View, best: Ints) -> int:
    return int(best[0])


def _first_nodes(demand: Demand, view: View, able: Ints, slowest: Floats) -> Ints:
    threshold = np.partition(slowest, demand.n - 1)[demand.n - 1]
    return np.flatnonzero(slowest <= threshold * (1 + speed.alike(view)))[: demand.n]


Rule = tuple[type[BerthPolicy], Callable[[], AbstractContextManager[object]]]

RULES: dict[str, Rule] = {
    ALL: (BerthPolicy, nullcontext),
    "too slow nodes are given up": (_NoWait, nullcontext),
    "scores": (NoScores, nullcontext),
    "scores within 2 % are alike": (BerthPolicy, lambda: patch.object(speed, "ALIKE", 0.0)),
    "one node: the leaf, then the GPUs that others miss least": (
        BerthPolicy,
        lambda: patch.object(one_node, "_least_missed", _first),
    ),
    "gangs: the nodes that others miss least": (BerthPolicy, lambda: patch.object(gang, "_least_missed", _first_nodes)),
}


def one_pair(family: SlurmFamily, trace: int, draw: int) -> Pair:
    """Runs Berth on one trace and draw, with all rules and without each."""
    found = {}
    for name, (policy, without) in RULES.items():
        with without():
            settings = SlurmSettings(order="fifo", pinned=True)
            outcome = run(jobs_of(family, trace, draw), fleet_of(family), policy(), settings).figures()
        found[name] = {figure: float(str(outcome[figure])) for figure in METRICS}
    return Pair(family.name, "fifo", trace, draw, found)


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--draws", type=int, default=QUICK_DRAWS, help="draws of each trace (default: %(default)s)")
    parser.add_argument("--family", action="append", help="only families whose name contains this; may be repeated")
    args = parser.parse_args()
    if lacks := placement_slurm.missing():
        print(lacks)
        return 0
    for family in placement_slurm.families():
        if args.family and not any(part in family.name for part in args.family):
            continue
        draws = range(1, args.draws + 1)
        here = Comparison([one_pair(family, trace, draw) for draw in draws for trace in range(len(TRACES))])
        table = Table(title=f"{family.name}, {len(here.pairs)} pairs: without a rule over all rules, in brackets 95 %")
        for column in ("without", "mean JCT", "p99", "makespan"):
            table.add_column(column)
        for name in list(RULES)[1:]:
            gains = [here.ratio(name, metric, ALL) for metric in METRICS[1:]]
            table.add_row(name, *(f"{one.value:.3f} ({one.lower:.3f} {one.upper:.3f})" for one in gains))
        Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
