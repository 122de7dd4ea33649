# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=scores`: how good the scores are that calibration makes.

* Simulated fleets of 512 GPUs with known truth: noise as in Longhorn's profiles, 2 % of the chips 20 % slow, nodes that
  wait (a fifth of the time in no signal), heat, foreign processes; nodes of 4 and of 8 GPUs; three visits. The peers
  are the exact posterior of the same fleets, by one who knows the fleet's own parameters, and each GPU's median run,
  PAL's score. Where two widths are measured the figure is the worse.
* What else happens to fleets: whole slow nodes, nodes that wait often or always, steps, drifts; chips that are slow by
  little, after few and many visits.
* Between calibrations: scores refreshed by the step times of jobs and by clocks.
* PAL's published profiles: what remains of its gain with scores that one can know, on every cluster whose profile is at
  hand. Needs the published data: the folder that BERTH_DATA names, or `../shared/data` beside the repository.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from tests.bench.paper.fleet import draw
from tests.bench.scores_clusters import SIDES, Row
from tests.bench.scores_clusters import rows as cluster_rows
from tests.bench.scores_fleets import (
    LONGHORN,
    WIDTHS,
    Quality,
    announced,
    called_slow_while_waiting,
    drifted,
    quality,
)
from tests.bench.scores_profiles import Gain, gains, waiting_visits
from tests.bench.scores_steps import Weeks, living
from tests.bench.simulate import data_folder
from tests.bench.table import FOLDER, Figure, at_least, at_most, report
from topology.calibrate.runs import seconds_of
from topology.calibrate.statistics import calibrate

FLEETS, QUICK_FLEETS = 20, 4
FACTORS, VISITS = (1.05, 1.08, 1.10, 1.15, 1.20), (1, 2, 3, 5)
EXACT, MEDIAN = "exact posterior", "median run (PAL's score)"
BIG = replace(LONGHORN, nodes=1_024, gpus=8, visits=6)
CURVES = FOLDER.parent / "scores.json"
STUCK = 4
PUBLISHED, PUBLISHED_JCT = "on the artifact's 64 GPUs, same traces", 0.768
"""As `make bench NAME=published` measures it."""


@dataclass(frozen=True, slots=True)
class Point:
    """Chips of one slowness after so many visits."""

    factor: float
    visits: int
    called_slow: float
    stands_out: float
    precision: float
    exact: float
    error: float
    exact_error: float


def curve(seeds: range) -> list[Point]:
    """How many of the slow chips are found, by how slow they are and how often they were looked at."""
    points = []
    for factor in FACTORS:
        for visits in VISITS:
            one = quality(replace(LONGHORN, slow=factor, visits=visits), seeds)
            exactly = one.exactly_found.recall
            shares = one.found.recall, one.outliers.recall, one.outliers.precision, exactly
            points.append(Point(factor, visits, *shares, one.error, one.exact_error))
    return points


def print_curve(points: list[Point]) -> None:
    """For people."""
    table = Table(title="slow chips found, nodes of 4 GPUs")
    for column in ("slower by", "visits", "called slow", "stands out", "precision", EXACT, "error", "exact error"):
        table.add_column(column)
    for one in points:
        shares = (one.called_slow, one.stands_out, one.precision, one.exact)
        errors = (f"{one.error:.4f}", f"{one.exact_error:.4f}")
        table.add_row(f"{one.factor - 1:.0%}", str(one.visits), *(f"{share:.3f}" for share in shares), *errors)
    Console(width=130).print(table)


def print_gains(rows: list[Gain]) -> None:
    """For people."""
    table = Table(title="mean JCT and makespan over Packed-Sticky's, Longhorn's profiles, four Sia-Philly traces")
    for column in ("jobs meet", "scores are", "policy", "JCT", "makespan"):
        table.add_column(column)
    for one in rows:
        table.add_row(one.truth, one.knowledge, one.policy, f"{one.jct:.3f}", f"{one.makespan:.3f}")
    Console(width=130).print(table)


def print_clusters(rows: list[Row]) -> None:
    """For people."""
    table = Table(
        title="PAL's gain over Packed-Sticky in mean JCT, by the scores that it is given (four Sia-Philly traces)"
    )
    for column in ("cluster", "jobs meet", *SIDES):
        table.add_column(column)
    for one in rows:
        gains_ = (f"{1.0 - getattr(one, side):.1%}" for side in SIDES)
        table.add_row(one.cluster, one.meets, *gains_)
    Console(width=130).print(table)


def cluster_figures(rows: list[Row]) -> list[Figure]:
    """What our scores leave of PAL's gain, beside the raw ones."""
    return [
        Figure(
            "pal_jct_" + re.sub(r"\W+", "_", f"{one.cluster} {one.meets}".lower()),
            one.posterior,
            f"PAL / Packed-Sticky, mean JCT; oracle {one.oracle:.3f}",
            "raw scores",
            one.raw,
        )
        for one in rows
    ]


