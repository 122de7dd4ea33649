# SPDX-License-Identifier: Apache-2.0
"""The command `berth topo export`, which writes Slurm's configuration from the topology files."""

import argparse
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from policy.cli.topo.sources import (
    DEGRADED,
    OK,
    add_directory,
    add_slurm_topology,
    directory_of,
    fabric_file,
    fabric_of,
    nothing_in,
)
from policy.formats.errors import FormatError, SlurmError, UsageError
from policy.formats.hostlist import expand
from topology import files
from topology.errors import TopologyFileError
from topology.model import Machine
from topology.writers.slurm_cores import CpuLayout

_WORD = re.compile(r"(\w+)=(\S*)")
#: scontrol writes the kernel's build as "#1", which is not a comment.
_SYSTEM = re.compile(r" OS=.*?(?= RealMemory=)")


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "export",
        help="write lines for slurm.conf, gres.conf and topology.conf",
        description="Write the NodeName words and gres.conf lines that give each GPU its own type, shards and a seat, "
        "or the network as Slurm reads it. A node of which something is not known gets no line, but a sentence that "
        "says what is missing.",
        epilog="Exit status: 0 all is well, 1 a node was left out or two sources part, 2 called in a wrong way.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--slurm", action="store_true", help="the GPUs, for slurm.conf and gres.conf")
    what.add_argument(
        "--fabric",
        choices=("tree", "block", "yaml"),
        help="the network: leaves and pods, or NVLink domains, for topology.conf; or both for topology.yaml",
    )
    add_slurm_topology(parser)
    parser.add_argument("--nodes", metavar="LIST", help="only these nodes, such as n[1-4] (default: all)")
    parser.add_argument("--only", choices=("slurm.conf", "gres.conf"), help="lines of one file, without headings")
    parser.add_argument("--no-comments", action="store_true", help="do not explain the lines")
    cores = parser.add_mutually_exclusive_group()
    cores.add_argument(
        "--slurmd-c",
        metavar="FILE",
        help="what slurmd -C prints, one line a node, or slurm.conf; - for standard input"
        " (default: ask the Slurm that runs, or slurmd -C about this node)",
    )
    cores.add_argument("--no-cores", action="store_true", help="leave Cores= out: any core may go with any GPU")
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints configuration lines, and names on standard error each node that gets none."""
    from topology.writers.slurm import render  # noqa: PLC0415  only what a command needs is imported

    refused: dict[str, str] = {}
    machines = list(_machines(args, refused))
    if args.fabric:
        return _export_fabric(args, machines, refused)
    layouts = None if args.no_cores else layouts_of(args.slurmd_c, machines)
    lines = render(machines, layouts, comments=not args.no_comments)
    refused |= lines.refused
    if args.only != "gres.conf":
        _section("slurm.conf", lines.slurm_conf, titled=not args.only)
    if args.only != "slurm.conf":
        _section("gres.conf", lines.gres_conf, titled=not args.only)
    _say_refused(refused)
    return DEGRADED if refused else OK


def _say_refused(refused: Mapping[str, str]) -> None:
    for node, reason in refused.items():
        sys.stderr.write(f"berth topo export: {node} was left out: {reason}\n")


def _export_fabric(args: argparse.Namespace, machines: list[Machine], refused: Mapping[str, str]) -> int:
    """Prints the network, and on standard error the differences between the topology files and Slurm's own file."""
    fabric = fabric_of(machines, fabric_file(args))
    from topology.writers.slurm_fabric import block_conf, tree_conf, yaml  # noqa: PLC0415  needs numpy, as the fabric

    if args.fabric == "yaml":
        # A form without any data is left out; if both have none, the tree's error says so.
        forms = {"block": bool(fabric.domains), "tree": bool(fabric.leaves) or not fabric.domains}
        lines = yaml({form: (form, fabric) for form in ("tree", "block") if forms[form]})
    else:
        lines = (tree_conf if args.fabric == "tree" else block_conf)(fabric)
    _section("", lines, titled=False)
    _say_refused(refused)
    for conflict in fabric.conflicts:
        sys.stderr.write(f"berth topo export: {conflict}\n")
    return DEGRADED if refused or fabric.conflicts else OK


