# SPDX-License-Identifier: Apache-2.0
"""Philly's published trace as the benchmarks read it; the files are no part of this repository."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from policy.simulate.inputs import read_traces
from policy.simulate.jobs import TraceJob

FOLDER = Path(os.environ.get("BERTH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
PHILLY = FOLDER / "traces" / "philly"

ALL = "philly_jobs.csv.gz"
WEEK = "philly_week_2017-10-16.csv"
NODES = "philly_vc_nodes_qssf.csv"


def need(*names: str) -> None:
    """Leave with a sentence, and without a failure, where the data are not there."""
    missing = [name for name in names if not (PHILLY / name).exists()]
    if missing:
        sys.stderr.write(
            f"left out: {PHILLY} lacks {', '.join(missing)}; BERTH_DATA names the folder of traces/philly\n"
        )
        raise SystemExit(0)


def jobs(name: str) -> list[TraceJob]:
    """The jobs of a file, in order of submission, from second 0 on; who submitted them is not in it."""
    return [replace(job, user="") for job in read_traces([str(PHILLY / name)]).jobs]


def nodes_of_accounts() -> dict[str, int]:
    """How many nodes of 8 GPUs each virtual cluster had."""
    with (PHILLY / NODES).open() as lines:
        return {row["vc"]: int(row["node num"]) for row in csv.DictReader(lines)}


def quotas(nodes: Mapping[str, int], accounts: Iterable[str], gpus: int) -> dict[str, int]:
    """Returns the GPUs of each account, in proportion to the nodes that each once had, by largest remainder."""
    named = sorted(set(accounts))
    whole = sum(nodes[name] for name in named)
    exact = {name: gpus * nodes[name] / whole for name in named}
    shares = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(named, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: gpus - sum(shares.values())]:
        shares[name] += 1
    return shares
