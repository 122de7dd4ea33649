# SPDX-License-Identifier: Apache-2.0
"""Moves under way: chooses the running jobs to move, and for each of them the next step.

Reads and writes nothing: berthd carries the steps out (policy/daemon/write/relocation_writer.py), and so does the
simulator. docs/admin/operate.md has the steps in their order. The plan of a job tells of its move before anything else
is done. From it, the next berthd goes on with the move, or leaves the job where it runs.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from policy.formats import plan_fields as fields
from policy.formats.errors import FormatError, NotNow
from policy.formats.job_plan import JobPlan
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.base import Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.changes import BACK_AFTER, BY_THE_SIGNAL, LEAVING, Move
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.relocation.movable_jobs import Movers, first_in_line, gang_of
from policy.plan.relocation.worth import off_slow, open_for
from policy.request.settings import RelocationRules as Rules
from policy.sharing.classes import Classes
from topology.sets.wiring import positions

EVERY = 10.0
"""Seconds between two searches for jobs that are worth moving."""

MOST_KEPT = 120.0
"""Seconds for which a moved job, or a job for which room was made, comes before all others."""


@dataclass(slots=True)
class Relocation:
    """A running job that is being moved."""

    job: JobFacts
    until: float
    """Time at which it is requeued, if it has not left before."""
    gang: int
    """The job that waits for its place; 0 if it moves to faster GPUs for its own gain."""
    names: tuple[str, ...]
    mask: int
    began: float
    reason: str = ""
    signalled: bool = False
    asked: bool = False
    """True if Slurm was asked to requeue it."""
    left: float = 0.0
    """Time at which it was first seen waiting again."""
    stays: str = ""
    """The reason for which the job is to stay where it is."""

    def noted_in(self, plan: JobPlan) -> JobPlan:
        """Returns the job's plan with the move in it."""
        return plan.having(
            fields.MOVE_UNTIL(int(self.until)),
            fields.MOVE_FOR(self.gang),
            fields.MOVE_TO(fields.Destination(self.names, positions(self.mask))),
            fields.MOVE_TEXT(self.reason),
            fields.MOVES((*plan.get(fields.MOVES, ())[-5:], int(self.began))),
        )


class MoveStep(NamedTuple):
    """The next step of a job that is being moved."""

    verb: Literal["wait", "warn", "requeue", "rerun", "stay", "go", "pin"]
    """`rerun` requeues a job that failed on the signal; `stay` takes the move out of the job's plan.

    `go` does so too, for a job that has left: it may begin soon, and not only after Slurm's own delay of a requeue.
    """
    told: str = ""
    """The line for the log, once it is done."""
    pin: Move | None = None


WAIT = MoveStep("wait")


