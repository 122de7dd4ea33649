# SPDX-License-Identifier: Apache-2.0
"""The exact posterior of a simulated fleet, by enumeration: what a perfect estimate with full knowledge would say.

It knows the variances, how often chips are slow and by how much, and how often nodes wait. Given which of a node's
GPUs are slow and which of its visits waited all is normal; all 2^(GPUs + visits) cases are looked at. How long a node
waits is uniform in the fleet and normal here, with the same mean and variance of the logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from tests.bench.paper.fleet import FleetPlan, SimulatedFleet
from topology.calibrate.posterior import Floats
from topology.sets.tables import Ints


@dataclass(frozen=True, slots=True)
class Exact:
    """By node and GPU."""

    mean: Floats
    """Of the logarithm of time over a typical one."""
    slow: Floats
    """Probability that it is one of the planted slow ones."""


def exact(fleet: SimulatedFleet) -> Exact:
    """Runs that show a sign that they do not count are left out, as the estimator does."""
    nodes, gpus, visits = fleet.times.shape
    mean, slow = np.zeros((nodes, gpus)), np.zeros((nodes, gpus))
    counts = ~fleet.spoilt.reshape(nodes, -1)
    for pattern in np.unique(counts, axis=0):
        some = np.flatnonzero((counts == pattern).all(axis=1))
        times = fleet.times[some].reshape(some.size, -1)[:, pattern]
        gpu, visit = np.divmod(np.flatnonzero(pattern), visits)
        mean[some], slow[some] = _exact(times, gpu, visit, fleet.plan)
    return Exact(mean, slow)


def _exact(times: Floats, gpu: Ints, visit: Ints, plan: FleetPlan) -> tuple[Floats, Floats]:
    """For nodes of which these runs of these GPUs count."""
    calm = plan.gpu_run**2 * np.eye(gpu.size) + plan.node**2
    calm += plan.gpu**2 * (gpu[:, None] == gpu) + plan.node_run**2 * (visit[:, None] == visit)
    cross = plan.node**2 + plan.gpu**2 * (np.arange(plan.gpus)[:, None] == gpu)
    waits = np.log(np.linspace(*plan.wait, 10_001))
    silent = plan.waiting * plan.silent / (1.0 - plan.waiting * (1.0 - plan.silent))
    shift = np.log(plan.slow)
    chips = np.array(list(product((0.0, 1.0), repeat=plan.gpus)))
    chances = np.array([_chance(one.sum(), plan.gpus, plan.slow_gpus) * (1 - plan.slow_nodes) for one in chips])
    # Whole nodes are slow with a chance of their own.
    chances[-1] += plan.slow_nodes
    belongs = (gpu[:, None] == np.arange(plan.gpus)).astype(np.float64)
    evidence, means = [], []
    for waited in product((0, 1), repeat=plan.visits):
        some = np.array(waited)
        prior = _chance(some.sum(), plan.visits, silent)
        if prior <= 0:
            continue
        # All GPUs of a node wait equally long.
        covariance = calm + waits.var() * (visit[:, None] == visit) * some[visit]
        inverse = np.linalg.inv(covariance)
        rest = times - waits.mean() * some[visit]
        solved = rest @ inverse
        # What slow chips add is linear in who is slow, so that all cases are one product.
        apart = belongs.T @ inverse @ belongs
        square = (rest * solved).sum(axis=1)[:, None] - 2 * shift * (solved @ belongs) @ chips.T
        square = square + shift**2 * np.einsum("sg,gh,sh->s", chips, apart, chips)
        determinant = float(np.linalg.slogdet(covariance)[1])
        evidence.append(np.log(prior * np.maximum(chances, 1e-300)) - 0.5 * (determinant + square))
        of_chips = shift * (chips - chips @ (belongs.T @ inverse @ cross.T))
        means.append((solved @ cross.T)[:, None, :] + of_chips)
    weights = np.array(evidence)
    weights = np.exp(weights - weights.max(axis=(0, 2), keepdims=True))
    weights /= weights.sum(axis=(0, 2), keepdims=True)
    return np.einsum("wns,wnsg->ng", weights, np.array(means)), weights.sum(axis=0) @ chips


def _chance(some: int, of: int, share: float) -> float:
    return float(share**some * (1.0 - share) ** (of - some))
