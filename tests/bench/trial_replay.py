# SPDX-License-Identifier: Apache-2.0
"""Replays new jobs that come one by one beside measured ones: which pairs are promised, tried or refused.

It is what berthd does with trials (`trials`, `companions`), on a table of measured pairs. Both sides count and are
heard in a trial; with `hosts_only` the first side alone, as berthd hears and promises its owner's speed alone.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from policy.sharing import predictor
from policy.sharing.predictor import Array, Fit
from policy.sharing.trials import ENOUGH, lesson
from tests.bench.training import Pairs, guess

_SAFE, _HARMED = 0.9, 0.85
WORTH_TRYING = 0.85
"""Speed that both sides must be predicted to keep, or the pair is not even tried."""
TRIAL_S, STAY_S = 60.0, 3_600.0
"""Gives the length of a trial that harms, and of a pair that stays together otherwise."""


@dataclass(frozen=True, slots=True)
class TrialReplay:
    """Figures of new jobs that come one by one, with trials or promised by numbers alone."""

    pairs: int
    safe: int
    """Pairs of which both sides keep 0.9 of their speed."""
    promised: int
    harmed: int
    """Promised pairs with a side below 0.85."""
    found: int
    """Safe pairs that were promised."""
    trials: int
    trials_harmed: int
    trials_found: int
    """Safe pairs that were put together as a trial."""

    @property
    def false_safe(self) -> float:
        """Returns the part of the promises that harmed."""
        return self.harmed / max(1, self.promised)

    @property
    def safe_recall(self) -> float:
        """Returns the part of the safe pairs that were promised."""
        return self.found / max(1, self.safe)

    @property
    def false_safe_in_time(self) -> float:
        """Returns the part of the time together that harmed, where a trial that harms ends after TRIAL_S."""
        short = TRIAL_S / STAY_S * self.trials_harmed
        together = self.promised + self.trials - self.trials_harmed + short
        return (self.harmed + short) / max(1.0, together)

    @property
    def safe_recall_with_trials(self) -> float:
        """Returns the part of the safe pairs that came together, as a promise or as a trial."""
        return (self.found + self.trials_found) / max(1, self.safe)


def replay(fit: Fit, asked: Pairs, level: float, *, seed: int = 0, hosts_only: bool = False) -> TrialReplay:
    """Lets the pairs come one by one in random order, and promises, tries or refuses each of them.

    Each profile is one job. What its trials taught is used for its next pairs; the fit stays as it is.
    """
    said = guess(fit, asked, level)
    margin = fit.margins.of(level, np.ones(len(asked), dtype=np.bool_))
    sides = predictor.rounded(asked.first), predictor.rounded(asked.second)
    known = np.column_stack([predictor.familiar(fit, side) for side in sides])
    count = slice(0, 1 if hosts_only else 2)
    errors: dict[Hashable, list[float]] = defaultdict(list)
    as_other: dict[Hashable, list[float]] = defaultdict(list)
    met: Counter[Hashable] = Counter()
    counts = dict.fromkeys(("promised", "harmed", "found", "trials", "trials_harmed", "trials_found"), 0)
    least = asked.speeds[:, count].min(axis=1)
    safe, harmed = least >= _SAFE, least < _HARMED
    for row in np.random.default_rng(seed).permutation(len(asked)):
        keys = [(name, *side[row].tolist()) for name, side in zip(asked.names[row], sides, strict=True)]
        roles = [(0, keys[0], keys[1]), (1, keys[1], keys[0])][count]
        taught = np.array([lesson(errors[own] + as_other[other]) for _, own, other in roles])
        spread: Array = said.spread[row][count]
        speeds = np.minimum(said.speeds[row][count] + taught * spread, 1.0)
        is_known = all(like or met[key] >= ENOUGH for key, like in zip(keys, known[row], strict=True))
        if is_known and (speeds - margin[row] * spread).min() >= _SAFE:
            counts["promised"] += 1
            counts["harmed"] += bool(harmed[row])
            counts["found"] += bool(safe[row])
        elif speeds.min() >= WORTH_TRYING:
            counts["trials"] += 1
            counts["trials_harmed"] += bool(harmed[row])
            counts["trials_found"] += bool(safe[row])
            met.update(set(keys))
            for side, own, other in roles:
                # Speeds above 1 say that the job alone was measured at a bad moment.
                missed = min(asked.speeds[row, side], 1.0) - min(said.speeds[row, side], 1.0)
                errors[own].append(float(missed / said.spread[row, side]))
                as_other[other].append(errors[own][-1])
    return TrialReplay(len(asked), int(safe.sum()), **counts)
