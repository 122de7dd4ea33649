# SPDX-License-Identifier: Apache-2.0
"""Runs berthd in the simulation, by its own `decide`, `Plan` and `Tracker`.

As in the daemon, an answerer and a planner share only snapshots, which the planner hands over. The planner does one
thing at a time. Each step takes as long as in the real berthd (`Delays`).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from policy.cluster.fleet import Fleet
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import Reading
from policy.placement.base import Policy
from policy.plan.answer.case import Context, Decision, Understanding
from policy.plan.answer.decide import decide
from policy.plan.answer.told import moved
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.claims import Claim
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.submission import read
from policy.simulate.berthd.records import SlurmRecords, request_of
from policy.simulate.result import EPOCH
from policy.simulate.slurm.clock import Clock
from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.settings import INSTANT, SlurmSettings

CHEAP = 0.01
"""Seconds of a whole pass up to which each notice gets one, as in policy.daemon.passes.planner."""


@dataclass(frozen=True, slots=True)
class _Held:
    claim: Claim
    expires: float


class SimulatedAnswerer:
    """Gives each submission a place in the last snapshot, and keeps the place until a snapshot shows the job."""

    def __init__(self, policy: Policy, settings: SlurmSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._understanding = Understanding()
        self._book: Book | None = None
        self._held: dict[str, _Held] = {}

    def take(self, book: Book, seen: Callable[[str], bool], now: float) -> None:
        """Takes over a new snapshot."""
        self._held = {nonce: held for nonce, held in self._held.items() if held.expires > now and not seen(nonce)}
        for held in self._held.values():
            book.claim(held.claim)
        self._book = book

    def answer(self, task: Task, partition: str, now: float) -> Decision:
        """Returns berthd's answer to a submission."""
        assert self._book is not None, "the planner hands its first snapshot over before any job comes"  # noqa: S101
        submission = read(request_of(task, partition))
        context = Context(self._book, self._policy, self._settings.site, EPOCH + now, understanding=self._understanding)
        decision = decide(submission, context)
        if decision.claim is not None:
            self._book.claim(decision.claim)
            self._held[task.nonce] = _Held(decision.claim, now + (self._settings.delays or INSTANT).reserve)
        return decision


class SimulatedPlanner:
    """Runs a pass at each tick, and in between plans for GPUs that ended jobs have freed; one step at a time."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        settings: SlurmSettings,
        answerer: SimulatedAnswerer,
        slurm: SlurmRecords,
        clock: Clock,
    ) -> None:
        self._slurm = slurm
        self._clock = clock
        self._answerer = answerer
        self._delays = settings.delays or INSTANT
        self._plan = Plan(policy, settings.site)
        self._tracker = Tracker(fleet)
        self._free_at = 0.0
        """The time at which its present work is done."""
        self._notices: list[tuple[int, Callable[[float], None]]] = []
        self._handed_over = 0.0
        self._pass_took = 0.0
        self.reasons: Counter[str] = Counter()
        """Updates, counted by their reason."""

    def one_pass(self, now: float) -> float:
        """Runs a whole pass; returns the time of its end."""
        reading = self._slurm.look()
        self._tracker.update(reading)
        changes = self._replan(reading)
        done = now + self._delays.read + self._pass_took
        self._hand_over(now, done)
        self._free_at = self._write(changes, reading.at, done)
        return self._free_at

    def notice(self, node: int, answer: Callable[[float], None], now: float) -> None:
        """Takes the Epilog's notice that a job has ended on a node; `answer` gets the time at which it may go on."""
        self._notices.append((node, answer))
        if len(self._notices) == 1:
            self._clock.at(max(now, self._free_at), self._take_notices)

    def _take_notices(self) -> None:
        now = self._clock.now
        if now < self._free_at:
            self._clock.at(self._free_at, self._take_notices)
            return
        reading = self._slurm.look()
        found, self._notices = self._notices, []
        nodes = {node for node, _ in found}
        changed = self._tracker.update(reading)
        changes, took = None, self._delays.freed
        if self._pass_took > CHEAP:
            changes = self._plan.freed(self._tracker, changed | nodes, reading.jobs)
        if changes is None:
            changes = self._replan(reading)
            took = self._pass_took
        planned = now + self._delays.read + took
        names = {self._tracker.fleet.names[node] for node in nodes}
        here = [change for change in changes if isinstance(change, Move) and not names.isdisjoint(change.concerns)]
        done = self._write(here, reading.at, planned)
        for _, answer in found:
            answer(done)
        done = self._write([change for change in changes if change not in here], reading.at, done)
        if now - self._handed_over >= self._delays.hand_over:
            self._hand_over(now, done)
        self._free_at = done

    def _replan(self, reading: Reading) -> list[Change]:
        changes = self._plan.replan(self._tracker.book(), reading.jobs)
        self._pass_took = self._delays.plan + self._delays.look * self._plan.looks
        return changes

    def _write(self, changes: Iterable[Change], read_at: float, now: float) -> float:
        """Writes changes one after another; returns the time at which the last is written."""
        for change in changes:
            now += self._delays.update
            self.reasons[change.reason] += 1
            self._clock.at(now, self._writer(change, read_at))
        return now

    def _writer(self, change: Change, read_at: float) -> Callable[[], None]:
        if isinstance(change, Move):
            berth = change.berth
            return lambda: self._slurm.pin(change.job.id, berth.nodes, berth.mask, moved(change, read_at))
        return lambda: self._slurm.unpin(change.job.id)

    def _hand_over(self, read: float, now: float) -> None:
        """Sends the plan to the answerer at the time `now`; it is based on a reading at the time `read`."""
        assert self._plan.book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        book = Book(self._plan.book.cluster)
        self._handed_over = now

        def seen(nonce: str) -> bool:
            entered = self._slurm.entered(nonce)
            return entered is not None and entered <= read

        self._clock.at(now, lambda: self._answerer.take(book, seen, now))


def pinned_by(decision: Decision) -> tuple[tuple[str, ...], int, JobPlan]:
    """Returns nodes, GPUs and plan of an answer that gives a place."""
    reply = decision.reply
    return reply.nodes, sum(1 << place for place in reply.gpus), reply.plan