class Relocations:
    """The jobs that are being moved."""

    def __init__(self, rules: Rules, policy: Policy, classes: Classes) -> None:
        self.rules, self._policy = rules, policy
        self.movers = Movers(rules, classes)
        self.under_way: dict[int, Relocation] = {}
        self._marked = Selection(lambda job: fields.MOVE_UNTIL in job.known)
        self._before_others: dict[int, float] = {}
        """Times until which some jobs come before all others."""
        self._turns: list[int] = []
        """Waiting jobs that this round still has to consider; 0 stands for the jobs on slow GPUs."""
        self._next = 0.0
        self._count = self._called_off = 0

    @property
    def counts(self) -> dict[str, int]:
        """Returns the counts for `berth status`."""
        return +Counter(moves=self._count, moving=len(self.under_way), moves_called_off=self._called_off)

    def is_due(self, plan: Plan, reading: Reading) -> bool:
        """Tells whether a waiting job, or the jobs on slow GPUs, are to be considered now."""
        if not self.rules.enabled or self.under_way or plan.book is None:
            return False
        at = reading.at
        if not self._turns and at >= self._next:
            self._next = at + EVERY
            if self.movers.of(reading, plan.book.fleet) and self.movers.in_the_last_hour(at) < self.rules.per_hour:
                self._turns = [*first_in_line(plan.queue, at, self.rules.after), 0]
        return bool(self._turns)

    def search(self, plan: Plan, tracker: Tracker, reading: Reading) -> tuple[list[Relocation], Move | None]:
        """Considers one waiting job, or the jobs on slow GPUs.

        Returns the moves that are worth it, and the pin of the waiting job for which they make room.
        """
        assert plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        turn, at = self._turns.pop(0), reading.at
        movers = self.movers.of(reading, plan.book.fleet)
        entry, pin = _entry(plan, turn), None
        if entry is not None:
            gang, book = gang_of(entry, plan, tracker, self._policy)
            found = open_for(gang, book, movers, self._policy, self.rules) if gang else None
        else:
            found = None if turn else off_slow(plan.book, movers, self._policy, self.rules)
        if found is None or self.movers.in_the_last_hour(at) + len(found.moves) > self.rules.per_hour:
            return [], None
        self._turns.clear()
        jobs, until = {job.id: job for job in reading.jobs}, at + self.rules.grace
        if entry is not None and found.berth is not None:
            why = f"room was made for it: {'a job' if len(found.moves) == 1 else f'{len(found.moves)} jobs'} moved on"
            pin = Move(entry.job, found.berth, until, why, adopted=entry.adopted)
        return [
            Relocation(jobs[mover.id], until, turn, berth.names, berth.mask, at, found.reason)
            for mover, berth in found.moves
        ], pin

    def begin(self, going: Relocation) -> None:
        """Puts a move under way that stands in the plan of its job."""
        self.under_way[going.job.id] = going
        self.movers.note(going.job.id, going.began)
        self._count += 1

    def put_first(self, pin: Move, at: float) -> None:
        """Lets a job that was pinned come before all others until it has started."""
        self._before_others[pin.job.id] = max(pin.start, at) + MOST_KEPT

    def adopt(self, jobs: Iterable[JobFacts], at: float) -> list[int]:
        """Takes over the moves that an earlier berthd began; returns their jobs."""
        found = []
        for job in self._marked.of(jobs).values():
            plan = job.known
            if job.id in self.under_way:
                continue
            to, gang = plan.get(fields.MOVE_TO), plan.get(fields.MOVE_FOR)
            if to is None or gang is None or not (to.nodes and to.gpus):
                continue
            if job.state in LEAVING | BY_THE_SIGNAL or job.state == "PENDING":
                mask = sum(1 << gpu for gpu in to.gpus if gpu < 64)
                began = float(max(plan.get(fields.MOVES, ()), default=0))
                self.under_way[job.id] = Relocation(job, at + self.rules.grace, gang, to.nodes, mask, began)
                found.append(job.id)
        return found

    def next_step(
        self, going: Relocation, job: JobFacts | None, state: str, plan: Plan, tracker: Tracker, at: float
    ) -> MoveStep:
        """Returns the next step of a move; `state` is that of the job's record, even if no reading shows the job."""
        if job is None:
            return self._ended(going, state)
        if job.state == "RUNNING" and job.start is not None and job.start > going.began:
            return self._call_off(going, "it has started anew already")
        going.job = job
        if job.state == "PENDING":
            return self._settle(going, plan, tracker, at)
        if going.asked or job.state == "COMPLETING":
            return WAIT
        if going.stays:
            return self._call_off(going, going.stays)
        if not self._wanted(going, plan):
            # A job that got the signal may still end because of it, and must be run again then.
            return self._call_off(going, "its place is not needed any more") if at >= going.until else WAIT
        if job.state == "RUNNING" and not going.signalled:
            return MoveStep("warn")
        return MoveStep("requeue", "was put back into the queue, to be moved") if at >= going.until else WAIT

    def drop(self, going: Relocation) -> None:
        """Ends a move."""
        self.under_way.pop(going.job.id, None)

    def tell(self, plan: Plan, at: float) -> None:
        """Tells the plan which jobs come first, and which places it must keep."""
        self._before_others = {job_id: until for job_id, until in self._before_others.items() if until > at}
        waited_for = {going.gang for going in self.under_way.values() if going.gang}
        plan.first = frozenset(waited_for | self._before_others.keys())
        if plan.book is None:
            return
        kept, fleet = [], plan.book.fleet
        for going in self.under_way.values():
            with suppress(FormatError):
                nodes = [fleet.index[name] for name in going.names if name in fleet.index]
                kept.append(claim_on(fleet, self.movers.demand(going.job, fleet, at), nodes, going.mask, at))
        plan.kept = tuple(kept)

    def _call_off(self, going: Relocation, why: str) -> MoveStep:
        self.drop(going)
        self._called_off += 1
        return MoveStep("stay", f"stays where it is: {why}")

    def _wanted(self, going: Relocation, plan: Plan) -> bool:
        """Tells whether the waiting job still needs the place that a job is to leave."""
        if not going.gang:
            return True
        entry = _entry(plan, going.gang)
        if entry is None or entry.last.start == 0.0 or plan.book is None:
            return False
        names = {plan.book.fleet.names[node] for node in entry.nodes}
        return bool(entry.mask & (going.job.gpus or 0)) and not names.isdisjoint(going.job.nodes)

    def _ended(self, going: Relocation, state: str) -> MoveStep:
        """Returns the step for a job that ended before its requeue."""
        if state in LEAVING or state == "PENDING":
            return WAIT  # the next reading shows what has happened
        if state in BY_THE_SIGNAL:
            going.asked = True
            return MoveStep("rerun", "ended on its signal and was put back into the queue, to be moved")
        self.drop(going)
        return MoveStep("wait", "has ended by itself and is not run again")

    def _settle(self, going: Relocation, plan: Plan, tracker: Tracker, at: float) -> MoveStep:
        """Gives a job that waits again the place that was kept for it, or another one if that is gone."""
        assert plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        going.left = going.left or at
        # slurmd refuses a job on a node that it has just left.
        if at - going.left < BACK_AFTER and not set(going.names).isdisjoint(going.job.required):
            return WAIT
        self.drop(going)
        plan.reread(going.job.id)
        book, fleet = plan.book, plan.book.fleet
        demand = self.movers.demand(going.job, fleet, at)
        usable = demand.candidates & book.cluster.up
        nodes = [fleet.index[name] for name in going.names if name in fleet.index and usable[fleet.index[name]]]
        if len(nodes) == len(going.names) and tracker.is_free(nodes, going.mask):
            masks = [going.mask] * len(nodes)
            place = Policy.spread(demand, book.cluster.now(0), nodes, masks, "kept for it while it left"), 0.0
        else:
            try:
                place = book.soonest(demand, self._policy)
            except NotNow:
                return MoveStep("go", "has left for a place that is gone; it is planned as any other")
        return MoveStep("pin", pin=Move(going.job, *place, "it was moved here"))


def _entry(plan: Plan, job_id: int) -> Waiting | None:
    return next((one for one in plan.queue if one.job.id == job_id), None)
