# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=placement`: Berth's policy beside PAL on the honest set, and how long a round takes to place.

Both get the same jobs, order, backfill and scores, in simulated rounds of 360 s on 16 nodes of 4 GPUs. Each row is a
family of machines and workloads under one order, over pairs of a trace and a seed. A gain is how much less Berth
takes, in the geometric mean over pairs, with a 95 % bootstrap interval. `relaxation` gives each job the best GPUs of
the cluster, whoever has them; `gap closed` is the part of the way from PAL to it. `pinned-random` is a control.

The families *slurm* are played under Slurm's own rules, where no job moves (tests/bench/placement_slurm.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import placement_slurm, placement_speed
from tests.bench.placement_families import (
    DATA,
    GPUS_PER_NODE,
    NODES,
    NODES_PER_LEAF,
    SLOW_NODES,
    Family,
    available,
    families,
)
from tests.bench.placement_pairs import METRICS, Comparison, Gain, Pair, all_pairs
from tests.bench.placement_slurm import DRAWS, QUICK_DRAWS, SlurmRow
from tests.bench.table import FOLDER, Figure, at_least, at_most, report

PAIRS, QUICK_PAIRS = 32, 8
ROWS = FOLDER.parent / "placement-families.json"
SLURM_ROWS = FOLDER.parent / "placement-slurm.json"
ROOM = 0.03
"""Where the relaxation gains less than this over PAL, the part of it that is closed says little."""
SHOWN = ("geomean", "mean", "p99", "makespan")


@dataclass(frozen=True, slots=True)
class Row:
    """What all pairs of a family and order say together."""

    family: str
    kind: str
    order: str
    pairs: int
    gains: Mapping[str, Gain]
    """Of Berth over PAL, by `SHOWN`."""
    fed: Mapping[str, Gain]
    """The same over PAL that is told which nodes are slow; empty where nothing is told."""
    relaxation: Mapping[str, Gain]
    """Of the relaxation over PAL; empty where slow nodes come and go, as it knows nothing of time."""
    gap_closed: Gain | None
    random: Gain
    moves: float
    """For each job."""
    moves_pal: float
    wall_s: float
    wall_s_pal: float


