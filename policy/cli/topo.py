"""`berth topo`: discover a node's GPUs, show them, write Slurm's configuration from them."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from policy.errors import UsageError
from policy.hostlist import expand
from topology import files
from topology.errors import TopologyError
from topology.model import Machine

__all__ = ["register"]

DEFAULT_DIRECTORY = Path("/etc/slurm/berth/topology")

OK, DEGRADED, FAILED = 0, 1, 2


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `topo` and its commands to the parser of `berth`."""
    topo = subparsers.add_parser("topo", help="GPUs and NVLinks of the nodes")
    commands = topo.add_subparsers(dest="topo_command", metavar="COMMAND", required=True)
    _register_discover(commands)
    _register_show(commands)
    _register_export(commands)


def _register_discover(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
        help=f"file to write, - for standard output (default: {DEFAULT_DIRECTORY}/NODE.json)",
    )
    parser.add_argument("--model", metavar="NAME", help="short model name for gpu:NAME:N (default: from the driver)")
    parser.set_defaults(run=run_discover)


def _register_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "show",
        help="show the GPUs, links and islands of nodes",
        description="Show nodes as tables; nodes that are alike are shown once.",
        epilog="NVn: n NVLinks; PIX, PXB, PHB, NODE, SYS: over PCIe, ever farther.",
    )
    parser.add_argument("what", nargs="*", metavar="NODE|FILE", help="nodes or topology files (default: all nodes)")
    parser.add_argument("--json", action="store_true", help="print the topology files' contents and the islands")
    _add_directory(parser)
    parser.set_defaults(run=run_show)


def _register_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="write lines for slurm.conf and gres.conf",
        description="Write the NodeName words and gres.conf lines that give each GPU its own type, shards and a seat.",
    )
    parser.add_argument("--slurm", action="store_true", required=True, help="in Slurm's form")
    parser.add_argument("--nodes", metavar="LIST", help="only these nodes, such as n[1-4] (default: all)")
    parser.add_argument("--only", choices=("slurm.conf", "gres.conf"), help="lines of one file, without headings")
    parser.add_argument(
        "--threads-per-core",
        type=int,
        metavar="N",
        help="as in slurm.conf; needed where CPUs are numbered with the threads of a core side by side",
    )
    _add_directory(parser)
    parser.set_defaults(run=run_export)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topology-dir",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="topology files (default: %(default)s)",
    )


def run_discover(args: argparse.Namespace) -> int:
    """Write this node's file, say in one line what was found, and each problem in a line of its own."""
    from topology.providers.nvml import discover  # noqa: PLC0415  the other commands need no provider

    node = args.node or socket.gethostname().partition(".")[0]
    try:
        machine = discover(node, args.model)
        if args.output == "-":
            sys.stdout.write(files.encode(machine))
        else:
            output = Path(args.output) if args.output else DEFAULT_DIRECTORY / f"{node}.json"
            if not args.output:
                output.parent.mkdir(parents=True, exist_ok=True)
            files.dump(machine, output)
    except (TopologyError, OSError) as error:
        print(f"berth topo discover: {error}", file=sys.stderr)
        return FAILED
    print(_summary(machine), file=sys.stderr if args.output == "-" else sys.stdout)
    for problem in machine.problems:
        print(f"{node}: {problem}", file=sys.stderr)
    return DEGRADED if machine.problems else OK


def _summary(machine: Machine) -> str:
    vias = {link.via for link in machine.links}
    if not vias:
        links = "no NVLink"
    else:
        how = "through switches" if vias == {"switch"} else "direct" if vias == {"direct"} else "direct and switched"
        links = f"{len(machine.links)} of {machine.size * (machine.size - 1) // 2} pairs joined by NVLink, {how}"
    driver = f", driver {machine.discovered.driver}" if machine.discovered and machine.discovered.driver else ""
    return f"{machine.node}: {machine.size} GPUs, {machine.model}, {links}{driver}"


def run_show(args: argparse.Namespace) -> int:
    """Print tables, or JSON."""
    machines = _load(args.what, args.topology_dir)
    if args.json:
        whole = [json.loads(files.encode(machine)) | {"islands": _islands(machine)} for machine in machines]
        print(json.dumps(whole, indent=1))
        return OK
    from topology.writers.matrix import matrix  # noqa: PLC0415

    alike: dict[tuple[str, ...], list[Machine]] = {}
    for machine in machines:
        alike.setdefault((machine.model, *matrix(machine), *machine.problems), []).append(machine)
    for number, group in enumerate(alike.values()):
        if number:
            print()
        _show(group)
    return OK


def _show(group: list[Machine]) -> None:
    from topology.writers.matrix import matrix  # noqa: PLC0415

    machine = group[0]
    print(_summary(machine))
    if len(group) > 1:
        print(f"and {len(group) - 1} more like it: {','.join(other.node for other in group[1:])}")
    print("\n".join(matrix(machine)))
    for island in _islands(machine) or ():
        speeds = [machine.gbps[a][b] for a in island for b in island if a < b]
        gpus = ",".join(map(str, island))
        print(f"island of GPUs {gpus}: {min(speeds):.1f} GB/s on the weakest pair, {sum(speeds):.1f} in all")
    for problem in machine.problems:
        print(f"problem: {problem}")


def _islands(machine: Machine) -> list[list[int]] | None:
    """NVLink islands as lists of positions; None on a compute node, which has no networkx."""
    try:
        from topology.islands import islands, positions  # noqa: PLC0415

        return [list(positions(mask)) for mask in islands(machine.shape)]
    except ImportError:
        return None


def run_export(args: argparse.Namespace) -> int:
    """Print configuration lines; what could not be written goes to standard error."""
    from topology.writers.slurm import render  # noqa: PLC0415

    if args.threads_per_core is not None and args.threads_per_core < 1:
        raise UsageError(f"--threads-per-core is {args.threads_per_core}; give a number from 1 on")
    machines = _load(expand(args.nodes) if args.nodes else (), args.topology_dir)
    lines = render(machines, args.threads_per_core)
    if args.only != "gres.conf":
        _section("slurm.conf: add these words to the NodeName lines", lines.slurm_conf, titled=not args.only)
    if args.only != "slurm.conf":
        _section("gres.conf", lines.gres_conf, titled=not args.only)
    for note in lines.notes:
        print(f"berth topo export: {note}", file=sys.stderr)
    return DEGRADED if lines.notes else OK


def _section(title: str, lines: Iterable[str], *, titled: bool) -> None:
    if titled:
        print(f"# {title}")
    print("\n".join(lines))


def _load(what: Iterable[str], directory: Path) -> list[Machine]:
    """Machines by name or file; all of the directory where none is named."""
    named = [Path(word) if "/" in word or word.endswith(".json") else directory / f"{word}.json" for word in what]
    if named:
        return [files.load(path) for path in named]
    machines = files.load_directory(directory, lambda problem: print(f"berth topo: {problem}", file=sys.stderr))
    if not machines:
        raise UsageError(f"{directory} has no topology file; run berth topo discover on the GPU nodes")
    return list(machines.values())
