# SPDX-License-Identifier: Apache-2.0
"""Describes machines in text, the same way in all commands."""

import os
import re
import sys
from collections.abc import Callable

from topology.model import Machine

#: Takes a word of the matrix and the same word with its padding; returns the padded word, coloured.
Paint = Callable[[str, str], str]


def summary(machine: Machine) -> str:
    """Returns a description of a node in one line."""
    vias = {link.via for link in machine.links}
    if not vias:
        links = "no NVLink"
    else:
        how = "through switches" if vias == {"switch"} else "direct" if vias == {"direct"} else "direct and switched"
        links = f"{len(machine.links)} of {machine.size * (machine.size - 1) // 2} pairs joined by NVLink, {how}"
    driver = f", driver {machine.discovered.driver}" if machine.discovered and machine.discovered.driver else ""
    return f"{machine.node}: {machine.size} GPUs, {machine.model}, {links}{driver}"


def islands(machine: Machine) -> list[list[int]] | None:
    """Returns NVLink islands as lists of positions; None on a compute node without networkx."""
    try:
        from topology.sets.islands import islands as masks  # noqa: PLC0415
        from topology.sets.wiring import positions  # noqa: PLC0415

        return [list(positions(mask)) for mask in masks(machine.shape)]
    except ImportError:
        return None


def paint() -> Paint:
    """Returns a function that colours text if the terminal has colours and the user allows them (no-color.org)."""
    colourful = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return _coloured if colourful else plain


def plain(_word: str, padded: str) -> str:
    """Returns the text without colours."""
    return padded


_COLOURS = (
    (re.compile(r"NV\d+"), "1;34"),  # bold blue
    (re.compile(r"PIX|PXB"), "36"),  # cyan
    (re.compile(r"SYS|X|\?"), "2"),  # faint
)


def _coloured(word: str, padded: str) -> str:
    code = next((code for pattern, code in _COLOURS if pattern.fullmatch(word)), "")
    return f"\x1b[{code}m{padded}\x1b[0m" if code else padded
