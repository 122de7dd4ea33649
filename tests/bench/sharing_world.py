# SPDX-License-Identifier: Apache-2.0
"""One day of services on GPUs and of jobs that would be their guests, and what happens when both are on one GPU.

Hosts are the GPU duty cycles of 22.8 hours that Alibaba published of its pods for generative models (2026), a minute
for each sample. Guests are the jobs with one GPU of a week of Microsoft's Philly trace (2017), all on one day, at their
time of day; what each does alone is drawn from the jobs that Lucid's authors (ASPLOS 2023) measured. How much the two
slow each other comes from the guard's benchmark, which fits contention on one half of Lucid's pairs; each pair of jobs
has a factor of its own besides, which no predictor knows, and which is seen only once the two were beside each other.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy.sharing import predictor

DATA = Path(os.environ.get("BERTH_DATA", Path(__file__).parents[3] / "shared" / "data")) / "traces"
MINUTES = 1_440
CARD = 24.0
"""GiB of the GPUs on which the guests were measured."""
ACTIVITY = 0.62
"""SM activity over utilisation: 16 % and 26 % in the fleet that MuxFlow's authors describe."""
BANDWIDTH = 0.45
"""Memory time over kernel time of a service: the mean of the jobs that were measured alone."""
HOST_MEMORY = (0.22, 0.62)
"""Part of the card that a service holds, for good: 42 % on average, as in MuxFlow's fleet."""
OFFSET = 0.5
"""Standard deviation of the logarithm of a pair's own factor of harm."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hosts:
    """One row for each GPU."""

    busy: Floats
    """Part of each minute (columns) in which the service's kernels run."""
    memory: Floats
    """GiB that the service holds."""
    owner: Ints
    """Number of the job that owns the GPU: one job does the same to a guest on each of its GPUs."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Guests, by their arrival."""

    arrives: Ints
    """Minute."""
    work: Floats
    """Minutes that it takes alone."""
    kind: Ints
    """Row of `kinds`."""
    kinds: Floats
    """Profiles as the predictor sees them."""

    def every(self, step: int) -> Jobs:
        """Each so-manieth of them."""
        return Jobs(self.arrives[::step], self.work[::step], self.kind[::step], self.kinds)

    @property
    def memory(self) -> Floats:
        """GiB of each kind."""
        return np.asarray(2.0 ** (self.kinds[:, 2] + 1))


def hosts(count: int, pods: int, seed: int) -> Hosts:
    """Each GPU serves `pods` of the published pods together; with four of them, utilisation is about MuxFlow's 26 %."""
    random = np.random.default_rng(seed)
    series: defaultdict[str, list[float]] = defaultdict(list)
    with gzip.open(DATA / "alibaba-gpu-other/v2026_genai_pod_gpu_duty_cycle.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            series[row["container_ip"]].append(float(row["value"]) / 100)
    whole = np.array([one[:MINUTES] for _, one in sorted(series.items()) if len(one) >= MINUTES])
    busy, owner = np.zeros((count, MINUTES)), np.zeros(count, np.int64)
    for gpu in range(count):
        chosen = random.integers(len(whole), size=pods)
        owner[gpu] = chosen[0] if pods == 1 else gpu
        for pod in chosen:
            # Services of one site are busy at the same hours, not in the same minutes.
            busy[gpu] += np.roll(whole[pod], random.integers(-30, 31))
    return Hosts(np.minimum(busy, 1.0), CARD * random.uniform(*HOST_MEMORY, count), owner)


def trainers(count: int, seed: int) -> Hosts:
    """A training job on each GPU: as busy as one of Lucid's, for as long as one of Philly's, then idle.

    The spells between are drawn so that GPUs are busy for about 52 % of the time, as in Philly.
    """
    random = np.random.default_rng(seed)
    with (DATA / "colocation/lucid_single.csv").open(encoding="utf-8") as file:
        alone = [(float(row["gpu_util"]) / 100, float(row["gmem"]) / 1_024) for row in csv.DictReader(file)]
    with (DATA / "philly/philly_week_2017-10-16.csv").open(encoding="utf-8") as file:
        minutes = [float(row["duration"]) / 60 for row in csv.DictReader(file)]
    lengths = np.clip(np.array(minutes), 1, MINUTES).astype(np.int64)
    busy, memory, owner = np.zeros((count, MINUTES)), np.zeros(count), np.zeros(count, np.int64)
    mean = float(np.mean([one for one, _ in alone]))
    for gpu in range(count):
        owner[gpu] = int(random.integers(len(alone)))
        own, memory[gpu] = alone[owner[gpu]]
        begins = int(random.integers(-MINUTES, 1))
        while begins < MINUTES:
            length = int(random.choice(lengths))
            busy[gpu, max(0, begins) : max(0, begins + length)] = own
            begins += length + int(random.exponential(length * max(0.0, mean / 0.52 - 1.0)))
    return Hosts(np.minimum(busy, 1.0), np.minimum(memory, HOST_MEMORY[1] * CARD), owner)


def jobs(seed: int, *, large: bool) -> Jobs:
    """`large`: all of them train on ImageNet, as the guests of MuxFlow's authors did."""
    random = np.random.default_rng(seed)
    with (DATA / "colocation/lucid_single.csv").open(encoding="utf-8") as file:
        kinds = np.array([
            predictor.profile(float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100, float(row["gmem"]))
            for row in csv.DictReader(file)
            if not large or row["dataset"] == "ImageNet"
        ])  # fmt: skip
    found = []
    with (DATA / "philly/philly_week_2017-10-16.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["num_gpus"] == "1":
                at = datetime.fromisoformat(row["timestamp"])
                found.append((60 * at.hour + at.minute, float(row["duration"]) / 60))
    found.sort()
    arrives, work = np.array(found).T
    return Jobs(arrives.astype(np.int64), work, random.integers(len(kinds), size=len(work)), kinds)


@dataclass(frozen=True, slots=True)
class Contention:
    """Speeds that jobs lose beside each other, by the coefficients that the guard's benchmark fits."""

    coefficients: Floats

    def lost(self, own_busy: Floats, other_busy: Floats, other_bandwidth: Floats, own_bandwidth: Floats) -> Floats:
        terms = (
            np.maximum(0.0, own_busy + other_busy - 1.0),
            own_busy * other_busy,
            np.maximum(0.0, own_bandwidth + other_bandwidth - 0.6),
            own_bandwidth * other_bandwidth,
            # A service that does nothing now cannot be slowed.
            other_bandwidth * np.minimum(1.0, own_busy / 0.05),
        )
        exponent = sum((factor * term for factor, term in zip(self.coefficients, terms, strict=True)), np.zeros(1))
        return np.asarray(1.0 - np.exp(-exponent))
