# SPDX-License-Identifier: Apache-2.0
"""What Berth brings on other kinds of nodes under Slurm's own rules: near nodes, and slow GPUs that are known.

`python -m tests.bench.placement_kinds [--draws 8] [--kind NAME] [--timed]`: the traces and draws of `placement_slurm`
(leaves of four nodes) on nodes of other kinds, without time limits and with limits of three times the run time. *Over
plain Slurm* is Berth's mean JCT over that of the better plain Slurm, topology/flat or topology/tree; *null* is the
factor by which that one differs from itself on other draws; *looks ahead* is Berth where jobs may let others go first,
as with berthd's `look_ahead`; *no speeds* where it knows no speeds of GPUs. Intervals are by bootstrap over traces.
With `--timed` Berth and plain Slurm are played with berthd's own code and the time that each step takes, and the other
two are left out.

The speeds are PAL's 64 V100 of Longhorn; where
the nodes have PCIe alone they are PAL's 32 RTX 5000 of Frontera. No speeds of other kinds are published.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.table import Table

from policy.cluster.fleet import Fleet
from policy.placement.registry import create
from policy.simulate.inputs.scores import grids
from policy.simulate.play import run
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.slurm.world import SlurmWorld
from policy.simulate.world import Layout, build
from tests.bench import placement_slurm
from tests.bench.paper.rolled import RolledWorld
from tests.bench.paper.worlds import play
from tests.bench.placement_families import DATA, GPUS_PER_NODE, NODES_PER_LEAF
from tests.bench.placement_pairs import METRICS, Comparison, Pair
from tests.bench.placement_rules import NoScores
from tests.bench.placement_slurm import QUICK_DRAWS, SCORES, TRACES, SlurmFamily
from topology.machines import machine

FRONTERA = "pal/variability/32gpu-variability.csv"
KINDS = (
    ("a100-4", 16, SCORES), ("dgx-1v", 8, SCORES), ("dgx-a100", 8, SCORES), ("hgx-h100", 8, SCORES),
    ("a6000-pairs", 8, SCORES), ("l40s", 8, FRONTERA),
)  # fmt: skip
"""Kind of machine, nodes of it, speeds of their GPUs."""
BERTH, AHEAD, BLIND, PLAIN, TREE = "berth", "berth, roll-out", "berth without speeds", "slurm", "slurm-tree"


def families() -> Iterator[tuple[SlurmFamily, Fleet]]:
    """All kinds with and without limits: the jobs' family and the machines."""
    limited = [one for one in placement_slurm.families() if ", leaves, " in one.name]
    for (kind, nodes, speeds), family in itertools.product(KINDS, limited):
        sample = machine(kind, "n0")
        gpus = len(sample.gpus)
        limits = family.name.rpartition(", ")[2]
        name = f"{nodes} {kind}, {'Frontera' if speeds == FRONTERA else 'Longhorn'}, {limits}"
        measured = grids([str(DATA / speeds)], nodes * gpus // GPUS_PER_NODE, GPUS_PER_NODE)
        scores = {app_class: table.reshape(nodes, gpus) for app_class, table in measured.items()}
        fleet = build(Layout(nodes, gpus, NODES_PER_LEAF), scores, placement_slurm.costs_of(family), sample)
        yield replace(family, name=name), fleet


def one_pair(family: SlurmFamily, fleet: Fleet, trace: int, draw: int, *, timed: bool = False) -> Pair:
    """Runs Berth, Berth that looks ahead, Berth without speeds, and plain Slurm on one trace and draw."""
    room = int(fleet.size.sum())
    jobs = [job for job in placement_slurm.jobs_of(family, trace, draw) if job.gpus <= room]
    policies = {BERTH: create("berth"), AHEAD: create("berth"), BLIND: NoScores(), PLAIN: create(PLAIN)}
    policies[TREE] = create(TREE)
    found = {}
    for name, policy in policies.items():
        if timed and name in (AHEAD, BLIND):
            continue
        settings = SlurmSettings(order="fifo", pinned=name not in (PLAIN, TREE), tree=name != PLAIN, seed=draw)
        if timed:
            settings = replace(settings, pinned=False, berthd=name == BERTH, delays=Delays())
        world = RolledWorld if name == AHEAD else SlurmWorld
        outcome = (run if timed else partial(play, world))(jobs, fleet, policy, settings).figures()
        found[name] = {figure: float(str(outcome[figure])) for figure in METRICS}
    return Pair(family.name, "fifo", trace, draw, found)


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--draws", type=int, default=QUICK_DRAWS, help="draws of each trace (default: %(default)s)")
    parser.add_argument("--kind", action="append", help="only kinds whose name contains this; may be repeated")
    parser.add_argument("--timed", action="store_true", help="with berthd's own code and timing")
    args = parser.parse_args()
    if lacks := placement_slurm.missing():
        print(lacks)
        return 0
    table = Table(title="mean JCT over plain Slurm's, in brackets 95 %")
    others = () if args.timed else ("looks ahead", "no speeds")
    for column in ("nodes, speeds, limits", "pairs", "peer", "null", "over plain Slurm", *others, "p99", "makespan"):
        table.add_column(column)
    for family, fleet in families():
        if args.kind and not any(part in family.name for part in args.kind):
            continue
        asked = itertools.product(range(1, args.draws + 1), range(len(TRACES)))
        here = Comparison([one_pair(family, fleet, trace, draw, timed=args.timed) for draw, trace in asked])
        mean, p99, makespan = METRICS[1:]
        peer = min((PLAIN, TREE), key=lambda name: float(here.logs(name, mean).mean()))
        ahead = () if args.timed else ((AHEAD, mean), (BLIND, mean))
        gains = [
            here.ratio(policy, metric, peer)
            for policy, metric in ((BERTH, mean), *ahead, (BERTH, p99), (BERTH, makespan))
        ]
        shown = (f"{one.value:.3f} ({one.lower:.3f} to {one.upper:.3f})" for one in gains)
        table.add_row(family.name, str(len(here.pairs)), peer, f"{here.null(peer, mean):.3f}", *shown)
    Console(width=190).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
