# SPDX-License-Identifier: Apache-2.0
"""Writes files for programs: placements as CSV, figures as JSON."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from policy.formats.errors import UsageError
from policy.simulate.report.summary import Summary
from policy.simulate.result import SimulationOutcome
from policy.simulate.study import Cell


def placement_files(path: str, cells: Sequence[Cell]) -> dict[Cell, str]:
    """Returns a file for each run: FILE itself for a single run, else `FILE` with the run's name before its ending.

    >>> list(placement_files("p.csv", [Cell("pal", 1), Cell("packed", 1)]).values())
    ['p.pal.seed1.csv', 'p.packed.seed1.csv']
    """
    if len(cells) == 1:
        return {cells[0]: path}
    whole = Path(path)
    # A policy may be named by its file.
    return {cell: str(whole.with_name(f"{whole.stem}.{cell.label.replace('/', '_')}{whole.suffix}")) for cell in cells}


def write_placements(outcome: SimulationOutcome, path: str) -> None:
    """Writes `job,start_s,end_s,gpus`, from which all figures can be computed again."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("job", "start_s", "end_s", "gpus"))
    for one in sorted(outcome.stretches, key=lambda one: (one.start, one.job)):
        writer.writerow((one.job, f"{one.start:.10g}", f"{one.end:.10g}", ";".join(map(str, one.gpus))))
    write_text(path, text.getvalue())


def as_json(rows: Sequence[Summary]) -> str:
    """Returns an object with an object for each run."""
    return json.dumps({"schema_version": 1, "runs": [one.row() for one in rows]}, indent=2) + "\n"


def write_text(path: str, text: str) -> None:
    """Writes a file, or raises a UsageError with the reason."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
