# SPDX-License-Identifier: Apache-2.0
"""The command `berth topo`: the nodes' GPUs and links, and Slurm's configuration made from them."""

import argparse

from policy.cli.topo import discover, draw, export, sets, show


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `topo` and its commands to the parser of `berth`."""
    topo = subparsers.add_parser("topo", help="describe machines: discover, show and draw GPUs and NVLinks")
    commands = topo.add_subparsers(dest="topo_command", metavar="COMMAND", required=True)
    for command in (discover, show, sets, draw, export):
        command.register(commands)
