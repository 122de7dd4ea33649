# SPDX-License-Identifier: Apache-2.0
"""Fits the predictor to a table of measured pairs, in seconds: least absolute errors by reweighted ridge regression.

Speeds far above 1 are cut: most likely the job alone was measured at a bad moment. The weight of a job's own anchor is
held small: it is an offset of that one job, which does not carry over to others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from scipy.optimize import least_squares
from scipy.special import expit

from policy.sharing import predictor
from policy.sharing.conformal import LEVELS, Margins
from policy.sharing.predictor import WIDE_AT, Array, Fit

_LAW_START = np.array([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0])
_LAW_HELD = 0.1
"""Strength of the regularisation that holds the law's numbers near their start."""
_LAW_BEND = 0.05
"""Errors beyond this count linearly."""
_NO_MARGINS = Margins((0.0,) * len(LEVELS), (0.0,) * len(LEVELS))


@dataclass(frozen=True, slots=True)
class Correction:
    """The limits of a correction: standard deviations of its parts and of the noise."""

    wide: float = 0.2
    own: float = 0.1
    other: float = 0.03
    noise: float = 0.045
    most: float = 1.15
    """Speeds above are cut."""
    bend: float = 0.04
    """Errors beyond this count linearly."""
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """A table of measured pairs: profiles of both sides, their speeds, and names to fold by."""

    first: Array
    second: Array
    speeds: Array
    """Two columns: the speed of the first and of the second side."""
    names: Sequence[tuple[str, str]]
    """The models of each row's two sides."""

    def __len__(self) -> int:
        return len(self.speeds)

    def part(self, chosen: NDArray[np.bool_]) -> "Pairs":
        """Returns some of the rows."""
        names = [name for name, keep in zip(self.names, chosen, strict=True) if keep]
        return Pairs(self.first[chosen], self.second[chosen], self.speeds[chosen], names)


@dataclass(frozen=True, slots=True)
class Guess:
    """The prediction for each row of a table, two columns each."""

    speeds: Array
    spread: Array
    least: Array
    familiar: NDArray[np.bool_]


def train(pairs: Pairs, source: str, shape: Correction | None = None) -> Fit:
    """Trains a fit with its margins, by folds over pairs and over models."""
    shape = shape or Correction()
    known = np.concatenate([_shortfalls(pairs, test, shape, only_new=False) for _, test in folds_by_pair(pairs)])
    new = np.concatenate([_shortfalls(pairs, test, shape, only_new=True) for _, test in folds_by_model(pairs)])
    bare = fit_only(pairs, shape)
    return Fit(bare.law, bare.correction, bare.anchors, Margins(quantiles(known), quantiles(new)), source)


def fit_only(pairs: Pairs, shape: Correction | None = None) -> Fit:
    """Trains a fit without margins."""
    shape = shape or Correction()
    own = predictor.rounded(np.concatenate([pairs.first, pairs.second]))
    other = predictor.rounded(np.concatenate([pairs.second, pairs.first]))
    truth = np.concatenate([pairs.speeds[:, 0], pairs.speeds[:, 1]])
    numbers = _fit_law(own, other, truth)
    anchors = np.unique(own.round(6), axis=0)
    rest = np.minimum(truth, shape.most) - _law_by_row(numbers, own, other)
    return Fit(numbers, _correct(own, other, rest, anchors, shape), anchors, _NO_MARGINS, "")


def guess(fit: Fit, pairs: Pairs, level: float = 0.85) -> Guess:
    """Returns the prediction for each row."""
    profiles, places = np.unique(np.concatenate([pairs.first, pairs.second]), axis=0, return_inverse=True)
    first, second = places.reshape(2, -1)
    speeds = predictor.predict(fit, profiles, profiles, level)
    by_law = predictor.spread(predictor.law(fit.law, predictor.rounded(profiles), predictor.rounded(profiles)))
    return Guess(
        np.column_stack([speeds.host[first, second], speeds.host[second, first]]),
        np.column_stack([by_law[first, second], by_law[second, first]]),
        np.column_stack([speeds.host_least[first, second], speeds.host_least[second, first]]),
        speeds.familiar[first, second],
    )


