# SPDX-License-Identifier: Apache-2.0
"""The picture of a node: GPUs by NUMA node, NVLinks above them, PCIe and NICs below."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.drawing import places
from topology.drawing.hosts import HOST_HEIGHT, LEAST_SIZE, depth, draw_host, panel_words
from topology.drawing.legend import Legend
from topology.drawing.nvlinks import HUB_HEIGHT, arcs_height, draw_arcs, draw_hub, draw_mesh, link_words, uplinks
from topology.drawing.places import BETWEEN, PAD, Box, Panel
from topology.drawing.style import (
    BACKGROUND,
    CARD,
    FAINT,
    INK,
    LINE,
    MUTED,
    NIC,
    PANEL,
    PROBLEM,
    TINTS,
    link_colour,
    link_width,
)
from topology.drawing.svg import MOST_WIDTH, Canvas, fit, text_width
from topology.model import Machine

_MARGIN, _TOP, _LEAST_WIDTH = 30, 92, 640
#: Width of a square of four cards, and room above and below it for links that go around cards.
_QUAD_WIDTH = 2 * places.CARD_WIDTH + places.MESH_X
_ARC_ROOM = 34
#: A picture may be so much wider than a window before its cards become narrow.
_SMALLER = 1.15


@dataclass(frozen=True, slots=True)
class _Picture:
    """The machine that is drawn, and the positions of its panels."""

    machine: Machine
    canvas: Canvas
    tints: Mapping[int, int]
    panels: Sequence[Panel]
    starts: Sequence[float]
    widths: Sequence[float]
    width: float
    card: float
    """The width of a card in a row."""
    below: frozenset[int]
    """Panels without GPUs that stand in a second row, where one row would be too wide."""


def draw_node(machine: Machine) -> str:
    """Returns the picture as the text of an SVG file."""
    panels = places.panels_of(machine)
    mesh = places.is_mesh(machine, panels)
    picture = _place(machine, panels, mesh=mesh)
    bottom = _mesh_body(picture) if mesh else _row_body(picture)
    height = _legend(picture, bottom + 30)
    _heading(picture)
    title, description = _title(machine), _description(machine)
    return picture.canvas.done(picture.width, height, title=title, description=description, background=BACKGROUND)


def _place(machine: Machine, panels: Sequence[Panel], *, mesh: bool) -> _Picture:
    """Lays out the panels from left to right, centred where the picture could be narrower."""
    most = MOST_WIDTH - 2 * _MARGIN
    everything = range(len(panels))
    card = places.CHIP_WIDTH if mesh else places.CARD_WIDTH
    widths = _widths(machine, panels, 12.0, card, mesh=mesh)
    below: frozenset[int] = frozenset()
    if _side_by_side(widths, everything) > most:
        widths = _widths(machine, panels, LEAST_SIZE, card, mesh=mesh)
    if _side_by_side(widths, everything) > most:
        below = frozenset(place for place in everything if not panels[place].branch.gpus)
    first = [place for place in everything if place not in below]
    if not mesh and _side_by_side(widths, first) > most * _SMALLER:
        # A picture that is shown smaller has text that is too small to read.
        card = places.NARROW_WIDTH
        widths = _widths(machine, panels, LEAST_SIZE, card, mesh=mesh)
    rows = [row for row in ([p for p in everything if p not in below], sorted(below)) if row]
    width = max([_LEAST_WIDTH, *(_side_by_side(widths, row) + 2 * _MARGIN for row in rows)])
    starts = [0.0] * len(panels)
    for row in rows:
        x = (width - _side_by_side(widths, row)) / 2
        for place in row:
            starts[place] = x
            x += widths[place] + BETWEEN
    return _Picture(machine, Canvas(), places.tints(machine), panels, starts, widths, width, card, below)


def _widths(machine: Machine, panels: Sequence[Panel], size: float, card: float, *, mesh: bool) -> list[float]:
    """Returns the width of each panel, with the words on its bar in this size, and cards or chips of this width."""
    widths = []
    for panel in panels:
        least = _QUAD_WIDTH + 2 * 40 if mesh and panel.branch.gpus else 0
        label = text_width(panel_words(machine, panel), size) + 16
        widths.append(max(panel.width(card), least, label) + 2 * PAD)
    return widths


def _side_by_side(widths: Sequence[float], row: Sequence[int]) -> float:
    return sum(widths[place] for place in row) + BETWEEN * (len(row) - 1)


def _row_body(picture: _Picture) -> float:
    """Draws cards in a row and NVLinks above them; returns the lower edge."""
    machine, canvas = picture.machine, picture.canvas
    hub = bool(uplinks(machine))
    size = (picture.card, places.CARD_HEIGHT)
    above = arcs_height(machine, _row(picture, 0, size)) + (HUB_HEIGHT + 52 if hub else 0)
    top = _TOP + above
    boxes = _row(picture, top + PAD, size)
    bottom = _hosts(picture, boxes, top, top + PAD + size[1])
    if hub:
        draw_hub(canvas, machine, boxes, _TOP)
    draw_arcs(canvas, machine, boxes)
    for gpu, box in boxes.items():
        _card(picture, gpu, box)
    return bottom


def _mesh_body(picture: _Picture) -> float:
    """Draws cards in squares with their NVLinks, and every GPU again over its PCIe; returns the lower edge."""
    squares, corners = _mesh_boxes(picture)
    row_y = max(box.bottom for box in squares.values()) + _ARC_ROOM + 44
    boxes = _row(picture, row_y, (places.CHIP_WIDTH, places.CHIP_HEIGHT))
    bottom = _hosts(picture, boxes, _TOP + PAD - 14, row_y + places.CHIP_HEIGHT)
    draw_mesh(picture.canvas, picture.machine, squares, corners, _ARC_ROOM)
    for gpu, box in squares.items():
        _card(picture, gpu, box)
    for gpu, box in boxes.items():
        _chip(picture, gpu, box)
    return bottom


def _hosts(picture: _Picture, boxes: Mapping[int, Box], top: float, row_bottom: float) -> float:
    """Draws the panels and all below the GPUs; returns the lower edge."""
    every = range(len(picture.panels))
    bottom = _host_row(picture, [place for place in every if place not in picture.below], boxes, top, row_bottom)
    if picture.below:
        top = bottom + BETWEEN
        # The lines that come from GPUs in the first row are not needed.
        bottom = _host_row(picture, sorted(picture.below), boxes, top, top - 8)
    return bottom


def _host_row(picture: _Picture, row: Sequence[int], boxes: Mapping[int, Box], top: float, row_bottom: float) -> float:
    host_y = row_bottom + max((depth(picture.panels[place]) for place in row), default=0)
    bottom = host_y + HOST_HEIGHT + PAD
    for place in row:
        x, width = picture.starts[place], picture.widths[place]
        picture.canvas.rect(x, top, width, bottom - top, fill=PANEL, radius=12)
        draw_host(picture.canvas, picture.machine, picture.panels[place], x, width, boxes, row_bottom, host_y)
    return bottom


def _row(picture: _Picture, y: float, size: tuple[float, float]) -> dict[int, Box]:
    boxes: dict[int, Box] = {}
    for panel, x, room in zip(picture.panels, picture.starts, picture.widths, strict=True):
        boxes |= places.put_stems(panel, x, room, y, size)
    return boxes


def _mesh_boxes(picture: _Picture) -> tuple[dict[int, Box], dict[int, tuple[int, int]]]:
    """Places the cards of the quads; returns them with the column and row of each."""
    quads = [panel.branch.gpus for panel in picture.panels if panel.branch.gpus]
    corners = places.put_mesh(picture.machine, quads)
    panel_of = {gpu: i for i, panel in enumerate(picture.panels) for gpu in panel.branch.gpus}
    boxes = {}
    for gpu, (column, row) in corners.items():
        start, width = picture.starts[panel_of[gpu]], picture.widths[panel_of[gpu]]
        x = start + (width - _QUAD_WIDTH) / 2 + (column % 2) * (places.CARD_WIDTH + places.MESH_X)
        y = _TOP + PAD + _ARC_ROOM + row * (places.CARD_HEIGHT + places.MESH_Y)
        boxes[gpu] = Box(x, y, places.CARD_WIDTH, places.CARD_HEIGHT)
    return boxes, corners


def _colour(picture: _Picture, gpu: int) -> str:
    return TINTS[picture.tints[gpu] % len(TINTS)] if gpu in picture.tints else FAINT


def _card(picture: _Picture, position: int, box: Box) -> None:
    canvas, gpu = picture.canvas, picture.machine.gpus[position]
    troubled = _troubled(picture.machine, position)
    tip = "\n".join(
        filter(None, [gpu.uuid, gpu.name, gpu.bus_id, f"/dev/nvidia{gpu.minor}", gpu.cpus and f"CPUs {gpu.cpus}"])
    )
    canvas.rect(
        box.x,
        box.y,
        box.width,
        box.height,
        fill=CARD,
        stroke=PROBLEM if troubled else FAINT,
        thickness=2 if troubled else 1,
        radius=8,
        tip=tip,
    )
    canvas.path(
        f"M{box.x + 8:.1f} {box.y:.1f}h-1a7 7 0 0 0 -7 7v{box.height - 14:.1f}a7 7 0 0 0 7 7h1z",
        fill=_colour(picture, position),
    )
    narrow = box.width < places.CARD_WIDTH
    x, name = (box.x + 11, f"{position}") if narrow else (box.x + 17, f"GPU {position}")
    canvas.text(x, box.y + 22, name, size=14, fill=INK, bold=True)
    if position in picture.tints:
        letter = _letter(picture.tints[position])
        canvas.text(box.right - (5 if narrow else 9), box.y + 21, letter, size=11, fill=MUTED, anchor="end")
    if troubled:
        canvas.text(box.right - (13 if narrow else 24), box.y + 22, "!", size=14, fill=PROBLEM, bold=True, anchor="end")
    memory, mig = f"{gpu.memory_mib / 1024:.0f} GiB" if gpu.memory_mib else "", "MIG" if gpu.mig else ""
    device = gpu.bus_id.removeprefix("0000:") or f"nvidia{gpu.minor}"
    # A narrow card names the device in its tip alone.
    small = [memory, mig] if narrow else [device, " ".join(filter(None, [memory, mig]))]
    for i, words in enumerate(small):
        canvas.text(x, box.y + 38 + 14 * i, fit(words, box.right - x, 11), size=11, fill=MUTED)


def _chip(picture: _Picture, position: int, box: Box) -> None:
    """Draws a GPU again in the PCIe part of the picture."""
    canvas = picture.canvas
    canvas.rect(box.x, box.y, box.width, box.height, fill=CARD, stroke=FAINT, radius=6)
    canvas.rect(box.x, box.y, 6, box.height, fill=_colour(picture, position), radius=3)
    canvas.text(box.middle + 2, box.y + 16, f"GPU {position}", size=11, fill=INK, anchor="middle")


def _troubled(machine: Machine, position: int) -> bool:
    word = re.compile(rf"\bGPU {position}\b")
    return any(word.search(problem) for problem in machine.problems)


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else str(number)


def _title(machine: Machine) -> str:
    names = {gpu.name for gpu in machine.gpus if gpu.name}
    name = names.pop() if len(names) == 1 else machine.model
    return f"{machine.node}: {machine.size} x {name}"


def _description(machine: Machine) -> str:
    lines = [f"Node {machine.node} with {machine.size} GPUs of model {machine.model}."]
    vias = {link.via for link in machine.links}
    if vias == {"switch"}:
        lines.append(f"NVLink through switches joins {len(machine.links)} pairs of GPUs.")
    else:
        lines += [f"GPU {link.a} and GPU {link.b}: {link_words(link)}." for link in machine.links]
    lines += [f"{nic.name}: {nic.gbps:g} GB/s." for nic in machine.nics if nic.gbps]
    return " ".join(lines + list(machine.problems))


def _heading(picture: _Picture) -> None:
    machine, canvas = picture.machine, picture.canvas
    room = picture.width - 2 * _MARGIN
    canvas.text(_MARGIN, 42, fit(_title(machine), room, 20), size=20, fill=INK, bold=True)
    pairs = machine.size * (machine.size - 1) // 2
    words = [f"model {machine.model}", f"{len(machine.links)} of {pairs} pairs joined by NVLink"]
    if machine.discovered and machine.discovered.driver:
        words.append(f"driver {machine.discovered.driver}")
    words.append("all rates are GB/s in one direction")
    canvas.text(_MARGIN, 64, fit(", ".join(words), room, 12), size=12, fill=MUTED)


def _legend(picture: _Picture, y: float) -> float:
    machine = picture.machine
    legend = Legend(picture.canvas, _MARGIN, y, picture.width - 2 * _MARGIN)
    direct = [link for link in machine.links if link.via == "direct"]
    kinds = {(link.count, link.gbps): link for link in [*direct, *uplinks(machine).values()]}
    for _, link in sorted(kinds.items(), key=lambda item: -item[0][1])[:8]:
        legend.line(link_colour(link.gbps), link_width(link.gbps), link_words(link))
    for c2c in sorted({gpu.c2c_gbps for gpu in machine.gpus if gpu.c2c_gbps}):
        legend.line(link_colour(c2c), link_width(c2c), f"chip to chip, {c2c:.1f} GB/s")
    if any(not gpu.c2c_gbps for gpu in machine.gpus):
        legend.line(LINE, 1.6, "PCIe")
    if machine.nics:
        legend.box(NIC, "NIC and its rate")
    legend.end_row()
    for number in sorted(set(picture.tints.values())):
        gpus = [gpu for gpu, tint in picture.tints.items() if tint == number]
        weakest = min(machine.gbps[a][b] for a in gpus for b in gpus if a < b)
        who = ", ".join(map(str, gpus)) if len(gpus) < 9 else f"{gpus[0]} to {gpus[-1]}"
        words = f"island {_letter(number)}: GPUs {who}, weakest pair {weakest:.1f} GB/s"
        legend.box(TINTS[number % len(TINTS)], words)
    legend.end_row()
    for problem in machine.problems[:6]:
        legend.warning(problem)
    if len(machine.problems) > 6:
        legend.warning(f"and {len(machine.problems) - 6} more problems")
    return legend.y + 14
