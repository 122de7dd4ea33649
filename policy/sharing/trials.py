# SPDX-License-Identifier: Apache-2.0
"""Says when a job is known well enough for a promise, and what trials teach about the next prediction.

A promise holds for jobs that are like measured ones. Of others, errors come by job, all in one direction, and a greater
margin does not mend that. So a job unlike all anchors of the fit is promised nothing until it took part in `ENOUGH`
trials: a minute beside each other, undone if it harms. The mean error in them then corrects each prediction with it.

    >>> lesson([]), lesson([-2.0, -2.0, -2.0])
    (0.0, -1.5)
"""

from collections.abc import Sequence

ENOUGH = 2
"""Trials of a job after which it is known, whatever its numbers are."""
SHRINK = 1.0
"""As many trials without an error are added to those that were made."""


def lesson(errors: Sequence[float]) -> float:
    """Returns what to add to a prediction, in spreads, by the errors of trials (truth minus prediction, in spreads)."""
    return sum(errors) / (len(errors) + SHRINK)