def row_of(family: Family, order: str, pairs: Sequence[Pair]) -> Row:
    """The figures of a family under one order."""
    here = Comparison(pairs)

    def gains(policy: str, peer: str) -> dict[str, Gain]:
        if not (here.has(policy) and here.has(peer)):
            return {}
        return {name: here.gain(policy, metric, peer) for name, metric in zip(SHOWN, METRICS, strict=True)}

    return Row(
        family=family.name,
        kind=family.kind,
        order=order,
        pairs=len(pairs),
        gains=gains("berth", "pal"),
        fed=gains("berth", "pal, our scores"),
        relaxation=gains("relaxation", "pal"),
        gap_closed=here.gap_closed() if here.has("relaxation") else None,
        random=here.gain("pinned-random", METRICS[0]),
        moves=here.moves("berth"),
        moves_pal=here.moves("pal"),
        wall_s=here.wall_s("berth"),
        wall_s_pal=here.wall_s("pal"),
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    """What the rows come to; each is the worst row of those that it speaks of."""
    flat = [
        row.gap_closed.value
        for row in rows
        if row.kind == "flat" and row.gap_closed and row.relaxation["geomean"].value >= ROOM
    ]
    leafpod = [row.gains for row in rows if row.kind == "leafpod"]
    events = [row for row in rows if row.kind == "events"]
    found = [
        at_least("worst_family_lower", min(row.gains["geomean"].lower for row in rows), -0.01, "of PAL"),
        at_least("worst_p99", min(row.gains["p99"].value for row in rows), -0.02, "of PAL"),
        at_least("worst_makespan", min(row.gains["makespan"].value for row in rows), -0.02, "of PAL"),
    ]
    if flat:
        found.insert(0, at_least("gap_closed_flat", min(flat), 0.3, "of the gap to the relaxation"))
    if leafpod:
        found.append(at_least("leafpod_geomean", min(gains["geomean"].value for gains in leafpod), 0.05, "of PAL"))
        found.append(at_least("leafpod_mean", min(gains["mean"].value for gains in leafpod), 0.08, "of PAL"))
    if events:
        found.append(at_least("events_mean", min(row.gains["mean"].value for row in events), 0.15, "of PAL"))
        fed = min(row.fed["mean"].value for row in events)
        found.append(Figure("events_mean_told", fed, "of PAL told which nodes are slow"))
    return found


def slurm_figures(rows: Sequence[SlurmRow]) -> list[Figure]:
    """Sums up the rows under Slurm's rules; each figure is the worst of its rows."""
    found = [
        at_least("slurm_gap_closed", min(row.gap_closed.value for row in rows if row.gap_closed), 0.35, "of the gap"),
        at_most("slurm_over_pal_upper", max(row.over_pal["berth"].upper for row in rows), 1.0, "of PAL"),
        at_most("slurm_p99_over_pal_lower", max(row.p99_over_pal.lower for row in rows), 1.0, "of PAL"),
        at_most("slurm_makespan_over_pal_lower", max(row.makespan_over_pal.lower for row in rows), 1.0, "of PAL"),
    ]
    for name, part, limit in (("no_limits", "no limits", 0.8), ("limits", "limits x", 0.9)):
        of = [row.over_slurm["berth"].value for row in rows if part in row.family]
        if of:
            found.append(at_most(f"slurm_over_plain_{name}", max(of), limit, "of plain Slurm"))
    leaves = [row.over_pal["berth"].value for row in rows if "flat" not in row.family]
    if leaves:
        found.append(at_most("slurm_leaves_over_pal", max(leaves), 0.95, "of PAL"))
    return found


def show_slurm(rows: Sequence[SlurmRow]) -> None:
    """Shows mean JCT over PAL's and over plain Slurm's, in brackets 95 %."""
    names = [name for name in placement_slurm.POLICIES if name != "pal"]
    table = Table(
        title=f"Under Slurm's rules, {NODES} nodes x {GPUS_PER_NODE} GPUs: mean JCT over PAL's, in brackets 95 %"
    )
    for name in ("family", "pairs", *names, "berth / slurm", "p99", "makespan", "gap closed"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for row in rows:
        bounded = (row.over_slurm["berth"], row.p99_over_pal, row.makespan_over_pal, row.gap_closed)
        table.add_row(
            row.family,
            f"{row.pairs}",
            *(ratio(row.over_pal[name]) for name in names),
            *(ratio(gain) if gain else "" for gain in bounded),
        )
    Console(width=190).print(table)


def ratio(gain: Gain) -> str:
    """`0.95 (0.92 0.98)`."""
    return f"{gain.value:.3f} ({gain.lower:.3f} {gain.upper:.3f})"


def show(rows: Sequence[Row]) -> None:
    """The table for people, in percent."""
    table = Table(title=f"Berth against PAL, {NODES} nodes x {GPUS_PER_NODE} GPUs: gain in %, in brackets 95 %")
    for name in ("family", "order", "pairs", *SHOWN, "gap closed", "relaxation", "random", "moves", "PAL's moves"):
        table.add_column(name, justify="left" if name in ("family", "order") else "right")
    for row in rows:
        closed, bound = row.gap_closed, row.relaxation.get("geomean")
        common = (f"{100 * row.random.value:.1f}", f"{row.moves:.2f}", f"{row.moves_pal:.2f}")
        table.add_row(
            row.family,
            row.order,
            f"{row.pairs}",
            *(percent(gain) for gain in row.gains.values()),
            f"{closed.value:.2f} ({closed.lower:.2f} {closed.upper:.2f})" if closed else "",
            f"{100 * bound.value:.1f}" if bound else "",
            *common,
        )
        if row.fed:
            told = (percent(gain) for gain in row.fed.values())
            table.add_row("  beside PAL that is told", row.order, f"{row.pairs}", *told)
    Console(width=190).print(table)


def percent(gain: Gain) -> str:
    """`2.7 (1.9 3.6)`."""
    return f"{100 * gain.value:.1f} ({100 * gain.lower:.1f} {100 * gain.upper:.1f})"


def measure(chosen: Sequence[Family], pairs: int, workers: int) -> list[Row]:
    """All rows."""
    found = all_pairs(chosen, pairs, workers, progress())
    print(file=sys.stderr)
    by_name = {family.name: family for family in chosen}
    return [row_of(by_name[name], order, some) for (name, order), some in found.items()]


def measure_slurm(chosen: Sequence[placement_slurm.SlurmFamily], draws: int, workers: int) -> list[SlurmRow]:
    """All rows under Slurm's rules."""
    found = placement_slurm.all_pairs(chosen, draws, workers, progress())
    print(file=sys.stderr)
    return [placement_slurm.row_of(name, some) for name, some in found.items()]


def progress() -> Callable[[int, int], None]:
    """Returns a callback that shows how many pairs are done."""
    began = time.monotonic()

    def tick(done: int, of: int) -> None:
        left = (time.monotonic() - began) * (of - done) / done
        print(f"\r{done} of {of} pairs, about {math.ceil(left / 60)} min to go   ", end="", file=sys.stderr, flush=True)

    return tick


def write(path: Path, rows: Sequence[Row] | Sequence[SlurmRow]) -> None:
    """Writes rows for docs/results/tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} pairs of each family")
    parser.add_argument("--pairs", type=int, default=0, help=f"pairs of each family and order ({PAIRS})")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--draws", type=int, default=0, help=f"draws of each trace under Slurm's rules ({DRAWS})")
    parser.add_argument("--family", action="append", help="only families whose name contains this; may be repeated")
    args = parser.parse_args()
    pairs = args.pairs or (QUICK_PAIRS if args.quick else PAIRS)
    draws = args.draws or (QUICK_DRAWS if args.quick else DRAWS)

    def is_asked(name: str) -> bool:
        return not args.family or any(part in name for part in args.family)

    chosen = [family for family in families() if available(family) and is_asked(family.name)]
    under_slurm = [family for family in placement_slurm.families() if is_asked(family.name)]
    if under_slurm and (lacks := placement_slurm.missing()):
        print(lacks, file=sys.stderr)
        under_slurm = []
    found: list[Figure] = []
    if chosen:
        rows = measure(chosen, pairs, args.workers)
        show(rows)
        write(ROWS, rows)
        found += [*figures(rows), *placement_speed.figures()]
    if under_slurm:
        slurm_rows = measure_slurm(under_slurm, draws, args.workers)
        show_slurm(slurm_rows)
        write(SLURM_ROWS, slurm_rows)
        found += slurm_figures(slurm_rows)
    if not found:
        return 0
    notes = {
        "pairs": f"{pairs} of each family and order; under Slurm's rules {draws} draws of each trace",
        "orders": "FIFO, and shortest remaining service first, both with backfill unless a family says otherwise",
        "leaf/pod": f"{NODES_PER_LEAF} nodes on a leaf; 1.3 within a leaf, 1.7 beyond",
        "events": f"each node slow {SLOW_NODES.factor[0]:g} to {SLOW_NODES.factor[1]:g} times for "
        f"{SLOW_NODES.hours[0]:g} to {SLOW_NODES.hours[1]:g} h, every {SLOW_NODES.days_between:g} days on average",
        "data": "PAL's profiles and traces" if DATA.is_dir() else "made-up profiles and traces",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    report("placement", "The right GPUs", found, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
