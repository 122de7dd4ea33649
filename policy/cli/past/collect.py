# SPDX-License-Identifier: Apache-2.0
"""The command `berth collect`, which saves Slurm's accounting in one file for other commands of Berth."""

import argparse
import gzip
import sys
import time
from pathlib import Path

from policy.cli.output import tell
from policy.cli.past.report import moment
from policy.formats.errors import UsageError
from policy.slurm.accounting import days

_DAY_S = 86_400.0


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `collect` to the parser of `berth`."""
    collect = subparsers.add_parser(
        "collect", help="save what sacct tells of past jobs in one file, for berth report, simulate and web"
    )
    collect.add_argument("file", metavar="FILE", help="the file to write; packed where its name ends in .gz")
    collect.add_argument(
        "--since", metavar="TIME", help="as for sacct, such as 2026-11-01 or now-7days (default: 30 days)"
    )
    collect.add_argument("--until", metavar="TIME", help="the end of that time (default: now)")
    collect.add_argument("--hash-names", action="store_true", help="replace the names of users, accounts and jobs")
    collect.add_argument("--json", action="store_true", help="print JSON")
    collect.set_defaults(run=_collect)


def _collect(args: argparse.Namespace) -> int:
    from policy.report.collected import COLUMNS, SEPARATOR, Collection  # noqa: PLC0415

    now = time.time()
    until = moment(args.until) if args.until else now
    since = moment(args.since) if args.since else until - 30 * _DAY_S
    if since >= until:
        raise UsageError("--since must lie before --until")
    path, collection = Path(args.file).resolve(), Collection(args.hash_names)
    if path.exists() and not path.is_file():
        raise UsageError(f"{args.file} is no plain file; name another file")
    part = path.with_name(f".{path.name}.part")
    try:
        with (
            gzip.open(part, "wt", encoding="utf-8") if path.suffix == ".gz" else part.open("w", encoding="utf-8") as out
        ):
            out.write(collection.header() + "\n")
            for begin, end, lines in days(since, until, COLUMNS, SEPARATOR):
                if sys.stderr.isatty():
                    print(f"\rberth: {time.strftime('%Y-%m-%d', time.localtime(begin))}", end="", file=sys.stderr)
                for line in collection.day(lines, begin, end, last=end >= until):
                    out.write(line + "\n")
        part.replace(path)
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}; name another file") from problem
    finally:
        part.unlink(missing_ok=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
    tell(
        args,
        {"file": str(path), "runs": collection.runs, "since": since, "until": until},
        f"berth: {collection.runs} runs in {path}; next: berth report --from {path}, "
        f"berth web --from-collect {path}, or berth simulate {path}",
    )
    return 0
