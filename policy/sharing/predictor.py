# SPDX-License-Identifier: Apache-2.0
"""Predicts the speeds of two jobs beside each other on one GPU, from what each does alone.

A job alone is three numbers: the part of time its kernels run, the part of time the memory is busy, and the memory it
holds. The speed of one job (`own`) beside another (`other`), 1.0 being its speed alone, is

    1 / (1 + sensitivity(own) x pressure(other))  +  a correction

The law has six numbers and holds for any job. The correction is linear in Gaussian bumps: wide ones over all profiles,
and narrow ones at *anchors*, the profiles that were measured. Far from every anchor only the law and the wide bumps are
left. All of it is matrix products, so a million pairs take well under a second. `training` makes a fit, `conformal`
tells how far it can be trusted.
"""

import json
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from policy.formats.errors import FormatError
from policy.sharing.conformal import Margins

Array = NDArray[np.float64]

FORMAT = "berth-fit/1"

GRID = np.array([0.02, 0.02, 0.1])
"""Steps to which a profile is rounded; repeated measurements of a job differ by about that much."""
WIDE_AT = np.array(
    [[0, 0], [0.1, 0.05], [0.3, 0.1], [0.5, 0.15], [0.5, 0.35], [0.75, 0.35], [0.75, 0.6], [1, 0.6], [1, 0.85]]
)
"""Kernel time and memory time at the centres of the wide bumps, where real jobs lie."""
WIDE_OWN = np.array([0.3, 3.0])
WIDE_OTHER = np.array([0.6, 0.3])
"""Widths of the wide bumps; the other job's memory time is resolved more finely than the job's own."""
NARROW = np.array([0.025, 0.025, 0.15])
"""Widths of the narrow bumps, in kernel time, memory time and doublings of memory."""
_UNTOUCHED = 0.05
_TOUCHES = 0.004
"""Bounds for jobs that hardly use the memory.

Without memory time, a job's sensitivity is `_UNTOUCHED` of the law's. The factor rises to 1 with memory time, on the
scale of `_TOUCHES`.
"""
_FAMILIAR = 0.5
"""Least height of an anchor's narrow bump at which a profile counts as measured."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained predictor: the law's six numbers, the correction's matrix, the anchors, and the margins."""

    law: Array
    correction: Array
    anchors: Array
    margins: Margins
    source: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads a fit from the text of a berth-fit/1 file."""
        try:
            content: dict[str, Any] = json.loads(text)
            if content["format"] != FORMAT:
                raise FormatError(f"the fit is written as {content['format']!r}; this Berth reads {FORMAT}")
            anchors = np.array(content["anchors"], dtype=np.float64).reshape(-1, 3)
            size = len(WIDE_AT) + len(anchors) + 3
            return cls(
                law=np.array(content["law"], dtype=np.float64).reshape(6),
                correction=np.array(content["correction"], dtype=np.float64).reshape(size, size),
                anchors=anchors,
                margins=Margins.read(content["margins"]),
                source=str(content["source"]),
            )
        except (ValueError, KeyError, TypeError) as problem:
            raise FormatError(f"the fit is no {FORMAT} text ({problem}); see docs/research/sharing.md") from None

    def write(self) -> str:
        """Returns the text of a berth-fit/1 file."""
        content = {
            "format": FORMAT,
            "source": self.source,
            "law": _short(self.law),
            "anchors": _short(self.anchors),
            "margins": self.margins.write(),
            "correction": _short(self.correction),
        }
        rows = (f" {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in content.items())
        return "{\n" + ",\n".join(rows) + "\n}\n"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of owners (rows) and guests (columns) beside each other, and lower bounds that can be promised."""

    host: Array
    guest: Array
    host_least: Array
    guest_least: Array
    familiar: NDArray[np.bool_]
    """Marks the pairs of which both profiles are like ones that were measured."""


def profile(busy: float, bandwidth: float, memory: float) -> Array:
    """Returns a job alone as the predictor takes it; kernel time and memory time in parts of 1, memory in MiB."""
    return np.array([busy, bandwidth, np.log2(max(memory, 1.0) / 2_048)])


def rounded(profiles: Array) -> Array:
    """Rounds profiles to the grid."""
    return np.asarray(np.round(profiles / GRID) * GRID)


