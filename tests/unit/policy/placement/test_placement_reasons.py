# SPDX-License-Identifier: Apache-2.0
"""What Berth's policy says of its choice."""

import numpy as np
import pytest

from policy.formats.errors import NotNow
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.request.demand import Demand
from tests.unit.policy_world import book, node, reading

FULL = 0xFF


def chosen(kinds: dict[str, str], used: dict[str, int], k: int, n: int = 1, level: str = "node") -> Berth:
    look = reading([node(name, used=used.get(name, 0)) for name in kinds])
    return book(look, kinds).now(Demand(n, k, 1, 100, level, 600, np.ones(len(kinds), np.bool_)), BerthPolicy())


PAIRS = {"n1": "a6000", "n2": "a6000"}
TWO = "best of 2 nodes that fit, "
CHOICES = [
    ({"n1": "h100"}, {}, 8, "the only node that fits", "all its free GPUs; no NVLink island cut into"),
    (
        {"n1": "h100", "n2": "l40s"}, {}, 2, TWO + "by bandwidth",
        "best of 28 sets of its 8 free GPUs; 1 NVLink island cut into",
    ),
    (
        PAIRS, {"n2": 1}, 1, TWO + "2 equal in links left to others, by islands kept whole",
        "best of 7 sets of its 7 free GPUs; 3 other NVLink islands kept whole",
    ),
    (
        {"n1": "h100", "n2": "h100"}, {"n2": 0b11}, 2, TWO + "2 equal in bandwidth, by free GPUs left over",
        "best of 15 sets of its 6 free GPUs; 1 NVLink island cut into",
    ),
    (
        {"n1": "a6000"}, {"n1": 0b1111_0000}, 1, "the only node that fits",
        "best of 4 sets of its 4 free GPUs; 1 other NVLink island kept whole, 1 cut into",
    ),
    ({"n1": "a6000"}, {"n1": 0xFC}, 2, "the only node that fits", "all its free GPUs; no NVLink island cut into"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "used", "k", "why_there", "why_these"), CHOICES)
def test_a_choice_says_what_decided_it(
    kinds: dict[str, str], used: dict[str, int], k: int, why_there: str, why_these: str
) -> None:
    assert chosen(kinds, used, k).why == f"{why_there}; {why_these}"


@pytest.mark.parametrize(
    ("k", "n", "level", "text"),
    [
        (1, 1, "node", "no node has 1 free GPU now"),
        (2, 1, "node", "no node has 2 free GPUs now"),
        (1, 1, "nvlink", "no node has 1 free GPU now"),
        (2, 1, "nvlink", "no node has 2 free GPUs, all pairs joined by NVLink, now"),
        (1, 2, "any", "no 2 nodes have the same 1 free GPU"),
    ],
)
def test_who_finds_nothing_hears_what_is_missing(k: int, n: int, level: str, text: str) -> None:
    with pytest.raises(NotNow, match=f"^{text}$"):
        chosen({"n1": "h100", "n2": "h100"}, {"n1": FULL, "n2": FULL}, k, n, level)
