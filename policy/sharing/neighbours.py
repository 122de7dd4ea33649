# SPDX-License-Identifier: Apache-2.0
"""Predicts how packed jobs slow each other on one GPU, from what was measured of each alone.

A `Neighbours` is sent from the planner, which has the profiles, to the answerer. It holds three numbers for each known
job, and the fit. Predictions are made where they are asked for, and kept. There is none for jobs that were never
measured.

A prediction is for two jobs. With more, the slowdowns multiply. A job held to a part of the SMs loads the others that
much less (policy.sharing.complement). Both are rules, not measurements.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from policy.cluster.shared.company import NOBODY_KNOWN, Meeting
from policy.cluster.shared.tenants import PlannedTenant
from policy.request.share import Mate, Share
from policy.sharing import predictor
from policy.sharing.complement import under_share
from policy.sharing.predictor import Fit
from policy.sharing.priors import PRIORS
from policy.sharing.profiles import Measured

Numbers = tuple[float, float, float]
"""A job alone as the predictor takes it: kernel time, memory time, and doublings of memory."""

LEVEL = 0.85
"""Part of the cases in which a promise must hold."""

MOST_KINDS = 512
"""Most kinds of jobs whose speeds beside each other are kept; with more, the table starts empty again."""


def numbers_of(measured: Measured) -> Numbers:
    """Returns a job's measured profile; missing values come from the prior of a class that loads a GPU heavily."""
    prior = PRIORS["mixed"]
    found = [
        getattr(prior, name) if getattr(measured, name) is None else getattr(measured, name)
        for name in ("busy", "bandwidth", "memory")
    ]
    one, two, three = predictor.rounded(predictor.profile(*found)).tolist()
    return one, two, three


class _Table:
    """Speeds of kinds of jobs beside each other; a kind is a job's numbers under its share of the SMs."""

    def __init__(self) -> None:
        self.kinds: dict[Numbers, int] = {}
        self.speeds: list[list[float]] = []
        self.promises: list[list[float]] = []
        self.meetings: dict[tuple[int, int, tuple[tuple[int, int], ...]], Meeting] = {}

    def add(self, new: list[Numbers], fit: Fit) -> None:
        """Predicts the speeds of new kinds beside each other and beside all known ones."""
        kinds = [*self.kinds, *new]
        said = predictor.predict(fit, np.array(new), np.array(kinds), LEVEL)
        # No job gains by sharing: training pairs that show a gain were measured alone at a bad moment.
        own, other = np.clip(said.host, 0.01, 1.0), np.clip(said.guest, 0.01, 1.0)
        own_least, other_least = np.clip(said.host_least, 0.0, own), np.clip(said.guest_least, 0.0, other)
        for place in range(len(self.kinds)):
            self.speeds[place] += other[:, place].tolist()
            self.promises[place] += other_least[:, place].tolist()
        self.speeds += own.tolist()
        self.promises += own_least.tolist()
        self.kinds |= {kind: len(self.kinds) + place for place, kind in enumerate(new)}


class Neighbours:
    """The predictor for packed jobs, by user and job name."""

    def __init__(self, known: Mapping[Mate, Numbers], fit: Fit, *, least: float, capped: bool) -> None:
        """Sets the required speed and the cap on SMs.

        `least` is the part of its speed alone that each job must be promised; `capped` tells whether shares bound the
        SMs.
        """
        self.least, self.known = least, known
        self.fit, self.capped = fit, capped
        self.table = _Table()
        """Predictions, which depend on the fit and on no profile."""
        self._kinds: dict[tuple[Mate, int], Numbers | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without predictions, which the receiver makes itself."""
        return {"least": self.least, "known": self.known, "fit": self.fit, "capped": self.capped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.table, self._kinds = _Table(), {}

    def adopt(self, old: object) -> None:
        """Takes over the predictions of an older `Neighbours`, if both use the same fit and cap."""
        if isinstance(old, Neighbours) and (old.fit.source, old.capped) == (self.fit.source, self.capped):
            self.table = old.table

    def bears(self, meeting: Meeting) -> bool:
        """Tells whether every job of this meeting is promised `least` of its speed."""
        return meeting.least >= self.least

    def meeting(self, share: Share, there: Iterable[PlannedTenant]) -> Meeting:
        """Returns the speeds to expect if a job joins the tenants of a GPU."""
        one = self._kind(share.mate, share.percent)
        if one is None:
            return NOBODY_KNOWN
        met = [(kind, tenant.percent) for tenant in there if (kind := self._kind(tenant.mate, tenant.percent))]
        if not met:
            return NOBODY_KNOWN
        table = self.table
        missing = [kind for kind in dict.fromkeys((one, *(kind for kind, _ in met))) if kind not in table.kinds]
        if missing and len(table.kinds) + len(missing) > MOST_KINDS:
            table = self.table = _Table()
            missing = list(dict.fromkeys((one, *(kind for kind, _ in met))))
        if missing:
            table.add(missing, self.fit)
        key = table.kinds[one], share.percent, tuple(sorted((table.kinds[kind], percent) for kind, percent in met))
        if key not in table.meetings:
            table.meetings[key] = _meet(table, *key)
        return table.meetings[key]

    def _kind(self, mate: Mate, percent: int) -> Numbers | None:
        place = mate, percent
        if place not in self._kinds:
            numbers = self.known.get(mate)
            self._kinds[place] = None if numbers is None else self._under(numbers, percent)
        return self._kinds[place]

    def _under(self, numbers: Numbers, percent: int) -> Numbers:
        busy, bandwidth, memory = numbers
        if self.capped:
            busy, bandwidth, _ = under_share(busy, bandwidth, float(percent))
        one, two, three = predictor.rounded(np.array([busy, bandwidth, memory])).tolist()
        return one, two, three


def _meet(table: _Table, one: int, percent: int, met: tuple[tuple[int, int], ...]) -> Meeting:
    everybody = [(one, percent), *met]
    own, theirs, least, lost = 1.0, 1.0, 1.0, 0.0
    for place, (kind, part) in enumerate(everybody):
        speed, sure = 1.0, 1.0
        for other_place, (other, _) in enumerate(everybody):
            if other_place != place:
                speed *= table.speeds[kind][other]
                # One doubtful pair makes the promise for this job doubtful as a whole.
                sure = min(sure, table.promises[kind][other] / table.speeds[kind][other])
        least = min(least, speed * sure)
        if place == 0:
            own, lost = speed, lost + part * (1.0 - speed)
        else:
            theirs = min(theirs, speed)
            lost += part * speed * (1.0 / table.speeds[kind][one] - 1.0)
    return Meeting(own, theirs, least, lost, known=True)