def predict(fit: Fit, hosts: Array, guests: Array, level: float) -> Speeds:
    """Returns both speeds of every pair, and lower bounds that hold in `level` (0.85: 85 %) of the cases."""
    hosts, guests = rounded(hosts), rounded(guests)
    known = np.logical_and.outer(familiar(fit, hosts), familiar(fit, guests))
    margin = fit.margins.of(level, known)
    host, host_reach = _beside(fit, hosts, guests)
    guest, guest_reach = _beside(fit, guests, hosts)
    return Speeds(host, guest.T, host - margin * host_reach, guest.T - margin * guest_reach.T, known)


def chances(fit: Fit, hosts: Array, guests: Array, bound: float) -> Array:
    """Returns the probability that each owner (rows) keeps `bound` of its speed beside each guest (columns)."""
    hosts, guests = rounded(hosts), rounded(guests)
    known = np.logical_and.outer(familiar(fit, hosts), familiar(fit, guests))
    host, reach = _beside(fit, hosts, guests)
    return fit.margins.chance((host - bound) / reach, known)


def law(numbers: Array, own: Array, other: Array) -> Array:
    """Returns the speed of each `own` (rows) beside each `other` (columns), without the correction."""
    return np.asarray(1 / (1 + np.outer(sensitivity(numbers, own), pressure(numbers, other))))


def sensitivity(numbers: Array, own: Array) -> Array:
    """Returns the law's factor for how strongly a job is slowed by others."""
    return _softplus(numbers[0] + own[:, :2] @ numbers[1:3]) * touched(own)


def pressure(numbers: Array, other: Array) -> Array:
    """Returns the law's factor for how strongly a job slows others."""
    return _softplus(numbers[3] + other[:, :2] @ numbers[4:6])


def touched(own: Array) -> Array:
    """Returns 0.05 for a job that leaves the GPU's memory alone, and about 1 for any other."""
    return np.asarray(1 - (1 - _UNTOUCHED) * np.exp(-own[:, 1] / _TOUCHES))


def spread(by_law: Array) -> Array:
    """Returns the scale of the errors, up to a factor; it grows with the contention that the law predicts."""
    return np.asarray(0.02 + 0.5 * (1 - by_law))


def bumps(anchors: Array, own: Array, width: Array) -> Array:
    """Returns the heights of the bumps at `anchors` for each profile."""
    apart = own[:, None, : len(width)] / width - anchors[None, :, : len(width)] / width
    return np.asarray(np.exp(-0.5 * np.square(apart).sum(axis=2)))


def as_own(anchors: Array, own: Array) -> Array:
    """Returns the correction's features of the slowed job: wide bumps, narrow bumps, the profile itself."""
    return np.concatenate([_wide(own, WIDE_OWN), bumps(anchors, own, NARROW), _plain(own)], axis=1)


def as_other(anchors: Array, other: Array) -> Array:
    """Returns the correction's features of the slowing job: wide bumps, the profile itself, narrow bumps."""
    return np.concatenate([_wide(other, WIDE_OTHER), _plain(other), bumps(anchors, other, NARROW)], axis=1)


def _beside(fit: Fit, own: Array, other: Array) -> tuple[Array, Array]:
    """Returns the speeds and the scale of their errors."""
    correction = (as_own(fit.anchors, own) * touched(own)[:, None]) @ fit.correction @ as_other(fit.anchors, other).T
    by_law = law(fit.law, own, other)
    return by_law + correction, spread(by_law)


def familiar(fit: Fit, own: Array) -> NDArray[np.bool_]:
    """Tells which rounded profiles are like one that was measured; of others nothing is promised without trials."""
    if not len(fit.anchors):
        return np.zeros(len(own), dtype=np.bool_)
    return np.asarray(bumps(fit.anchors, own, NARROW).max(axis=1) >= _FAMILIAR)


def _wide(own: Array, width: Array) -> Array:
    return np.asarray(bumps(WIDE_AT, own, width) @ _WHITENED[tuple(width.tolist())])


def _whitening(width: Array) -> Array:
    """Returns the matrix that turns the wide bumps' heights, which overlap, into independent features."""
    among = bumps(WIDE_AT, WIDE_AT, width) + 1e-4 * np.eye(len(WIDE_AT))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(among)).T)


_WHITENED = {tuple(width.tolist()): _whitening(width) for width in (WIDE_OWN, WIDE_OTHER)}
"""Computed once, because a prediction for one pair must be quick."""


def _plain(own: Array) -> Array:
    return np.column_stack([np.ones(len(own)), own[:, 0], 0.5 * own[:, 1]])


def _softplus(values: Array) -> Array:
    return np.asarray(np.logaddexp(0, values))


def _short(values: Array) -> Any:
    return np.vectorize(lambda value: float(f"{value:.5g}"), otypes=[float])(values).tolist()
