# SPDX-License-Identifier: Apache-2.0
"""Describes machines in text, the same way in all commands."""

from topology.model import Machine


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
