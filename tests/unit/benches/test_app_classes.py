# SPDX-License-Identifier: Apache-2.0
"""K-Means of the benchmark of application classes."""

import numpy as np
import pytest

from tests.bench.app_classes import k_means, ranked, silhouette


@pytest.mark.parametrize("k", [2, 3, 4])
def test_clusters_that_lie_apart_are_found_and_their_number_is_the_best(k: int) -> None:
    rng = np.random.default_rng(3)
    middles = np.array([(0.9, 0.1), (0.1, 0.9), (0.5, 0.5), (0.1, 0.1)])[:k]
    truth = np.repeat(np.arange(k), 6)
    points = middles[truth] + rng.normal(0.0, 0.01, (6 * k, 2))

    found = ranked(k_means(points, k, rng))
    best = max(range(2, 6), key=lambda count: silhouette(points, k_means(points, count, rng)))

    assert len(set(zip(truth.tolist(), found, strict=True))) == k
    assert found[0] == 0
    assert best == k
