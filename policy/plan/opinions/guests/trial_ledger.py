# SPDX-License-Identifier: Apache-2.0
"""Bounds trials: guests beside hosts whose speed is not promised.

One trial of a pair of jobs goes on at a time, so that what harms is learnt from once and not a hundred times at once.
An owner bears at most so many trials a day. The ledger is in memory: after a restart of berthd the count begins anew.
"""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.cluster.shared.sharers import JobIdentity
    from policy.sharing.companions import Companions

LONGEST = 300.0
"""Seconds after which a trial without an answer is over: its guard hears no steps, and the next one may begin."""

_DAY = 86_400.0


class TrialLedger:
    """The trials that go on, and those of each owner in the last day."""

    def __init__(self, companions: "Companions", most_a_day: int) -> None:
        self._companions = companions
        self._most = most_a_day
        self._going: dict[tuple[object, object], float] = {}
        """When the trial of an owner's and a guest's profile began."""
        self._begun: dict[int, deque[float]] = {}

    def look(self, at: float) -> None:
        """Forgets what is over."""
        self._going = {pair: since for pair, since in self._going.items() if at - since < LONGEST}
        for owner, times in list(self._begun.items()):
            while times and at - times[0] >= _DAY:
                times.popleft()
            if not times:
                del self._begun[owner]

    def may(self, host: "JobIdentity", guest: "JobIdentity") -> bool:
        """Tells whether a trial of these two may begin."""
        return (
            len(self._begun.get(host.user, ())) < self._most
            and (self._companions.key_of(host), self._companions.key_of(guest)) not in self._going
        )

    def begin(self, host: "JobIdentity", guest: "JobIdentity", at: float) -> None:
        """Notes a trial; it is over when its result is known, because a tried pair is no trial any more."""
        self._going[self._companions.key_of(host), self._companions.key_of(guest)] = at
        self._begun.setdefault(host.user, deque()).append(at)
