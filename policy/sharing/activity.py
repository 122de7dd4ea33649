# SPDX-License-Identifier: Apache-2.0
"""Records how busy owners keep their SMs when they run alone, and computes the share left for a guest.

Samples come minute by minute. They are kept by user and job name. A service on ten GPUs, or one that is started anew
each day, is therefore one entry, and its busiest sample counts.

A week is kept in slots of five minutes, in memory only. After a restart, berthd has the last minutes again within one
slot.
"""

from collections import deque
from collections.abc import Iterator

from policy.request.share import Mate
from policy.sharing.complement import Complement, Sample, forecast, share

SLOT = 300.0
_WEEK_OF_SLOTS = int(8 * 86_400 / SLOT)
MOST_HOSTS = 2_000
"""Most names that are kept, about five megabytes. The names with the oldest last sample are dropped first."""

_UNHEARD = 255


class _Host:
    """One name's activity: the last minutes sample by sample, the rest by slot."""

    def __init__(self) -> None:
        self.latest: deque[Sample] = deque()
        self.slots = bytearray([_UNHEARD]) * _WEEK_OF_SLOTS
        self.last = 0

    def hear(self, sample: Sample) -> None:
        self.latest.append(sample)
        while self.latest[0].at < sample.at - SLOT:
            self.latest.popleft()
        slot = int(sample.at // SLOT)
        for passed in range(max(self.last + 1, slot - _WEEK_OF_SLOTS + 1), slot + 1):
            self.slots[passed % _WEEK_OF_SLOTS] = _UNHEARD
        self.last = max(self.last, slot)
        place, percent = slot % _WEEK_OF_SLOTS, round(min(sample.activity, 100.0))
        self.slots[place] = percent if self.slots[place] == _UNHEARD else max(percent, self.slots[place])

    def samples(self) -> Iterator[Sample]:
        yield from self.latest
        for slot in range(max(0, self.last - _WEEK_OF_SLOTS + 1), self.last):
            if (percent := self.slots[slot % _WEEK_OF_SLOTS]) != _UNHEARD:
                # The sample lies somewhere in this slot, so both ends of the slot count.
                yield Sample(slot * SLOT, percent)
                yield Sample((slot + 1) * SLOT, percent)


class Activity:
    """Keeps the SM activity that guards report of owners alone on their GPU."""

    def __init__(self, rules: Complement | None = None) -> None:
        self._rules = rules or Complement()
        self._hosts: dict[Mate, _Host] = {}
        self._known: dict[Mate, tuple[float, int]] = {}

    def hear(self, mate: Mate, at: float, part: float) -> None:
        """Adds the sample of one minute in which an owner was alone; `part` is the part of the SMs that were active."""
        host = self._hosts.pop(mate, None) or _Host()
        self._hosts[mate] = host
        if len(self._hosts) > MOST_HOSTS:
            oldest = next(iter(self._hosts))
            del self._hosts[oldest]
            self._known.pop(oldest, None)
        host.hear(Sample(at, 100.0 * part))
        self._known.pop(mate, None)

    def left(self, mate: Mate, at: float) -> int | None:
        """Returns the percent of the SMs for a guest that starts now.

        The answer is 0 where too little is left, and None where the activity of the last minutes is unknown.
        """
        host = self._hosts.get(mate)
        if host is None or not host.latest or host.latest[-1].at < at - self._rules.recent:
            return None
        known = self._known.get(mate)
        if known is None or at - known[0] > SLOT / 5:
            # MPS itself rounds a percentage down to whole SMs.
            known = self._known[mate] = (
                at,
                int(share(forecast(list(host.samples()), at, self._rules), 100, self._rules)),
            )
        return known[1]

    def all_left(self, at: float) -> dict[Mate, int]:
        """Returns what `left` says for all owners, without those whose last minutes are unknown."""
        return {mate: left for mate in self._hosts if (left := self.left(mate, at)) is not None}
