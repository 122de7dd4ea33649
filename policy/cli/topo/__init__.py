"""`berth topo`: discover a node's GPUs; show, draw and compare nodes; write Slurm's configuration from them."""

from __future__ import annotations

import argparse

from policy.cli.topo import diff, discover, draw, show
from policy.cli.topo_export import register_export

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `topo` and its commands to the parser of `berth`."""
    topo = subparsers.add_parser("topo", help="GPUs and NVLinks of the nodes")
    commands = topo.add_subparsers(dest="topo_command", metavar="COMMAND", required=True)
    for command in (discover, show, draw, diff):
        command.register(commands)
    register_export(commands)
