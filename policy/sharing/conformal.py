"""Promises instead of guesses: a lower bound that held, for cases never seen in training, in a stated part of them.

Split conformal prediction on errors made out of fold, in two classes of cases: both jobs were measured before though
never together (folds over pairs), and a job that is new (folds that leave out a whole model). An error is divided by
the predictor's spread, and the bound subtracts its quantile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Promises are made from a half on; the lower levels tell how likely a bound is that nobody would promise."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Spreads to subtract at each of LEVELS, for pairs of known jobs and for pairs with a new one."""

    known: tuple[float, ...]
    new: tuple[float, ...]

    def of(self, level: float, known: NDArray[np.bool_]) -> Array:
        """Spreads to subtract so that the bound holds in at least `level` of the cases."""
        place = next((place for place, value in enumerate(LEVELS) if value >= level), None)
        if place is None:
            raise ValueError(f"promises are made up to a level of {LEVELS[-1]}, not {level}")
        return np.where(known, self.known[place], self.new[place])

    def chance(self, reach: Array, known: NDArray[np.bool_]) -> Array:
        """How likely a bound holds that lies `reach` spreads below the prediction (above: negative)."""
        found = [np.interp(reach, margins, LEVELS, left=0.0) for margins in (self.known, self.new)]
        return np.asarray(np.where(known, *found))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """From a fit's file."""
        known, new = ([float(content[name][str(level)]) for level in LEVELS] for name in ("known", "new"))
        return cls(tuple(known), tuple(new))

    def write(self) -> dict[str, dict[str, float]]:
        """For a fit's file."""
        return {
            name: {str(level): round(margin, 4) for level, margin in zip(LEVELS, margins, strict=True)}
            for name, margins in (("known", self.known), ("new", self.new))
        }


def quantiles(shortfalls: Array) -> tuple[float, ...]:
    """For each level the margin that covers that part of the shortfalls (prediction less truth, in spreads).

    The count is one larger than the cases: a new case is one among them. With too few cases for a level the greatest
    shortfall stands in, and the promise is weaker than its name.
    """
    ordered = np.sort(shortfalls)
    count = len(ordered)
    return tuple(float(ordered[min(count, ceil((count + 1) * level)) - 1]) for level in LEVELS)
