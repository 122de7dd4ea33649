"""The command `berth topo compile`, which puts all topology files and the fabric in one file for a fast start."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from policy.cli.output import number_of, say
from policy.cli.topo.sources import (
    DEGRADED,
    OK,
    add_directory,
    add_slurm_topology,
    directory_of,
    fabric_file,
    fabric_of,
    nothing_in,
)
from topology import files
from topology.errors import TopologyFileError

_SHOW_EVERY = 0.2
"""Seconds between two updates of the progress."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "compile",
        help="put all topology files and the fabric in one file, for a fast start of berthd",
        description="Read all topology files and Slurm's topology.conf or topology.yaml, and write the compiled "
        "cluster beside the topology files. berthd reads it instead of them as long as none of them has changed "
        "since. It pays off from some thousand nodes on.",
        epilog="Exit status: 0 all is well, 1 written, but a file is broken or two sources part, "
        "2 called in a wrong way.",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: where berthd looks for it)"
    )
    add_slurm_topology(parser)
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the file, and prints its contents in one line and each problem in a line of its own."""
    # berthd's paths are absolute, and the stamp covers names too.
    directory, source = directory_of(args).absolute(), fabric_file(args)
    source = source and source.absolute()
    # The fabric imports numpy; its error tells what to install.
    fabric_of((), None)
    from topology import compiled  # noqa: PLC0415

    # The stamp is taken before the files are read, so that a change meanwhile is noticed.
    mark = compiled.stamp(compiled.sources(directory, source))
    problems: list[TopologyFileError] = []
    found = files.load_directory(directory, problems.append, _Progress() if sys.stderr.isatty() else None)
    if not found and not problems:
        raise nothing_in(directory)
    fabric = fabric_of(found.values(), source)
    output = args.output or directory / compiled.FILE_NAME
    compiled.save(output, found.values(), fabric, mark)
    gpus = sum(machine.size for machine in found.values())
    where = f"leaves and pods from {source}" if source else "no leaves or pods"
    print(f"{output} written: {len(found)} nodes, {gpus} GPUs, {where}")
    for problem in [*map(str, problems), *fabric.conflicts]:
        say(f"berth topo compile: {problem}", number_of(problem))
    return DEGRADED if problems or fabric.conflicts else OK


class _Progress:
    """One line on a terminal with the progress of reading, which is erased at the end."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _SHOW_EVERY

    def __call__(self, done: int, of: int) -> None:
        if done < of and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _SHOW_EVERY
        text = f"reading topology files: {done} of {of}" if done < of else ""
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
