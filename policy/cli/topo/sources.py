# SPDX-License-Identifier: Apache-2.0
"""Finds the machines and the fabric for a command.

Machines come from topology files, output of nvidia-smi, or machine:NAME. The fabric comes from the machines and from
Slurm's own file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from policy.cli.output import number_of, say
from policy.formats.errors import BerthError, UsageError
from policy.site import config
from topology import files
from topology.errors import TopologyFileError
from topology.model import Machine

if TYPE_CHECKING:
    from topology.network.fabric import Fabric

OK, DEGRADED, FAILED = 0, 1, 2

WHAT = "NODE, topology FILE.json, FILE.txt with the output of nvidia-smi topo -m, or machine:NAME"
_NAMED = "machine:"


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the folder of topology files."""
    parser.add_argument(
        "--topology-dir", type=Path, metavar="DIR", help="topology files (default: topology_dir of berth.conf)"
    )


def add_slurm_topology(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the file with leaves and pods."""
    parser.add_argument(
        "--slurm-topology",
        metavar="FILE",
        help="Slurm's topology.conf or topology.yaml with leaves and pods, or none "
        "(default: fabric of berth.conf, else the one beside slurm.conf)",
    )


def default_directory() -> Path:
    """Returns the folder that berth.conf names; without berth.conf the default one."""
    return config.load(config.config_path()).topology_dir


def directory_of(args: argparse.Namespace) -> Path:
    """Returns the folder that the user or berth.conf names."""
    chosen: Path | None = args.topology_dir
    return chosen or default_directory()


def fabric_file(args: argparse.Namespace) -> Path | None:
    """Returns the file that the user or berth.conf names, else the one that Slurm uses; None if there is none."""
    chosen: str | None = args.slurm_topology
    return config.fabric_file(chosen or config.load(config.config_path()).fabric)


def fabric_of(found: Iterable[Machine], source: Path | None) -> Fabric:
    """Returns the fabric that joins these machines."""
    try:
        from topology.network.fabric import Fabric  # noqa: PLC0415  needs numpy, which most commands do without
    except ImportError as error:
        raise BerthError(f"the fabric needs {error.name}; install slurm-berth[daemon]") from error
    from topology.providers import slurm_fabric  # noqa: PLC0415  most commands read no fabric

    return Fabric.of(found, slurm_fabric.read(source) if source else None)


def machines(what: Iterable[str], args: argparse.Namespace) -> list[Machine]:
    """Returns the machines that these words name; without words, all in the folder."""
    words = list(what)
    if words:
        return [machine for word in words for machine in _meant(word, args)]
    return list(load(directory_of(args)).values())


def load(directory: Path) -> dict[str, Machine]:
    """Returns all machines of a folder; a broken file is skipped with a line on standard error."""
    found = files.load_directory(directory, lambda problem: say(f"berth topo: {problem}", number_of(problem)))
    if not found:
        raise nothing_in(directory)
    return found


def nothing_in(directory: Path) -> UsageError:
    """Returns the error for a folder without topology files."""
    return UsageError(f"{directory} has no topology file; run berth topo discover on the GPU nodes")


def _meant(word: str, args: argparse.Namespace) -> list[Machine]:
    if word.startswith(_NAMED):
        return _named(word.removeprefix(_NAMED))
    if word.endswith(".txt"):
        return [_text(Path(word))]
    if "/" in word or word.endswith(".json"):
        return [files.load(word)]
    return [files.load(directory_of(args) / f"{word}.json")]


def _named(name: str) -> list[Machine]:
    from topology import machines as named  # noqa: PLC0415  most calls name none

    if name in named.rack_names():
        return named.rack(name, [f"{name}-{place:02}" for place in range(1, named.places(name) + 1)])
    return [named.machine(name, name)]


def _text(path: Path) -> Machine:
    from topology.providers.matrix_text import parse  # noqa: PLC0415  most calls have no text

    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise TopologyFileError(f"cannot read {path}: {error.strerror}") from error
    return parse(text, node=path.stem, source=str(path))
