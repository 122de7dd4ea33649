# SPDX-License-Identifier: Apache-2.0
"""The command `berth status`, which shows if berthd runs, and its counts since its start."""

import argparse
from collections.abc import Mapping
from typing import Any

from policy.cli import ask
from policy.cli.output import print_json, print_table
from policy.formats.errors import DaemonError
from policy.site.config import Config, config_path, load

_UNITS = {"snapshot_age_ms": "ms", "look_ms": "ms", "pass_ms": "ms"}
_TEXTS = {"version", "slurm", "gateway", "problem"}


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("status", help="show berthd's state, and count what it did since its start")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints berthd's status; if berthd reports a problem, the exit status is 1."""
    found = _ask(load(config_path()))
    if options.json:
        print_json({key: value if key in _TEXTS else _number(value) for key, value in found.items()})
    else:
        print_table([(key, f"{value} {_UNITS.get(key, '')}".rstrip()) for key, value in found.items()])
    return 1 if "problem" in found else 0


def _ask(config: Config) -> Mapping[str, str]:
    """Returns berthd's status, from its own socket, or else, for users and on other hosts, from its port."""
    try:
        return ask.status(config.socket)
    except DaemonError:
        if not config.users_hosts:
            raise
    return ask.question(config, "status")


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
