# SPDX-License-Identifier: Apache-2.0
"""Hears the notices of nodes, and does what follows from them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from policy.daemon.hear.disagreements import Disagreements
from policy.daemon.hear.endings import NodeWord
from policy.daemon.hear.gpu_use import GpuWord, HeardGpus
from policy.daemon.hear.guards import AVOID_FOR, Guards, GuardWord
from policy.daemon.hear.hosts import Hosts
from policy.daemon.hear.levels import HeardLevels, LevelWord
from policy.daemon.hear.machines import HeardMachines, MachineWord
from policy.daemon.hear.notices import Notice
from policy.daemon.hear.step_times import StepWord
from policy.daemon.hear.still import Hang, StillJobs, StillWord
from policy.daemon.known.company import ProfileKeeper
from policy.daemon.known.scores_now import ScoresNow
from policy.daemon.passes.looks import SlurmLooks
from policy.daemon.passes.updates import Updates
from policy.daemon.write.degraded import Degraded
from policy.daemon.write.evictions import Evictions
from policy.daemon.write.failures import Failures
from policy.daemon.write.hangs import Hangs
from policy.daemon.write.idle_ends import IdleEnds
from policy.daemon.write.mps_faults import MpsFaults
from policy.formats.slurm_facts import Reading
from policy.site import log
from policy.site.config import Config
from policy.slurm.interface import Gateway

T = TypeVar("T")


class Apart(Protocol):
    """Runs a step; an exception ends that step alone, which then returns None."""

    def __call__(self, step: Callable[..., T], *arguments: object) -> T | None:
        """Runs the step."""


class Listeners:
    """The parts of berthd that hear notices."""

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        looks: SlurmLooks,
        updates: Updates,
        evictions: Evictions,
        company: ProfileKeeper,
    ) -> None:
        self._looks, self._updates, self._evictions = looks, updates, evictions
        self.guards = Guards()
        self.gpus = HeardGpus()
        self.still = StillJobs()
        self.mps_faults = MpsFaults(gateway)
        self.company = company
        self.degraded = Degraded(gateway)
        self.disagreements = Disagreements(config.skip_partitions)
        self.levels = HeardLevels(gateway)
        self.machines = HeardMachines()
        self.failures = Failures(gateway, others=config.other_retries)
        self.hangs = Hangs(self.failures)
        self.idle_ends = IdleEnds(gateway, config.end_idle)
        self.hosts = Hosts(config.steps)
        self.scores_now = ScoresNow(config.steps, config.scores)

    def hear(self, found: Sequence[Notice], apart: Apart) -> None:
        """Handles notices; a sender that is answered `done` need not repeat its notice."""
        for notice in found:
            if not apart(self._hear_one, notice):
                notice.answer(done=False)

    def note_degraded(self, found: Sequence[Notice], apart: Apart) -> None:
        """Notes the jobs that ended because their nodes could not set up their shares."""
        for notice in found:
            if notice.degraded and self._looks.acts:
                apart(self.degraded.note, notice.job, notice.node, time.time())
                apart(self.failures.leave, notice.job, time.time())

    def look(self, reading: Reading, apart: Apart) -> int:
        """Does what a new reading asks for; returns the number of updates."""
        updates = apart(self.degraded.send_elsewhere, reading.at) or 0
        held = apart(self.disagreements.look, reading) or ()
        updates += apart(self.degraded.tell_held, held) or 0
        apart(self.failures.watch, reading)
        return updates

    def told(self, hangs: Mapping[int, Hang]) -> dict[int, dict[str, Any]]:
        """Returns by job what the overview shows: if it hangs, and the reason why it is slow."""
        found: dict[int, dict[str, Any]] = {job: {"slow": text} for job, text in self.hosts.slow.items()}
        for job, hang in hangs.items():
            found.setdefault(job, {})["hangs"] = hang._asdict()
        return found

    def _hear_one(self, notice: Notice) -> bool:
        looks = self._looks
        match notice.word:
            case GuardWord() as word:
                self._hear_guard(word, notice)
            case StepWord() as word:
                notice.answer(done=looks.in_charge)
                if looks.in_charge:
                    self.hosts.hear(word, self.company.classes.of, time.time())
            case LevelWord() as word:
                notice.answer(done=looks.in_charge)
                if looks.acts:
                    self.levels.hear(word)
            case GpuWord() as word:
                self.gpus.hear(word, time.time())
                notice.answer(done=looks.in_charge)
            case StillWord() as word:
                self.still.hear(word, time.time())
                notice.answer(done=looks.in_charge)
            case MachineWord() as word:
                self.machines.hear(word)
                notice.answer(done=looks.in_charge)
            case NodeWord() as word:
                if word.degraded and looks.acts:
                    self.degraded.note_again(word.job, word.node, word.start, time.time())
                notice.answer(done=self.failures.hear(word, time.time()) if looks.acts else looks.in_charge)
        return True

    def _hear_guard(self, word: GuardWord, notice: Notice) -> None:
        """Handles a guard's notice; a guest that has to leave is requeued first, so that it ends as Slurm expects."""
        self.guards.hear(word, time.time())
        if word.word == "fault" and word.job:
            self.mps_faults.blame(word.job, time.time(), self._looks.jobs().get(word.job))
        if word.sends_away:
            log.info(f"JobId={word.job} NodeList={word.node} its guard says {word.word}: {word.reason}", 648)
        notice.answer(done=self._looks.in_charge and self._send_away(word))
        if harm := self.company.hear(word, time.time()):
            self._move_on(word.job, harm)

    def _send_away(self, word: GuardWord) -> bool:
        """Requeues a guest as its guard asks; returns True if the guard may leave that to berthd."""
        if not word.sends_away:
            return True
        job = self._looks.jobs().get(word.job)
        if not self._looks.acts or job is None or not job.guest:
            return False
        at = time.time()
        avoid = {word.node: at + AVOID_FOR[word.word]}
        ends = word.word == "evict"
        self._updates.count(self._evictions.obey(job, word.reason, at, avoid, word.patience, ends=ends))
        self._updates.guest_leaves(job)
        return word.patience is not None or self._evictions.has_asked(word.job)

    def _move_on(self, job_id: int, reason: str) -> None:
        """Requeues a guest that harms its owner, so that it gets another seat."""
        job = self._looks.jobs().get(job_id)
        if self._looks.acts and job is not None and job.rides:
            self._updates.count(self._evictions.begin(job, reason, time.time()))
            self._updates.guest_leaves(job)
