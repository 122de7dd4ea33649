# SPDX-License-Identifier: Apache-2.0
"""The NVLinks in the picture of a node: a bar for switches, arcs over a row of cards, lines between quads."""

from collections.abc import Mapping

from topology.drawing.places import Box
from topology.drawing.style import INK, MUTED, PROBLEM, link_colour, link_width
from topology.drawing.svg import Canvas, fit
from topology.model import Link, Machine

HUB_HEIGHT = 34
_HUB = "#e4e2f2"


def link_words(link: Link) -> str:
    """Returns the text for a link."""
    return f"NV{link.count}, {link.gbps:.1f} GB/s"


def short_domain(domain: str) -> str:
    """Returns the first digits of a domain's cluster UUID, and its clique."""
    cluster, dot, clique = domain.rpartition(".")
    return f"{cluster[:8]}{dot}{clique}" if len(cluster) > 16 else domain


def uplinks(machine: Machine) -> dict[int, Link]:
    """Returns for each GPU behind a switch the widest of its links there, which shows what it has itself."""
    widest: dict[int, Link] = {}
    for link in machine.links:
        if link.via == "switch":
            for end in (link.a, link.b):
                if end not in widest or link.gbps > widest[end].gbps:
                    widest[end] = link
    return widest


def draw_hub(canvas: Canvas, machine: Machine, boxes: Mapping[int, Box], y: float) -> None:
    """Draws NVSwitches as one bar over the cards, and each GPU's links to them as one line."""
    lines = uplinks(machine)
    left = min(boxes[gpu].x for gpu in lines)
    right = max(boxes[gpu].right for gpu in lines)
    most = max(link.gbps for link in lines.values())
    for gpu, link in lines.items():
        box = boxes[gpu]
        tip = f"GPU {gpu} to the NVSwitches: {link_words(link)}"
        canvas.line(
            box.middle,
            y + HUB_HEIGHT,
            box.middle,
            box.y,
            stroke=link_colour(link.gbps),
            width=link_width(link.gbps),
            tip=tip,
        )
        if link.gbps < most:
            canvas.text(box.middle + 9, y + HUB_HEIGHT + 30, f"NV{link.count}", size=12, fill=PROBLEM, bold=True)
    if machine.domain:
        for x1, x2 in ((left - 22, left), (right, right + 22)):
            canvas.path(f"M{x1} {y + 12}H{x2}M{x1} {y + HUB_HEIGHT - 12}H{x2}", stroke=INK, width=1.6, dash="2 5")
    tip = f"NVLink domain {machine.domain}" if machine.domain else ""
    canvas.rect(left, y, right - left, HUB_HEIGHT, fill=_HUB, stroke=link_colour(500), radius=8, tip=tip)
    how_many = f"{machine.switches} NVSwitches" if machine.switches > 1 else "NVSwitch"
    domain = f", NVLink domain {short_domain(machine.domain)} goes on to other nodes" if machine.domain else ""
    words = fit(how_many + domain, right - left - 20, 13)
    canvas.text((left + right) / 2, y + 22, words, size=13, fill=INK, bold=True, anchor="middle")


def _ports(machine: Machine, boxes: Mapping[int, Box]) -> dict[tuple[int, int], float]:
    """Returns the x at which links start on the top of card `a`, so that arcs nest and do not cross at a card."""
    ports: dict[tuple[int, int], float] = {}
    for gpu, box in boxes.items():
        others = [link.b if link.a == gpu else link.a for link in _direct(machine) if gpu in {link.a, link.b}]
        leftward = sorted((b for b in others if boxes[b].x < box.x), key=lambda b: -boxes[b].x)
        rightward = sorted((b for b in others if boxes[b].x > box.x), key=lambda b: -boxes[b].x)
        order = leftward + rightward
        for i, other in enumerate(order):
            ports[gpu, other] = box.x + box.width * (i + 1) / (len(order) + 1)
    return ports


def _direct(machine: Machine) -> list[Link]:
    return [link for link in machine.links if link.via == "direct"]


def _rise(distance: float) -> float:
    return min(150.0, 16 + 0.16 * distance)


def arcs_height(machine: Machine, boxes: Mapping[int, Box]) -> float:
    """Returns room that the arcs need above the cards."""
    ports = _ports(machine, boxes)
    rises = [_rise(abs(ports[link.a, link.b] - ports[link.b, link.a])) for link in _direct(machine)]
    return max(rises, default=-22) + 22


def draw_arcs(canvas: Canvas, machine: Machine, boxes: Mapping[int, Box]) -> None:
    """Draws direct links as arcs from card to card; those that stand alone carry their words."""
    ports = _ports(machine, boxes)
    links = _direct(machine)
    ends = [gpu for link in links for gpu in (link.a, link.b)]
    for link in sorted(links, key=lambda link: -abs(ports[link.a, link.b] - ports[link.b, link.a])):
        x1, x2, y = ports[link.a, link.b], ports[link.b, link.a], boxes[link.a].y
        rise = _rise(abs(x1 - x2))
        top = y - rise * 4 / 3
        canvas.path(
            _bow(x1, x2, y, top),
            stroke=link_colour(link.gbps),
            width=link_width(link.gbps),
            tip=f"GPU {link.a} and GPU {link.b}: {link_words(link)}",
        )
        if len(ends) == len(set(ends)):
            canvas.text((x1 + x2) / 2, y - rise - 7, link_words(link), size=11, fill=MUTED, anchor="middle")


def draw_mesh(
    canvas: Canvas, machine: Machine, boxes: Mapping[int, Box], places: Mapping[int, tuple[int, int]], room: float
) -> None:
    """Draws direct links of quads as straight lines behind the cards; what would pass a card goes around it."""
    for link in sorted(machine.links, key=lambda link: link.gbps):
        a, b = boxes[link.a], boxes[link.b]
        (x1, row), (x2, other_row) = places[link.a], places[link.b]
        if row == other_row and abs(x1 - x2) > 1:
            edge = a.y if row == 0 else a.bottom
            bend = edge + (-room if row == 0 else room) * 4 / 3
            data = _bow(a.middle, b.middle, edge, bend)
        else:
            data = f"M{a.middle:.1f} {a.centre:.1f}L{b.middle:.1f} {b.centre:.1f}"
        tip = f"GPU {link.a} and GPU {link.b}: {link_words(link)}"
        canvas.path(data, stroke=link_colour(link.gbps), width=link_width(link.gbps), tip=tip)


def _bow(x1: float, x2: float, y: float, bend: float) -> str:
    """Returns a curve between two points of one height; it rises by three quarters of the distance to `bend`."""
    return f"M{x1:.1f} {y:.1f}C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} {x2:.1f} {y:.1f}"
