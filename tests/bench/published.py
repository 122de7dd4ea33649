# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=published`: PAL's published simulations again, and what surrounds them.

All in the model of PAL's artifact (`--mode pal-rounds`); Berth places all jobs of a round together there:

* the Sia-Philly traces at hand, FIFO, as published, with both Random baselines, and for PAL and Berth also with
  backfill; as they are, and in five draws that shift each arrival by up to 600 s;
* the same traces under LAS and SRTF, without repeated jobs, because an order that favours young jobs never ends then;
* a load sweep on 256 GPUs: Poisson arrivals, widths 1 (70 %), 2 (10 %), 4 (15 %), 8 (5 %), run times 80 % 10^U(1.5, 3)
  and 20 % 10^U(3, 4) minutes, all jobs of class A, as PAL's Synergy runs as they are shipped. Their widths came from a
  log that is not public, so nothing is published to compare with.

Four of the eight traces and the scores are in the folder that BERTH_DATA names; the others are in the same artifact
(github.com/hal-uw/blox-pal, branch `artifact`, workload-traces/philly/) and go beside them. `--page` writes the tables
into docs/results/pal.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from policy.cluster.cost import CostModel, pal_locality
from policy.cluster.fleet import Fleet
from policy.placement.registry import create
from policy.simulate.inputs.others import shifted
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import RoundPolicy, in_rounds
from policy.simulate.pal_rounds.rounds import RoundsSettings, run
from policy.simulate.report.chance import resampled
from policy.simulate.result import SimulationOutcome
from policy.simulate.world import Layout, build
from tests.bench.paper.draw import measured_runs
from tests.bench.paper.joint.policy import JointBerth
from tests.bench.placement_families import SHIFT_S
from tests.bench.simulate import data_folder, sia_fleet, sia_trace
from tests.bench.table import FOLDER, Figure, report

ROWS = FOLDER.parent / "published.json"
PAGE = Path(__file__).parents[2] / "docs" / "results" / "pal.md"
TRACES = range(1, 9)
SHIFTS = range(6)
"""Draws that shift the arrivals; 0 leaves them as they are."""
POLICIES = ("berth", "pal", "pm-first", "packed-sticky", "packed", "random-sticky", "random")
SHIFTED = POLICIES[:4]
HOURS = ("avg_jct", "geomean_jct", "p99_jct", "makespan")
SWEPT = ("berth", "pal", "pm-first", "packed", "packed-sticky")
PARTS = ("published", "backfill", "orders", "sweep")
LOADS = (8, 10, 12, 14)
"""Jobs an hour."""
SYNERGY = Layout(64, 4)
JOBS, MEASURED = 1_200, range(800, 1_000)
"""The cluster needs some days to fill."""

PEER = "PAL's artifact, the same traces"
PUBLISHED = {"avg_jct_h": 0.571, "makespan_h": 0.483}
"""PAL over Packed-Sticky, geometric means over the eight traces, of a re-statement of the artifact that equals it to
the digits shown (published: -43 % and -47 %)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    part: str
    trace: str
    order: str
    policy: str
    avg_jct_h: float
    geomean_jct_h: float
    p99_jct_h: float
    makespan_h: float
    allocated: float
    useful: float
    efficiency: float
    """GPU time of the measured jobs on ideal places, over the GPU time that all jobs held."""
    spread: float
    """Part of the GPU time of jobs on 2 to 4 GPUs that they spent on several nodes."""
    shift: int


def policy_named(name: str) -> RoundPolicy:
    """As on the command line."""
    if name == "berth":
        return in_rounds(JointBerth())
    kind, _, sticky = name.partition("-sticky")
    if kind in {"packed", "random"}:
        return in_rounds(create(kind), sticky=bool(name != kind and not sticky))
    return in_rounds(create(name))


def sia(number: int, order: str, policy: str, shift: int = 0, *, backfill: bool = False) -> Row:
    """One Sia-Philly trace."""
    data = data_folder()
    assert data, "asked only where the data is"
    settings = RoundsSettings(order=order, backfill=backfill, repeat=2.0 if order == "fifo" else 0.0)
    part = "backfill" if backfill else "published" if order == "fifo" else "other orders"
    jobs = sia_trace(data, number)
    if shift:
        jobs = sorted(shifted(jobs, SHIFT_S, shift), key=lambda job: job.submit)
    return _row(part, f"workload-{number}", policy, jobs, sia_fleet(data), settings, shift)


def synergy_jobs(per_hour: float, seed: int) -> list[TraceJob]:
    """Jobs of the load sweep."""
    draw = np.random.default_rng(seed)
    submits = np.cumsum(draw.exponential(3600.0 / per_hour, JOBS))
    widths = draw.choice((1, 2, 4, 8), JOBS, p=(0.7, 0.1, 0.15, 0.05))
    powers = np.where(draw.random(JOBS) < 0.8, draw.uniform(1.5, 3.0, JOBS), draw.uniform(3.0, 4.0, JOBS))
    return [
        TraceJob(str(number), int(width), float(submit), 60.0 * 10 ** float(power), app_class="compute")
        for number, (width, submit, power) in enumerate(zip(widths, submits, powers, strict=True))
    ]


def synergy_fleet(seed: int) -> Fleet:
    """256 GPUs, each with one run of a made-up profile of ResNet-50, as PAL's simulator draws them."""
    lines = measured_runs("compute", seed)
    runs = np.array([float(line.rsplit(",", 1)[1]) for line in lines[1:]])
    draw = np.random.default_rng(seed)
    scores = draw.choice(runs, (SYNERGY.nodes, SYNERGY.gpus_per_node)) / float(np.median(runs))
    return build(SYNERGY, {"compute": scores}, CostModel(pal_locality()))


