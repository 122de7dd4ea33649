# SPDX-License-Identifier: Apache-2.0
"""The command `berth topo show`, which shows nodes as tables."""

import argparse
import json
from collections.abc import Iterable

from policy.cli.output import print_json
from policy.cli.topo.sources import OK, WHAT, add_directory, machines
from policy.cli.topo.words import islands, summary
from policy.formats import hostlist
from topology import files, pcie
from topology.model import Machine
from topology.writers.matrix import matrix


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "show",
        help="show the GPUs, links, islands and NICs of nodes",
        description="Show nodes as tables; nodes that are alike are shown once.",
        epilog="NVn: n NVLinks; PIX, PXB, PHB, NODE, SYS: over PCIe, ever farther.",
    )
    parser.add_argument("what", nargs="*", metavar="NODE|FILE|machine:NAME", help=f"{WHAT} (default: all nodes)")
    parser.add_argument("--json", action="store_true", help="print the topology files' contents and the islands")
    add_directory(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints tables, or JSON."""
    found = machines(args.what, args)
    if args.json:
        whole = [json.loads(files.encode(machine)) | {"islands": islands(machine)} for machine in found]
        print_json({"nodes": whole})
        return OK
    alike: dict[tuple[str, ...], list[Machine]] = {}
    for machine in found:
        alike.setdefault((machine.model, machine.domain, *_table(machine), *machine.problems), []).append(machine)
    for number, group in enumerate(alike.values()):
        if number:
            print()
        _show(group)
    return OK


def _table(machine: Machine) -> list[str]:
    return [*matrix(machine), _nics(machine)]


def _show(group: list[Machine]) -> None:
    machine = group[0]
    print(summary(machine))
    if len(group) > 1:
        print(f"and {len(group) - 1} more like it: {_folded(other.node for other in group[1:])}")
    print("\n".join(matrix(machine)))
    if machine.domain:
        print(f"NVLink domain: {machine.domain}")
    for island in islands(machine) or ():
        speeds = [machine.gbps[a][b] for a in island for b in island if a < b]
        gpus = ",".join(map(str, island))
        print(f"island of GPUs {gpus}: {min(speeds):.1f} GB/s on the weakest pair, {sum(speeds):.1f} in all")
    if machine.nics:
        print(f"NICs: {_nics(machine)}")
        print(f"nearest NICs: {_rails(machine)}")
    for problem in machine.problems:
        print(f"problem: {problem}")


def _folded(names: Iterable[str]) -> str:
    """Returns a host list in the order of the nodes' numbers: `gpu[1-199]`, not `gpu[1,10-19,100]`."""
    return hostlist.fold(sorted(names, key=lambda name: (name.rstrip("0123456789"), len(name), name)))


def _nics(machine: Machine) -> str:
    return ", ".join(
        " ".join(filter(None, [nic.name, f"{nic.gbps:g} GB/s" if nic.gbps else "", nic.kind])) for nic in machine.nics
    )


def _rails(machine: Machine) -> str:
    """Returns a text that groups GPUs by their nearest NICs."""
    gpus: dict[tuple[str, ...], list[str]] = {}
    for gpu, names in enumerate(pcie.rails(machine)):
        gpus.setdefault(names, []).append(str(gpu))
    return "; ".join(
        f"GPU{'s' if len(where) > 1 else ''} {','.join(where)}: {','.join(names) or 'unknown'}"
        for names, where in gpus.items()
    )
