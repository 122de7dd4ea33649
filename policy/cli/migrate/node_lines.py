# SPDX-License-Identifier: Apache-2.0
"""Changes the lines of slurm.conf and gres.conf that list the GPUs of nodes; a line of several nodes is split.

All functions are pure: texts in, texts out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policy.cli.migrate.conf_text import ConfLine, entries, words_of
from policy.formats.errors import FormatError
from policy.formats.hostlist import expand, fold

_OURS = frozenset({"gpu", "shard", "seat", "mps"})
_RANGES = ("NodeAddr", "NodeHostname", "Port", "BcastAddr")
"""Settings of a NodeName line that may list a value for each node, as NodeName does."""
_OWN_TYPE = re.compile(r"g\d{1,2}")


@dataclass(frozen=True, slots=True)
class ExactNode:
    """The words of `berth topo export` for a node."""

    gres: str
    model: str
    gres_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedNode:
    """The GRES that slurm.conf lists for a node, with those from `NodeName=DEFAULT`."""

    gres: str
    features: tuple[str, ...]

    @property
    def gpus(self) -> dict[str, int]:
        """Returns the number of GPUs by GRES type; an empty type for GPUs without one."""
        found: dict[str, int] = {}
        for word in words_of(self.gres):
            name, *rest = re.sub(r"\([^)]*\)", "", word).split(":")
            if name.lower() == "gpu":
                count = rest.pop() if rest and rest[-1].isdigit() else "1"
                kind = rest[0] if rest and rest[0] != "no_consume" else ""
                found[kind] = found.get(kind, 0) + int(count)
        return found

    @property
    def models(self) -> list[str]:
        """Returns the GRES types of its GPUs that users name, so not those of the exact layout."""
        return [kind for kind in self.gpus if kind and not _OWN_TYPE.fullmatch(kind)]

    @property
    def exact(self) -> bool:
        """True if each GPU has a type of its own."""
        return bool(self.gpus) and all(_OWN_TYPE.fullmatch(kind) for kind in self.gpus)


def listed(texts: Iterable[str]) -> dict[str, ListedNode]:
    """Returns the nodes of slurm.conf and of the files that it includes."""
    default: dict[str, str] = {}
    return {
        name: node
        for text in texts
        for entry, node in _lines(text, default)
        if node
        for name in expand(entry.get("NodeName") or "")
    }


def _lines(text: str, default: dict[str, str]) -> Iterator[tuple[ConfLine, ListedNode | None]]:
    """Yields each line with the GRES of its nodes; keeps the settings of `NodeName=DEFAULT` in `default`."""
    for entry in entries(text):
        if entry.key != "nodename":
            yield entry, None
            continue
        own = {pair.key.lower(): pair.value for pair in entry.pairs}
        if "features" in own:
            own["feature"] = own.pop("features")
        if own["nodename"].upper() == "DEFAULT":
            default |= own
            yield entry, None
        else:
            own = default | own
            yield entry, ListedNode(own.get("gres", ""), tuple(words_of(own.get("feature", ""))))


def exact_nodes(texts: Sequence[str], wanted: Mapping[str, ExactNode]) -> list[str]:
    """Returns slurm.conf's texts with the exact layout of these nodes; all nodes get their models as features."""
    default: dict[str, str] = {}
    changed = []
    for text in texts:
        lines: list[str] = []
        for entry, node in _lines(text, default):
            lines += _joined([part.raw for part in _parts(entry, node, wanted)]) if node else [entry.raw]
        changed.append("".join(lines))
    return changed


def _parts(entry: ConfLine, old: ListedNode, wanted: Mapping[str, ExactNode]) -> Iterator[ConfLine]:
    """Yields the lines that replace a NodeName line: first that of nodes that keep their layout."""
    names = expand(entry.get("NodeName") or "")
    groups: dict[ExactNode | None, list[str]] = {}
    for node in names:
        groups.setdefault(wanted.get(node), []).append(node)
    for exact in sorted(groups, key=lambda one: one is not None):
        part = _of_nodes(entry, names, groups[exact]) if len(groups) > 1 else entry
        features = [*old.features, *old.models]
        if exact:
            kept = [word for word in words_of(old.gres) if word.partition(":")[0].lower() not in _OURS]
            part = part.with_value(",".join([*kept, exact.gres]), "Gres")
            features.append(exact.model)
        features = list(dict.fromkeys(features))
        if features != list(old.features):
            part = part.with_value(",".join(features), "Feature", "Features")
        yield part


def _of_nodes(entry: ConfLine, names: Sequence[str], chosen: Sequence[str]) -> ConfLine:
    """Returns a NodeName line for only some of its nodes, with their own values."""
    part = entry.with_value(fold(chosen), "NodeName")
    for key in _RANGES:
        value = entry.get(key)
        each = expand(value) if value is not None else ()
        if value is None or (len(each) == 1 and key == "Port"):
            continue
        if len(each) != len(names):
            raise FormatError(
                f"slurm.conf: {key}={value} does not list one for each node of NodeName={entry.get('NodeName')};"
                " split the line by hand"
            )
        by_node = dict(zip(names, each, strict=True))
        part = part.with_value(fold([by_node[node] for node in chosen]), key)
    return part


def exact_gres(text: str, nodes: Sequence[str], wanted: Mapping[str, ExactNode]) -> str:
    """Returns gres.conf with the exact layout of the nodes `wanted`; `nodes` are all nodes with GPUs.

    Lines that name no node hold for all nodes: the nodes that keep their layout are named in them.
    """
    if not wanted:
        return text
    rest = [node for node in nodes if node not in wanted]
    lines: list[str] = []
    automatic = False
    for entry in entries(text):
        ours = (entry.get("Name") or "").lower() in _OURS
        whose, detects = entry.get("NodeName"), entry.get("AutoDetect") is not None
        if ours or (whose and detects):
            lines += _joined(_without(entry, whose, rest, wanted))
        else:
            automatic = automatic or detects
            lines.append(entry.raw)
    gap = [] if not lines or lines[-1].endswith("\n") else ["\n"]
    off = [f"NodeName={fold(sorted_nodes(wanted))} AutoDetect=off\n"] if automatic else []
    added = [f"{line}\n" for line in dict.fromkeys(line for node in wanted.values() for line in node.gres_lines)]
    return "".join([*lines, *gap, *off, *added])


def sorted_nodes(nodes: Iterable[str]) -> list[str]:
    """Returns nodes by their names, n2 before n10."""
    return sorted(nodes, key=lambda node: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", node)])


def _without(entry: ConfLine, whose: str | None, rest: Sequence[str], wanted: Mapping[str, ExactNode]) -> list[str]:
    """Returns a line of gres.conf without the nodes that get the exact layout."""
    if whose is None:
        at = entry.raw.index(entry.text[0])
        return [f"{entry.raw[:at]}NodeName={fold(rest)} {entry.raw[at:]}"] if rest else []
    names = expand(whose)
    kept = [node for node in names if node not in wanted]
    if len(kept) == len(names):
        return [entry.raw]
    return [entry.with_value(fold(kept), "NodeName").raw] if kept else []


def _joined(raws: list[str]) -> list[str]:
    """Ends each line but the last one with a newline."""
    return [*(raw if raw.endswith("\n") else f"{raw}\n" for raw in raws[:-1]), *raws[-1:]]
