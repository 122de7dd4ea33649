# SPDX-License-Identifier: Apache-2.0
"""The command `berth topo sets`, which shows by level the node sets that could hold a job."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from policy.cli.output import print_json
from policy.cli.topo.sources import (
    WHAT,
    add_directory,
    add_slurm_topology,
    fabric_file,
    fabric_of,
    machines,
)
from policy.formats.errors import UsageError
from policy.slurm.by_command.command import CommandGateway
from topology.errors import QuestionError
from topology.model import Machine

if TYPE_CHECKING:
    from policy.placement.nodesets import NodeSet
    from topology.network.fabric import FabricLevel

_FOUND, _NONE = 0, 1

_LEVELS: tuple[FabricLevel, ...] = ("nvlink", "node", "leaf", "pod", "any")
_SHOWN = 10
_WIDEST = 60
"""The most characters of a host list in the table."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "sets",
        help="show which node sets could hold a job now",
        description="For each level of the fabric, the node sets whose free GPUs could hold a job, in the order in "
        "which berthd would take them.",
        epilog="Exit status: 0 there is one, 1 there is none, 2 called in a wrong way.",
    )
    parser.add_argument("what", nargs="*", metavar="NODE|FILE", help=f"{WHAT} (default: all nodes)")
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="GPUs of the whole job")
    parser.add_argument("--per-node", type=int, metavar="K", help="exactly so many on each node")
    parser.add_argument("--level", choices=_LEVELS, help="this level only")
    parser.add_argument("--idle", action="store_true", help="as if all GPUs were free (default: ask Slurm)")
    parser.add_argument("--all", action="store_true", help=f"all node sets, not the first {_SHOWN} of a level")
    parser.add_argument("--json", action="store_true", help="for programs; always all")
    add_slurm_topology(parser)
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints a table, or JSON."""
    found = machines(args.what, args)
    # The fabric imports numpy; its error tells what to install.
    fabric = fabric_of(found, fabric_file(args))
    from policy.placement.nodesets import NodeSets  # noqa: PLC0415

    free = [(1 << machine.size) - 1 for machine in found] if args.idle else _free_now(found)
    levels: Sequence[FabricLevel] = [args.level] if args.level else _LEVELS
    sets = NodeSets(found, fabric, free)
    most = None if args.all or args.json else _SHOWN
    try:
        shown = {level: list(islice(sets.at(level, args.gpus, args.per_node), most)) for level in levels}
    except QuestionError as error:
        raise UsageError(str(error)) from error
    if args.json:
        print_json({"sets": {level: [_as_data(one) for one in at_level] for level, at_level in shown.items()}})
    else:
        left = {
            level: sets.count(level, args.gpus, args.per_node) - len(at)
            for level, at in shown.items()
            if len(at) == most
        }
        print("\n".join(_table(shown, left)))
    return _FOUND if any(shown.values()) else _NONE


def _free_now(found: Sequence[Machine]) -> list[int]:
    """Returns the free GPUs of each machine by Slurm; none on nodes that are down or unknown to Slurm."""
    nodes = {node.name: node for node in CommandGateway().read(ended=False).nodes}
    free = []
    for machine in found:
        node = nodes.get(machine.node)
        free.append(((1 << machine.size) - 1) & ~node.gpus_used if node and node.up else 0)
    return free


def _as_data(one: NodeSet) -> dict[str, object]:
    return {
        "name": one.name,
        "nodes": one.hostlist,
        "free_gpus": one.free,
        "nodes_needed": one.needed,
        "gpus": list(one.gpus) or None,
    }


def _table(shown: Mapping[FabricLevel, Sequence[NodeSet]], left: Mapping[FabricLevel, int]) -> list[str]:
    rows: list[tuple[str, ...]] = [("LEVEL", "NODE SET", "NODES", "GPUS", "FREE GPUS", "NODES NEEDED")]
    notes = {}
    for level, sets in shown.items():
        for one in sets:
            gpus = ",".join(map(str, one.gpus)) or "any"
            rows.append((level, one.name or "-", _short(one.hostlist), gpus, str(one.free), str(one.needed)))
        if left.get(level):
            notes[len(rows)] = f"{level}: {left[level]} more (--all shows them)"
        if not sets:
            rows.append((level, "none", "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for number, row in enumerate(rows, 1):
        words = "  ".join(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True))
        lines.append(f"{words}  {row[4]:>9}  {row[5]:>12}".rstrip())
        if number in notes:
            lines.append(notes[number])
    return lines


def _short(hostlist: str) -> str:
    return hostlist if len(hostlist) <= _WIDEST else hostlist[: _WIDEST - 3] + "..."
