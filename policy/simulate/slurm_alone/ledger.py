"""Keeps which GPUs are held and until when, updated step by step, so that no event reads all nodes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from policy.placement.base import positions

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet

NEVER = float("inf")


class Ledger:
    """The GPUs of a cluster."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self.free = fleet.full.copy()
        self.counts = np.bitwise_count(self.free).astype(np.int64)
        """Free GPUs of each node that is up."""
        self.up = fleet.ready.copy()
        self.version = 0
        """Grows with each change, so that answers can be kept until the next one."""
        self.free_gpus = int(self.counts.sum())
        self.busy = 0
        width = int(fleet.size.max(initial=0))
        self.nodes_with = np.bincount(self.counts[self.up], minlength=width + 1).tolist()
        """The number of nodes that are up and have exactly so many free GPUs."""
        self._until = [[0.0] * size + [NEVER] * (width - size) for size in self.counts.tolist()]
        self.soonest = np.sort(np.array(self._until, np.float64), axis=1)
        """Column c: the time at which c + 1 GPUs of the node are expected to be free."""

    def take(self, nodes: Sequence[int], masks: Sequence[int], until: float) -> None:
        """Takes the GPUs of a job that starts and is expected to end at `until`."""
        for node, mask in zip(nodes, masks, strict=True):
            self._change(node, int(self.free[node]) & ~mask)
            self.busy += mask.bit_count()
        self.expect(nodes, masks, until)

    def give(self, nodes: Sequence[int], masks: Sequence[int]) -> None:
        """Gives back the GPUs of a job that ends."""
        for node, mask in zip(nodes, masks, strict=True):
            self._change(node, int(self.free[node]) | mask)
            self.busy -= mask.bit_count()
        self.expect(nodes, masks, 0.0)

    def expect(self, nodes: Sequence[int], masks: Sequence[int], until: float) -> None:
        """Changes the time at which a job is expected to end."""
        self.version += 1
        for node, mask in zip(nodes, masks, strict=True):
            ends = self._until[node]
            for place in positions(mask):
                ends[place] = until
            self.soonest[node] = sorted(ends) if self.up[node] else NEVER

    def set_up(self, node: int, *, up: bool) -> None:
        """Notes that a node fails, or comes back."""
        if bool(self.up[node]) == up:
            return
        count = int(self.free[node]).bit_count()
        sign = 1 if up else -1
        self.up[node] = up
        self.nodes_with[count] += sign
        self.free_gpus += sign * count
        self.counts[node] = count if up else 0
        self.soonest[node] = sorted(self._until[node]) if up else NEVER
        self.version += 1

    def _change(self, node: int, free: int) -> None:
        before, after = int(self.free[node]).bit_count(), free.bit_count()
        self.free[node] = free
        if self.up[node]:
            self.nodes_with[before] -= 1
            self.nodes_with[after] += 1
            self.free_gpus += after - before
            self.counts[node] = after

    def nodes_with_at_least(self, k: int) -> int:
        """Returns the number of nodes that have k free GPUs."""
        return sum(self.nodes_with[k:])

    def fits(self, shapes: "Iterable[tuple[int, int]]") -> bool:
        """Tells whether one of these shapes (nodes, GPUs on each; 0 nodes: anywhere) would fit by numbers alone."""
        return any(
            self.free_gpus >= k if n == 0 else self.free_gpus >= n * k and self.nodes_with_at_least(k) >= n
            for n, k in shapes
        )
