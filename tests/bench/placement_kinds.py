# SPDX-License-Identifier: Apache-2.0
"""Other kinds of nodes in leaves of four, with GPUs of known speeds; tests/bench/kinds.py plays on them.

The speeds are PAL's 64 V100 of Longhorn; where the nodes have PCIe alone they are PAL's 32 RTX 5000 of Frontera. No
speeds of other kinds are published.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from policy.cluster.fleet import Fleet
from policy.simulate.inputs.scores import grids
from policy.simulate.world import Layout, build
from tests.bench import placement_slurm
from tests.bench.placement_families import DATA, GPUS_PER_NODE, NODES_PER_LEAF
from tests.bench.placement_slurm import SCORES, SlurmFamily
from topology.machines import machine

FRONTERA = "pal/variability/32gpu-variability.csv"
KINDS = (
    ("a100-4", 16, SCORES), ("dgx-1v", 8, SCORES), ("dgx-a100", 8, SCORES), ("hgx-h100", 8, SCORES),
    ("a6000-pairs", 8, SCORES), ("l40s", 8, FRONTERA),
)  # fmt: skip
"""Kind of machine, nodes of it, speeds of their GPUs."""


def families() -> Iterator[tuple[SlurmFamily, Fleet]]:
    """All kinds with and without limits: the jobs' family and the machines."""
    limited = [one for one in placement_slurm.families() if ", leaves, " in one.name]
    for (kind, nodes, speeds), family in itertools.product(KINDS, limited):
        sample = machine(kind, "n0")
        gpus = len(sample.gpus)
        limits = family.name.rpartition(", ")[2]
        name = f"{nodes} {kind}, {'Frontera' if speeds == FRONTERA else 'Longhorn'}, {limits}"
        measured = grids([str(DATA / speeds)], nodes * gpus // GPUS_PER_NODE, GPUS_PER_NODE)
        scores = {app_class: table.reshape(nodes, gpus) for app_class, table in measured.items()}
        fleet = build(Layout(nodes, gpus, NODES_PER_LEAF), scores, placement_slurm.costs_of(family), sample)
        yield replace(family, name=name), fleet
