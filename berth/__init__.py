# SPDX-License-Identifier: Apache-2.0
"""Berth for notebooks and scripts: every function returns a pandas DataFrame, which writes CSV and parquet itself.

A policy is a class with one method; `simulate` runs it beside others, and `compare` shows which differences are real:

    import numpy as np
    from berth import NotNow, Policy, compare, positions, simulate

    class FirstFit(Policy):
        name = "first-fit"

        def place(self, demand, view):
            for node in np.flatnonzero(self.fitting(demand, view)):
                gpus = positions(int(view.free[node]))[: demand.k]
                mask = sum(1 << gpu for gpu in gpus)
                same = np.flatnonzero(self.fitting(demand, view) & (view.free & mask == mask))[: demand.n]
                if len(gpus) == demand.k and len(same) == demand.n:
                    return self.berth(demand, view, same.tolist(), gpus, "the first nodes with the same free GPUs")
            raise NotNow("no nodes have the same free GPUs")

    runs = simulate("trace.csv", ["slurm", "pal", FirstFit], nodes=16, gpus_per_node=8)
    compare(runs, beside="pal").to_csv("beside-pal.csv")
    runs.to_parquet("runs.parquet")

It needs the extra `research`. Nothing else of Berth imports it, or pandas.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from policy.cli.past.report import moment
from policy.placement.base import Berth, NotNow, Policy, positions
from policy.report.rows import COLUMNS, JobRun, read
from policy.simulate.report.chance import figure, ratio
from policy.simulate.report.summary import Summary, lines
from policy.simulate.study import DRAWS, SHIFT_S, Study, cells, check
from policy.simulate.sweep import GIVEN, prepare, run_all
from policy.slurm.accounting import days, opened
from topology import scores
from topology.calibrate import runs, statistics

__all__ = ["Berth", "NotNow", "Policy", "compare", "positions", "report", "score", "simulate"]

PathLike = str | os.PathLike[str]


def simulate(
    traces: PathLike | Sequence[PathLike],
    policies: Sequence[str | type[Policy]] = ("slurm", "berth"),
    *,
    seeds: Iterable[int] = range(1, DRAWS + 1),
    shift: float = SHIFT_S,
    workers: int = 0,
    **study: Any,
) -> pd.DataFrame:
    """Simulates each trace by itself with each policy and draw of arrivals; returns a row for each run.

    A policy is a name of `berth simulate --policy`, `FILE.py:CLASS`, or a class, which runs in this process alone.
    `study` are the keys of a study file, such as `nodes`, `gpus_per_node`, `machine`, `nodes_per_leaf` or `scores`.
    """
    classes = {one.name: one for one in policies if not isinstance(one, str)}
    GIVEN.update(classes)
    paths = [traces] if isinstance(traces, str | os.PathLike) else traces
    names = tuple(one if isinstance(one, str) else one.name for one in policies)
    rows = []
    for path in paths:
        one = Study((os.fspath(path),), names, apart=True, seeds=tuple(seeds), shift=shift, **study)
        check(one)
        rows += [run.row() for run in run_all(one, cells(one), prepare(one), 1 if classes else workers)]
    return pd.DataFrame(rows)


def compare(
    table: pd.DataFrame, beside: str = "slurm", figures: Sequence[str] = ("avg_jct_s", "avg_wait_s")
) -> pd.DataFrame:
    """Compares the policies of `simulate`'s rows with one of them, by pairs of the same trace and draw.

    A ratio below 1 is less time than `beside`. `lower` and `upper` are its 95 % interval by bootstrap, over traces if
    there are several; `chance` is True if chance alone may explain the difference.
    """
    rows = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    played = [Summary(row["policy"], row["seed"], row, trace=row["trace"]) for row in rows]
    every = {line.policy: line for line in lines(played)}
    peer, told = every.pop(beside), list[dict[str, Any]]()
    for name, line in every.items():
        for key in figures:
            found = ratio(line, peer, figure(key))
            sides = {"policy": name, "beside": beside, "figure": key, "ratio": found.value, "pairs": found.pairs}
            told.append({**sides, "lower": found.lower, "upper": found.upper, "chance": found.is_chance})
    return pd.DataFrame(told)


def report(source: PathLike = "", since: str = "now-30days", until: str = "now") -> pd.DataFrame:
    """Returns a row for each run of a GPU job, from a file of `berth collect` or from sacct between two times."""
    if source:
        with opened(Path(source)) as text:
            return _table(read(text))
    found = (run for _, _, text in days(moment(since), moment(until), COLUMNS) for run in read(text))
    return _table(found).drop_duplicates(["id", "start"], keep="last", ignore_index=True)


def _table(found: Iterable[JobRun]) -> pd.DataFrame:
    rows = []
    for run in (one for one in found if one.gpus or one.part):
        said = {f"berth_{key}": value for key, value in run.said.items()}
        nodes = {"nodes": ",".join(run.nodes), "wait_s": run.wait_s, "gpu_s": run.gpu_s}
        rows.append({**asdict(replace(run, said={})), **nodes, **said})
    return pd.DataFrame(rows).drop(columns="said", errors="ignore")


def score(source: PathLike) -> pd.DataFrame:
    """Returns a row for each GPU and application class, from a score table, PAL's table, or calibration runs."""
    with Path(source).open("rb") as file:
        is_runs = file.read(1) == b"{"
    if not is_runs:
        return pd.DataFrame(map(asdict, scores.load(source)))
    found = statistics.calibrate(runs.load(Path(source)), time.time())
    return pd.DataFrame(map(asdict, statistics.table(found.estimates)))
