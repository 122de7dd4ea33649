# SPDX-License-Identifier: Apache-2.0
"""Carries out the moves of running jobs that the plan decides on (policy/plan/relocation/under_way.py)."""

from collections.abc import Callable, Sequence

from policy.daemon.write.pins import Pins
from policy.formats.errors import FormatError, NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan, latest
from policy.formats.outcome import requeues_left
from policy.formats.plan_fields import SIGNAL, UNDER_WAY
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.plan.ledger.changes import BACK_AFTER, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.relocation.under_way import MoveStep, Relocation, Relocations
from policy.site import log
from policy.slurm.interface import Gateway
from policy.slurm.outcomes import outcome


class RelocationWriter:
    """Writes each step of a move into Slurm."""

    def __init__(self, gateway: Gateway, pins: Pins, relocations: Relocations, moved: set[int]) -> None:
        """Jobs that are written to are added to `moved`: the last reading is out of date for them."""
        self._gateway, self._pins, self._ask = gateway, pins, outcome
        self.relocations, self._moved = relocations, moved
        self._recovered = False

    def search(self, plan: Plan, tracker: Tracker, reading: Reading) -> bool:
        """Searches once for jobs that are worth moving; returns False if nothing is left to search for now."""
        if not self.relocations.is_due(plan, reading):
            return False
        moves, pin = self.relocations.search(plan, tracker, reading)
        if moves:
            self._begin(moves, pin, reading)
            self.relocations.tell(plan, reading.at)
        return True

    def step(self, plan: Plan, tracker: Tracker, reading: Reading) -> None:
        """Goes on with the moves under way."""
        self._adopt(reading)
        relocations = self.relocations
        known = Selection.all_of(reading.jobs)
        for job_id, going in list(relocations.under_way.items()):
            job = known.get(job_id)
            try:
                state = job.state if job is not None else self._gateway.job(job_id).state
                step = relocations.next_step(going, job, state, plan, tracker, reading.at)
                self._carry_out(going, step, reading)
            except NoAnswer:
                break  # the next pass asks again, and each question may take long
            except (SlurmError, FormatError) as problem:
                log.error(f"JobId={job_id} is not moved any more: {problem}", 661)
                relocations.drop(going)
        relocations.tell(plan, reading.at)

    def _adopt(self, reading: Reading) -> None:
        """Takes over the moves that an earlier berthd has begun."""
        jobs = reading.jobs
        if self.relocations.rules.enabled and not self._recovered:
            try:
                # A usual reading does not show jobs that have ended meanwhile.
                jobs = self._gateway.read(ended=True).jobs
                self._recovered = True
            except SlurmError as problem:
                log.error(f"moves that an earlier berthd began are looked for again in the next pass: {problem}", 661)
        for job_id in self.relocations.adopt(jobs, reading.at):
            log.info(f"JobId={job_id} was being moved by an earlier berthd", 661)

    def _begin(self, moves: Sequence[Relocation], pin: Move | None, reading: Reading) -> None:
        """Writes the plans of the jobs to be moved, pins the waiting job, and sends the signals."""
        why = ""
        try:
            for going in moves:
                if reason := self._may_not(going.job.id):
                    self.relocations.movers.never(going.job.id)
                    log.info(f"JobId={going.job.id} says --movable and {reason}: it stays", 661)
                    return
            for going in moves:
                self._annotate(going.job, going.noted_in)
                self.relocations.begin(going)
                whom = f" for JobId={going.gang}" if going.gang else ""
                log.info(f"JobId={going.job.id} is moved to {','.join(going.names)}{whom}: {going.reason}", 661)
            if pin is not None and not self._pin(pin, reading):
                why = "the waiting job did not get its place"
        except SlurmError as problem:
            why = f"Slurm refused an update: {problem}"
        for going in self.relocations.under_way.values():
            going.stays = why
            if not why:
                self._warn(going)

    def _may_not(self, job_id: int) -> str:
        """Returns why Slurm would not requeue a job and start it again; empty if it would."""
        found = self._ask(job_id)
        if not found.may_requeue:
            return "--no-requeue, or has no script"
        if requeues_left(found, self._gateway.config()) < 1:
            return "was requeued so often that Slurm would hold it (max_batch_requeue)"
        return ""

    def _carry_out(self, going: Relocation, step: MoveStep, reading: Reading) -> None:
        job_id = going.job.id
        if step.verb == "warn":
            self._warn(going)
        elif step.verb == "requeue":
            going.asked = self._gateway.evict(job_id)
            if not going.asked:
                return  # the job has ended, and its record says how
        elif step.verb == "rerun":
            self._gateway.requeue(job_id)
        elif step.verb == "stay":
            self._annotate(going.job, lambda plan: plan.without(*UNDER_WAY))
        elif step.verb == "go":
            self._gateway.delay(job_id, self._present(going.job).without(*UNDER_WAY), round(BACK_AFTER))
        elif step.pin is not None:
            self._pin(step.pin, reading)
        if step.told:
            log.info(f"JobId={job_id} {step.told}", 661)

    def _warn(self, going: Relocation) -> None:
        going.signalled = True
        own = going.job.known.get(SIGNAL, "")
        signal = own.removeprefix("B:") or self.relocations.rules.signal
        try:
            self._gateway.warn(going.job.id, signal, batch=own.startswith("B:"))
            log.info(f"JobId={going.job.id} was sent {signal}, to save its work before it is put back", 661)
        except (SlurmError, KeyError) as problem:
            log.error(f"JobId={going.job.id} could not be told to save its work: {problem}", 661)

    def _pin(self, pin: Move, reading: Reading) -> bool:
        self._moved.add(pin.job.id)
        if self._pins.write([pin], reading):
            return False
        self.relocations.put_first(pin, reading.at)
        return True

    def _annotate(self, job: JobFacts, change: Callable[[JobPlan], JobPlan]) -> None:
        self._gateway.annotate(job.id, change(self._present(job)))
        self._pins.written += 1

    def _present(self, job: JobFacts) -> JobPlan:
        """Returns a job's present plan from Slurm: levels may have been written into it since the reading."""
        self._moved.add(job.id)
        return latest(self._gateway.job(job.id).admin_comment, job.plan)
