# SPDX-License-Identifier: Apache-2.0
"""`make measurements`: docs/results/tables from what benchmarks and tests left under build/, then the plots.

A table that was not measured anew stays as it was; each file says when and where it was taken.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import results
from tests.bench.page_texts import CALLS, REMARKS
from tests.bench.results_tables import COLUMNS, TABLES, Table

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
MACHINES = {"n1": "DGX-1V, cube mesh", "n2": "HGX H100, NVSwitch", "n3": "RTX A6000, pairs", "n4": "L40S, PCIe"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def made(name: str, notes: Mapping[str, str], columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Table:
    """Returns a table with its command, and with what is to be said of its figures."""
    said = {"command": CALLS.get(name, f"make bench NAME={name}"), **notes}
    return Table(name, said, REMARKS.get(name, "").strip(), columns, [[str(cell) for cell in row] for row in rows])


def taken(path: Path) -> dict[str, str]:
    """When a file was made, and where."""
    day = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).date().isoformat()
    release = ".".join(platform.release().split(".")[:2])
    return {"machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {release}", "date": day}


def bench(path: Path) -> Table:
    """One row for each figure of a benchmark."""
    data = read(path)
    notes = taken(path) | data.pop("notes")
    reached = {True: "yes", False: "no", None: ""}
    rows = [
        (
            name,
            number(figure["value"]),
            figure["unit"],
            figure["peer"],
            number(figure["peer_value"]),
            number(figure["ratio"]),
            figure["must"],
            reached[figure["good"]],
        )
        for name, figure in data.items()
    ]
    return made(path.stem, notes, COLUMNS, rows)


def philly(paths: Sequence[Path]) -> Table:
    """One row for each scenario and policy instead of one for each figure; all as ratios to plain Slurm's rules."""
    data = read(paths[0])
    notes = taken(paths[0]) | data.pop("notes")
    metrics = ("avg_jct_s", "geomean_jct_s", "p99_jct_s", "avg_wait_s", "makespan_s", "slow_down", "in_one_leaf")
    reasons = ("fair_share_h", "fragmentation_h", "capacity_h", "priority_h")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, figure in data.items():
        for policy in ("pinned-random", "packed", "berth"):
            scenario, middle, metric = name.partition(f"_{policy}_")
            if middle:
                found.setdefault((scenario, policy), {})[metric] = figure
    rows = []
    for (scenario, policy), figures in found.items():
        ratios = (number(figures[name]["ratio"]) if name in figures else "" for name in metrics)
        hours = (
            f"{number(figures[name]['peer_value'])} -> {number(figures[name]['value'])}" if name in figures else ""
            for name in reasons
        )
        rows.append((scenario, policy, *ratios, *hours))
    columns = ("scenario", "policy", *(name.removesuffix("_s") for name in metrics), *reasons)
    return made("philly", notes, columns, rows)


def families(paths: Sequence[Path]) -> Table:
    """Gains over PAL by family and order."""

    def percent(gain: Any) -> str:
        return f"{100 * gain['value']:.1f} ({100 * gain['lower']:.1f} to {100 * gain['upper']:.1f})" if gain else ""

    metrics = ("geomean", "mean", "p99", "makespan")
    rows: list[tuple[str, ...]] = []
    for one in (one for path in paths for one in read(path)):
        gains, told = ([percent(one[peer].get(metric)) for metric in metrics] for peer in ("gains", "fed"))
        closed = f"{one['gap_closed']['value']:.2f}" if one["gap_closed"] else ""
        bounds = (closed, percent(one["relaxation"].get("geomean")), percent(one["random"]))
        rows.append((one["family"], one["order"], *gains, *bounds, f"{one['moves']:.2f}", f"{one['moves_pal']:.2f}"))
        if one["fed"]:
            rows.append(("the same, told", one["order"], *told, *[""] * 5))
    columns = ("family", "order", *metrics, "gap closed", "relaxation", "random", "moves a job", "PAL's")
    return made("placement-families", taken(paths[-1]), columns, rows)


def published(paths: Sequence[Path]) -> Table:
    """PAL's simulations, run by run."""
    rows = []
    for one in (one for path in paths for one in read(path)):
        hours = (f"{one[name]:.2f}" for name in ("avg_jct_h", "geomean_jct_h", "p99_jct_h", "makespan_h"))
        shares = (f"{100 * one[name]:.1f} %" for name in ("allocated", "useful"))
        rows.append((one["part"], one["trace"], one["order"], one["policy"], *hours, *shares))
    hours_of = ("JCT h", "geomean h", "p99 h", "makespan h")
    columns = ("part", "workload", "order", "policy", *hours_of, "allocated", "useful")
    return made("pal-runs", taken(paths[-1]), columns, rows)