def folds_by_pair(pairs: Pairs, count: int = 10, seed: int = 0) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yields rows to leave out: each pair once, in whatever order its sides stand."""
    places = np.unique(np.concatenate([pairs.first, pairs.second]), axis=0, return_inverse=True)[1].reshape(2, -1)
    group = np.unique(np.sort(places, axis=0), axis=1, return_inverse=True)[1].ravel()
    fold = np.random.default_rng(seed).permutation(group.max() + 1)[group] % count
    for number in range(count):
        if (fold == number).any():
            yield str(number), fold == number


def folds_by_model(pairs: Pairs) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yields rows to leave out: all in which one model takes part."""
    for model in sorted({name for names in pairs.names for name in names}):
        yield model, np.array([model in names for names in pairs.names])


def _shortfalls(pairs: Pairs, test: NDArray[np.bool_], shape: Correction, *, only_new: bool) -> Array:
    held_out = pairs.part(test)
    said = guess(fit_only(pairs.part(~test), shape), held_out)
    short = (said.speeds - held_out.speeds) / said.spread
    # A model left out may resemble another one; the margins for new jobs come from models that resemble none.
    return np.asarray(short[~said.familiar if only_new else slice(None)].ravel())


def _fit_law(own: Array, other: Array, truth: Array) -> Array:
    touched = predictor.touched(own)
    of_own, of_other = (np.column_stack([np.ones(len(side)), side[:, :2]]) for side in (own, other))

    def misses(numbers: Array) -> Array:
        return np.concatenate([_law_by_row(numbers, own, other) - truth, _LAW_HELD * (numbers - _LAW_START)])

    def slopes(numbers: Array) -> Array:
        steep = np.square(_law_by_row(numbers, own, other))
        by_own = expit(of_own @ numbers[:3]) * touched * predictor.pressure(numbers, other)
        by_other = expit(of_other @ numbers[3:]) * predictor.sensitivity(numbers, own)
        rows = np.column_stack([of_own * (-steep * by_own)[:, None], of_other * (-steep * by_other)[:, None]])
        return np.concatenate([rows, _LAW_HELD * np.eye(6)])

    found = least_squares(misses, _LAW_START, slopes, loss="soft_l1", f_scale=_LAW_BEND, max_nfev=60)
    return np.asarray(found.x)


def _law_by_row(numbers: Array, own: Array, other: Array) -> Array:
    return np.asarray(1 / (1 + predictor.sensitivity(numbers, own) * predictor.pressure(numbers, other)))


def _correct(own: Array, other: Array, rest: Array, anchors: Array, shape: Correction) -> Array:
    """Fits the correction's matrix: wide x wide, narrow x plain and plain x narrow; the other blocks stay 0."""
    wide, many = len(WIDE_AT), len(anchors)
    scale = np.zeros((wide + many + 3, wide + 3 + many))
    scale[:wide, :wide] = shape.wide
    scale[wide : wide + many, wide : wide + 3] = shape.own
    scale[wide + many :, wide + 3 :] = shape.other
    rows, columns = np.nonzero(scale)
    touched = predictor.touched(own)
    left, right = predictor.as_own(anchors, own) * touched[:, None], predictor.as_other(anchors, other)
    design = left[:, rows] * right[:, columns] * scale[rows, columns]
    trust = 1 / np.square(shape.noise * np.maximum(touched, 0.3))
    weights = _ridge(design, rest, trust)
    for _ in range(shape.rounds):
        missed = np.abs(rest - design @ weights)
        weights = _ridge(design, rest, trust * shape.bend / np.maximum(missed, shape.bend))
    matrix = np.zeros_like(scale)
    matrix[rows, columns] = weights * scale[rows, columns]
    return matrix


def _ridge(design: Array, rest: Array, trust: Array) -> Array:
    weighted = design * trust[:, None]
    return np.asarray(solve(weighted.T @ design + np.eye(design.shape[1]), weighted.T @ rest, assume_a="pos"))


def quantiles(shortfalls: Array) -> tuple[float, ...]:
    """Returns for each level the margin that covers that part of the shortfalls (prediction minus truth, in spreads).

    The count is one larger than the number of cases, because the new case is one of them. With too few cases for a
    level the greatest shortfall stands in, and the bound is weaker than the level says.
    """
    ordered = np.sort(shortfalls)
    count = len(ordered)
    return tuple(float(ordered[min(count, ceil((count + 1) * level)) - 1]) for level in LEVELS)
