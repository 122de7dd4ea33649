# SPDX-License-Identifier: Apache-2.0
"""The command `berth scores`, on the speed of each GPU, and on GPUs that stand out."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from policy.cli.output import print_json
from policy.formats.errors import BerthError, UsageError
from policy.report.document import aligned
from policy.site.config import config_path, load
from topology.scores import Score, dump
from topology.scores import load as load_scores

if TYPE_CHECKING:
    from topology.calibrate.statistics import Calibration

_WHAT = "a score table, PAL's table, or a file of runs (default: the table that berth.conf names)"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `scores` and its commands to the parser of `berth`."""
    scores = subparsers.add_parser("scores", help="show how fast each GPU is for each application class")
    commands = scores.add_subparsers(dest="scores_command", metavar="COMMAND", required=True)

    show = commands.add_parser("show", help="print the scores, or the GPUs that need attention")
    _add_file(show)
    show.add_argument("--slow", action="store_true", help="only GPUs that take 10 %% more time than typical, or more")
    show.add_argument("--watch", action="store_true", help="GPUs that stand out, why and what to do; of a file of runs")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)

    refresh = commands.add_parser(
        "refresh",
        help="write the scores as they are now: the calibrated table and what jobs told since",
        description="Write the scores as they are now beside the record of step times, from where berthd takes them. "
        "The calibrated table stays as it is. berthd does this by itself once an hour.",
    )
    refresh.add_argument("table", nargs="?", default="", metavar="TABLE", help="default: as berth.conf says")
    refresh.add_argument("--steps", default="", metavar="FILE", help="the record (default: as berth.conf says)")
    refresh.set_defaults(run=_refresh)

    given = commands.add_parser("export", help="make a score table from a file of runs")
    _add_file(given)
    given.add_argument("--output", required=True, metavar="TABLE", help="- for standard output")
    given.set_defaults(run=_export)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help=_WHAT)


def _show(args: argparse.Namespace) -> int:
    path = _path(args)
    calibration = _calibration(path) if _is_runs(path) else None
    if args.watch:
        if calibration is None:
            raise UsageError(f"{path} is a score table; the watch list needs a file of runs, which is the evidence")
        return _watch(calibration, as_json=args.json)
    scores = _scores(path, calibration)
    if args.slow:
        scores = [one for one in scores if one.score >= 1.10]
    now = {} if calibration is None else {(e.place.uuid, e.app_class): e for e in calibration.estimates}
    if args.json:
        print_json({"scores": [_as_json(one, now.get((one.uuid, one.app_class))) for one in scores]})
        return 0
    rows = [("NODE", "GPU", "CLASS", "SCORE", "ERROR", "RUNS", "LAST RUN", "NOW")]
    for one in scores:
        known = now.get((one.uuid, one.app_class))
        error = f"{one.error:.3f}" if one.error else "-"
        last = f"{one.score:.3f}", error, str(one.runs), one.at or "-", known.now if known else ""
        rows.append((one.node, str(one.position), one.app_class, *last))
    print("\n".join(aligned(rows, range(len(rows[0])))))
    for change in calibration.changes if calibration else ():
        print(change)
    return 0


def _as_json(one: Score, known: object) -> dict[str, object]:
    from dataclasses import asdict  # noqa: PLC0415

    found: dict[str, object] = asdict(one)
    if known is not None:
        more = ("node_part", "gpu_part", "slow", "outlier", "left_out", "age_days", "now", "peers")
        found |= {name: getattr(known, name) for name in more}
    return found


def _watch(calibration: Calibration, *, as_json: bool) -> int:
    from dataclasses import asdict  # noqa: PLC0415

    from topology.calibrate.health import watch_list  # noqa: PLC0415

    listed = watch_list(calibration)
    if as_json:
        print_json({"watch": [{**asdict(one), "drain": one.drain()} for one in listed]})
        return 0
    for one in listed:
        who = one.node if one.position is None else f"{one.node} GPU {one.position}"
        print(f"{who}: {one.advice}: {one.evidence}")
        if one.drain():
            print(f"    {one.drain()}")
    if not listed:
        print("no GPU stands out")
    return 0


def _export(args: argparse.Namespace) -> int:
    from topology.scores import encode  # noqa: PLC0415

    path = _path(args)
    calibration = _calibration(path) if _is_runs(path) else None
    for change in calibration.changes if calibration else ():
        print(f"berth scores: {change}", file=sys.stderr)
    scores = _scores(path, calibration)
    return _write(args.output, encode(scores))


def _write(output: str, text: str) -> int:
    from topology import atomic  # noqa: PLC0415

    if output == "-":
        sys.stdout.write(text)
        return 0
    atomic.replace(output, text.encode())
    print(f"{output} written")
    return 0


def _path(args: argparse.Namespace) -> Path:
    if args.file:
        return Path(args.file)
    found = load(config_path()).scores
    if found is None:
        raise UsageError("name a file, or let [berthd] scores in berth.conf name the score table")
    return found


def _is_runs(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError as error:
        raise BerthError(f"cannot read {path}: {error.strerror}") from error


def _calibration(path: Path) -> Calibration:
    from topology.calibrate.runs import load  # noqa: PLC0415
    from topology.calibrate.statistics import calibrate  # noqa: PLC0415

    return calibrate(load(path), time.time())


def _scores(path: Path, calibration: Calibration | None) -> Sequence[Score]:
    if calibration is None and not _is_runs(path):
        return load_scores(path)
    from topology.calibrate.statistics import table  # noqa: PLC0415

    return table((calibration or _calibration(path)).estimates)


_TRIES = 3
"""The most attempts; if a calibration ends meanwhile, the refresh starts again."""


def refreshed(scores: Sequence[Score], record: Path) -> Sequence[Score]:
    """Returns these scores, updated by a record of step times, and prints which GPUs have changed."""
    from policy.history.slowness.gpus import refresh  # noqa: PLC0415 - the same
    from policy.site.step_records import reports_of  # noqa: PLC0415 - keeps `berth --help` fast

    now = refresh(scores, reports_of(record), time.time())
    what = {"changed": "no longer as it was calibrated, measure it again", "host": "kept waiting by its host"}
    for one in now:
        if one.told:
            who = f"{one.score.node} GPU {one.score.position}"
            seen = f"{one.before:.3f} -> {one.score.score:.3f} by {one.reports} runs of jobs and {one.clocks} clocks"
            print(f"berth scores: {who}, {one.score.app_class}: {what[one.told]} ({seen})", file=sys.stderr)
    return [one.score for one in now]


def _refresh(args: argparse.Namespace) -> int:
    from policy.site.step_records import place_of  # noqa: PLC0415 - the same

    config = load(config_path()) if not (args.table and args.steps) else None
    table = Path(args.table) if args.table else config and config.scores
    record = Path(args.steps) if args.steps else config and config.steps
    if not table or not record:
        lacks = "a TABLE, or let [berthd] scores" if not table else "the record by --steps, or let [berthd] steps"
        raise UsageError(f"name {lacks} in berth.conf name it")
    output = place_of(record)
    for _ in range(_TRIES):
        before = _stamp(table)
        scores = refreshed(load_scores(table), record)
        if _stamp(table) == before:
            dump(scores, output)
            print(f"{output} written: {len(scores)} scores")
            return 0
    raise BerthError(f"{table} is written all the time; call berth scores refresh when the calibration is over")


def _stamp(table: Path) -> tuple[int, int]:
    try:
        status = table.stat()
    except OSError as problem:
        raise BerthError(f"cannot read {table}: {problem.strerror}") from None
    return status.st_mtime_ns, status.st_size
