"""The fit of the slope (the owner's loss per duty of the guest), learned from beats."""

from math import sqrt


class SlopeFit:
    """Least squares of loss = slope x duty over beats, each weighted by its certainty."""

    __slots__ = ("_product", "_square")

    def __init__(self, slope: float = 0.0, error: float = 10.0) -> None:
        """Starts from a first value and its standard error; with the default error the first beats decide."""
        self._square = 1.0 / (error * error)
        self._product = slope * self._square

    def add(self, duty: float, loss: float, error: float) -> None:
        """Learns from a beat: the owner lost this share of its speed, known to this error, at this duty."""
        weight = duty / (error * error)
        self._product += weight * loss
        self._square += weight * duty

    def fade(self, keep: float) -> None:
        """Multiplies the weight of what was learned by `keep`."""
        self._product *= keep
        self._square *= keep

    @property
    def slope(self) -> float:
        """Returns the share of its speed that the owner loses at full duty."""
        return max(0.0, self._product / self._square)

    @property
    def error(self) -> float:
        """Returns the standard error of `slope`."""
        return 1.0 / sqrt(self._square)
