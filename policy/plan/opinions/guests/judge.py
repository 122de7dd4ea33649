# SPDX-License-Identifier: Apache-2.0
"""Judges hosts for one guest, by the profiles of both."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policy.cluster.shared.sharers import JobIdentity
from policy.plan.opinions.guests.trial_ledger import TrialLedger
from policy.sharing.companions import Companions

HostKind = tuple[object, ...]

HostTable = NDArray[np.float64]
"""A table of hosts for one guest, one host per row, with three columns.

1 if the guest may go there; 1 if its seat is preferred, and so comes before all others; the worth of the seat."""


class HostJudge:
    """Judges hosts for one guest."""

    def __init__(
        self, companions: Companions, who: JobIdentity, prices: dict[HostKind, float], trials: TrialLedger | None
    ) -> None:
        """`trials` tells which trials may begin; None: none may."""
        self.who = who
        self._companions = companions
        self._prices = prices
        self._trials = trials
        self._all: tuple[Sequence[JobIdentity], HostTable] | None = None
        self.needs = companions.memory_of(who) or 0.0

    def table(self, hosts: Sequence[JobIdentity]) -> HostTable:
        return np.array([self._row(host) for host in hosts])

    def of_all(self, hosts: Sequence[JobIdentity]) -> HostTable:
        # A notice between two passes may bring other hosts.
        if self._all is None or self._all[0] is not hosts:
            self._all = hosts, self.table(hosts)
        return self._all[1]

    def _row(self, host: JobIdentity) -> tuple[float, float, float]:
        pair = self._companions.pair(host, self.who)
        if pair.preferred:
            price = self._prices.get(self._companions.kind_of(host), 0.0) if self._prices else 0.0
            return (1.0, 1.0, pair.guest - price)
        may = pair.safe or (self._trials is not None and not pair.barred and self._trials.may(host, self.who))
        return (float(may), 0.0, pair.worth)

    def slope(self, host: JobIdentity) -> float | None:
        pair = self._companions.pair(host, self.who)
        return None if pair.unmeasured else 1.0 - pair.host

    def why(self, host: JobIdentity) -> str:
        return self._companions.pair(host, self.who).text
