# SPDX-License-Identifier: Apache-2.0
"""Simulated fleets, calibrated, beside what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.bench.paper.fleet import FleetPlan, SimulatedFleet, SpeedStep, draw
from tests.bench.scores_exact import exact
from topology.calibrate.posterior import Floats
from topology.calibrate.runs import seconds_of
from topology.calibrate.statistics import Calibration, Estimate, calibrate

LONGHORN = FleetPlan(waiting=0.015, silent=0.2, throttled=0.01, foreign=0.01)
"""Noise as in Longhorn's profiles, 2 % of the chips 20 % slow, nodes that wait, heat and foreign processes."""
WIDTHS = {4: 128, 8: 64}
"""GPUs of a node, and nodes, so that a fleet has 512 GPUs."""
NINETY_FIVE = 1.96


@dataclass(frozen=True, slots=True)
class Measured:
    """A fleet and what was made of its records. Arrays are by node and GPU."""

    fleet: SimulatedFleet
    calibration: Calibration
    scores: Floats
    slow: Floats
    outlier: Floats
    errors: Floats

    @property
    def wrong(self) -> Floats:
        """Logarithm of score over truth."""
        return np.log(self.scores) - centred(self.fleet.truth)


def centred(logs: Floats) -> Floats:
    """Over the median of the peers, as a score is."""
    return logs - float(np.median(logs))


def measured(plan: FleetPlan, seed: int) -> Measured:
    """Draw and calibrate."""
    fleet = draw(plan, seed)
    found = calibrate(fleet.visits, seconds_of(fleet.visits[-1].at))
    by_place = {(one.place.node, one.place.position): one for one in found.estimates}
    ordered: Sequence[Estimate] = [by_place[f"n{node}", gpu] for node in range(plan.nodes) for gpu in range(plan.gpus)]
    shape = fleet.truth.shape
    columns = np.array([(one.score, one.slow, one.outlier, one.error) for one in ordered]).T
    return Measured(fleet, found, *columns.reshape(4, *shape))


@dataclass(frozen=True, slots=True)
class Found:
    """How well slow GPUs were found, of many fleets together."""

    right: int
    missed: int
    wrongly: int

    @property
    def recall(self) -> float:
        return self.right / max(self.right + self.missed, 1)

    @property
    def precision(self) -> float:
        return self.right / max(self.right + self.wrongly, 1)


def found(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Found:
    """Of pairs of who was called slow and who is."""
    right = missed = wrongly = 0
    for called, slow in pairs:
        right += int((called & slow).sum())
        missed += int((~called & slow).sum())
        wrongly += int((called & ~slow).sum())
    return Found(right, missed, wrongly)


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the scores of many fleets are; errors are root mean squares of logarithms."""

    found: Found
    """Called slow."""
    outliers: Found
    """Called no typical ones."""
    exactly_found: Found
    error: float
    exact_error: float
    median_error: float
    """Of each GPU's median run, PAL's score."""
    covered: float
    """Part of the truths within 1.96 of the stated errors."""


def quality(plan: FleetPlan, seeds: range) -> Quality:
    """Calibrate fleets; the exact posterior of the same fleets beside."""
    calls, outliers, exact_calls = [], [], []
    errors: list[Floats] = []
    covered = []
    for seed in seeds:
        one = measured(plan, seed)
        best = exact(one.fleet)
        truth = centred(one.fleet.truth)
        medians = centred(np.median(one.fleet.times, axis=2))
        errors.append(np.array([one.wrong, centred(best.mean) - truth, medians - truth]) ** 2)
        covered.append(np.abs(one.wrong) < NINETY_FIVE * one.errors)
        calls.append((one.slow > 0.5, one.fleet.slow))
        outliers.append((one.outlier > 0.5, one.fleet.slow))
        exact_calls.append((best.slow > 0.5, one.fleet.slow))
    own, best_error, median = np.sqrt(np.array(errors).mean(axis=(0, 2, 3))).tolist()
    return Quality(found(calls), found(outliers), found(exact_calls), own, best_error, median, float(np.mean(covered)))


def called_slow_while_waiting(plan: FleetPlan, seeds: range) -> tuple[int, int]:
    """GPUs on nodes that waited, which are no slow chips: how many, and how many of them are called slow."""
    some = called = 0
    for seed in seeds:
        one = measured(plan, seed)
        # Chips that are slow by nature count as slow, planted or not.
        innocent = (
            np.any(one.fleet.waited, axis=1, keepdims=True)
            & ~one.fleet.slow
            & (centred(one.fleet.truth) < np.log(1.08))
        )
        some += int(innocent.sum())
        called += int((innocent & (one.slow > 0.5)).sum())
    return some, called


@dataclass(frozen=True, slots=True)
class Announced:
    """What became of planted steps, and what was announced without one."""

    steps: int
    seen: int
    false: int
    gpus: int


def announced(seeds: range) -> Announced:
    """Fleets of 8 visits; four GPUs become 15 % slower before the seventh, so that two visits show it."""
    steps = seen = false = gpus = 0
    for seed in seeds:
        random = np.random.default_rng(seed)
        where = [(int(node), int(random.integers(4))) for node in random.choice(128, 4, replace=False)]
        plan = replace(LONGHORN, visits=8, steps=tuple(SpeedStep(node, gpu, 6, 1.15) for node, gpu in where))
        one = measured(plan, seed)
        told = {(c.node, c.place.position if c.place else None) for c in one.calibration.changes}
        planted = {(f"n{node}", gpu) for node, gpu in where}
        steps, gpus = steps + len(planted), gpus + one.scores.size
        seen += len(told & planted)
        false += len(told - planted)
    return Announced(steps, seen, false, gpus)


def drifted(seeds: range) -> tuple[float, float, float]:
    """Fleets in which 3 % of the GPUs grow 2 % slower a visit: part that is announced, and the errors of their scores:
    ours, and those of the median run."""
    told, errors, medians = [], [], []
    for seed in seeds:
        one = measured(replace(LONGHORN, visits=8, drifting=0.03, slow_gpus=0.0), seed)
        grown = one.fleet.drifting
        by_gpu = {(c.node, c.place.position) for c in one.calibration.changes if c.place}
        told += [(f"n{node}", gpu) in by_gpu for node, gpu in np.argwhere(grown).tolist()]
        errors += one.wrong[grown].tolist()
        medians += (centred(np.median(one.fleet.times, axis=2)) - centred(one.fleet.truth))[grown].tolist()
    return float(np.mean(told)), float(np.sqrt(np.square(errors).mean())), float(np.sqrt(np.square(medians).mean()))
