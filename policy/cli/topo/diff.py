"""The command `berth topo diff`, which shows what changed between two discoveries."""

import argparse
from dataclasses import asdict
from pathlib import Path

from policy.cli.output import number_of, print_json, say
from policy.cli.topo.sources import FAILED, OK, WHAT, add_directory, load, machines
from policy.formats.errors import BerthError, UsageError
from topology.diff import TopologyChange, changes, cluster_changes
from topology.errors import TopologyError
from topology.model import Machine

_DIFFERENT = 1


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "diff",
        help="compare two discoveries of a node, or of all nodes",
        description="Compare two nodes, or two folders of topology files: one line a change, the worst first. "
        "GPUs are recognised by UUID; where one side has no real UUIDs, or the nodes are two, by position.",
        epilog="Exit status: 0 nothing changed, 1 something changed, 2 they could not be compared.",
    )
    parser.add_argument("old", metavar="OLD", help=f"{WHAT}, or a folder of topology files")
    parser.add_argument("new", metavar="NEW", help="the same, as it is now")
    parser.add_argument(
        "--only",
        choices=("loss", "hardware"),
        help="loss: only what is gone, slower or newly broken; hardware: all but drivers, names and CPU lists",
    )
    parser.add_argument("--json", action="store_true", help="print the changes as JSON")
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the changes; the exit status tells scripts whether there are any."""
    try:
        found = [change for change in _changes(args) if _wanted(change, args.only)]
    except (BerthError, TopologyError) as error:
        say(f"berth topo diff: {error}", number_of(error))
        return FAILED
    if args.json:
        print_json({"changes": [asdict(change) for change in found]})
    else:
        for change in found:
            print(f"{change.node}: {change.severity}: {change.text}")
    return _DIFFERENT if found else OK


def _changes(args: argparse.Namespace) -> list[TopologyChange]:
    folders = [Path(word).is_dir() for word in (args.old, args.new)]
    if all(folders):
        return cluster_changes(load(Path(args.old)), load(Path(args.new)))
    if any(folders):
        # For a node and a folder, the node is compared with the same node in the folder.
        folder, word = (args.old, args.new) if folders[0] else (args.new, args.old)
        one = _one(word, args)
        other = load(Path(folder)).get(one.node)
        if other is None:
            raise UsageError(f"{folder} has no node {one.node}")
        return changes(other, one) if folders[0] else changes(one, other)
    return changes(_one(args.old, args), _one(args.new, args))


def _one(word: str, args: argparse.Namespace) -> Machine:
    found = machines([word], args)
    if len(found) > 1:
        raise UsageError(f"{word} is {len(found)} nodes; diff compares one with one, or two folders")
    return found[0]


def _wanted(change: TopologyChange, only: str | None) -> bool:
    if only == "loss":
        return change.severity == "loss"
    return only is None or change.severity != "software"
