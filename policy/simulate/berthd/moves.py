# SPDX-License-Identifier: Apache-2.0
"""Carries out berthd's moves of running jobs in the simulated Slurm."""

from policy.formats.plan_fields import UNDER_WAY
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.answer.told import moved
from policy.plan.ledger.changes import Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.relocation.under_way import Relocations
from policy.simulate.berthd.records import SlurmRecords


class SimulatedMoves:
    """The simulator's part of policy/daemon/write/relocation_writer.py.

    A simulated job needs no signal to save its work, may always be requeued, and does not fail.
    """

    def __init__(self, slurm: SlurmRecords, relocations: Relocations) -> None:
        self._slurm, self.relocations = slurm, relocations

    def search(self, plan: Plan, tracker: Tracker, reading: Reading) -> None:
        """Begins the moves that are worth it now."""
        while self.relocations.is_due(plan, reading):
            moves, pin = self.relocations.search(plan, tracker, reading)
            for going in moves:
                self._slurm.annotate(going.job.id, going.noted_in(going.job.known))
                self.relocations.begin(going)
                going.signalled = True
            if pin is not None:
                self._pin(pin, reading)
            self.relocations.tell(plan, reading.at)

    def step(self, plan: Plan, tracker: Tracker, reading: Reading) -> None:
        """Goes on with the moves under way."""
        known: dict[int, JobFacts] = {job.id: job for job in reading.jobs}
        for job_id, going in list(self.relocations.under_way.items()):
            state = self._slurm.state(job_id)
            step = self.relocations.next_step(going, known.get(job_id), state, plan, tracker, reading.at)
            if step.verb == "requeue":
                going.asked = self._slurm.put_back(job_id)
            elif step.verb in {"stay", "go"}:
                self._slurm.annotate(job_id, going.job.known.without(*UNDER_WAY))
            elif step.pin is not None:
                self._pin(step.pin, reading)
        self.relocations.tell(plan, reading.at)

    def _pin(self, pin: Move, reading: Reading) -> None:
        self._slurm.pin(pin.job.id, pin.berth.nodes, pin.berth.mask, moved(pin, reading.at))
        self.relocations.put_first(pin, reading.at)
