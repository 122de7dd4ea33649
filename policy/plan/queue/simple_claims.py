# SPDX-License-Identifier: Apache-2.0
"""Claims of the jobs that can only wait for their places: most jobs of a long queue, so they are made in few steps."""

from collections.abc import Iterable, Iterator, Sequence

from policy.formats.arrays import FAR
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.claims import Repeat, claim_on
from policy.plan.opinions.opinion import Opinion, PassState

AFRESH = 17
"""Seconds, by which the start of each job on several nodes that do not gather nodes yet is taken as it is."""

GATHER_AT_ONCE = 16
"""Jobs on several nodes, the first in line, that gather nodes at the same time.

With one, such jobs wait for each other. With few, they wait longer than jobs that fit in between. With many more, GPUs
stand idle for jobs that are not next."""

SOONEST, ALIKE = 60.0, 0.02
"""Seconds ahead from which on its former start may stay, and the part of them by which it may be too early."""


class SimpleClaims:
    """The part of a walk for jobs that can only wait for their places."""

    def __init__(self, state: PassState, opinions: Sequence[Opinion]) -> None:
        """`opinions` are those that have something to say in this pass."""
        self.state = state
        self._ledger, self._book = state.ledger, state.ledger.book
        self._opinions = opinions
        self._narrow, self._leave = self.asked("narrow"), self.asked("leave")
        self._hold, self._keepers = self.asked("hold"), self.asked("keep")
        self._gathering = 0
        """Number of jobs on several nodes that the walk has met and that cannot start now."""
        self._simply = not any(one.questions_plain for one in opinions)
        """True if a job whose place is not free yet may keep it without further questions."""
        self._repeats = self._simply and self._ledger.only is None
        """True if claims of the last whole walk may be made again as they are."""

    def asked(self, method: str) -> list[Opinion]:
        """Returns the opinions that have such a method of their own."""
        return [one for one in self._opinions if method in one.says]

    def to_plan(self, line: Iterable[Waiting]) -> Iterator[Waiting]:
        """Yields the jobs of a line that have to be planned, after those before them have claimed their places simply.

        Does without any call for a job that claims what it had.
        """
        if not self._repeats:
            yield from line
            return
        ledger = self._ledger
        rows, again, refused, most = self._book.kept_rows, self._book.claim_again, ledger.refused, -1.0
        if ledger.may_change:
            most = ledger.most_free
        for one in line:
            try:
                if one.plain and not (
                    (one.collects and self._gathers(one))
                    or (one.least_free <= most and refused.get(one.shape, FAR) > one.demand.limit)
                    or (one.spread.gpus and most >= 0 and self._spreads(one))
                ):
                    if (claimed := one.last.claimed) is not None and not one.last.keeps_start:
                        for node, before in zip(claimed.nodes, claimed.before, strict=True):
                            if rows.get(node) is not before:
                                break
                        else:
                            again(claimed)
                            self._gathering += one.collects
                            continue
                    if len(one.nodes) == 1 and self._claims_alone(one):
                        continue
            except Exception:  # noqa: BLE001, S110 - planned alone, this job alone fails, and that is told
                pass
            yield one
            most = ledger.most_free if ledger.may_change else -1.0

    def claims_alone(self, entry: Waiting) -> bool:
        """Claims the place of a job on one node that can only wait for it; False where `settle` has more to ask.

        The claim is of no use for a later walk: the timelines of a walk on some nodes are its own.
        """
        if not (self._simply and entry.plain and len(entry.nodes) == 1) or self._searches(entry):
            return False
        claims = self._claims_alone(entry)
        entry.last.claimed = None
        return claims

    def _claims_alone(self, entry: Waiting) -> bool:
        claimed = self._book.claim_alone(entry.demand, entry.nodes[0], entry.mask, entry.last.claimed)
        if claimed is not None:
            self._waits(entry, claimed, claimed.start)
        return claimed is not None

    def _waits(self, entry: Waiting, claimed: Repeat | None, start: float) -> None:
        self.state.free_since.pop(entry.job.id, None)
        entry.last.refuses_until, entry.last.waits_for_fewer, entry.last.lets = 0.0, False, None
        entry.last.claimed = claimed
        entry.last.start, entry.last.place, entry.last.mask = start, entry.nodes, entry.mask

    def claims_simply(self, entry: Waiting) -> bool:
        """Claims the place of a job that can only wait for it; False where `settle` has more to ask.

        Where the timelines are those of the last whole walk, so is the claim.
        """
        if not (self._repeats and entry.plain) or self._gathers(entry) or self._searches(entry):
            return False
        if entry.last.claimed is None or entry.last.keeps_start or not self._book.repeat(entry.last.claimed):
            start = self._book.start_of(entry.demand, entry.nodes, entry.mask)
            if not start:
                return False
            kept = self._about_as_before(entry, start)
            entry.last.keeps_start = kept != start
            claim = claim_on(self._book.fleet, entry.demand, entry.nodes, entry.mask, kept)
            self._waits(entry, self._book.claim_later(claim, entry.last.claimed), kept)
        self._gathering += entry.collects
        return True

    def _searches(self, entry: Waiting) -> bool:
        """Tells whether a search could find free GPUs for a job."""
        ledger = self._ledger
        if not ledger.may_change:
            return False
        if entry.least_free <= ledger.most_free and not ledger.has_refused(entry.shape, entry.demand.limit):
            return True
        return ledger.only is None and self._spreads(entry)

    def _spreads(self, entry: Waiting) -> bool:
        return self._ledger.may_spread(entry.spread.gpus, entry.spread.shape, entry.demand.limit)

    def _about_as_before(self, entry: Waiting, start: float) -> float:
        """Returns the former start of a job on several nodes where that is near the new one, or later for a while.

        One node's new timeline would else change those of all others, and most of the queue with them.
        """
        had, at = entry.last.claimed, self._book.at
        if had is None or not entry.collects or (int(at) + entry.job.id) % AFRESH == 0:
            return start
        ahead = had.start - at
        return had.start if ahead > SOONEST and start <= had.start + ALIKE * ahead else start

    def _gathers(self, entry: Waiting) -> bool:
        """Tells whether a job looks for places sooner than its own: the first in line that need several nodes do.

        Nodes become free before the time limits of their jobs. If such a job kept its first nodes, other jobs would
        always overtake it.
        """
        return entry.collects and self._gathering < GATHER_AT_ONCE
