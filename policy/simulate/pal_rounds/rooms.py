# SPDX-License-Identifier: Apache-2.0
"""Measures the share of nodes without any job, which is the room for gangs, at a given load.

>>> both = [Stretch("a", 0.0, 10.0, (0, 1)), Stretch("b", 5.0, 10.0, (2,))]
>>> empty_nodes(both, nodes=2, width=2, gpus=4, load=(0.5, 0.8))
(0.25, 10.0)
"""

from collections import Counter
from collections.abc import Sequence

from policy.simulate.result import Stretch

TWO_THIRDS = (0.62, 0.72)
"""Philly was measured with about two thirds of its GPUs in use, and had fewer than 4.5 % of its nodes empty then."""


def empty_nodes(
    stretches: Sequence[Stretch], nodes: int, width: int, gpus: int, load: tuple[float, float] = TWO_THIRDS
) -> tuple[float, float]:
    """Returns the mean share of empty nodes while the busy share of GPUs is within `load`, and its duration in seconds.

    `width` is the number of GPUs that each node takes in the numbering of a stretch.
    """
    changes = sorted(
        (at, change, place) for place, one in enumerate(stretches) for at, change in ((one.start, 1), (one.end, -1))
    )
    on = [Counter(gpu // width for gpu in one.gpus) for one in stretches]
    held = [0] * nodes
    busy, empty = 0, nodes
    weighed = whole = before = 0.0
    for at, change, place in changes:
        if load[0] <= busy / gpus <= load[1]:
            weighed += (at - before) * empty / nodes
            whole += at - before
        before = at
        for node, count in on[place].items():
            empty += (held[node] + change * count == 0) - (held[node] == 0)
            held[node] += change * count
            busy += change * count
    return (weighed / whole if whole else 0.0), whole
