# SPDX-License-Identifier: Apache-2.0
"""Slurm's own description of the network: topology.conf and topology.yaml.

What their levels mean here (docs/develop/formats.md, section 7):

* tree: the switch that names nodes is their leaf, its parent is their pod; what is above joins pods at level `any`.
  Of several parents (parallel spines) the one that reaches the fewest nodes counts, of equals the first written.
* block: a block is a leaf, a pod is what the second of the block sizes puts together, as Slurm itself counts blocks.
  Without block sizes there are no pods, because Slurm's own 2, 4, 8, 16 blocks say nothing about wires.
* ring: a ring is a leaf. flat: nothing is known.

Standard library, and PyYAML (which ClusterShell brings) for topology.yaml alone.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from topology.providers.slurm_layout import (
    Entry,
    Kind,
    Leaf,
    SlurmFabric,
    block_sizes_of,
    fail,
    leaves_of,
    names_of,
    perhaps,
    text_of,
    whole,
)
from topology.providers.slurm_yaml import read_yaml

__all__ = ["Kind", "Leaf", "SlurmFabric", "find", "read", "sources"]

_MOST_INCLUDES = 16
_INCLUDE_LINE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE | re.MULTILINE)


def find(folder: str | os.PathLike[str]) -> Path | None:
    """Returns the file that Slurm would take from its configuration folder: topology.yaml before topology.conf."""
    for name in ("topology.yaml", "topology.conf"):
        path = Path(folder, name)
        if path.exists():
            return path
    return None


def sources(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Returns the file and what it includes: all whose change may change the fabric."""
    found = [Path(path)]
    for file in found:  # grows while it is gone through
        with contextlib.suppress(OSError):
            for name in _INCLUDE_LINE.findall(file.read_text(encoding="utf-8", errors="replace")):
                included = found[0].parent / name
                if included not in found:
                    found.append(included)
    return tuple(found)


def read(path: str | os.PathLike[str], name: str | None = None) -> SlurmFabric:
    """Read topology.conf or topology.yaml; a TopologyFileError names file, line and what was expected.

    Of several topologies in a topology.yaml: the one of this name, else the first with `cluster_default: true`,
    else the first, as Slurm chooses for what belongs to no partition.
    """
    path = Path(path)
    if path.suffix in {".yaml", ".yml"}:
        return read_yaml(path, name)
    if name is not None:
        fail(str(path), f'there is no topology "{name}", because topologies have names in topology.yaml only')
    return _read_conf(path)


# topology.conf

#: Keys that begin a line, and the keys that may follow on it.
_LINES: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "SwitchName": ("tree", ("Switches", "Nodes", "LinkSpeed")),
    "BlockName": ("block", ("Nodes",)),
    "RingName": ("ring", ("Nodes",)),
    "BlockSizes": ("block", ()),
}
_KEYS = {key.lower(): key for head, (_, others) in _LINES.items() for key in (head, *others)}
_INCLUDE = re.compile(r"include\s+(\S+)\s*(.*)", re.IGNORECASE)
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')


def _read_conf(path: Path) -> SlurmFabric:
    entries: list[Entry] = []
    sizes: list[int] | None = None
    kind, since = None, ""
    for where, text in _statements(path, ()):
        pairs = _pairs(text, where)
        head = next(iter(pairs))
        if head not in _LINES:
            fail(where, f"a line begins with {', '.join(_LINES)} or Include, not with {head}")
        this, allowed = _LINES[head]
        if kind not in {None, this}:
            fail(where, f"{head} belongs to a {this} topology, but {since} began a {kind}; a file holds one kind")
        kind, since = this, since or where
        for key in pairs:
            if key != head and key not in allowed:
                fail(where, f"{key} cannot stand on a line of {head}")
        if head == "BlockSizes":
            sizes = [whole(word, where, "BlockSizes") for word in pairs[head].split(",")]
        else:
            nodes, children = (names_of(pairs.get(key, ""), where) for key in ("Nodes", "Switches"))
            entries.append(Entry(where, pairs[head], nodes, children))
    if kind is None:
        fail(str(path), "there is no line of SwitchName, BlockName or RingName in it")
    leaves = leaves_of(kind, entries, sizes, str(path))
    return SlurmFabric(str(path), kind, leaves, block_sizes=block_sizes_of(kind, sizes, leaves))


def _statements(path: Path, includers: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Yields lines as Slurm joins them: comments out, continued lines in one, included files in place."""
    if path in includers or len(includers) > _MOST_INCLUDES:
        fail(str(includers[-1]), f"it includes {path}, which includes it in turn")
    folder = (includers or (path,))[0].parent
    text, begin = "", 0
    # The empty line at the end closes a last line that ends in a backslash.
    for number, raw in enumerate((text_of(path) + "\n").split("\n"), 1):
        # An escaped # is none; an odd number of backslashes at the end continues the line.
        kept = re.match(r"(?:\\.|[^#\\])*\\?", raw)
        text += kept.group().rstrip() if kept else ""
        begin = begin or number
        if (len(text) - len(text.rstrip("\\"))) % 2:
            text = text[:-1]
            continue
        where, line = f"{path}, line {begin}", re.sub(r"\\(.)", r"\1", text).strip()
        text, begin = "", 0
        include = _INCLUDE.match(line)
        if include:
            if include.group(2) or "*" in include.group(1) or "%" in include.group(1):
                fail(where, "Include takes one plain file name")
            # As Slurm does: beside slurm.conf, which is where the topology file lies.
            yield from _statements(folder / include.group(1), (*includers, path))
        elif line:
            yield where, line


def _pairs(text: str, where: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            fail(where, f'Key=Value is expected, not "{text[at:].strip()[:40]}"')
        key = _KEYS.get(match.group(1).lower())
        if key is None:
            fail(where, f"there is no key {match.group(1)}{perhaps(match.group(1), _KEYS.values())}")
        if key in pairs:
            fail(where, f"{key} stands there twice")
        pairs[key] = match.group(2) if match.group(2) is not None else match.group(3)
        at = match.end()
    return pairs
