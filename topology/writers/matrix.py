"""A machine as a table, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections.abc import Iterator

from topology.model import Machine

__all__ = ["matrix"]


def matrix(machine: Machine) -> Iterator[str]:
    """Lines of the table: NVn for n NVLinks, else the PCIe relation."""
    joined = {(link.a, link.b): f"NV{link.count}" for link in machine.links}
    rows = [["", *(f"GPU{gpu.position}" for gpu in machine.gpus), "Device", "NUMA", "CPUs"]]
    for gpu in machine.gpus:
        a = gpu.position
        cells = [
            joined.get((min(a, b), max(a, b))) or (machine.paths[a][b] if machine.paths else "?")
            for b in range(machine.size)
        ]
        cells[a] = "X"
        numa = "?" if gpu.numa < 0 else str(gpu.numa)
        rows.append([f"GPU{a}", *cells, f"nvidia{gpu.minor}", numa, gpu.cpus or "?"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
