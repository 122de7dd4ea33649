# SPDX-License-Identifier: Apache-2.0
"""Alibaba's open GPU trace (openb, 2023) fed to its own 1,213 nodes: the requests, the nodes, and what is left of them.

The feed is FGD's ("Beware of Fragmentation", USENIX ATC 2023): all pods of a workload in random order, then pods drawn
from it until 130 % of the cluster's GPUs were asked for. Nobody leaves; who finds no place is refused. Pods without
GPUs take CPUs from everybody alike.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA = Path(os.environ.get("BERTH_DATA", Path(__file__).parents[3] / "shared" / "data")) / "traces/alibaba-gpu-v2023"
WORKLOADS = ("default", "gpushare100", "gpuspec33", "multigpu50")
WHOLE = 1_000
ASKED = 1.3
MOST_GPUS = 8

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a pod asks for: thousandths of each GPU, thousandths of CPUs, MiB, and models (none: any)."""

    gpus: int
    milli: int
    cpus: int
    mem: int
    models: frozenset[str]

    @property
    def total(self) -> int:
        return self.gpus * self.milli


class Nodes:
    """What is left of each node; `left` has a column for each GPU, 0 where a node has fewer."""

    def __init__(self, every: int = 1) -> None:
        with (DATA / "openb_node_list_gpu_node.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))[::every]
        self.names = [row["sn"] for row in rows]
        self.models = np.array([row["model"] for row in rows])
        self.size = np.array([int(row["gpu"]) for row in rows])
        self.left = np.where(np.arange(MOST_GPUS) < self.size[:, None], WHOLE, 0)
        self.cpus = np.array([int(row["cpu_milli"]) for row in rows])
        self.mem = np.array([int(row["memory_mib"]) for row in rows])
        self.changed = np.zeros(len(rows), dtype=np.int64)
        self.count = 0

    @property
    def capacity(self) -> int:
        return WHOLE * int(self.size.sum())

    def has(self, models: frozenset[str]) -> Bools:
        """Nodes with a GPU of these models."""
        return np.isin(self.models, list(models)) if models else np.ones(len(self.names), dtype=np.bool_)

    def take(self, ask: Ask, node: int, gpus: list[int]) -> None:
        if len(gpus) != ask.gpus or (self.left[node, gpus] < ask.milli).any():
            raise RuntimeError("more was given out than there is")
        self.left[node, gpus] -= ask.milli
        self.cpus[node] -= ask.cpus
        self.mem[node] -= ask.mem
        if min(self.cpus[node], self.mem[node]) < 0:
            raise RuntimeError("more was given out than there is")
        self.count += 1
        self.changed[node] = self.count


Place = tuple[int, list[int]]
Packer = Callable[[Nodes, Ask], Place | None]
"""A node and its GPUs, or None."""


def read(workload: str) -> list[Ask]:
    with gzip.open(DATA / f"openb_pod_list_{workload}.csv.gz", "rt") as file:
        return [
            Ask(
                gpus=int(row["num_gpu"]),
                milli=int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
                cpus=int(row["cpu_milli"]),
                mem=int(row["memory_mib"]),
                models=frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))),
            )
            for row in csv.DictReader(file)
        ]


def arrivals(asks: list[Ask], capacity: int, seed: int) -> list[Ask]:
    draw, wanted = random.Random(seed), ASKED * capacity
    feed = draw.sample(asks, len(asks))
    total = sum(ask.total for ask in feed)
    while total > wanted:
        total -= feed.pop(draw.randrange(len(feed))).total
    while total < wanted:
        feed.append(draw.choice(asks))
        total += feed[-1].total
    return feed


@dataclass(frozen=True, slots=True)
class Filled:
    """Percent of all GPUs that are given out: at the first refusal of a pod with GPUs, when 100 %, 130 % were asked."""

    first_refusal: float
    at_100: float
    at_130: float


def fill(nodes: Nodes, feed: list[Ask], packer: Packer) -> Filled:
    capacity, asked, given = nodes.capacity, 0, 0
    first = at_100 = None
    for ask in feed:
        asked += ask.total
        found = packer(nodes, ask)
        if found is not None:
            nodes.take(ask, *found)
            given += ask.total
        elif first is None and ask.gpus:
            first = given
        if at_100 is None and asked >= capacity:
            at_100 = given
    return Filled(*(100 * (given if value is None else value) / capacity for value in (first, at_100, given)))
