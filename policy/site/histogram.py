"""Counts durations in buckets, as Prometheus's histograms do."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts of values by upper bound, and their sum.

    >>> took = Histogram((0.1, 1.0))
    >>> took.observe(0.1), took.observe(0.5), took.observe(7.0)
    (None, None, None)
    >>> took.cumulative, round(took.sum, 1)
    ([1, 2, 3], 7.6)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def cumulative(self) -> list[int]:
        """Returns the number of values up to each bound, and of all."""
        return list(accumulate(self._counts))
