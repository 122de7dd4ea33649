# SPDX-License-Identifier: Apache-2.0
"""The pictures in docs/pictures; `python -m tests.pictures` draws them anew, and a test holds that they are current."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from topology.drawing import draw_cluster, draw_node
from topology.machines import machine, rack
from topology.model import Machine
from topology.network.fabric import Fabric

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"


def cluster() -> tuple[dict[str, Machine], Fabric]:
    """Two pods: leaves of HGX nodes, racks of GB200 and some odd ones, one of them with a dead link, two unknown."""
    leaves: dict[str, list[Machine | str]] = {
        f"leaf{leaf}": [machine("hgx-h100", f"h{16 * leaf + i:03}") for i in range(16)] for leaf in range(4)
    }
    for leaf in range(4, 6):
        racks = [[f"g{72 * (leaf - 4) + 18 * r + i:03}" for i in range(18)] for r in range(2)]
        leaves[f"leaf{leaf}"] = [tray for names in racks for tray in rack("gb200-nvl72", names)]
    broken = machine("dgx-1v", "v02")
    leaves["leaf6"] = [
        *(machine("a6000-pairs", f"a{i:02}") for i in range(10)),
        *(machine("dgx-1v", f"v{i:02}") for i in range(2)),
        replace(broken, problems=("GPU 4: NVLink 2 is down",)),
        "x01",
        "x02",
    ]
    names = [node if isinstance(node, str) else node.node for nodes in leaves.values() for node in nodes]
    machines = {node.node: node for nodes in leaves.values() for node in nodes if not isinstance(node, str)}
    leaf_of = np.repeat(np.arange(len(leaves)), [len(nodes) for nodes in leaves.values()])
    unknown = np.full(len(names), -1)
    return machines, Fabric(
        tuple(names), unknown, leaf_of, np.where(leaf_of < 4, 0, 1), (), tuple(leaves), ("pod0", "pod1")
    )


PICTURES: dict[str, Callable[[], str]] = {
    "dgx-1v": lambda: draw_node(machine("dgx-1v", "dgx-1v")),
    "dgx-a100": lambda: draw_node(machine("dgx-a100", "dgx-a100")),
    "hgx-h100": lambda: draw_node(machine("hgx-h100", "hgx-h100")),
    "a6000-pairs": lambda: draw_node(machine("a6000-pairs", "a6000-pairs")),
    "gb200-tray": lambda: draw_node(rack("gb200-nvl72", [f"tray{i:02}" for i in range(18)])[0]),
    "cluster": lambda: draw_cluster(*cluster()),
}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
