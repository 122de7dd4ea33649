# SPDX-License-Identifier: Apache-2.0
"""Below the GPUs in the picture of a node: PCIe switches, NICs, host bridges and NUMA nodes."""

from collections.abc import Mapping

from topology.drawing import places
from topology.drawing.places import GAP, PAD, Box, Panel, Stem, first_stem
from topology.drawing.style import FAINT, HOST, INK, LINE, MUTED, NIC, SWITCH, link_colour, link_width
from topology.drawing.svg import Canvas, fit, text_width
from topology.model import Machine, Nic

HOST_HEIGHT = 30
LEAST_SIZE = 10.0
"""The smallest text on the bar of a NUMA node; it is as large as there is room."""


def depth(panel: Panel) -> float:
    """Returns the distance from a panel's GPUs down to its host."""
    deepest = 30.0
    for stem in panel.stems:
        depth = 24.0 + (24 + 12 if stem.switch else 0) + len(stem.nics) * (places.NIC_HEIGHT + places.NIC_GAP)
        deepest = max(deepest, depth + 10)
    return deepest + (24 if any(stem.bridge >= 0 for stem in panel.stems) else 0)


def draw_host(
    canvas: Canvas,
    machine: Machine,
    panel: Panel,
    x: float,
    width: float,
    boxes: Mapping[int, Box],
    row_bottom: float,
    host_y: float,
) -> None:
    """Draws all below a panel's GPUs, between the lower edge of their row and the bar of the NUMA node."""
    gpu_width = next(iter(boxes.values())).width if boxes else places.CARD_WIDTH
    at = first_stem(panel, x, width, gpu_width)
    bridges: dict[int, tuple[float, float]] = {}
    for stem in panel.stems:
        room = stem.width(gpu_width)
        if stem.bridge >= 0:
            first, _ = bridges.get(stem.bridge, (at, at))
            bridges[stem.bridge] = (first, at + room)
        foot = host_y - 24 if stem.bridge >= 0 else host_y
        _stem(canvas, machine, stem, Box(at, row_bottom, room, foot - row_bottom), boxes)
        at += room + GAP
    for first, last in bridges.values():
        canvas.line((first + last) / 2, host_y - 10, (first + last) / 2, host_y, stroke=LINE, width=1.6)
        canvas.rect(first, host_y - 24, last - first, 15, fill=SWITCH, stroke=FAINT, radius=4)
        canvas.text((first + last) / 2, host_y - 13, "host bridge", size=10, fill=MUTED, anchor="middle")
    canvas.rect(x + PAD / 2, host_y, width - PAD, HOST_HEIGHT, fill=HOST, stroke=FAINT, radius=6)
    words, room = panel_words(machine, panel), width - PAD - 12
    size = next((size for size in (12.0, 11.0, LEAST_SIZE) if text_width(words, size) <= room), LEAST_SIZE)
    canvas.text(x + width / 2, host_y + 20, fit(words, room, size), size=size, fill=INK, anchor="middle")


def _stem(canvas: Canvas, machine: Machine, stem: Stem, room: Box, boxes: Mapping[int, Box]) -> None:
    """Draws lines from the GPUs down to the host, through a switch if there is one, and the NICs beside them."""
    y = room.y + 24
    trunk = room.x + 8
    for gpu in stem.gpus:
        c2c = machine.gpus[gpu].c2c_gbps
        colour, thick = (link_colour(c2c), link_width(c2c)) if c2c else (LINE, 1.6)
        end = y if stem.switch else room.bottom
        canvas.line(boxes[gpu].middle, room.y, boxes[gpu].middle, end, stroke=colour, width=thick)
    if stem.switch:
        canvas.line(trunk, y + 12, trunk, room.bottom, stroke=LINE, width=1.6)
        canvas.rect(room.x, y, room.width, 24, fill=SWITCH, stroke=FAINT, radius=6)
        canvas.text(room.middle, y + 16, stem.switch, size=11, fill=INK, anchor="middle")
        y += 24 + 12
    elif stem.nics:
        canvas.line(trunk, y + places.NIC_HEIGHT / 2, trunk, room.bottom, stroke=LINE, width=1.6)
    for index in stem.nics:
        canvas.line(trunk, y + places.NIC_HEIGHT / 2, trunk + 10, y + places.NIC_HEIGHT / 2, stroke=LINE, width=1.6)
        _nic(canvas, machine.nics[index], trunk + 10, y)
        y += places.NIC_HEIGHT + places.NIC_GAP


def _nic(canvas: Canvas, nic: Nic, x: float, y: float) -> None:
    rate = f"{nic.gbps:g} GB/s" if nic.gbps else "rate unknown"
    tip = " ".join(filter(None, [nic.name, nic.kind, nic.bus_id, rate]))
    canvas.rect(x, y, places.NIC_WIDTH, places.NIC_HEIGHT, fill=NIC, stroke="#8fc3c8", radius=9, tip=tip)
    middle = x + places.NIC_WIDTH / 2
    canvas.text(
        middle, y + 13.5, fit(nic.name, places.NIC_WIDTH - 8, 11), size=11, fill=INK, bold=True, anchor="middle"
    )
    canvas.text(middle, y + 26, fit(rate, places.NIC_WIDTH - 8, 10), size=10, fill=MUTED, anchor="middle")


def panel_words(machine: Machine, panel: Panel) -> str:
    """Returns the text of a NUMA node's bar."""
    branch = panel.branch
    if not branch.gpus and branch.numa < 0:
        return "elsewhere"
    cpus = next((machine.gpus[gpu].cpus for gpu in branch.gpus if machine.gpus[gpu].cpus), "")
    numa = f"NUMA node {branch.numa}" if branch.numa >= 0 else ""
    return ", ".join(filter(None, [numa, cpus and f"CPUs {cpus}"])) or "CPU"
