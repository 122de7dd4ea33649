# SPDX-License-Identifier: Apache-2.0
"""Switches, blocks and rings as Slurm's files list them, and the leaves and pods that they mean.

Shared by both forms, topology.conf and topology.yaml; topology.providers.slurm_fabric defines pods.
"""

import difflib
import graphlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from topology.errors import HostlistError, TopologyFileError
from topology.hostlist import expand

Kind: TypeAlias = Literal["tree", "block", "ring", "flat"]

_DEFAULT_LEVELS = range(5)
"""Without BlockSizes Slurm makes aggregated blocks of 2, 4, 8 and 16."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A switch with nodes, a base block or a ring."""

    name: str
    nodes: tuple[str, ...]
    pod: str = ""
    """Empty where nothing above it is known."""
    where: str = ""
    """File and line, for people."""


@dataclass(frozen=True, slots=True)
class SlurmFabric:
    """One topology of a file; no node is in two leaves."""

    source: str
    kind: Kind
    leaves: tuple[Leaf, ...] = ()
    name: str = ""
    """As topology.yaml calls it; empty for topology.conf, which has one only."""
    block_sizes: tuple[int, ...] = ()
    """For blocks, the sizes that Slurm uses, in nodes; the first is that of a block."""

    def check(self, known: Collection[str]) -> None:
        """Raise a TopologyFileError where the file names a node that is not among these, all of Slurm's."""
        everyone = frozenset(known)
        for leaf in self.leaves:
            for node in leaf.nodes:
                if node not in everyone:
                    fail(leaf.where, f"Slurm has no node {node}{perhaps(node, everyone)}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line or list item: a switch, a block or a ring."""

    where: str
    name: str
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def names_of(text: str, where: str) -> tuple[str, ...]:
    """Returns the names in a host list of the file; `where` begins the error's sentence."""
    try:
        names = expand(text)
    except HostlistError as error:
        raise TopologyFileError(f"{where}: {error}") from error
    for name in names:
        if not _NAME.fullmatch(name):
            fail(where, f'"{text[:80]}" is not a host list such as n[01-16,20]')
    return names


def leaves_of(kind: Kind, entries: list[Entry], sizes: list[int] | None, source: str) -> tuple[Leaf, ...]:
    """Returns the leaves of checked entries; `sizes` are the block sizes, where there are any."""
    if not entries:
        fail(source, f"the {kind} topology is empty")
    defined: dict[str, Entry] = {}
    for entry in entries:
        if not entry.name:
            fail(entry.where, "its name is empty")
        if entry.name in defined:
            fail(entry.where, f"{entry.name} is defined twice, first in {defined[entry.name].where}")
        defined[entry.name] = entry
    seen: dict[str, Entry] = {}
    for entry in entries:
        for node in entry.nodes:
            first = seen.setdefault(node, entry)
            if first is not entry:
                fail(entry.where, f"node {node} is in {entry.name}, and in {first.name} ({first.where}) already")
    pods = _tree_pods(defined) if kind == "tree" else _block_pods(entries, sizes, source) if kind == "block" else {}
    return tuple(
        Leaf(entry.name, tuple(dict.fromkeys(entry.nodes)), pods.get(entry.name, ""), entry.where)
        for entry in entries
        if not entry.children
    )


def _tree_pods(switches: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the pod of each leaf: its parent that reaches the fewest nodes."""
    parents: dict[str, list[str]] = {}
    for name, switch in switches.items():
        if switch.children and switch.nodes:
            fail(switch.where, f"switch {name} has both switches and nodes; Slurm takes one of them")
        for child in switch.children:
            if child not in switches:
                fail(switch.where, f"switch {name} has the child {child}, which no line defines")
            parents.setdefault(child, []).append(name)
    try:
        upwards = tuple(graphlib.TopologicalSorter({n: s.children for n, s in switches.items()}).static_order())
    except graphlib.CycleError as error:
        loop = error.args[1][::-1]
        fail(switches[loop[0]].where, f"the switches are no tree: {' has the child '.join(loop)}")
    reach: dict[str, int] = {}
    for name in upwards:
        switch = switches[name]
        reach[name] = len(switch.nodes) + sum(reach[child] for child in switch.children)
    return {
        name: min(parents[name], key=reach.__getitem__)
        for name, switch in switches.items()
        if not switch.children and name in parents
    }


def _block_pods(blocks: Sequence[Entry], sizes: Sequence[int] | None, source: str) -> dict[str, str]:
    """Returns the pod of each block: what the second of the block sizes puts together, in the order of the file."""
    if not sizes:
        return {}
    for size in sizes:
        times = size // sizes[0]
        if size % sizes[0] or times & (times - 1):
            fail(source, f"block size {size} is not {sizes[0]}, the first, times a power of two")
    together = min((size // sizes[0] for size in sizes if size > sizes[0]), default=0)
    pods: dict[str, str] = {}
    if together:
        for start in range(0, len(blocks), together):
            members = blocks[start : start + together]
            # Slurm makes no aggregated block of a single one that is left over at the end.
            if len(members) > 1:
                pods |= dict.fromkeys((block.name for block in members), f"{members[0].name}..{members[-1].name}")
    return pods


def block_sizes_of(kind: Kind, given: Sequence[int] | None, leaves: Sequence[Leaf]) -> tuple[int, ...]:
    """Returns the sizes that Slurm goes by: those of its file, else powers of two of the nodes of its first block.

    Nothing for other kinds than blocks.
    """
    if kind != "block":
        return ()
    return tuple(given) if given else tuple(len(leaves[0].nodes) << level for level in _DEFAULT_LEVELS)


def whole(word: str, where: str, what: str) -> int:
    """Parses a positive number."""
    if not word.strip().isdecimal() or int(word) < 1:
        fail(where, f'{what} should be whole numbers from 1 on, not "{word[:40]}"')
    return int(word)


def text_of(path: Path) -> str:
    """Returns the file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TopologyFileError(f"{path}: not a text in UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise TopologyFileError(f"cannot read {path}: {error.strerror}") from error


def perhaps(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence that names the nearest known word, or nothing."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def fail(where: str, sentence: str) -> NoReturn:
    """Raise a TopologyFileError."""
    raise TopologyFileError(f"{where}: {sentence}")
