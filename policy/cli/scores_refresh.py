"""The command `berth scores refresh`, which updates scores by reports of jobs and guards since the last calibration."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from policy.formats.errors import BerthError, UsageError
from policy.site.config import config_path, load
from topology.scores import Score, dump

_TRIES = 3
"""Most attempts; a calibration that ends meanwhile makes it start again."""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    refresh = commands.add_parser(
        "refresh",
        help="write the living scores: the calibrated table and what jobs told since",
        description="Write the living scores beside the record of step times, from where berthd takes them. The "
        "calibrated table stays as it is. berthd does this by itself once an hour.",
    )
    refresh.add_argument("table", nargs="?", default="", metavar="TABLE", help="default: as berth.conf says")
    refresh.add_argument("--steps", default="", metavar="FILE", help="the record (default: as berth.conf says)")
    refresh.add_argument("--output", default="", metavar="FILE", help="default: the record's name and .scores")
    refresh.set_defaults(run=_run)


def refreshed(scores: Sequence[Score], record: Path) -> Sequence[Score]:
    """Returns these scores, updated by a record of step times, and prints which GPUs have changed."""
    from policy.site.step_records import reports_of  # noqa: PLC0415 - keeps `berth --help` fast
    from topology.calibrate.living import refresh, table  # noqa: PLC0415 - the same

    living = refresh(scores, reports_of(record), time.time())
    what = {"changed": "no longer as it was calibrated, measure it again", "host": "kept waiting by its host"}
    for one in living:
        if one.told:
            who = f"{one.score.node} GPU {one.score.position}"
            seen = f"{one.before:.3f} -> {one.score.score:.3f} by {one.reports} runs of jobs and {one.clocks} clocks"
            print(f"berth scores: {who}, {one.score.app_class}: {what[one.told]} ({seen})", file=sys.stderr)
    return table(living)


def _run(args: argparse.Namespace) -> int:
    from policy.site.step_records import place_of  # noqa: PLC0415 - the same
    from topology.scores import load as load_scores  # noqa: PLC0415 - the same

    config = load(config_path()) if not (args.table and args.steps) else None
    table = Path(args.table) if args.table else config and config.scores
    record = Path(args.steps) if args.steps else config and config.steps
    if not table or not record:
        lacks = "a TABLE, or let [berthd] scores" if not table else "the record by --steps, or let [berthd] steps"
        raise UsageError(f"name {lacks} in berth.conf name it")
    output = Path(args.output) if args.output else place_of(record)
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
