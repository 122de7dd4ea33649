# SPDX-License-Identifier: Apache-2.0
"""The planner's profiles and matcher: they choose which guest goes beside which owner, and learn from guards.

If the site names no file of profiles, guests are seated by rules alone.
"""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from policy.daemon.hear.guards import GuardWord
from policy.daemon.known.matcher import ProcessMatcher
from policy.daemon.known.profiles import Profiles
from policy.formats.errors import BerthError
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.opinions.guests.choosing import Chooser
from policy.request.settings import Sharing
from policy.request.share import Mate
from policy.sharing.activity import Activity
from policy.sharing.classes import Classes
from policy.sharing.neighbours import Neighbours
from policy.site import log

_READINGS_KEPT = 10
"""Readings that are searched for the jobs that a fault ended: the last one lacks them when the notice comes."""


class ProfileKeeper:
    """The planner's interface to profiles and to the matcher."""

    def __init__(self, sharing: Sharing) -> None:
        self._profiles: Profiles | None = None
        self._least, self._capped = sharing.least_speed / 100, sharing.way == "mps"
        self._looks = sharing.least_speed > 0
        try:
            if sharing.profiles:
                self._profiles = Profiles(Path(sharing.profiles), sharing.fit)
        except BerthError as problem:
            log.error(f"{problem}; guests are seated by rules alone", 647)
        self._matcher = ProcessMatcher()
        self.activity = Activity()
        """SM activity of owners, for the shares of the guests beside them."""
        self._lately: deque[Reading] = deque(maxlen=_READINGS_KEPT)
        self.classes = Classes(self._profiles.companions if self._profiles is not None else None)
        self.chooser: Chooser | None = None
        """Chooses guests' seats; None if rules do."""
        if self._profiles is not None:
            tries = sharing.unsure == "try"
            self.chooser = Chooser(self._profiles.companions, tries=tries, trials_a_day=sharing.trials)

    @property
    def foes(self) -> frozenset[tuple[Mate, Mate]]:
        """Returns the pairs of jobs that brought each other down."""
        return self._profiles.foes if self._profiles is not None else frozenset()

    @property
    def neighbours(self) -> Neighbours | None:
        """Returns what is known of packed jobs beside each other; None if the site does not look at that."""
        return self._profiles.neighbours if self._profiles is not None and self._looks else None

    def look(self, reading: Reading, *, writes: bool) -> None:
        """Takes a new reading; with `writes` this berthd may write the file of profiles."""
        if self._profiles is not None:
            self._lately.append(reading)
            self._profiles.refresh(reading.at, writes=writes)
            if self._looks:
                self._profiles.know_neighbours(reading.at, self._least, capped=self._capped)

    def match(self) -> None:
        """Gives a matching that is due to the matcher, or the matcher's answer to the chooser of seats."""
        chooser = self.chooser
        if chooser is None:
            return
        problem, chooser.problem = chooser.problem, None
        if problem is not None:
            # This also drops a late answer to an earlier problem.
            self._matcher.ask(problem)
        elif (found := self._matcher.done()) is not None:
            chooser.take(found)

    def hear(self, word: GuardWord, at: float) -> str:
        """Learns from a guard's notice; returns the reason why its guest should move, or an empty text."""
        if self._profiles is None or not self._lately:
            return ""
        if word.word == "fault" and word.job:
            self._blame(self._profiles, word, at)
            return ""
        if word.alone is None and word.together is None:
            return ""
        jobs = Selection.all_of(self._lately[-1].jobs)
        self._hear_activity(word, jobs, at)
        return self._profiles.hear(word, jobs, at)

    def close(self) -> None:
        """Ends the matcher, and writes the profiles."""
        self._matcher.close()
        if self._profiles is not None:
            self._profiles.close(time.time())

    def _hear_activity(self, word: GuardWord, jobs: Mapping[int, JobFacts], at: float) -> None:
        alone = word.alone
        if alone is not None and alone.sms is not None and alone.job in jobs and not jobs[alone.job].rides:
            job = jobs[alone.job]
            self.activity.hear((job.user, job.name), at, alone.sms)

    def _blame(self, profiles: Profiles, word: GuardWord, at: float) -> None:
        """Notes that the cause of a fault and the jobs on its GPU never share a GPU again."""
        met: dict[int, JobFacts] = {}
        for reading in self._lately:
            for job in reading.jobs:
                if word.node in job.nodes and (job.gpus or 0) >> word.gpu & 1:
                    met[job.id] = job
        culprit = met.pop(word.job, None)
        if culprit is not None:
            profiles.fault(culprit, met.values(), at)
