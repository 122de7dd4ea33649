# SPDX-License-Identifier: Apache-2.0
"""What happens on a GPU that two jobs share: contention for SMs and bandwidth, time slices, and what sensors see.

Coefficients are fitted on one half of the published pairs and judged on the other (`fitted`). A case brings its own
measured speeds; the model then says how harm grows with duty and bursts on the way there.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.optimize import nnls

from prolog_epilog.guard.measure.signals import DeviceSample
from tests.bench.guard.cases import Case

LARGEST_LOSS = 0.9
"""A host never loses more of its speed than this."""
MEMORY_MIB = 24_576.0
"""Memory of the GPU that the pairs were measured on."""
ACTIVITY = 0.62
"""SM activity over utilisation: 16 % and 26 % in the fleet that MuxFlow describes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A job alone on a GPU: shares of time and bandwidth, memory in MiB."""

    busy: float
    bandwidth: float
    memory: float

    def scaled(self, factor: float) -> Profile:
        """The job with its demand times a factor: a burst, or a duty."""
        return Profile(min(1.0, self.busy * factor), min(1.0, self.bandwidth * factor), self.memory)


class Physics(Protocol):
    """How fast host and guest run at a burst factor and a duty."""

    def loss(self, burst: float, duty: float) -> float: ...

    def gain(self, burst: float, duty: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """The reference model of the cases: harm is the product of slope, burst and duty."""

    case: Case

    def loss(self, burst: float, duty: float) -> float:
        """The share of its speed that the host loses."""
        return min(LARGEST_LOSS, (1.0 - self.case.host_speed) * burst * duty)

    def gain(self, burst: float, duty: float) -> float:  # noqa: ARG002 - bursts cost the guest nothing here
        """The guest's throughput over alone."""
        return self.case.guest_speed * duty


@dataclass(frozen=True, slots=True)
class Model:
    """Fitted coefficients of contention and of time slices, and how well they do on pairs that they never saw."""

    contention: tuple[float, ...]
    slices_host: float
    slices_guest: float
    error: float
    error_of_mean: float
    slices_error: float
    pairs: int

    def contended(self, one: Profile, other: Profile) -> float:
        """The speed that one job loses beside another."""
        return 1.0 - float(np.exp(-np.dot(_terms(one, other), self.contention)))


@dataclass(frozen=True, slots=True)
class Contended:
    """The case's measured speeds at full duty, reached on the fitted model's way: contention sets in late."""

    case: Case
    model: Model
    host: Profile
    guest: Profile

    def loss(self, burst: float, duty: float) -> float:
        """The share of its speed that the host loses."""
        full = self.model.contended(self.host, self.guest)
        now = self.model.contended(self.host.scaled(burst), self.guest.scaled(duty))
        harm = 1.0 - self.case.host_speed
        return min(LARGEST_LOSS, harm * now / full if full > 0.0 else harm * burst * duty)

    def gain(self, burst: float, duty: float) -> float:
        """The guest's throughput over alone; a burst takes from the guest too."""
        full = self.model.contended(self.guest, self.host)
        now = self.model.contended(self.guest, self.host.scaled(burst))
        lost = (1.0 - self.case.guest_speed) * (now / full if full > 0.0 else 1.0)
        return duty * max(0.0, 1.0 - min(LARGEST_LOSS, lost))


@dataclass(frozen=True, slots=True)
class Sliced:
    """The driver's time slices: whoever has work takes turns, and nothing runs at the same time."""

    model: Model
    host: Profile
    guest: Profile

    def loss(self, burst: float, duty: float) -> float:
        """The share of its speed that the host loses."""
        meets = self.host.scaled(burst).busy * self.guest.busy * duty
        return 1.0 - 1.0 / (1.0 + self.model.slices_host * meets)

    def gain(self, burst: float, duty: float) -> float:
        """The guest's throughput over alone."""
        return duty / (1.0 + self.model.slices_guest * self.host.scaled(burst).busy * self.guest.busy)


def sensed(host: Profile, guest: Profile, burst: float, duty: float, at: float) -> DeviceSample:
    """What the device's sensors say."""
    host = host.scaled(burst)
    busy = min(1.0, host.busy + guest.busy * duty)
    return DeviceSample(
        at=at,
        utilisation=busy,
        sm_active=ACTIVITY * busy,
        clock=1.0,
        memory=min(1.0, (host.memory + guest.memory) / MEMORY_MIB),
    )


