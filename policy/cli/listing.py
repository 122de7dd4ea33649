# SPDX-License-Identifier: Apache-2.0
"""Prints lists as Slurm's list commands do: a header, rows, `-h`, and `-o` with names of columns."""

import argparse
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from policy.cli.output import print_json, say
from policy.formats.errors import UsageError, nearest
from policy.formats.messages import one_line
from policy.formats.slurm_syntax.moments import local_time
from policy.site.overview import STALE_AFTER

_NAMED = re.compile(r"([A-Za-z_]+)(?::(\.?)([1-9][0-9]{0,3}))?")


class Column(NamedTuple):
    """One column of a list."""

    title: str
    text: Callable[[Mapping[str, Any]], str]
    width: int = 0
    """The most characters that are shown; 0: all."""
    right: bool = False


def list_parser(commands: Any, name: str, **words: Any) -> argparse.ArgumentParser:
    """Adds a list command: as in squeue and sinfo, `-h` leaves the header out, and only `--help` is help."""
    parser: argparse.ArgumentParser = commands.add_parser(name, add_help=False, **words)
    parser.add_argument("--help", action="help", help="show this help message and exit")
    return parser


def add_list_options(parser: argparse.ArgumentParser, columns: Mapping[str, Column], usual: Sequence[str]) -> None:
    """Adds `--json`, `-h` and `-o`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-h", "--noheader", action="store_true", help="print no header")
    parser.add_argument(
        "-o",
        "--format",
        metavar="COLUMNS",
        default=",".join(usual),
        help=f"columns, each with :WIDTH if wanted (default: {','.join(usual)}); all: {','.join(columns)}",
    )


def columns_of(text: str, known: Mapping[str, Column]) -> list[Column]:
    """Returns the columns that `-o` names, such as `jobid,name:12`; a width with a dot before it aligns right."""
    found = []
    for word in filter(None, text.replace(" ", ",").split(",")):
        match = _NAMED.fullmatch(word)
        if match is None or match[1].lower() not in known:
            hint = "" if match is None else nearest(match[1].lower(), known)
            raise UsageError(
                f"{word!r} is no column{hint}; -o takes names with commas between them: {', '.join(known)}"
            )
        column = known[match[1].lower()]
        width = int(match[3]) if match[3] else column.width
        found.append(column._replace(width=width, right=column.right or bool(match[2])))
    if not found:
        raise UsageError(f"-o names no column; it takes names with commas between them: {', '.join(known)}")
    return found


def print_list(
    options: argparse.Namespace,
    values: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[Column],
) -> int:
    """Prints the rows of a list, or with --json its values; warns if it is old."""
    if options.json:
        print_json(values)
        return 0
    if (age := time.time() - values["at"]) > STALE_AFTER:
        say(f"berth: what is shown is {age:.0f} s old; berth status says whether berthd reads Slurm", 214)
    for line in lines_of(rows, columns, header=not options.noheader):
        print(line)
    return 0


def lines_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], *, header: bool) -> list[str]:
    """Returns the lines of a list; each column is as wide as its longest text."""
    table = [[_cut(column.text(row), column.width) for column in columns] for row in rows]
    if header:
        table.insert(0, [column.title for column in columns])
    widths = [max((len(row[place]) for row in table), default=0) for place in range(len(columns))]
    return [
        " ".join(
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in table
    ]


def _cut(text: str, width: int) -> str:
    clean = one_line(text)
    return clean if not width or len(clean) <= width else clean[: max(1, width - 1)] + "+"


def moment(seconds: float | None) -> str:
    """Writes a moment as squeue does."""
    return "N/A" if seconds is None else local_time(seconds)


def span(seconds: float | None) -> str:
    """Writes a time as squeue does.

    >>> span(59), span(3_600), span(90_061), span(None)
    ('0:59', '1:00:00', '1-01:01:01', 'INVALID')
    """
    if seconds is None or seconds < 0:
        return "INVALID"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
