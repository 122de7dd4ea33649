# SPDX-License-Identifier: Apache-2.0
"""The picture of a cluster: pods, leaves in them, nodes in these; what is alike is drawn once in a large cluster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from topology.drawing.legend import Legend
from topology.drawing.nvlinks import short_domain
from topology.drawing.style import BACKGROUND, CARD, FAINT, INK, MUTED, PANEL, PROBLEM, TINTS
from topology.drawing.svg import MOST_WIDTH, Canvas, fit
from topology.model import Machine

if TYPE_CHECKING:
    from topology.network.fabric import Fabric

#: Nodes with a machine of the same kind look the same: model and number of GPUs.
Kind: TypeAlias = tuple[str, int]

_UNKNOWN: Kind = ("", 0)
_MARGIN, _WIDTH, _LEAST_WIDTH, _TOP = 30, MOST_WIDTH, 640, 92
_PAD, _GAP = 12, 14
#: Up to so many nodes carry their names (in one box up to _COUNTED), and up to so many each is drawn.
_NAMED, _EACH = 72, 1_024
#: More alike nodes than this in one box become one tile with a number.
_COUNTED = 256


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    kind: Kind
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rack:
    """The nodes of a leaf that share an NVLink domain, or that share none."""

    domain: str
    nodes: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    name: str
    racks: tuple[_Rack, ...]

    def signature(self) -> object:
        """Returns a value that is equal for leaves that look alike."""
        return tuple(
            (bool(rack.domain), tuple(sorted(Counter((n.kind, bool(n.problems)) for n in rack.nodes).items())))
            for rack in self.racks
        )


@dataclass(frozen=True, slots=True)
class _Pod:
    name: str
    leaves: tuple[_Leaf, ...]

    def signature(self) -> object:
        """Returns a value that is equal for pods that look alike."""
        return frozenset(Counter(leaf.signature() for leaf in self.leaves).items())


_T = TypeVar("_T")
_G = TypeVar("_G", _Leaf, _Pod)


@dataclass(frozen=True, slots=True)
class _Look:
    """Settings for drawing nodes."""

    colours: Mapping[Kind, str]
    width: float
    height: float
    columns: int
    named: bool
    folded: bool


def draw_cluster(machines: Mapping[str, Machine], fabric: Fabric) -> str:
    """Returns the picture as the text of an SVG file; nodes of the fabric without a machine are drawn hollow."""
    nodes = {name: _node(name, machines.get(name)) for name in fabric.names}
    pods = _pods(nodes, machines, fabric)
    kinds = Counter(node.kind for node in nodes.values() if node.kind != _UNKNOWN)
    ordered = sorted(kinds, key=lambda kind: (-kinds[kind], kind))
    one_box = len(nodes) <= _COUNTED and [len(leaf.racks) for pod in pods for leaf in pod.leaves] == [1]
    named = one_box or len(nodes) <= _NAMED
    tile = _tile_width(nodes) if named else 14
    look = _Look(
        colours={kind: TINTS[i % len(TINTS)] for i, kind in enumerate(ordered)},
        width=tile,
        height=34 if named else 14,
        columns=_columns(len(nodes), tile) if one_box else 3 if named else 9,
        named=named,
        folded=len(nodes) > _EACH,
    )
    canvas = Canvas()
    right, bottom = _flow_pods(canvas, pods, look)
    width = max(right + _MARGIN, _LEAST_WIDTH)
    legend = Legend(canvas, _MARGIN, bottom + 30, width - 2 * _MARGIN)
    for kind in ordered[:24]:
        legend.box(look.colours[kind], f"{kind[0]}, {_many(kind[1], 'GPU')}: {_many(kinds[kind], 'node')}")
    _legend(legend, nodes, pods)
    title = f"Cluster of {_many(len(nodes), 'node')} with {_many(sum(kind[1] * n for kind, n in kinds.items()), 'GPU')}"
    canvas.text(_MARGIN, 42, title, size=20, fill=INK, bold=True)
    subtitle = _subtitle(pods)
    canvas.text(_MARGIN, 64, fit(subtitle, width - 2 * _MARGIN, 12), size=12, fill=MUTED)
    parts = (f"{_many(n, 'node')} of {kind[0]} with {_many(kind[1], 'GPU')}" for kind, n in kinds.most_common())
    description = f"{subtitle}. {'; '.join(parts)}."
    return canvas.done(width, legend.y + 14, title=title, description=description, background=BACKGROUND)


def _columns(nodes: int, tile: float) -> int:
    """Returns the columns of tiles where one box holds all nodes: broader than tall, and as many as a row holds."""
    room = _WIDTH - 2 * _MARGIN - 2 * _PAD - 2 * 8 - 2 * 6 + 4
    return min(int(room / (tile + 4)), max(3, math.ceil(math.sqrt(3 * nodes))))


def _tile_width(names: Iterable[str]) -> float:
    """Returns a width for the longest name, within reason."""
    return min(150.0, max([84.0, *(7.2 * len(name) + 20 for name in names)]))


def _node(name: str, machine: Machine | None) -> _Node:
    return _Node(name, (machine.model, machine.size), machine.problems) if machine else _Node(name, _UNKNOWN, ())


def _many(number: int, what: str) -> str:
    plural = {"leaf": "leaves"}.get(what, f"{what}s")
    return f"{number:,} {what if number == 1 else plural}"


def _subtitle(pods: Sequence[_Pod]) -> str:
    leaves = [leaf for pod in pods for leaf in pod.leaves if leaf.name]
    domains = {rack.domain for pod in pods for leaf in pod.leaves for rack in leaf.racks if rack.domain}
    named_pods = sum(1 for pod in pods if pod.name)
    known = [(named_pods, "pod"), (len(leaves), "leaf"), (len(domains), "NVLink domain")]
    return ", ".join(_many(number, what) for number, what in known if number) or "no leaf or pod is known"


def _pods(nodes: Mapping[str, _Node], machines: Mapping[str, Machine], fabric: Fabric) -> list[_Pod]:
    """Returns the nodes by pod, leaf and NVLink domain, each in the order of the fabric, those without a name last."""
    grouped: dict[str, dict[str, dict[str, list[_Node]]]] = {}
    numbers = zip(fabric.pod.tolist(), fabric.leaf.tolist(), fabric.domain.tolist(), strict=True)
    for (name, node), (pod, leaf, domain) in zip(nodes.items(), numbers, strict=True):
        machine = machines.get(name)
        rack = _name(fabric.domains, domain, "domain") or (machine.domain if machine else "")
        leaves = grouped.setdefault(_name(fabric.pods, pod, "pod"), {})
        leaves.setdefault(_name(fabric.leaves, leaf, "leaf"), {}).setdefault(rack, []).append(node)
    return [
        _Pod(
            pod,
            tuple(
                _Leaf(leaf, tuple(_Rack(rack, tuple(members)) for rack, members in _unnamed_last(racks)))
                for leaf, racks in _unnamed_last(leaves)
            ),
        )
        for pod, leaves in _unnamed_last(grouped)
    ]


def _unnamed_last(groups: Mapping[str, _T]) -> list[tuple[str, _T]]:
    return sorted(groups.items(), key=lambda item: not item[0])


def _name(names: tuple[str, ...], number: int, what: str) -> str:
    if number < 0:
        return ""
    return names[number] if number < len(names) else f"{what} {number}"


def _alike(groups: Iterable[_G], look: _Look) -> list[tuple[_G, list[str]]]:
    """Groups with the names of others that look the same; no folding in a small cluster."""
    if not look.folded:
        return [(group, []) for group in groups]
    found: dict[object, tuple[_G, list[str]]] = {}
    for group in groups:
        signature = group.signature()
        if signature in found:
            found[signature][1].append(group.name)
        else:
            found[signature] = (group, [])
    return list(found.values())


def _flow_pods(canvas: Canvas, pods: Sequence[_Pod], look: _Look) -> tuple[float, float]:
    """Draw all pods from left to right and down; the right and the lower edge."""
    x, y, deepest, right = float(_MARGIN), float(_TOP), 0.0, 0.0
    for pod, others in _alike(pods, look):
        places, width, height = _arrange(pod, look)
        label = _label("pod", pod.name, others)
        width = max(width, min(7.4 * len(label), 420)) + 2 * _PAD
        height += 30 + _PAD
        if x > _MARGIN and x + width > _WIDTH - _MARGIN:
            x, y, deepest = float(_MARGIN), y + deepest + _GAP + 4, 0.0
        _stack(canvas, x, y, width, height, PANEL, others)
        canvas.text(x + _PAD, y + 20, fit(label, width - 2 * _PAD, 12), size=12, fill=INK, bold=True)
        for leaf, alike, (left, top, inner, tall) in places:
            _draw_leaf(canvas, leaf, alike, (x + _PAD + left, y + 30 + top, inner, tall), look)
        right, deepest = max(right, x + width), max(deepest, height)
        x += width + _GAP + 4
    return right, y + deepest


def _label(what: str, name: str, others: Sequence[str]) -> str:
    words = f"{what} {name}" if name and not name.startswith(what) else name or f"no {what} known"
    return f"{words} and {len(others):,} more like it" if others else words


def _stack(canvas: Canvas, x: float, y: float, width: float, height: float, fill: str, others: Sequence[str]) -> None:
    """Draws a box; if it stands for several, their edges show behind it."""
    tip = f"also {', '.join(others[:40])}{' and more' if len(others) > 40 else ''}" if others else ""
    for offset in (6, 3) if others else ():
        canvas.rect(x + offset, y + offset, width, height, fill=fill, stroke=FAINT, radius=10)
    canvas.rect(x, y, width, height, fill=fill, stroke=FAINT, radius=10, tip=tip)


_Place: TypeAlias = tuple[float, float, float, float]


def _arrange(pod: _Pod, look: _Look) -> tuple[list[tuple[_Leaf, list[str], _Place]], float, float]:
    """Returns the positions of a pod's leaves in it, and their total width and height."""
    most = _WIDTH - 2 * _MARGIN - 2 * _PAD
    places: list[tuple[_Leaf, list[str], _Place]] = []
    x = y = deepest = widest = 0.0
    for leaf, others in _alike(pod.leaves, look):
        columns = min(look.columns, max(len(rack.nodes) for rack in leaf.racks))
        label = 6.4 * len(_label("leaf", leaf.name, others))
        width = max(columns * (look.width + 4) - 4 + 2 * 6, label, 96) + 2 * 8
        height = 26 + sum(_rack_height(rack, look) + 6 for rack in leaf.racks) + 2
        if x and x + width > most:
            x, y, deepest = 0.0, y + deepest + _GAP, 0.0
        places.append((leaf, others, (x, y, width, height)))
        x += width + _GAP
        widest, deepest = max(widest, x - _GAP), max(deepest, height)
    return places, widest, y + deepest


