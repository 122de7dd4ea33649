# SPDX-License-Identifier: Apache-2.0
"""What a fleet says of its nodes: which can share their GPUs, and in which order leaves are filled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from policy.cluster.fleet import leaf_order
from tests.unit import policy_world, share_world
from tests.unit.policy_world import reading


def test_only_nodes_whose_gpus_all_count_in_percent_share_them() -> None:
    nodes = [
        policy_world.node("n1", shards=8),
        policy_world.node("n2", shards=7),
        policy_world.node("n3"),
        policy_world.node("cpu", gpus=0),
    ]
    found = share_world.fleet(reading(nodes), kinds={"n2": "h100"})
    assert dict(zip(found.names, found.shares.tolist(), strict=True)) == {
        "n1": True,
        "n2": False,
        "n3": False,
        # A cluster with one of these would ask all that shares need for each job.
        "cpu": False,
    }


@pytest.mark.parametrize(
    ("leaves", "scores", "order"),
    [
        ([0, 0, 1, 1], {}, [0, 0, 1, 1]),
        ([0, 0, 1, 1], {"compute": [[0.9], [0.9], [0.9], [1.2]]}, [1, 1, 0, 0]),
        # Numbers of leaves have gaps where other nodes were taken out; scores below one are compared too.
        ([7, 3, 5], {"compute": [[0.7], [0.5], [0.9]]}, [1, 2, 0]),
        ([7, 3, 5], {"compute": [[0.7], [0.5], [0.6]], "memory": [[0.1], [0.8], [0.1]]}, [1, 0, 2]),
        ([], {}, []),
    ],
)
def test_leaves_with_the_slowest_gpus_are_filled_first(
    leaves: list[int], scores: dict[str, list[list[float]]], order: list[int]
) -> None:
    """So pieces of nodes leave the faster leaves whole."""
    fabric: Any = SimpleNamespace(leaf=np.array(leaves, np.int64))
    tables: Any = {name: np.array(rows) for name, rows in scores.items()}
    assert leaf_order(fabric, tables).tolist() == order
