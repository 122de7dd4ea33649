# SPDX-License-Identifier: Apache-2.0
"""Estimates quantiles of any number of values in little memory.

>>> spread = Spread()
>>> for seconds in range(1, 1_001):
...     spread.add(seconds)
>>> spread.count, round(spread.quantile(0.5)), round(spread.mean, 1)
(1000, 497, 500.5)
"""

from collections import Counter
from math import exp, log

_STEP = log(1.02)
"""Width of a bin on the logarithmic scale: values within two percent count as one."""


class Spread:
    """A histogram of values from 0 on."""

    def __init__(self) -> None:
        self.count, self.total, self.most = 0, 0.0, 0.0
        self._bins: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Adds a value; all values below 1 count as 0 in quantiles."""
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self._bins[int(log(value) / _STEP) + 1 if value >= 1 else 0] += 1

    @property
    def mean(self) -> float:
        """The exact mean."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Returns the quantile within two percent; 0 without values."""
        left = part * self.count
        for place in sorted(self._bins):
            left -= self._bins[place]
            if left <= 0:
                return min(self.most, exp((place - 0.5) * _STEP)) if place else 0.0
        return self.most

    def figures(self) -> dict[str, float]:
        """Returns mean, quantiles and the greatest value, in seconds."""
        quantiles = {f"p{percent}_s": round(self.quantile(percent / 100), 1) for percent in (50, 90, 95, 99)}
        return {"mean_s": round(self.mean, 1), **quantiles, "longest_s": round(self.most, 1)}
