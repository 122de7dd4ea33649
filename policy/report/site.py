# SPDX-License-Identifier: Apache-2.0
"""The machines of a report, and its classes of job size."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SIZES = ("1", "2-4", "5-8", ">8")
"""Philly's classes of GPUs."""


def size_of(gpus: int) -> str:
    """Returns the size class of a job.

    >>> [size_of(gpus) for gpus in (1, 2, 8, 9)]
    ['1', '2-4', '5-8', '>8']
    """
    return SIZES[0] if gpus <= 1 else SIZES[1] if gpus <= 4 else SIZES[2] if gpus <= 8 else SIZES[3]


@dataclass(frozen=True, slots=True)
class Site:
    """The nodes as they are today; a node that is gone counts as the most common size of the others."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    """The GPUs of each node that has any."""
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By level (`nvlink`, `leaf`, `pod`): the group of each node."""
    per_node: int = 0
    """GPUs of nodes that are not in `gpus`; 0: as many as the most common of those has."""

    @property
    def total(self) -> int:
        """All GPUs; 0 where no node is known."""
        return sum(self.gpus.values())

    @property
    def usual(self) -> int:
        """GPUs of a node that is not in `gpus`; 0 where no size is known."""
        if self.per_node:
            return self.per_node
        counts = Counter(self.gpus.values())
        return max(counts, key=lambda size: (counts[size], size), default=0)

    def nodes_needed(self, gpus: int, nodes: Sequence[str]) -> int | None:
        """Returns the fewest nodes, of the largest size among `nodes`, that hold so many GPUs; None without a size."""
        most = max((self.gpus.get(node, self.usual) for node in nodes), default=0)
        return -(-gpus // most) if most else None

    def groups_of(self, level: str, nodes: Sequence[str]) -> int | None:
        """Returns the number of groups of a level in which the nodes lie; None where the group of a node is unknown."""
        known = self.groups.get(level, {})
        if not all(node in known for node in nodes):
            return None
        return len({known[node] for node in nodes})

    def largest(self, level: str) -> int:
        """Returns the number of nodes in the largest group of a level."""
        return max(Counter(self.groups.get(level, {}).values()).values(), default=0)