def _terms(one: Profile, other: Profile) -> tuple[float, ...]:
    return (
        max(0.0, one.busy + other.busy - 1.0),
        one.busy * other.busy,
        max(0.0, one.bandwidth + other.bandwidth - 0.6),
        one.bandwidth * other.bandwidth,
        other.bandwidth,
    )


Configured = tuple[str, str, str, str]


def fitted(folder: Path) -> Model:
    """The model, from the published measurements in a folder."""
    alone = {_configured(row, ""): _profile(row) for row in _rows(folder / "lucid_single.csv")}
    halves: tuple[list[tuple[Profile, Profile, float]], list[tuple[Profile, Profile, float]]] = ([], [])
    for row in _rows(folder / "lucid_colocate_pairs.csv"):
        one, other = _configured(row, "1"), _configured(row, "2")
        # By the pair's name, so that both orders and repeats of a pair fall on the same side.
        half = halves[blake2b(repr(sorted((one, other))).encode(), digest_size=1).digest()[0] % 2]
        half.append((alone[one], alone[other], min(1.0, float(row["speed1"]))))
        half.append((alone[other], alone[one], min(1.0, float(row["speed2"]))))
    learn, judge = halves
    matrix = np.array([_terms(one, other) for one, other, _ in learn])
    coefficients, _ = nnls(matrix, -np.log([speed for *_, speed in learn]))
    model = Model(tuple(coefficients), 0.0, 0.0, 0.0, 0.0, 0.0, len(judge) // 2)
    mean = float(np.mean([speed for *_, speed in learn]))
    error = np.mean([abs(1.0 - model.contended(one, other) - speed) for one, other, speed in judge])
    of_mean = np.mean([abs(mean - speed) for *_, speed in judge])
    host, guest, slices_error = _slices(folder)
    return Model(model.contention, host, guest, float(error), float(of_mean), slices_error, model.pairs)


def _slices(folder: Path) -> tuple[float, float, float]:
    """Coefficients of time slices for host and guest, and the mean error of the host's relative latency."""
    busy = {row["exp_key"]: float(row["gpu_util"]) / 100.0 for row in _rows(folder / "tally_single_job_perf.csv")}
    seen: dict[tuple[str, str], tuple[float, float, float, float]] = {}
    for row in _rows(folder / "tally_priority_aware_perf.csv"):
        host, guest = row["high_priority_job"], row["best_effort_job"]
        slower = float(row["high_priority_time_slicing_avg_latency"]) / float(row["high_priority_orig_avg_latency"])
        seen[host, guest] = busy[host], busy[guest], slower - 1.0, float(row["best_effort_time_slicing_throughput"])
    pairs = [seen[key] for key in sorted(seen)]
    learn, judge = pairs[::2], pairs[1::2]
    # A request computes from its first to its last moment, so a host's own busy share does not enter its latency.
    of_host = float(np.mean([slower / guest for _, guest, slower, _ in learn]))
    of_guest = float(np.mean([(1.0 / speed - 1.0) / (own * other) for own, other, _, speed in learn]))
    error = float(np.mean([abs(of_host * guest_busy - slower) for _, guest_busy, slower, _ in judge]))
    return of_host, of_guest, error


def profiles(folder: Path) -> dict[str, Profile]:
    """Each model's mean profile over its configurations."""
    found: defaultdict[str, list[Profile]] = defaultdict(list)
    for row in _rows(folder / "lucid_single.csv"):
        found[row["model"]].append(_profile(row))
    return {name: _mean(several) for name, several in found.items()}


def measured_speeds(folder: Path) -> dict[tuple[str, str], float]:
    """Mean measured speed of a model beside another one."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in _rows(folder / "lucid_colocate_pairs.csv"):
        found[row["model1"], row["model2"]].append(min(1.0, float(row["speed1"])))
        found[row["model2"], row["model1"]].append(min(1.0, float(row["speed2"])))
    return {pair: float(np.mean(speeds)) for pair, speeds in found.items()}


def _mean(several: Sequence[Profile]) -> Profile:
    return Profile(
        float(np.mean([one.busy for one in several])),
        float(np.mean([one.bandwidth for one in several])),
        float(np.mean([one.memory for one in several])),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _configured(row: dict[str, str], which: str) -> Configured:
    return row[f"model{which}"], row[f"dataset{which}"], row[f"batchsize{which}"], row[f"amp{which}"]


def _profile(row: dict[str, str]) -> Profile:
    return Profile(float(row["gpu_util"]) / 100.0, float(row["gmem_util"]) / 100.0, float(row["gmem"]))