def main_figures(by_width: dict[int, Quality]) -> list[Figure]:
    """Of the fleets that the design asks for."""
    worst = max(by_width.values(), key=lambda one: one.error / one.exact_error)
    recall = min(by_width.values(), key=lambda one: one.found.recall)
    precision = min(by_width.values(), key=lambda one: one.found.precision)
    figures = [
        at_least("recall_20", recall.found.recall, 0.98, "", EXACT, recall.exactly_found.recall),
        at_least("precision_20", precision.found.precision, 0.95, "", EXACT, precision.exactly_found.precision),
        at_most("excess_over_bayes", worst.error / worst.exact_error - 1.0, 0.10, "part of the error"),
    ]
    for width, one in by_width.items():
        figures.append(Figure(f"error_{width}", one.error, "rms of log score", MEDIAN, one.median_error))
        figures.append(Figure(f"covered_{width}", one.covered, "of truths in 95 % intervals"))
    return figures


def other_figures(seeds: range) -> list[Figure]:
    """Whole nodes, waiting, steps, drifts, time."""
    nodes = quality(replace(LONGHORN, slow_gpus=0.01, slow_nodes=0.02), seeds)
    waiting = replace(LONGHORN, waiting=0.05, silent=0.0, stuck=tuple(range(STUCK)))
    some, called = called_slow_while_waiting(waiting, seeds)
    silent_some, silent = called_slow_while_waiting(replace(LONGHORN, waiting=0.05, silent=1.0), seeds)
    steps = announced(seeds)
    told, error, median_error = drifted(seeds)
    big = draw(BIG, 1).visits
    start = time.process_time()
    calibrate(big, seconds_of(big[-1].at))
    taken = time.process_time() - start
    return [
        Figure("recall_20_nodes", nodes.found.recall, "half of the slow GPUs", EXACT, nodes.exactly_found.recall),
        Figure("precision_20_nodes", nodes.found.precision, "", EXACT, nodes.exactly_found.precision),
        at_most("waiting_as_slow", called, 0, f"of {some} GPUs of nodes that waited"),
        Figure("silent_waiting_as_slow", silent, f"of {silent_some}; nothing but their times told it"),
        Figure("steps_announced", steps.seen / steps.steps, "of GPUs that became 15 % slower, after two visits"),
        Figure("steps_false", steps.false, f"in {steps.gpus} GPUs x 8 visits"),
        Figure("drifts_announced", told, "of GPUs that grew 14 % slower in 8 visits"),
        Figure("drift_error", error, "rms of their log scores", MEDIAN, median_error),
        Figure("calibrate_8192_s", taken, "CPU s, 1,024 nodes x 8 GPUs x 6 visits"),
    ]


def living_figures(seeds: range) -> list[Figure]:
    """Two weeks and a thousand jobs after the last visit; eight of 512 chips became 15 % slower, two hosts 30 %."""
    both, steps = living(seeds), living(seeds, Weeks(clocks=False))
    before = "last calibration"
    return [
        at_most("living_error", both.error, both.error_before, "rms of log score", before, both.error_before),
        Figure("living_error_steps", steps.error, "step times alone", before, steps.error_before),
        Figure("living_changed_error", both.changed_error, "of chips that changed", before, both.changed_error_before),
        Figure("living_changed_recall", both.calls.recall, "of these chips, called changed"),
        at_least("living_changed_precision", both.calls.precision, 0.95, "of those called changed"),
        at_most("late_host_as_slow", both.blamed + steps.blamed, 0, f"of {both.late + steps.late} GPUs of late hosts"),
    ]


def profile_figures(rows: list[Gain]) -> list[Figure]:
    """What remains of PAL's gain."""
    slow, found, both = waiting_visits()
    known = {(one.truth, one.knowledge): one for one in rows if one.policy == "pal"}
    best, single = known["next run", "truth"], known["next run", "one run"]
    unit = "PAL / Packed-Sticky, mean JCT"
    return [
        Figure("waiting_found", both, f"of {slow} ResNet-50 jobs whose node waited; {found} named"),
        Figure("pal_jct_all_known", best.jct, unit, PUBLISHED, PUBLISHED_JCT),
        Figure("pal_jct_one_run", single.jct, unit, PUBLISHED, PUBLISHED_JCT),
        Figure("pal_jct_honest", known["next run", "estimate"].jct, unit, PUBLISHED, PUBLISHED_JCT),
    ]


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few fleets, no traces")
    parser.add_argument("--fleets", type=int, default=FLEETS, help="of each kind (default: %(default)s)")
    parser.add_argument(
        "--clusters", type=int, default=3, help="drawn from the published profiles (default: %(default)s)"
    )
    args = parser.parse_args()
    fleets = QUICK_FLEETS if args.quick else args.fleets
    by_width = {
        gpus: quality(replace(LONGHORN, gpus=gpus, nodes=nodes), range(fleets)) for gpus, nodes in WIDTHS.items()
    }
    some = range(max(fleets // 4, 2))
    figures = [*main_figures(by_width), *other_figures(some), *living_figures(some)]
    points = curve(some)
    print_curve(points)
    rows: list[Gain] = []
    clusters: list[Row] = []
    if data_folder() and args.clusters and not args.quick:
        rows = gains(range(args.clusters))
        print_gains(rows)
        figures += profile_figures(rows)
        clusters = cluster_rows(rows, range(args.clusters))
        print_clusters(clusters)
        figures += cluster_figures(clusters)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tables = {"curve": [asdict(one) for one in points], "gains": [asdict(one) for one in rows]}
    tables["clusters"] = [asdict(one) for one in clusters]
    CURVES.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")
    report("scores", "Scores", figures, {"fleets": str(fleets), "data": str(bool(data_folder()))})
    return 0 if all(one.good is not False for one in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