def _rows(rack: _Rack, look: _Look) -> int:
    tiles = len(rack.nodes) if len(rack.nodes) <= _COUNTED else 0
    return -(-tiles // look.columns)


def _rack_height(rack: _Rack, look: _Look) -> float:
    counted = 20 * len({node.kind for node in rack.nodes}) if len(rack.nodes) > _COUNTED else 0
    return _rows(rack, look) * (look.height + 4) - 4 + counted + 2 * 6 + (15 if rack.domain else 0)


def _draw_leaf(canvas: Canvas, leaf: _Leaf, others: Sequence[str], place: _Place, look: _Look) -> None:
    x, y, width, height = place
    _stack(canvas, x, y, width, height, CARD, others)
    label = _label("leaf", leaf.name, others)
    canvas.text(x + 8, y + 17, fit(label, width - 10, 10.5), size=11, fill=MUTED)
    y += 26
    for rack in leaf.racks:
        high = _rack_height(rack, look)
        top = y + 6
        if rack.domain:
            canvas.rect(x + 6, y, width - 12, high, fill="none", stroke=INK, thickness=1.6, radius=7, dash="5 3")
            label = fit(short_domain(rack.domain), width - 26, 10)
            canvas.text(x + 13, y + 13, label, size=10, fill=INK)
            top += 15
        if len(rack.nodes) > _COUNTED:
            _draw_counts(canvas, rack, x + 14, top, look)
        else:
            _draw_tiles(canvas, rack, x + 14, top, look)
        y += high + 6


def _draw_counts(canvas: Canvas, rack: _Rack, x: float, y: float, look: _Look) -> None:
    counts = Counter(node.kind for node in rack.nodes)
    for i, (kind, number) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
        colour = look.colours.get(kind, CARD)
        canvas.rect(x, y + 20 * i, 14, 14, fill=colour, stroke="" if kind in look.colours else MUTED, radius=3)
        canvas.text(x + 22, y + 20 * i + 11, _many(number, "node"), size=11, fill=INK)


def _draw_tiles(canvas: Canvas, rack: _Rack, x: float, y: float, look: _Look) -> None:
    plain: dict[Kind, list[str]] = {}
    for i, node in enumerate(rack.nodes):
        left = x + i % look.columns * (look.width + 4)
        top = y + i // look.columns * (look.height + 4)
        if look.folded and not node.problems and node.kind in look.colours:
            plain.setdefault(node.kind, []).append(f"M{left:g} {top:g}h{look.width}v{look.height}h-{look.width}z")
        else:
            _draw_tile(canvas, node, left, top, look)
    for kind, squares in plain.items():
        canvas.path("".join(squares), fill=look.colours[kind])


def _draw_tile(canvas: Canvas, node: _Node, x: float, y: float, look: _Look) -> None:
    what = f"{_many(node.kind[1], 'GPU')}, {node.kind[0]}" if node.kind != _UNKNOWN else "no topology file"
    tip = "\n".join([f"{node.name}: {what}", *node.problems[:4]])
    colour = look.colours.get(node.kind, "")
    if look.named:
        edge = PROBLEM if node.problems else FAINT
        canvas.rect(x, y, look.width, look.height, fill=CARD, stroke=edge, radius=5, tip=tip)
        canvas.rect(x, y, 6, look.height, fill=colour or FAINT, radius=3)
        name = fit(node.name, look.width - 16, 12, keep_end=True)
        canvas.text(x + 12, y + 14, name, size=11, fill=INK, bold=True)
        words = f"{node.kind[1]} x {node.kind[0]}" if colour else "no file"
        canvas.text(x + 12, y + 27, fit(words, look.width - 16, 9.5), size=10, fill=MUTED)
    else:
        stroke = PROBLEM if node.problems else "" if colour else MUTED
        canvas.rect(x, y, look.width, look.height, fill=colour or CARD, stroke=stroke, radius=3, tip=tip)
    if node.problems:
        cross = f"M{x + look.width - 11:g} {y + 3:g}l8 8m0 -8l-8 8"
        canvas.path(cross, stroke=PROBLEM if look.named else CARD, width=2)


def _legend(legend: Legend, nodes: Mapping[str, _Node], pods: Sequence[_Pod]) -> None:
    legend.end_row()
    if any(rack.domain for pod in pods for leaf in pod.leaves for rack in leaf.racks):
        legend.outline(INK, "nodes of one NVLink domain", dash="5 3")
    if any(node.kind == _UNKNOWN for node in nodes.values()):
        legend.outline(MUTED, "no topology file")
    troubled = sum(1 for node in nodes.values() if node.problems)
    legend.end_row()
    if troubled:
        legend.warning(f"{_many(troubled, 'node')} with problems, crossed: berth topo show names them")
