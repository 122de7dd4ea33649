"""berth status: is berthd there, and what has it done."""

import argparse
from typing import Any

from policy.cli import ask
from policy.cli.output import print_json, print_table

_UNITS = {"snapshot_age_ms": "ms"}
_TEXTS = {"version", "slurm", "gateway", "problem"}


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="what berthd knows and has done")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print berthd's status; a problem that it reports makes the exit status 1."""
    from policy.daemon.config import config_path, load  # noqa: PLC0415 - keeps `berth --help` fast

    found = ask.status(load(config_path()).socket)
    if options.json:
        print_json({key: value if key in _TEXTS else _number(value) for key, value in found.items()})
    else:
        print_table([(key, f"{value} {_UNITS.get(key, '')}".rstrip()) for key, value in found.items()])
    return 1 if "problem" in found else 0


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
