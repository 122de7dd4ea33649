# SPDX-License-Identifier: Apache-2.0
"""Computes lower bounds of speeds that hold, for cases outside the training data, in a stated part of the cases.

This is split conformal prediction on errors made out of fold. There are two classes of cases. In the first, both jobs
were measured before, though never together (folds over pairs). In the second, one job is new (folds that leave out a
whole model). An error is divided by the predictor's spread, and the bound subtracts a quantile of the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Parts of the cases in which a bound holds.

Promises are made from 0.5 on. The lower levels serve `chance` alone: they give the probability of a bound that is too
weak to promise.
"""


@dataclass(frozen=True, slots=True)
class Margins:
    """Spreads to subtract at each of LEVELS, for pairs of known jobs and for pairs with a new job."""

    known: tuple[float, ...]
    new: tuple[float, ...]

    def of(self, level: float, known: NDArray[np.bool_]) -> Array:
        """Returns the spreads to subtract so that the bound holds in at least `level` of the cases."""
        place = next((place for place, value in enumerate(LEVELS) if value >= level), None)
        if place is None:
            raise ValueError(f"promises are made up to a level of {LEVELS[-1]}, not {level}")
        return np.where(known, self.known[place], self.new[place])

    def chance(self, reach: Array, known: NDArray[np.bool_]) -> Array:
        """Returns the probability of a bound that lies `reach` spreads below the prediction (negative: above it)."""
        found = [np.interp(reach, margins, LEVELS, left=0.0) for margins in (self.known, self.new)]
        return np.asarray(np.where(known, *found))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """Reads the margins from a fit's file."""
        known, new = ([float(content[name][str(level)]) for level in LEVELS] for name in ("known", "new"))
        return cls(tuple(known), tuple(new))

    def write(self) -> dict[str, dict[str, float]]:
        """Returns the margins as a fit's file keeps them."""
        return {
            name: {str(level): round(margin, 4) for level, margin in zip(LEVELS, margins, strict=True)}
            for name, margins in (("known", self.known), ("new", self.new))
        }
