# SPDX-License-Identifier: Apache-2.0
"""A machine as a table, in the words of `nvidia-smi topo -m`."""

from collections.abc import Iterator

from topology.model import Machine


def matrix(machine: Machine) -> Iterator[str]:
    """Yields lines of the table: NVn for n NVLinks, else the PCIe relation."""
    joined = {(link.a, link.b): f"NV{link.count}" for link in machine.links}
    nics = [nic.name for nic in machine.nics]
    rows = [["", *(f"GPU{gpu.position}" for gpu in machine.gpus), *nics, "Device", "NUMA", "CPUs"]]
    for gpu in machine.gpus:
        a = gpu.position
        cells = [
            joined.get((min(a, b), max(a, b))) or (machine.paths[a][b] if machine.paths else "?")
            for b in range(machine.size)
        ]
        cells[a] = "X"
        near = machine.nic_paths[a] if machine.nic_paths else "?" * len(nics)
        numa = "?" if gpu.numa < 0 else str(gpu.numa)
        rows.append([f"GPU{a}", *cells, *near, f"nvidia{gpu.minor}", numa, gpu.cpus or "?"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
