# SPDX-License-Identifier: Apache-2.0
"""The command `berth calibrate`, which measures the speed of GPUs (admins)."""

import argparse

from policy.cli.calibrate import node, run


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `calibrate` and its commands to the parser of `berth`."""
    calibrate = subparsers.add_parser("calibrate", help="measure how fast GPUs are (admins)")
    commands = calibrate.add_subparsers(dest="calibrate_command", metavar="COMMAND", required=True)
    for command in (node, run):
        command.register(commands)
