"""Relocation under way: running jobs are signalled to save their work, requeued, and pinned to their new place.

The plan of a job is written first: it says that the job is being moved, where to, and for which waiting job. After a
restart, berthd reads it and goes on with the move, or leaves the job where it runs. The steps, in order:

1. write the job's plan;
2. pin the waiting job to its place;
3. send the signal;
4. wait for the grace time;
5. requeue the job;
6. when the job has left, pin it to its new place.

Until then its new place is kept for it. The place that it leaves goes to the waiting job before all others. A job that
ends by itself is not run again, unless it fails on the signal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from policy.cluster.fleet import Fleet
from policy.formats import job_plan
from policy.formats import plan_fields as fields
from policy.formats.errors import FormatError, NotNow, SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.outcome import Outcome, requeues_left
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.base import Berth, Policy
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.changes import BACK_AFTER, BY_THE_SIGNAL, LEAVING, PATIENCE, Move
from policy.plan.ledger.claims import Claim, claim_on
from policy.plan.ledger.tracker import Picture
from policy.plan.queue.plan import Plan
from policy.plan.relocation.movable_jobs import Movers, began
from policy.plan.relocation.worth import Moved, Proposal, off_slow, open_for
from policy.plan.relocation.writer import RelocationGateway, Writer
from policy.request.settings import RelocationRules as Rules
from policy.sharing.classes import Classes

EVERY = 10.0
"""Seconds between two searches for jobs that are worth moving."""

MOST_KEPT = 120.0
"""Seconds for which a moved job, or a job for which room was made, comes before all others."""


@dataclass(slots=True)
class _Going:
    job: JobFacts
    until: float
    """Time at which it is requeued, if it has not left before."""
    gang: int
    """The job that waits for its place; 0 if it moves to faster GPUs for its own gain."""
    names: tuple[str, ...]
    mask: int
    began: float
    signalled: bool = False
    asked: bool = False
    """True if Slurm was asked to requeue it."""
    left: float = 0.0
    """Time at which it was first seen waiting again."""
    told: bool = False


class Relocations:
    """The jobs that are being moved."""

    def __init__(
        self,
        gateway: RelocationGateway,
        rules: Rules,
        policy: Policy,
        classes: Classes,
        pins: Writer,
        ask: Callable[[int], Outcome],
        say: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._gateway, self._pins, self._ask = gateway, pins, ask
        self._say, self._complain = say, complain
        self._rules, self._policy = rules, policy
        self._movers = Movers(rules, classes)
        self._going: dict[int, _Going] = {}
        self._before_others: dict[int, float] = {}
        """Times until which some jobs come before all others."""
        self._turns: list[int] = []
        """Waiting jobs that this round still has to consider; 0 stands for the jobs on slow GPUs."""
        self._next = 0.0
        self._recovered = False
        self._count = self._called_off = 0
        self.touched: set[int] = set()
        """Jobs that were written to since the planner last cleared this set: their facts in a reading may be old."""

    @property
    def counts(self) -> dict[str, int]:
        """Returns the counts for `berth status`."""
        counts = {"moves": self._count, "moving": len(self._going), "moves_called_off": self._called_off}
        return {name: count for name, count in counts.items() if count}

    # Search for jobs that are worth moving

    def search(self, plan: Plan, picture: Picture, reading: Reading) -> bool:
        """Considers one waiting job, or the jobs on slow GPUs; returns False if nothing is left to consider now."""
        if not self._rules.enabled or self._going or plan.book is None:
            return False
        at = reading.at
        if not self._turns and at >= self._next:
            self._next = at + EVERY
            if self._movers.of(reading, plan.book.fleet) and self._movers.in_the_last_hour(at) < self._rules.per_hour:
                self._turns = [*self._movers.who_waits(plan.queue, at, self._rules.after), 0]
        if not self._turns:
            return False
        turn = self._turns.pop(0)
        movers = self._movers.of(reading, plan.book.fleet)
        entry = next((one for one in plan.queue if one.job.id == turn), None) if turn else None
        if entry is not None:
            gang, book = self._movers.gang(entry, plan, picture, self._policy)
            found = open_for(gang, book, movers, self._policy, self._rules) if gang else None
        else:
            found = None if turn else off_slow(plan.book, movers, self._policy, self._rules)
        if found is not None and self._movers.in_the_last_hour(at) + len(found.moves) <= self._rules.per_hour:
            self._turns.clear()
            self._begin(found, entry, reading)
            self._tell(plan, at)
        return True

    def _begin(self, found: Proposal, entry: Waiting | None, reading: Reading) -> None:
        """Begins the moves: writes the records, then pins the waiting job, then signals the jobs to be moved."""
        jobs = {job.id: job for job in reading.jobs}
        until = reading.at + self._rules.grace
        try:
            for move in found.moves:
                if why := self._may_not(move.mover.id):
                    self._movers.never(move.mover.id)
                    self._say(f"JobId={move.mover.id} says --movable and {why}: it stays")
                    return
            for move in found.moves:
                self._record(jobs[move.mover.id], move, found, until)
        except SlurmError as problem:
            self._complain(f"no job is moved: {problem}")
            self._all_off("Slurm did not take it down")
            return
        if entry is not None and found.berth is not None:
            who = ", ".join(f"JobId={move.mover.id}" for move in found.moves)
            pin = Move(entry.job, found.berth, until, f"room was made for it: {who} moved on", adopted=entry.adopted)
            self.touched.add(entry.job.id)
            if self._pins.write([pin], reading):
                self._all_off("the waiting job did not get its place")
                return
            self._before_others[entry.job.id] = until + MOST_KEPT
        self._count += len(found.moves)
        for going in self._going.values():
            self._signal(going)

    def _may_not(self, job_id: int) -> str:
        """Returns why Slurm would not requeue a job and start it again; empty if it would."""
        found = self._ask(job_id)
        if not found.may_requeue:
            return "--no-requeue, or has no script"
        if requeues_left(found, self._gateway.config()) < 1:
            return "was requeued so often that Slurm would hold it (max_batch_requeue)"
        return ""

    def _record(self, job: JobFacts, move: Moved, found: Proposal, until: float) -> None:
        berth = move.berth
        self.touched.add(job.id)
        plan = under_way(self._latest(job), berth, found.gang, found.reason, until, self._rules.grace)
        self._gateway.annotate(job.id, plan)
        self._movers.note(job.id, until - self._rules.grace)
        self._going[job.id] = _Going(job, until, found.gang, berth.names, berth.mask, until - self._rules.grace)
        self._say(
            f"JobId={job.id} NodeList={','.join(job.nodes)} is moved to {','.join(berth.names)} "
            f"GPUs={','.join(map(str, berth.gpus))}: {found.reason}"
        )

    def _signal(self, going: _Going) -> None:
        going.signalled = True
        own = going.job.known.get(fields.SIGNAL, "")
        signal = own.removeprefix("B:") or self._rules.signal
        try:
            self._gateway.warn(going.job.id, signal, batch=own.startswith("B:"))
            self._say(f"JobId={going.job.id} was sent {signal}, {self._rules.grace} s before it is put back")
        except (SlurmError, KeyError) as problem:
            self._complain(f"JobId={going.job.id} could not be told to save its work: {problem}")

    # Moves under way

    def step(self, plan: Plan, picture: Picture, reading: Reading) -> int:
        """Goes on with the moves under way; returns how many updates that took."""
        try:
            self._adopt(reading)
        except SlurmError as problem:
            self._complain(f"moves that an earlier berthd began are looked for again in the next pass: {problem}")
        known = {job.id: job for job in reading.jobs if job.id in self._going}
        updates = 0
        for job_id, going in list(self._going.items()):
            try:
                updates += self._go_on(going, known.get(job_id), plan, picture, reading)
            except (SlurmError, FormatError) as problem:
                self._complain(f"JobId={job_id} is not moved any more: {problem}")
                self._drop(going)
        self._tell(plan, reading.at)
        return updates

    def _adopt(self, reading: Reading) -> None:
        """Takes over the moves that an earlier berthd has begun."""
        jobs: Iterable[JobFacts] = reading.jobs
        if self._rules.enabled and not self._recovered:
            # A usual reading does not show the jobs that have ended meanwhile.
            jobs = self._gateway.read(ended=True).jobs
            self._recovered = True
        for job in jobs:
            if fields.MOVE_UNTIL not in job.known or job.id in self._going or job.state == "ARRAY":
                continue
            going = taken_over(job, reading.at + self._rules.grace)
            if going is not None and (job.state in LEAVING | BY_THE_SIGNAL or job.state == "PENDING"):
                self._going[job.id] = going
                self._say(f"JobId={job.id} was being moved by an earlier berthd")

    def _go_on(self, going: _Going, job: JobFacts | None, plan: Plan, picture: Picture, reading: Reading) -> int:
        at = reading.at
        if job is None:
            return self._ended(going)
        if job.state == "RUNNING" and job.start is not None and job.start > going.began:
            return self._call_off(going, "it has started anew already")
        going.job = job
        if job.state == "PENDING":
            return self._settle(going, plan, picture, reading)
        if going.asked or job.state == "COMPLETING":
            self._speak_of(going, at)
            return 0
        if not self._wanted(going, plan):
            # A job that got the signal may still end because of it, and must be run again then.
            return self._call_off(going, "nobody needs its place any more") if at >= going.until else 0
        if job.state == "RUNNING" and not going.signalled:
            self._signal(going)
            return 1
        return self._put_back(going) if at >= going.until else 0

    def _wanted(self, going: _Going, plan: Plan) -> bool:
        """Tells whether the waiting job still needs the place that a job is to leave."""
        if not going.gang:
            return True
        entry = next((one for one in plan.queue if one.job.id == going.gang), None)
        if entry is None or entry.last.start == 0.0 or plan.book is None:
            return False
        names = {plan.book.fleet.names[node] for node in entry.nodes}
        return bool(entry.mask & (going.job.gpus or 0)) and not names.isdisjoint(going.job.nodes)

    def _put_back(self, going: _Going) -> int:
        job_id = going.job.id
        going.asked = self._gateway.evict(job_id)
        if going.asked:
            self._say(f"JobId={job_id} was put back into the queue, to be moved")
            return 1
        return self._ended(going)

    def _ended(self, going: _Going) -> int:
        """Handles a job that ended before its requeue: runs it again only if it failed on the signal."""
        job_id = going.job.id
        state = self._gateway.job(job_id).state
        if state in LEAVING or state == "PENDING":
            return 0  # the next reading shows what has happened
        if state in BY_THE_SIGNAL:
            self._gateway.requeue(job_id)
            going.asked = True
            self._say(f"JobId={job_id} ended on its signal and was put back into the queue, to be moved")
            return 1
        self._drop(going)
        self._say(f"JobId={job_id} has ended by itself and is not run again")
        return 0

    def _settle(self, going: _Going, plan: Plan, picture: Picture, reading: Reading) -> int:
        """Gives a job that waits again its new place, and lets it start."""
        at = reading.at
        going.left = going.left or at
        # slurmd refuses a job on a node that it has just left.
        if at - going.left < BACK_AFTER and not set(going.names).isdisjoint(going.job.required):
            return 0
        berth, start = self._place_for(going, plan, picture)
        self._drop(going)
        self.touched.add(going.job.id)
        if berth is None:
            self._gateway.delay(going.job.id, self._latest(going.job).without(*fields.UNDER_WAY), round(BACK_AFTER))
            self._complain(f"JobId={going.job.id} has left for a place that is gone; it is planned as any other")
            return 1
        failed = self._pins.write([Move(going.job, berth, start, "it was moved here")], reading)
        if not failed:
            self._before_others[going.job.id] = at + MOST_KEPT
            plan.reread(going.job.id)
        return 0

    def _place_for(self, going: _Going, plan: Plan, picture: Picture) -> tuple[Berth | None, float]:
        """Returns the place that was kept, or another one if that is gone."""
        assert plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        book, fleet = plan.book, plan.book.fleet
        demand = self._movers.demand(going.job, fleet, book.cluster.at)
        nodes = tuple(fleet.index[name] for name in going.names if name in fleet.index)
        usable = len(nodes) == len(going.names) and all(
            bool(book.cluster.up[node]) and bool(demand.candidates[node]) for node in nodes
        )
        if usable and picture.is_free(nodes, going.mask):
            view = book.cluster.now(0)
            return Policy.spread(demand, view, nodes, [going.mask] * len(nodes), "kept for it while it left"), 0.0
        try:
            return book.soonest(demand, self._policy)
        except NotNow:
            return None, 0.0

    def _all_off(self, why: str) -> None:
        for going in list(self._going.values()):
            try:
                self._call_off(going, why)
            except SlurmError as problem:
                self._complain(f"JobId={going.job.id} runs on, though its record says that it is moved: {problem}")
                self._drop(going)

    def _latest(self, job: JobFacts) -> JobPlan:
        """Returns a job's plan as it is now: its guard may have said something of it since it was read."""
        return job_plan.latest(self._gateway.job(job.id).admin_comment, job.plan)

    def _call_off(self, going: _Going, why: str) -> int:
        """Calls a move off: leaves the job where it runs."""
        self._drop(going)
        self._called_off += 1
        self.touched.add(going.job.id)
        self._gateway.annotate(going.job.id, self._latest(going.job).without(*fields.UNDER_WAY))
        self._say(f"JobId={going.job.id} stays where it is: {why}")
        return 1

    def _drop(self, going: _Going) -> None:
        self._going.pop(going.job.id, None)

    def _speak_of(self, going: _Going, at: float) -> None:
        if not going.told and at - going.until > PATIENCE:
            going.told = True
            self._complain(
                f"JobId={going.job.id} still ends, {at - going.until:.0f} s after it was to leave (KillWait)"
            )

    def _tell(self, plan: Plan, at: float) -> None:
        """Tells the plan which jobs come first, and which places it must keep."""
        self._before_others = {job_id: until for job_id, until in self._before_others.items() if until > at}
        waited_for = {going.gang for going in self._going.values() if going.gang}
        plan.first = frozenset(waited_for | self._before_others.keys())
        if plan.book is not None:
            kept = [self._claim(going, plan.book.fleet, at) for going in self._going.values()]
            plan.kept = tuple(claim for claim in kept if claim is not None)

    def _claim(self, going: _Going, fleet: Fleet, at: float) -> Claim | None:
        nodes = [fleet.index[name] for name in going.names if name in fleet.index]
        try:
            return claim_on(fleet, self._movers.demand(going.job, fleet, at), nodes, going.mask, at)
        except FormatError:
            return None


def under_way(plan: JobPlan, berth: Berth, gang: int, reason: str, until: float, grace: float) -> JobPlan:
    """Returns the plan of a job that is about to be moved."""
    return plan.having(
        fields.MOVE_UNTIL(int(until)),
        fields.MOVE_FOR(gang),
        fields.MOVE_TO(fields.Destination(berth.names, berth.gpus)),
        fields.MOVE_TEXT(reason),
        fields.MOVES((*plan.get(fields.MOVES, ())[-5:], int(until - grace))),
    )


def taken_over(job: JobFacts, until: float) -> _Going | None:
    """Reads a move under way from a job's plan; returns None if it cannot be read."""
    to, gang = job.known.get(fields.MOVE_TO), job.known.get(fields.MOVE_FOR)
    if to is None or gang is None or not (to.nodes and to.gpus):
        return None
    return _Going(job, until, gang, to.nodes, sum(1 << gpu for gpu in to.gpus if gpu < 64), began(job))
