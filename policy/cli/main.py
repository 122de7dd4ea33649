# SPDX-License-Identifier: Apache-2.0
"""The command `berth` for users and admins. Exit status: 0 done, 1 failed, 2 called wrongly, 141 output not read."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from errno import EDQUOT, ENOSPC, EPIPE
from io import TextIOWrapper
from typing import Any

from policy.cli.output import built, installed, number_of, say
from policy.cli.parser import CommandParser
from policy.formats.errors import BerthError, UsageError

# Each module is imported only if its command may be the one; none may import numpy (a test checks this).
_COMMANDS = {
    "nodes": "policy.cli.nodes",
    "queue": "policy.cli.jobs.queue",
    "why": "policy.cli.jobs.why",
    "plan": "policy.cli.jobs.plan",
    "status": "policy.cli.status",
    "release": "policy.cli.jobs.release",
    "doctor": "policy.cli.doctor.command",
    "migrate": "policy.cli.migrate",
    "job-gpus": "policy.cli.jobs.job_gpus",
    "topo": "policy.cli.topo",
    "simulate": "policy.simulate.command",
    "profile": "policy.cli.profile",
    "scores": "policy.cli.scores",
    "calibrate": "policy.cli.calibrate",
    "classify": "policy.cli.past.classify",
    "report": "policy.cli.past.report",
    "collect": "policy.cli.past.collect",
    "observe": "policy.cli.observe",
    "ready": "policy.cli.jobs.ready",
    "web": "policy.serve.web.command",
}

_OURS = frozenset({"policy", "topology", "prolog_epilog"})


NOBODY_READS = 141
"""The exit status of a program whose reader has closed the pipe, as shells report it (128 + SIGPIPE)."""


class MissingPackageError(BerthError):
    """The command needs a package that a smaller installation does not have."""

    number = 708

    def __init__(self, name: str | None) -> None:
        super().__init__(f"this command needs {name}: install slurm-berth[daemon], or the package berth-controller")


def build_parser(command: str = "") -> CommandParser:
    """Returns the parser of the whole command line, or of one command alone: the others need not be imported for it."""
    parser = CommandParser(
        prog="berth", description="Shows, explains and plans the GPUs of Slurm jobs. Begin with nodes, queue and why."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if command not in _COMMANDS:
        revision = f" ({text})" if (text := built()) else ""
        parser.add_argument("--version", action="version", version=f"berth {installed()}{revision}")
    for module in [_COMMANDS[command]] if command in _COMMANDS else _COMMANDS.values():
        importlib.import_module(module).register(commands)
    _describe(commands)
    return parser


def _describe(commands: "argparse._SubParsersAction[Any]") -> None:
    """Gives each command without a description its line in the list of commands as description."""
    for listed in commands._choices_actions:  # noqa: SLF001 - argparse has no public way to list subcommands
        parser, line = commands.choices[listed.dest], listed.help or ""
        parser.description = parser.description or f"{line[:1].upper()}{line[1:]}."
        for action in parser._actions:  # noqa: SLF001
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                _describe(action)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; only here an error becomes a line and an exit status."""
    from topology.errors import TopologyError  # noqa: PLC0415 - beside its handler, and cheap

    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, TextIOWrapper):
            # Names are bytes of any encoding, and a terminal may lack their characters.
            stream.reconfigure(errors="replace")
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except OSError as problem:
        if problem.errno not in {EPIPE, ENOSPC, EDQUOT}:
            raise
        # The reader has closed the pipe, or the disk is full; Python must not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        full = f"the output cannot be written: {problem.strerror}; make room, or write it elsewhere"
        return NOBODY_READS if problem.errno == EPIPE else _say(BerthError(full), 1)
    except UsageError as problem:
        return _say(problem, 2)
    except (BerthError, TopologyError) as problem:
        return _say(problem, 1)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] in _OURS:
            raise
        return _say(MissingPackageError(problem.name), 1)
    except KeyboardInterrupt:
        return 130
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        options = build_parser(*arguments[:1]).parse_args(arguments or ["--help"])
        code: int = options.run(options)
    finally:
        # Help ends with SystemExit, and its reader may have gone too.
        sys.stdout.flush()
    return code


def _say(problem: Exception, code: int) -> int:
    say(f"berth: error: {problem}", number_of(problem))
    return code


if __name__ == "__main__":
    sys.exit(main())
