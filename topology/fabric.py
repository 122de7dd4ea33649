"""How the nodes of a cluster are joined: NVLink domains, leaves and pods, as arrays over the nodes.

>>> fabric = Fabric.flat(("n1", "n2"))
>>> fabric.level([0]), fabric.level([0, 1])
('node', 'any')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints: TypeAlias = npt.NDArray[np.int64]

__all__ = ["LEVELS", "NOBODY", "Fabric", "FabricLevel"]

FabricLevel: TypeAlias = Literal["nvlink", "node", "leaf", "pod", "any"]

LEVELS: tuple[FabricLevel, ...] = ("nvlink", "node", "leaf", "pod", "any")
"""From the nearest to the farthest."""

NOBODY = -1
"""In a group array: nobody says which group the node belongs to, so it shares none with any other."""


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """Group numbers of each node, in node order; a leaf lies within one pod."""

    names: tuple[str, ...]
    domain: Ints
    """NVLink domain that spans nodes."""
    leaf: Ints
    pod: Ints
    domains: tuple[str, ...] = ()
    """Names of the groups, by number."""
    leaves: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()

    @classmethod
    def flat(cls, names: Sequence[str]) -> Fabric:
        """A fabric of which nothing is known."""
        unknown = np.full(len(names), NOBODY, np.int64)
        return cls(tuple(names), unknown, unknown, unknown)

    def level(self, nodes: Sequence[int]) -> FabricLevel:
        """The nearest level that holds all of these nodes; `nvlink` here means a domain that spans them."""
        if len(set(nodes)) <= 1:
            return "node"
        here = np.asarray(nodes)
        for level, groups in (("nvlink", self.domain), ("leaf", self.leaf), ("pod", self.pod)):
            first = groups[here[0]]
            if first != NOBODY and bool((groups[here] == first).all()):
                return level  # type: ignore[return-value]  # the pairs above are levels
        return "any"
