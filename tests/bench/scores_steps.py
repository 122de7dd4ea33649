# SPDX-License-Identifier: Apache-2.0
"""Scores between calibrations: fleets whose chips change after the last visit, and the jobs that then run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policy.history.slowness.gpus import ScoreNow, refresh
from tests.bench.paper.fleet import FleetPlan, draw
from tests.bench.scores_fleets import LONGHORN, Found, centred, found
from topology.calibrate.posterior import Floats
from topology.calibrate.runs import seconds_of
from topology.calibrate.statistics import calibrate, table
from topology.calibrate.steps import ClockReport, JobReport, Rank, Report
from topology.scores import Score

DAY_S = 86_400.0
SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Weeks:
    """What happens between two calibrations."""

    jobs: int = 1_000
    apps: int = 25
    changed: int = 8
    """Chips that become slower."""
    slower: float = 1.15
    late_nodes: int = 2
    """Nodes whose host becomes slow."""
    waiting: float = 0.015
    clocks: bool = True


@dataclass(frozen=True, slots=True)
class Refreshed:
    """Errors are root mean squares of logarithms over the truth; calls are of chips that changed."""

    error: float
    error_before: float
    changed_error: float
    changed_error_before: float
    calls: Found
    blamed: int
    """GPUs of late hosts that were called changed."""
    late: int


def simulate(
    plan: FleetPlan, weeks: Weeks, seed: int
) -> tuple[tuple[Score, ...], list[Report], np.ndarray, np.ndarray]:
    """Calibrated scores, later reports, the logarithms of the chips' times by then, and which nodes are late."""
    fleet = draw(plan, seed)
    last = seconds_of(fleet.visits[-1].at)
    scores = table(calibrate(fleet.visits, last).estimates)
    random = np.random.default_rng([seed, 7])
    truth = fleet.truth.copy()
    nodes = random.permutation(plan.nodes)
    for node in nodes[: weeks.changed]:
        truth[node, random.integers(plan.gpus)] += np.log(weeks.slower)
    late = nodes[weeks.changed : weeks.changed + weeks.late_nodes]
    host = np.zeros(plan.nodes)
    host[late] = np.log(1.3)
    usual = random.uniform(4.0, 7.0, weeks.apps)
    reports: list[Report] = []
    for number in range(weeks.jobs):
        app = int(random.integers(weeks.apps))
        size = int(SIZES[app % len(SIZES)])
        run = random.normal(0.0, 0.03)
        ranks = []
        for node in random.choice(plan.nodes, max(1, size // plan.gpus), replace=False).tolist():
            of_node = random.normal(0.0, plan.node_run) + host[node]
            if random.random() < weeks.waiting:
                of_node += np.log(random.uniform(*plan.wait))
            for gpu in random.permutation(plan.gpus)[: min(size, plan.gpus)].tolist():
                log = usual[app] + run + of_node + truth[node, gpu] + random.normal(0.0, plan.gpu_run)
                ranks.append(Rank(f"n{node}", gpu, f"GPU-n{node}-{gpu}", float(np.exp(log)), 500))
        reports.append(JobReport(str(number), f"app{app}", plan.app_class, _at(last, number, weeks), tuple(ranks)))
    if weeks.clocks:
        for node, gpu in np.ndindex(truth.shape):
            mhz = 1500.0 * float(np.exp(-truth[node, gpu] + random.normal(0.0, 0.01)))
            where = f"n{node}", gpu, f"GPU-n{node}-{gpu}"
            reports.append(ClockReport(*where, _at(last, weeks.jobs, weeks), "simulated", 300.0, mhz, 600.0))
    is_late = np.zeros(plan.nodes, bool)
    is_late[late] = True
    return scores, reports, truth, is_late


def _at(last: float, number: int, weeks: Weeks) -> str:
    seconds = last + 14 * DAY_S * (number + 1) / (weeks.jobs + 1)
    return f"{np.datetime64(int(seconds), 's')}Z"


def living(seeds: range, weeks: Weeks = Weeks(), plan: FleetPlan = LONGHORN) -> Refreshed:
    """Many fleets together."""
    after, before, calls = [], [], []
    moved_after: list[float] = []
    moved_before: list[float] = []
    blamed = late_gpus = 0
    for seed in seeds:
        scores, reports, truth, late = simulate(plan, weeks, seed)
        now = max(seconds_of(one.at) for one in reports)
        refreshed = refresh(scores, reports, now)
        rows: dict[tuple[int, int], ScoreNow] = {_place(one.score): one for one in refreshed}
        order = [rows[node, gpu] for node, gpu in np.ndindex(truth.shape)]
        was = np.log([one.before for one in order]).reshape(truth.shape)
        says = np.log([one.score.score for one in order]).reshape(truth.shape)
        told = np.array([one.told == "changed" for one in order]).reshape(truth.shape)
        original = draw(plan, seed).truth
        moved = np.abs(truth - original) > 0.01
        wrong, wrong_before = says - centred(truth), was - centred(truth)
        after.append(wrong**2)
        before.append(wrong_before**2)
        moved_after += (wrong[moved] ** 2).tolist()
        moved_before += (wrong_before[moved] ** 2).tolist()
        calls.append((told, moved))
        blamed += int(told[late].sum())
        late_gpus += int(late.sum()) * plan.gpus
    return Refreshed(_rms(after), _rms(before), _rms(moved_after), _rms(moved_before), found(calls), blamed, late_gpus)


def _rms(squares: Sequence[Floats] | Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.concatenate([np.ravel(one) for one in squares]))))


def _place(score: Score) -> tuple[int, int]:
    return int(score.node[1:]), score.position