def swept(per_hour: int, order: str, policy: str, *, distance: bool = True) -> Row:
    """One point of the load sweep; without `distance` other nodes cost nothing."""
    settings = RoundsSettings(round_s=300.0, order=order, measured=MEASURED)
    jobs, fleet = synergy_jobs(per_hour, seed=per_hour), synergy_fleet(42)
    if not distance:
        fleet = replace(fleet, costs=CostModel(pal_locality(1.0)))
    part = "load sweep" if distance else "load sweep without distance"
    return _row(part, f"{per_hour} jobs an hour", policy, jobs, fleet, settings)


def _row(
    part: str,
    trace: str,
    policy: str,
    jobs: Sequence[TraceJob],
    fleet: Fleet,
    settings: RoundsSettings,
    shift: int = 0,
) -> Row:
    outcome = run(jobs, fleet, policy_named(policy), settings)
    found = outcome.figures()
    values = {f"{name}_h": float(str(found[f"{name}_s"])) / 3600 for name in HOURS}
    values |= {name: float(str(found[f"gpu_util_{name}"])) for name in ("allocated", "useful")}
    values |= dict(zip(("efficiency", "spread"), _places(outcome, fleet), strict=True))
    return Row(part, trace, settings.order, policy, **values, shift=shift)


def _places(outcome: SimulationOutcome, fleet: Fleet) -> tuple[float, float]:
    """Returns the efficiency, and the part of the time of small jobs on several nodes."""
    measured = {job.id for job in outcome.jobs}
    width = int(fleet.size.max())
    held = {one.job: 0.0 for one in outcome.stretches}
    small = [one for one in outcome.stretches if 1 < len(one.gpus) <= width]
    for one in outcome.stretches:
        held[one.job] += len(one.gpus) * (one.end - one.start)
    ideal = sum(job.gpus * job.work for job in outcome.jobs)
    times = [len(one.gpus) * (one.end - one.start) for one in small]
    spread = [len({gpu // width for gpu in one.gpus}) > 1 for one in small]
    return (
        ideal / max(1.0, sum(held[name] for name in measured)),
        sum(map(float.__mul__, times, map(float, spread))) / max(1.0, sum(times)),
    )


def at_hand() -> list[int]:
    """Returns the numbers of the traces that are there."""
    data = data_folder()
    folder = data / "pal" / "traces-sia-philly" if data else Path("/nowhere")
    return [number for number in TRACES if (folder / f"workload-{number}.csv").exists()]


def asked(parts: Sequence[str], *, quick: bool) -> Iterator[partial[Row]]:
    """All runs of these parts."""
    traces, shifts = at_hand(), SHIFTS[:2] if quick else SHIFTS
    if "published" in parts:
        yield from (partial(sia, number, "fifo", policy) for number in traces for policy in POLICIES)
        for shift in shifts[1:]:
            yield from (partial(sia, number, "fifo", policy, shift) for number in traces for policy in SHIFTED)
    if "backfill" in parts:
        for shift in shifts:
            for number in traces:
                yield from (partial(sia, number, "fifo", one, shift, backfill=True) for one in ("berth", "pal"))
    if "orders" in parts:
        for order in ("las", "srtf"):
            yield from (partial(sia, number, order, policy) for number in traces for policy in POLICIES)
    if "sweep" in parts:
        for policy in ("pal", "packed"):
            yield partial(swept, LOADS[0], "fifo", policy, distance=False)
        for per_hour in LOADS[:1] if quick else LOADS:
            for order in ("fifo", "las", "srtf"):
                yield from (partial(swept, per_hour, order, policy) for policy in SWEPT)


def ratio(rows: Sequence[Row], name: str, ours: str, peer: str, part: str, *, shifts: bool) -> tuple[float, ...]:
    """Returns the geometric mean of a policy's figure over another's and its 95 % interval over traces.

    With `shifts` over the five draws of each trace, else over the traces as they are.
    """
    at = {(row.trace, row.shift, row.policy): row for row in rows if row.part == part and row.order == "fifo"}
    keys = [key[:2] for key in at if key[2] == ours and (*key[:2], peer) in at and bool(key[1]) is shifts]
    logs = np.array([np.log(getattr(at[*key, ours], name) / getattr(at[*key, peer], name)) for key in keys])
    if not logs.size:
        return ()
    lower, upper = np.percentile(resampled(logs, [trace for trace, _ in keys]), (2.5, 97.5))
    return tuple(float(value) for value in np.exp((logs.mean(), lower, upper)))


COMPARED = (
    ("mean time", "avg_jct_h", "pal", "packed-sticky", "published", "-43 %"),
    ("mean time", "avg_jct_h", "pm-first", "packed-sticky", "published", "-40 %"),
    ("mean time", "avg_jct_h", "berth", "packed-sticky", "published", ""),
    ("makespan", "makespan_h", "pal", "packed-sticky", "published", "-47 %"),
    ("makespan", "makespan_h", "berth", "packed-sticky", "published", ""),
    ("GPUs held", "allocated", "pal", "packed-sticky", "published", "+28 %"),
    ("useful GPU time until the last job ends", "useful", "pal", "packed-sticky", "published", "+28 %"),
    ("useful part of the GPU time held", "efficiency", "pal", "packed-sticky", "published", "+28 %"),
    ("mean time", "avg_jct_h", "berth", "pal", "published", ""),
    ("makespan", "makespan_h", "berth", "pal", "published", ""),
    ("mean time, with backfill", "avg_jct_h", "berth", "pal", "backfill", ""),
    ("makespan, with backfill", "makespan_h", "berth", "pal", "backfill", ""),
)
"""What the page tells: the words, the figure, the policy, its peer, the part, and what is published."""


def figures(rows: Sequence[Row]) -> list[Figure]:
    """PAL beside Packed-Sticky on the published set-up."""
    found = [(name, ratio(rows, name, "pal", "packed-sticky", "published", shifts=False)) for name in PUBLISHED]
    peers = [f"{name.rpartition('_')[0]}_vs_packed_sticky" for name in PUBLISHED]
    return [
        Figure(called, values[0], "PAL / Packed-Sticky", PEER, PUBLISHED[name])
        for (name, values), called in zip(found, peers, strict=True)
        if values
    ]


def page(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the tables of the page, without the rows of parts that were not run."""
    yield "| | | as they are | shifted | published |"
    yield "|---|---|---|---|---|"
    for words, name, ours, peer, part, published in COMPARED:
        cells = [_told(ratio(rows, name, ours, peer, part, shifts=shifts)) for shifts in (False, True)]
        if any(cells):
            yield f"| {words} | {ours} over {peer} | {' | '.join(cells)} | {published} |"
    traces = sorted({row.trace for row in rows if row.trace.startswith("workload")})
    yield ""
    yield (
        "| berth over pal, mean time, by trace | " + " | ".join(one.removeprefix("workload-") for one in traces) + " |"
    )
    yield "|---|" + "---|" * len(traces)
    for part, shifts in (("published", False), ("published", True), ("backfill", False), ("backfill", True)):
        found = [
            ratio([row for row in rows if row.trace == trace], "avg_jct_h", "berth", "pal", part, shifts=shifts)
            for trace in traces
        ]
        if all(found):
            cells = [f"{one[0]:.3f}" for one in found]
            words = f"{'as published' if part == 'published' else part}{', shifted' if shifts else ''}"
            yield f"| {words} | {' | '.join(cells)} |"
    swept_rows = [row for row in rows if row.part.startswith("load sweep")]
    if swept_rows:
        yield ""
        yield "| load sweep | order | policy | mean time over packed's | small jobs' time on several nodes |"
        yield "|---|---|---|---|---|"
    packed = {(row.part, row.trace, row.order): row.avg_jct_h for row in swept_rows if row.policy == "packed"}
    for row in swept_rows:
        over = row.avg_jct_h / packed[row.part, row.trace, row.order]
        what = f"{row.trace}{', other nodes cost nothing' if row.part != 'load sweep' else ''}"
        yield f"| {what} | {row.order} | {row.policy} | {over:.3f} | {row.spread:.1%} |"


def _told(values: Sequence[float]) -> str:
    return f"{values[0]:.3f} ({values[1]:.3f} to {values[2]:.3f})" if values else ""


def into_page(rows: Sequence[Row]) -> None:
    """Replaces the tables of the page, which stand between two comments."""
    begin, end = "<!-- tables -->", "<!-- end of tables -->"
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text(head + begin + "\n" + "\n".join(page(rows)) + "\n" + end + tail, encoding="utf-8")


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one draw, and one load of the sweep only")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to run (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/results/pal.md")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    args = parser.parse_args()
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        futures = [pool.submit(one) for one in asked(args.parts.split(","), quick=args.quick)]
        for done, future in enumerate(futures, 1):
            rows.append(future.result())
            # So that what a run of hours has found stays, whatever ends it.
            ROWS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
            print(f"\r{done} of {len(futures)} runs   ", end="", flush=True)
    print()
    print("\n".join(page(rows)))
    if args.page:
        into_page(rows)
    for row in rows:
        print(
            f"{row.trace:18} {row.order:5} {row.policy:14} {row.avg_jct_h:9.3f} {row.makespan_h:9.2f} {row.useful:6.3f}"
        )
    report("published", "PAL's published simulations", figures(rows), {"data": str(bool(data_folder()))})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
