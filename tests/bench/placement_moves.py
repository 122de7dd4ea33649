# SPDX-License-Identifier: Apache-2.0
"""Running jobs that may be moved, under Slurm's own rules: what do moves bring at their usual cost?

`python -m tests.bench.placement_moves [--draws 71,72,73] [--family NAME]`: Berth and PAL, each with all jobs movable
over the same policy without moves, over pairs of a trace and a draw, as in tests/bench/placement_slurm.py. A move costs
the job five minutes of work and one minute in which it computes nothing, and has to gain twice that.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from tests.bench import placement_slurm
from tests.bench.placement_pairs import METRICS, Comparison
from tests.bench.placement_slurm import MOVING, TRACES, one_pair

POLICIES = ("berth", f"berth{MOVING}", "pal", f"pal{MOVING}")
BESIDE = ((f"berth{MOVING}", "berth"), (f"pal{MOVING}", "pal"), (f"berth{MOVING}", f"pal{MOVING}"))
FAMILIES = ("slurm, flat, no limits", "slurm, flat, limits x 3")


def main() -> int:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--draws", default="71,72,73", help="draws of each trace (default: %(default)s)")
    parser.add_argument("--family", action="append", help="families by name (default: the flat ones)")
    args = parser.parse_args()
    if lacks := placement_slurm.missing():
        print(lacks)
        return 0
    draws = [int(draw) for draw in args.draws.split(",")]
    for family in placement_slurm.families():
        if family.name not in (args.family or FAMILIES):
            continue
        pairs = [one_pair(family, trace, draw, POLICIES) for draw in draws for trace in range(len(TRACES))]
        here = Comparison(pairs)
        table = Table(title=f"{family.name}, {len(pairs)} pairs, in brackets 95 %")
        for column in ("", "mean JCT", "p99", "makespan", "moves a run"):
            table.add_column(column)
        for name, peer in BESIDE:
            gains = [here.ratio(name, metric, peer) for metric in METRICS[1:]]
            moves = sum(pair.figures[name]["moved"] for pair in pairs) / len(pairs)
            cells = (f"{one.value:.3f} ({one.lower:.3f} to {one.upper:.3f})" for one in gains)
            table.add_row(f"{name} over {peer}", *cells, f"{moves:.1f}")
        Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
