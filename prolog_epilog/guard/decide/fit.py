"""The slope of harm, learned from beats."""

from __future__ import annotations

from math import sqrt

__all__ = ["SlopeFit"]


class SlopeFit:
    """Least squares of loss = slope x duty over beats, each weighted by its certainty."""

    __slots__ = ("_product", "_square")

    def __init__(self, slope: float = 0.0, error: float = 10.0) -> None:
        """Start from a first value and its standard error; the default knows next to nothing."""
        self._square = 1.0 / (error * error)
        self._product = slope * self._square

    def add(self, duty: float, loss: float, error: float) -> None:
        """Learn from a beat: the host lost this share of its speed, known to this error, at this duty."""
        weight = duty / (error * error)
        self._product += weight * loss
        self._square += weight * duty

    def fade(self, keep: float) -> None:
        """Let what was learned count less."""
        self._product *= keep
        self._square *= keep

    @property
    def slope(self) -> float:
        """The share of its speed that the host loses at full duty."""
        return max(0.0, self._product / self._square)

    @property
    def error(self) -> float:
        """The standard error of `slope`."""
        return 1.0 / sqrt(self._square)
