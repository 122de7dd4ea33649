"""What a report knows of the machines, and the classes of size that it tells apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SIZES = ("1", "2-4", "5-8", ">8")
"""Philly's classes of GPUs."""


def size_of(gpus: int) -> str:
    """The class of a job.

    >>> [size_of(gpus) for gpus in (1, 2, 8, 9)]
    ['1', '2-4', '5-8', '>8']
    """
    return SIZES[0] if gpus <= 1 else SIZES[1] if gpus <= 4 else SIZES[2] if gpus <= 8 else SIZES[3]


@dataclass(frozen=True, slots=True)
class Site:
    """The nodes as they are today; one that is gone counts as the commonest of the others."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    """Of each node that has any."""
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By level (`nvlink`, `leaf`, `pod`): the group of each node."""
    per_node: int = 0
    """GPUs of nodes that are not in `gpus`; 0: as many as the commonest of those has."""

    @property
    def total(self) -> int:
        """All GPUs, 0 where no node is known."""
        return sum(self.gpus.values())

    @property
    def usual(self) -> int:
        """GPUs of a node that is not known; 0 where none is."""
        if self.per_node:
            return self.per_node
        counts = Counter(self.gpus.values())
        return max(counts, key=lambda size: (counts[size], size), default=0)

    def nodes_needed(self, gpus: int, nodes: Sequence[str]) -> int | None:
        """The fewest nodes of the kind it ran on that hold so many GPUs; None where nobody knows the kind."""
        most = max((self.gpus.get(node, self.usual) for node in nodes), default=0)
        return -(-gpus // most) if most else None

    def groups_of(self, level: str, nodes: Sequence[str]) -> int | None:
        """How many groups of a level the nodes lie in; None where one of them is in none that is known."""
        known = self.groups.get(level, {})
        if not all(node in known for node in nodes):
            return None
        return len({known[node] for node in nodes})

    def largest(self, level: str) -> int:
        """Nodes of the largest group of a level."""
        return max(Counter(self.groups.get(level, {}).values()).values(), default=0)
