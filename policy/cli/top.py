"""The command `berth top`, which shows GPUs and queue in place, and reads them anew each interval."""

import argparse
import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from policy.cli import ask, nodes, queue
from policy.cli.listing import columns_of, lines_of
from policy.formats.errors import BerthError, UsageError
from policy.site.config import Config, config_path, load
from policy.site.overview import STALE_AFTER

LEAST = 1.0
"""Shortest interval, in seconds: berthd answers users only so often."""

_QUEUE = "jobid,user:10,st,time,gpus,nodelist:24,planned:24,start,because:60"


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("top", help="GPUs and queue, live; q quits")
    parser.add_argument("-d", "--delay", type=float, default=5.0, metavar="SECONDS", help="interval (default: 5)")
    parser.add_argument("--once", action="store_true", help="print one picture and end, as where nobody looks on")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Shows one picture after another until q is pressed."""
    if not options.delay >= LEAST:
        raise UsageError(f"an interval of {options.delay:g} s is too short; -d takes {LEAST:g} or more")
    config = load(config_path())
    if options.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("\n".join(picture(ask.fleet(config), ask.queue(config))))
        return 0
    with _keys() as pressed, _screen() as draw:
        while True:
            draw(_look(config))
            if pressed(options.delay):
                return 0


def picture(fleet: dict[str, Any], jobs: dict[str, Any]) -> list[str]:
    """Returns the lines of one picture: the sums, the nodes, then the queue."""
    rows, waiting = fleet["nodes"], sum(job["state"] == "PENDING" for job in jobs["jobs"])
    total, free = sum(len(node["gpus"]) for node in rows), sum(nodes.free_of(node) for node in rows)
    running = len(jobs["jobs"]) - waiting
    age = max(0.0, time.time() - min(fleet["at"], jobs["at"]))
    state = f"read {age:.0f} s ago" + ("; berth status says whether berthd reads Slurm" if age > STALE_AFTER else "")
    head = f"{free} of {total} GPUs free, {running} jobs run, {waiting + jobs['left_out']} wait; {state}"
    map_of = columns_of("node,state,free,gpus", nodes.COLUMNS)
    list_of = columns_of(_QUEUE, queue.COLUMNS)
    return [
        head,
        "",
        *lines_of(nodes.with_cells(rows), map_of, header=True),
        "",
        *lines_of(jobs["jobs"], list_of, header=True),
    ]


def fitting(lines: list[str], width: int, height: int) -> list[str]:
    """Returns what of a picture fits on a screen; half of it is for the nodes where both parts are long."""
    gap = lines.index("", 2)
    above, below = lines[:gap], lines[gap:]
    if len(lines) > height:
        most_above = max(height // 2, height - len(below))
        above = _shortened(above, most_above, "nodes")
        below = _shortened(below, height - len(above), "jobs")
    return [line[:width] for line in (*above, *below)]


def _shortened(lines: list[str], most: int, what: str) -> list[str]:
    if len(lines) <= most:
        return lines
    kept = lines[: max(0, most - 1)]
    return [*kept, f"... {len(lines) - len(kept)} more {what}"]


def _look(config: Config) -> list[str]:
    """Returns one picture for this screen; where berthd does not answer, the reason stands there."""
    size = shutil.get_terminal_size()
    try:
        lines = picture(ask.fleet(config), ask.queue(config))
    except BerthError as problem:
        return [f"berth: {problem}"]
    return fitting(lines, size.columns, size.lines - 1)


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[list[str]], None]]:
    """Draws on the terminal's other screen, and gives the first one back at the end."""
    from rich.console import Console  # noqa: PLC0415 - heavy, and only here
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False, console=Console(highlight=False)) as live:
        yield lambda lines: live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Reads single keys; the function waits so many seconds, and tells if q was pressed."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def pressed(seconds: float) -> bool:
        due = time.monotonic() + seconds
        while (left := due - time.monotonic()) > 0:
            if select.select([file], [], [], left)[0]:
                keys = os.read(file, 64)
                if not keys or b"q" in keys.lower():
                    return True
        return False

    try:
        tty.setcbreak(file)
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
