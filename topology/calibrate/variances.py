# SPDX-License-Identifier: Apache-2.0
"""Estimates the variances of nodes, GPUs and runs by restricted maximum likelihood (REML).

For a node of which all G GPUs have all R runs, the likelihood needs only four sums of squares: of the node's mean, of
its GPUs, of its runs, and of what is left, because these are the eigenspaces of the covariance. A penalty pulls the
variances to those that were published, with the weight of a few observations: it decides where a site has one node or
one run, and no more than that.
"""

import numpy as np
from numpy.typing import NDArray

from topology.calibrate.posterior import Floats, Variances

PUBLISHED = {
    "compute": Variances(0.026**2, 0.010**2, 0.049**2, 0.019**2),
    "mixed": Variances(0.008**2, 0.003**2, 0.013**2, 0.005**2),
    "memory": Variances(0.002**2, 0.001**2, 0.002**2, 0.001**2),
}
"""Sizes as in the published profiles of Longhorn (PAL's artifact): ResNet-50, BERT, PageRank."""

_PULL_SD = 1.5
"""Likely distance of a variance from the published one, as a logarithm."""
_LEAST = 1e-10


def complete_blocks(times: Floats) -> list[Floats]:
    """Returns for each node the GPUs and runs without missing values; by GPU, then run."""
    blocks = []
    for node in times:
        there = np.isfinite(node)
        gpus, runs = np.flatnonzero(there.any(axis=1)), np.flatnonzero(there.any(axis=0))
        while gpus.size and runs.size and not there[np.ix_(gpus, runs)].all():
            holes = ~there[np.ix_(gpus, runs)]
            by_gpu, by_run = holes.mean(axis=1), holes.mean(axis=0)
            if by_gpu.max() >= by_run.max():
                gpus = np.delete(gpus, by_gpu.argmax())
            else:
                runs = np.delete(runs, by_run.argmax())
        if gpus.size and runs.size:
            blocks.append(node[np.ix_(gpus, runs)])
    return blocks


def reml(times: Floats, published: Variances) -> tuple[Variances, float]:
    """Returns variances and the fleet's centre, from logarithms of times by node, GPU and run."""
    from scipy.optimize import minimize  # noqa: PLC0415 - heavy, and only here

    blocks = complete_blocks(times)
    if not blocks:
        return published, 0.0
    sums = _sums(blocks)
    pull = np.log([published.node, published.gpu, published.node_run, published.gpu_run])

    def lost(logs: NDArray[np.float64]) -> float:
        return _minus_twice_likelihood(np.exp(logs), sums)[0] + float((((logs - pull) / _PULL_SD) ** 2).sum())

    best = minimize(lost, pull, method="L-BFGS-B", bounds=[(np.log(_LEAST), 0.0)] * 4)
    found = np.exp(best.x)
    return Variances(*found.tolist()), _minus_twice_likelihood(found, sums)[1]


def _sums(blocks: list[Floats]) -> Floats:
    """Returns for each block: GPUs, runs, mean, and the three sums of squares."""
    rows = []
    for block in blocks:
        gpus, runs = block.shape
        mean, of_gpu, of_run = block.mean(), block.mean(axis=1), block.mean(axis=0)
        left = block - of_gpu[:, None] - of_run[None, :] + mean
        rows.append(
            (
                gpus,
                runs,
                mean,
                runs * ((of_gpu - mean) ** 2).sum(),
                gpus * ((of_run - mean) ** 2).sum(),
                (left**2).sum(),
            )
        )
    return np.array(rows, np.float64)


def _minus_twice_likelihood(variances: NDArray[np.float64], sums: Floats) -> tuple[float, float]:
    """Returns minus twice the restricted likelihood, which does not depend on the centre; and the centre."""
    node, gpu, node_run, gpu_run = variances
    gpus, runs, mean, of_gpu, of_run, left = sums.T
    total = gpu_run + runs * gpu + gpus * node_run + gpus * runs * node
    weight = gpus * runs / total
    centre = float((weight * mean).sum() / weight.sum())
    value = np.log(total).sum() + (weight * (mean - centre) ** 2).sum() + np.log(weight.sum())
    for squares, freedom, size in (
        (of_gpu, gpus - 1, gpu_run + runs * gpu),
        (of_run, runs - 1, gpu_run + gpus * node_run),
        (left, (gpus - 1) * (runs - 1), np.full_like(gpus, gpu_run)),
    ):
        value += (freedom * np.log(size) + squares / size).sum()
    return float(value), centre