def _section(title: str, lines: Iterable[str], *, titled: bool) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if text:
        sys.stdout.write(f"# {title}\n{text}" if titled else text)


def _machines(args: argparse.Namespace, refused: dict[str, str]) -> Iterator[Machine]:
    """Yields the chosen nodes; a node whose file cannot be read is added to `refused`."""
    directory = directory_of(args)
    if args.nodes is None:
        problems: list[TopologyFileError] = []
        found = files.load_directory(directory, problems.append)
        if not found and not problems:
            raise nothing_in(directory)
        yield from found.values()
        refused |= {f"a node of {directory}": str(problem) for problem in problems}
        return
    yield from machines_of(dict.fromkeys(expand(args.nodes)), directory, refused)


def machines_of(nodes: Iterable[str], directory: Path, refused: dict[str, str]) -> Iterator[Machine]:
    """Yields the machine of each node. Puts into `refused` why a node's file cannot be read, or is another node's."""
    for node in nodes:
        try:
            machine = files.load(directory / f"{node}.json")
        except TopologyFileError as problem:
            refused[node] = f"{problem}; run berth topo discover there"
            continue
        if machine.node == node:
            yield machine
        else:
            refused[node] = f"{directory / node}.json is about {machine.node}; run berth topo discover --node {node}"


def layouts_of(source: str | None, machines: Iterable[Machine]) -> dict[str, CpuLayout]:
    """Returns the nodes' cores as Slurm counts them: from the admin's file, else from Slurm itself."""
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    if source:
        try:
            return read_layouts(sys.stdin.read() if source == "-" else Path(source).read_text(), source)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {source}: {error}") from None
    here = socket.gethostname().partition(".")[0]
    wanted = {machine.node for machine in machines}
    layouts: dict[str, CpuLayout] = {}
    # Slurm comes first: slurmd -C knows only its own node, and ignores numa_node_as_socket and similar settings.
    for command in (("scontrol", "show", "node", "--oneliner"), ("slurmd", "-C")):
        if command[0] == "slurmd" and (here in layouts or here not in wanted):
            continue
        try:
            text = run_command(*command).decode("utf-8", "replace")
        except SlurmError:
            continue
        layouts |= read_layouts(text, " ".join(command))
    return layouts


def read_layouts(text: str, source: str) -> dict[str, CpuLayout]:
    """Reads sockets, cores and threads from the NodeName lines of `slurmd -C`, slurm.conf or `scontrol show node -o`.

    Lines without all of these counts are skipped; raises FormatError for a node whose counts make no sense.
    """
    layouts: dict[str, CpuLayout] = {}
    default: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.lower().lstrip().startswith("nodename="):
            continue
        words: dict[str, str] = {}
        for key, value in _WORD.findall(_SYSTEM.sub("", line).partition("#")[0]):
            # Free text of users and admins comes last in scontrol's lines.
            words.setdefault(key.lower(), value)
        name = words.pop("nodename")
        if name.upper() == "DEFAULT":
            default |= words
            continue
        layout = _layout(default | words, f"{source}: node {name}")
        for node in expand(name):
            if layout and layouts.setdefault(node, layout) != layout:
                raise FormatError(f"{source}: node {node} stands there twice, with different counts")
    return layouts


def _layout(words: Mapping[str, str], where: str) -> CpuLayout | None:
    counts = [words.get(key, "1") for key in ("socketsperboard", "boards", "corespersocket", "threadspercore")]
    if "sockets" in words:
        counts[:2] = [words["sockets"], "1"]
    elif "socketsperboard" not in words:
        return None
    if "corespersocket" not in words:
        return None
    if not all(re.fullmatch(r"[1-9]\d{0,4}", count) for count in counts):
        raise FormatError(f"{where}: its sockets, cores and threads are {', '.join(counts)}; give whole numbers")
    sockets, boards, cores, threads = map(int, counts)
    return CpuLayout(sockets * boards, cores, threads)