def placements(paths: Sequence[Path]) -> Table:
    """The GPUs that a job can open, where Slurm alone chose less."""
    rows, summary = [], []
    for path in paths:
        version, every = path.stem.removeprefix("placements-"), read(path)
        less = [r for r in every if r["plain_merit"][:2] < r["best_merit"][:2]]
        exact = sum(r["berth_merit"] == r["best_merit"] for r in every)
        alone = len(every) - len(less)
        summary.append(f"Slurm {version}: {len(every)} rows, Berth best in {exact}, Slurm alone in {alone}.")
        for r in less:
            plain, berth = (
                f"{','.join(map(str, r[who]))} ({r[who + '_merit'][0]:g}; {r[who + '_merit'][1]:g})"
                for who in ("plain", "berth")
            )
            busy = ",".join(map(str, r["busy"])) or "-"
            rows.append((version, MACHINES[r["node"]], busy, r["form"], plain, berth))
    notes = taken(paths[-1]) | {"summary": " ".join(summary)}
    return made("best-sets", notes, ("Slurm", "machine", "in use", "request", "Slurm alone", "Berth"), rows)


def matrix(paths: Sequence[Path]) -> Table:
    """How many forms of jobs did as on plain Slurm."""
    rows = []
    for path in paths:
        table = read(path)
        plain = {(job, step): cell for job, cells in table["plain"].items() for step, cell in cells.items()}
        ran = {key: cell for key, cell in plain.items() if cell[0] == 0}
        same = [
            sum(table[mode].get(job, {}).get(step) == cell for (job, step), cell in ran.items() if job in table[mode])
            for mode in ("alive", "dead")
        ]
        of = [sum(job in table[mode] for job, _ in ran) for mode in ("alive", "dead")]
        cells = (f"{s} of {o}" for s, o in zip(same, of, strict=True))
        rows.append((path.stem.removeprefix("matrix-"), len(table["plain"]), len(plain), len(ran), *cells))
    columns = ("Slurm", "job forms", "cells", "ran with plain Slurm", "alive: same", "dead: same")
    return made("matrix", taken(paths[-1]), columns, rows)


def failing(paths: Sequence[Path]) -> Table:
    """What jobs fail of, and who runs again."""
    rows = [
        (path.stem.removeprefix("failing-"), *(one[name] for name in ("how", "class", "again", "ended", "why")))
        for path in paths
        for one in read(path)
    ]
    return made("failing", taken(paths[-1]), ("Slurm", "what happens", "class", "run again", "ended", "why"), rows)


def guard(paths: Sequence[Path]) -> Table:
    """What the guard does to guests, and how soon."""
    tables = [{one["what"]: one["seconds"] for one in read(path)} for path in paths]
    rows = [
        (what, *(f"{table[what]:.1f}" if what in table else "" for table in tables))
        for what in dict.fromkeys(what for table in tables for what in table)
    ]
    columns = ("seconds", *(path.stem.removeprefix("guard-rows-").replace("-", ", ") for path in paths))
    return made("guard-rows", taken(paths[-1]), columns, rows)


def looks(paths: Sequence[Path]) -> Table:
    """How soon trouble of a job that runs is told, on a real Slurm."""
    rows = [
        (path.stem.removeprefix("looks-rows-"), one["what"], one["law"], str(one["law_s"]), str(one["told_s"]))
        for path in paths
        for one in read(path)
    ]
    return made("looks-rows", taken(paths[-1]), ("Slurm", "trouble", "a site's law", "law here, s", "told, s"), rows)


def found(build: Path) -> Iterator[Table]:
    """Yields a table for each measurement that lies in the folder."""
    for path in sorted((build / "bench").glob("*.json")):
        yield philly([path]) if path.stem == "philly" else bench(path)
    for pattern, table in (
        ("placement-families.json", families),
        ("published.json", published),
        ("placements-*.json", placements),
        ("matrix-*.json", matrix),
        ("failing-*.json", failing),
        ("guard-rows-*.json", guard),
        ("looks-rows-*.json", looks),
    ):
        if paths := sorted(build.glob(pattern)):
            yield table(paths)


def main() -> int:
    for one in found(BUILD):
        (TABLES / f"{one.name}.csv").write_text(one.text(), encoding="utf-8")
        print(f"measurements: wrote docs/results/{one.link}")
    return results.main()


if __name__ == "__main__":
    raise SystemExit(main())
