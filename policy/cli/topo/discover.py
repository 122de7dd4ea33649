# SPDX-License-Identifier: Apache-2.0
"""The command `berth topo discover`, which reads this node's driver and writes its topology file."""

import argparse
import socket
import sys
from pathlib import Path

from policy.cli.output import number_of, say
from policy.cli.topo.sources import DEGRADED, FAILED, OK, default_directory
from policy.cli.topo.words import summary
from policy.formats.errors import BerthError
from topology import files
from topology.errors import TopologyError


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "discover",
        help="write this node's topology file",
        description="Ask the NVIDIA driver about this node and write its topology file. Run it on each GPU node.",
        epilog="Exit status: 0 all is well, 1 written but with problems, 2 nothing written.",
    )
    parser.add_argument("--node", metavar="NAME", help="Slurm's name of this node (default: the short host name)")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write, - for standard output (default: NODE.json in topology_dir of berth.conf)",
    )
    parser.add_argument("--model", metavar="NAME", help="short model name for gpu:NAME:N (default: from the driver)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes this node's file; prints a summary in one line, and each problem in a line of its own."""
    from topology.providers.nvml import discover  # noqa: PLC0415  the other commands need no provider

    node = args.node or socket.gethostname().partition(".")[0]
    try:
        machine = discover(node, args.model)
        if args.output == "-":
            sys.stdout.write(files.encode(machine))
        else:
            output = Path(args.output) if args.output else default_directory() / f"{node}.json"
            if not args.output:
                output.parent.mkdir(parents=True, exist_ok=True)
            files.dump(machine, output)
    except (BerthError, TopologyError, OSError) as error:
        say(f"berth topo discover: {error}", number_of(error))
        return FAILED
    print(summary(machine), file=sys.stderr if args.output == "-" else sys.stdout)
    for problem in machine.problems:
        print(f"{node}: {problem}", file=sys.stderr)
    return DEGRADED if machine.problems else OK
