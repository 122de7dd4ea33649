"""Philly's published trace as the benchmarks read it; the files are no part of this repository."""

from __future__ import annotations

import csv
import gzip
import os
import sys
from datetime import datetime
from pathlib import Path

from policy.simulate.jobs import Job

FOLDER = Path(os.environ.get("BERTH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
PHILLY = FOLDER / "traces" / "philly"

ALL = "philly_jobs.csv.gz"
WEEK = "philly_week_2017-10-16.csv"
NODES = "philly_vc_nodes_qssf.csv"


def need(*names: str) -> None:
    """Leave with a sentence where the data are not there."""
    missing = [name for name in names if not (PHILLY / name).exists()]
    if missing:
        sys.exit(f"{PHILLY} lacks {', '.join(missing)}; set BERTH_DATA to the folder that has traces/philly")


def jobs(name: str) -> list[Job]:
    """The jobs of a file, in order of submission, from second 0 on."""
    path = PHILLY / name
    with gzip.open(path, "rt") if name.endswith(".gz") else path.open() as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: row["timestamp"])
    # The trace names no time zone; only differences count here.
    moments = [datetime.fromisoformat(row["timestamp"] + "+00:00") for row in rows]
    return [
        Job(
            id=str(number),
            gpus=int(row["num_gpus"]),
            submit=(moment - moments[0]).total_seconds(),
            work=float(row["duration"]),
            account=row["cluster"],
        )
        for number, (row, moment) in enumerate(zip(rows, moments, strict=True))
    ]


def nodes_of_accounts() -> dict[str, int]:
    """How many nodes of 8 GPUs each virtual cluster had."""
    with (PHILLY / NODES).open() as lines:
        return {row["vc"]: int(row["node num"]) for row in csv.DictReader(lines)}
