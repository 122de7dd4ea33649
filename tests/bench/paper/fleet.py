# SPDX-License-Identifier: Apache-2.0
"""Fleets that exist only on paper, with a truth that is known, and the records that calibrating them would leave.

What a run shows beside its time follows what made it slow: a weak chip has a low clock at its power limit, a GPU that
waits has its full clock and little power, a hot one tells of throttling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from topology.calibrate.posterior import Floats
from topology.calibrate.runs import GpuVisit, KernelRun, Visit

__all__ = ["FleetPlan", "SimulatedFleet", "SpeedStep", "draw"]

_MHZ, _WATT, _LIMIT_W, _IDLE_C = 1500.0, 180.0, 300.0, 45.0
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SpeedStep:
    """A GPU, or a whole node, that is slower by a factor from some visit on."""

    node: int
    gpu: int | None
    visit: int
    factor: float


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Parameters of a fleet; spreads are standard deviations of logarithms of times, as in the Longhorn profiles."""

    nodes: int = 128
    gpus: int = 4
    visits: int = 3
    node: float = 0.026
    gpu: float = 0.010
    node_run: float = 0.049
    gpu_run: float = 0.019
    slow_gpus: float = 0.02
    """Share of GPUs that are slow chips."""
    slow_nodes: float = 0.0
    """Share of nodes of which all GPUs are slow."""
    slow: float = 1.20
    """Factor by which these take longer."""
    waiting: float = 0.015
    """Share of visits in which the whole node waits for something."""
    wait: tuple[float, float] = (1.5, 2.9)
    silent: float = 0.0
    """Share of those that are visible only in their times."""
    throttled: float = 0.0
    """Share of visits of a GPU in which heat slows it down."""
    foreign: float = 0.0
    """Share of visits of a GPU in which another process runs on it."""
    drifting: float = 0.0
    """Share of GPUs that grow slower."""
    drift_per_visit: float = 0.02
    steps: tuple[SpeedStep, ...] = field(default=())
    days_between: float = 7.0
    app_class: str = "compute"
    stuck: tuple[int, ...] = ()
    """Nodes that wait in every visit."""


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """A fleet's truth and its records. Arrays are by node, GPU and visit."""

    plan: FleetPlan
    truth: Floats
    """Logarithm of each GPU's own time over a typical one, at the last visit."""
    times: Floats
    """Logarithms of the measured times."""
    slow: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """True for GPUs that are slow chips or on slow nodes."""
    drifting: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """True for GPUs that grow slower."""
    waited: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """True for visits in which the node waited."""
    silent: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """True for those that show it in no signal."""
    spoilt: np.ndarray[tuple[int, int, int], np.dtype[np.bool_]]
    """True for runs with a sign that they do not count: waiting, heat, another process."""
    visits: tuple[Visit, ...]


def draw(plan: FleetPlan, seed: int) -> SimulatedFleet:
    """Returns a fleet; the same seed gives the same."""
    random = np.random.default_rng(seed)
    shape = (plan.nodes, plan.gpus, plan.visits)
    of_node = random.normal(0.0, plan.node, plan.nodes)
    of_gpu = random.normal(0.0, plan.gpu, shape[:2])
    slow = random.random(shape[:2]) < plan.slow_gpus
    slow |= (random.random(plan.nodes) < plan.slow_nodes)[:, None]
    chips = np.repeat((of_node[:, None] + of_gpu + np.log(plan.slow) * slow)[:, :, None], plan.visits, axis=2)
    drifting = random.random(shape[:2]) < plan.drifting
    chips += drifting[:, :, None] * plan.drift_per_visit * np.arange(plan.visits)
    for step in plan.steps:
        gpus = slice(None) if step.gpu is None else step.gpu
        chips[step.node, gpus, step.visit :] += np.log(step.factor)

    noise = random.normal(0.0, plan.node_run, (plan.nodes, 1, plan.visits)) + random.normal(0.0, plan.gpu_run, shape)
    waited = random.random((plan.nodes, plan.visits)) < plan.waiting
    waited[list(plan.stuck)] = True
    silent = waited & (random.random(waited.shape) < plan.silent)
    waits = np.where(waited, np.log(random.uniform(*plan.wait, waited.shape)), 0.0)
    hot = random.random(shape) < plan.throttled
    foreign = random.random(shape) < plan.foreign
    disturbed = hot * np.log(random.uniform(1.1, 1.5, shape)) + foreign * np.log(random.uniform(1.2, 2.0, shape))
    times = chips + noise + waits[:, None, :] + disturbed
    visits = tuple(_visits(plan, chips, times, waited & ~silent, hot, foreign))
    spoilt = (waited & ~silent)[:, None, :] | hot | foreign
    return SimulatedFleet(plan, chips[:, :, -1], times, slow, drifting, waited, silent, spoilt, visits)


def _visits(
    plan: FleetPlan, chips: Floats, times: Floats, shown: np.ndarray, hot: np.ndarray, foreign: np.ndarray
) -> Sequence[Visit]:
    found = []
    for visit in range(plan.visits):
        at = (_START + timedelta(days=plan.days_between * visit)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for node in range(plan.nodes):
            gpus = []
            for gpu in range(plan.gpus):
                waits = bool(shown[node, visit])
                run = KernelRun(
                    plan.app_class,
                    time_ms=round(150.0 * float(np.exp(times[node, gpu, visit])), 4),
                    mad_ms=0.1,
                    samples=80,
                    kernel="simulated",
                    seconds=10.0,
                    # A weak chip reaches its power limit at a lower clock; a GPU that waits is held by nothing.
                    sm_mhz=_MHZ if waits else round(_MHZ * float(np.exp(-max(chips[node, gpu, visit], -0.02))), 1),
                    power_w=_WATT * (0.62 if waits else 1.0),
                    temp_c=_IDLE_C if waits else _IDLE_C + 20,
                    thermal_s=3.0 if hot[node, gpu, visit] else 0.0,
                    foreign=(4711,) if foreign[node, gpu, visit] else (),
                )
                gpus.append(
                    GpuVisit(
                        gpu,
                        f"GPU-n{node}-{gpu}",
                        "simulated",
                        "580.0",
                        _LIMIT_W,
                        runs=(run,),
                    )
                )
            found.append(Visit(f"n{node}", at, tuple(gpus)))
    return found
