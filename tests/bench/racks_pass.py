# SPDX-License-Identifier: Apache-2.0
"""How long berthd's planning pass takes on 278 racks of 18 trays, with 2,000 jobs that wait."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import NodeFacts
from tests.bench.plan import AT, World, passes
from tests.bench.table import Figure, at_most
from topology.network.blocks import Blocks
from topology.network.fabric import Fabric

TRAYS, ALL, WAITING, PASSES = 18, 5_004, 2_000, 20
WIDTHS = [1] * 8 + [2] * 4 + [4] * 4 + [8] * 3 + [16] * 3
"""Trays of the jobs that run."""
SHAPES = [(1, 1)] * 4 + [(2, 1)] * 2 + [(4, 1)] * 3 + [(4, 2)] * 3 + [(4, 4)] * 3 + [(4, 8)] * 2 + [(4, 16)] * 2
"""GPUs of a tray, and trays, of the jobs that wait; one more has 64 trays."""


class Racks(World):
    """Full racks, but for a few trays, and jobs that wait for them."""

    machines_of = ("gb200-tray",)

    def _node(self, name: str) -> NodeFacts:
        used = self.used[name]
        return NodeFacts(
            name=name, cpus=72, cpus_used=18 * used.bit_count(), mem=512_000, mem_used=30_000 * used.bit_count(),
            threads=1, up=True, completing=False, gpus=4, loose=0, seats=4, gpus_used=used, seats_used=used,
            features=frozenset(), partitions=frozenset({"gpu"}),
        )  # fmt: skip

    def _fill(self) -> None:
        draw, names = self.random, list(self.names)
        while names:
            width, k = (1, draw.choice([1, 2])) if draw.random() < 0.3 else (draw.choice(WIDTHS), 4)
            on, mask = tuple(names[:width]), (1 << k) - 1
            del names[:width]
            if draw.random() < 0.03:
                continue
            ends = int(AT) + draw.randrange(30, 80_000)
            self._job(
                state="RUNNING", start=int(AT) - 60, end=ends, cpus=18 * k * len(on), nodes=on, required=on,
                gpus=mask, holds=(mask,) * len(on), mem=30_000 * k,
            )  # fmt: skip
            self.used |= dict.fromkeys(on, mask)
        self.nodes = {name: self._node(name) for name in self.names}

    def _wait(self) -> None:
        k, n = self.random.choice([*SHAPES, (4, 64)])
        first = self.random.randrange(len(self.names) - n)
        names, mask = self.names[first : first + n], (1 << k) - 1
        plan = {
            "state": "waiting", "id": f"{len(self.jobs):016x}", "n": str(n), "k": str(k), "cpus": str(k * 4),
            "mem": str(8_000 * k), "nodes": ",".join(names), "gpus": ",".join(map(str, range(k))), "level": "node",
        }  # fmt: skip
        self._job(
            state="PENDING", start=None, end=None, nodes=(), reason="Resources", cpus=k * 4 * n,
            required=tuple(names), gpus=mask, plan=JobPlan(plan),
        )  # fmt: skip

    def fabric(self) -> Fabric:
        rack = np.arange(ALL) // TRAYS
        return replace(Fabric.flat(tuple(self.names)), blocks=Blocks((TRAYS,), rack), domain=rack)


def berthds_pass() -> Figure:
    """A median pass, each after one job has ended, in a processor's milliseconds: others may use the machine."""
    world = Racks(ALL, WAITING)
    taken = passes(world, world.fleet(), PASSES, clock=time.process_time)
    return at_most(f"berthd's pass, {WAITING:,} jobs wait", statistics.median(taken), 250.0, "ms")
