"""The command `berth vc plan`, which prints the lines that Slurm needs for groups with GPUs of their own."""

import argparse
import sys
from pathlib import Path
from typing import Any

from policy.formats.errors import UsageError


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser("vc", help="virtual clusters: groups with GPUs of their own (admins)")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    plan = verbs.add_parser("plan", help="print a script of sacctmgr lines; nothing is changed")
    plan.add_argument("file", metavar="FILE", help="TOML, as in docs/virtual-clusters.md")
    plan.add_argument("--slurm-conf", action="store_true", help="print the lines for slurm.conf instead")
    plan.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    from policy.slurm import virtual_clusters  # noqa: PLC0415 - keeps `berth --help` fast

    try:
        text = Path(options.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"{options.file} cannot be read: {problem}; name a file as in docs/virtual-clusters.md"
        ) from None
    found = virtual_clusters.read(text, options.file)
    lines = virtual_clusters.slurm_conf(found) if options.slurm_conf else virtual_clusters.commands(found)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
