# SPDX-License-Identifier: Apache-2.0
"""The command `berth topo draw`, which draws a node or the cluster."""

import argparse
import sys
from pathlib import Path

from policy.cli.topo.sources import OK, WHAT, add_directory, add_slurm_topology, fabric_file, fabric_of, machines
from policy.formats.errors import BerthError, UsageError
from topology.model import Machine


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "draw",
        help="draw a node or the cluster as SVG",
        description="Draw one node with its GPUs, NVLinks, PCIe switches and NICs; or the cluster with its pods, "
        "leaves and NVLink domains.",
    )
    parser.add_argument(
        "what", nargs="*", metavar="NODE|FILE|machine:NAME", help=f"{WHAT}; several, or none for all, with --cluster"
    )
    parser.add_argument("--cluster", action="store_true", help="draw all nodes in one picture")
    parser.add_argument(
        "--output", metavar="FILE", help="file to write, - for standard output (default: NODE.svg or cluster.svg here)"
    )
    add_slurm_topology(parser)
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the picture and prints its path."""
    if args.slurm_topology and not args.cluster:
        raise UsageError("--slurm-topology belongs to --cluster; give both, or neither")
    if not args.cluster and not args.what:
        raise UsageError("name the node to draw, or give --cluster to draw all")
    from topology.drawing import draw_node  # noqa: PLC0415  the other commands draw nothing

    found = machines(args.what, args)
    if not args.cluster and len(found) > 1:
        raise UsageError(f"a picture shows one node, and {len(found)} were named; give --cluster to draw them together")
    picture = _cluster(found, fabric_file(args)) if args.cluster else draw_node(found[0])
    if args.output == "-":
        sys.stdout.write(picture)
        return OK
    output = Path(args.output or ("cluster.svg" if args.cluster else f"{found[0].node}.svg"))
    try:
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise BerthError(f"cannot write {output}: {error.strerror}") from error
    print(f"{output} written")
    return OK


def _cluster(found: list[Machine], source: Path | None) -> str:
    from topology.drawing import draw_cluster  # noqa: PLC0415  the other commands draw nothing

    fabric = fabric_of(found, source)
    for conflict in fabric.conflicts:
        print(f"berth topo draw: {conflict}", file=sys.stderr)
    return draw_cluster({machine.node: machine for machine in found}, fabric)
