"""The planning process: reads Slurm, keeps the pins of waiting jobs right, hands pictures to the answerer.

It may take its time, and it may die: the answerer goes on with the last picture and starts a new one.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from policy.cluster.untyped import NodePins, numbered
from policy.daemon.hear.accounts import Accounts
from policy.daemon.hear.disagreements import Disagreements
from policy.daemon.hear.endings import NodeWord
from policy.daemon.hear.guards import AVOID_FOR, Guards, GuardWord
from policy.daemon.hear.hosts import Hosts
from policy.daemon.hear.levels import HeardLevels, LevelWord
from policy.daemon.hear.losses import LossWord
from policy.daemon.hear.notices import Notice
from policy.daemon.hear.step_times import StepWord
from policy.daemon.known.company import ProfileKeeper
from policy.daemon.known.fleets import Fleets
from policy.daemon.known.living_scores import LivingScores
from policy.daemon.passes.cluster_state import StateMaker, planner_counts
from policy.daemon.passes.explainer import MOST_REASONS, Explainer
from policy.daemon.passes.handover import Sender, Snapshot
from policy.daemon.passes.overviews import OverviewWriter
from policy.daemon.passes.watcher import Watcher
from policy.daemon.write.closers import Closers
from policy.daemon.write.culprits import Culprits
from policy.daemon.write.degraded import Degraded
from policy.daemon.write.evictions import Evictions
from policy.daemon.write.failures import Failures
from policy.daemon.write.lists import Lists
from policy.daemon.write.pins import Pins
from policy.daemon.write.preflights import Preflights
from policy.formats.errors import FormatError, SlurmError, UnreadableError
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.registry import create
from policy.plan.changes import Change, Evict, Move, Release, parts_given_up
from policy.plan.plan import Plan
from policy.plan.relocation.on_the_way import Relocations
from policy.plan.tracker import Picture
from policy.site import log
from policy.site.config import Config
from policy.site.metrics_state import ClusterState
from policy.slurm.interface import Gateway
from policy.slurm.outcomes import outcome
from policy.slurm.waits import WAITS

T = TypeVar("T")

_CHEAP = 0.01
"""Seconds of a whole pass up to which each notice gets one; it knows better than a look at a few nodes."""

_LAST = 60
"""Looks and passes of which `berth status` tells how long they took: about a minute of them."""

REST = 20.0
"""For so many times as long as a look takes, Slurm is let alone: while it packs its jobs for us, nobody submits one."""

HAND_OVER_EVERY = 0.2
"""Seconds between pictures for the answerer that notices give rise to: each costs it a millisecond or two."""


class Planner:
    """One pass after another, and in between what an ended job frees."""

    def __init__(
        self, gateway: Gateway, config: Config, sender: Sender, overviews: OverviewWriter | None = None
    ) -> None:
        self._gateway = gateway
        self._overviews = overviews
        self._sender = sender
        self._fleets = Fleets(config)
        self._excludes_others = config.settings.excludes_others
        self._company = ProfileKeeper(config.settings.sharing)
        company = self._company
        self._plan = Plan(
            create(config.policy), config.settings, company.chooser, company.classes, partial(log.error, number=662)
        )
        self._evictions = Evictions(gateway, config.settings.sharing)
        self._guards = Guards()
        self._culprits = Culprits(gateway)
        self._living = LivingScores(config.steps, config.scores)
        self._pins = Pins(
            gateway, config.pinned_file, self._evictions, config.skip_partitions, config.settings.sharing.tier_allowed
        )
        self._lists = Lists(self._pins)
        self._closers = Closers(self._pins, allowed=config.settings.exclude_others > 0)
        self._moving = Relocations(
            gateway,
            config.settings.moving,
            create(config.policy),
            self._company.classes,
            self._pins,
            outcome,
            partial(log.info, number=661),
            partial(log.error, number=661),
        )
        self._degraded = Degraded(gateway)
        self._disagreements = Disagreements(config.skip_partitions)
        self._levels = HeardLevels(gateway)
        accounts = Accounts()
        self._preflights = Preflights(gateway, config.preflight_wait)
        self._failures = Failures(gateway, accounts=accounts, others=config.other_retries)
        self._hosts = Hosts(gateway, config.steps, accounts)
        self._explainer = Explainer(gateway, create(config.policy))
        self._watcher = Watcher(create(config.policy)) if config.observe or config.plain else None
        self._node_pins = NodePins() if config.plain else None
        self._observe = config.observe
        self._state_maker = StateMaker(job_info=config.metrics.job_info) if config.metrics.enabled else None
        self._picture: Picture | None = None
        self._problem, self._unreadable = "", frozenset[int]()
        self._blind = False
        """True if Slurm answers and its answer cannot be read: no process keeps the pins then."""
        self._reading: Reading | None = None
        self._by_number: tuple[Reading, dict[int, JobFacts]] | None = None
        self._changed: frozenset[int] = frozenset()
        self._handed_over = 0.0
        self._stale = False
        # From then on a notice of a job that no reading has shown may cost Slurm a look.
        self._pass_took, self._look_from = 0.0, 0.0
        self._looks_took: deque[float] = deque(maxlen=_LAST)
        self._passes_took: deque[float] = deque(maxlen=_LAST)
        self._to_write: dict[tuple[int, str | int | None], Change] = {}
        """Planned changes that are not yet written, one for each job or task; later plans replace earlier ones."""
        self._moved: set[int] = set()
        """Jobs that were changed since the last reading: what it shows of them is out of date."""
        self._sent_away: set[int] = set()
        """Guests that were sent away since then. A pin from what it shows of them would take back why they left."""
        self._reasons_left = 0
        self.notices_taken = self.notices_late = 0
        WAITS.tell(self._sign)

    def one_pass(self, *, ended: bool) -> None:
        """Read, plan, hand over; what is to be written is put off, so that Epilogs need not wait for it."""
        for change in self._to_write.values():
            self._plan.reread(change.job.id)
        self._to_write.clear()
        self._apart(self._pins.begin)
        picture = self._look(ended=ended or self._failures.asks_for_ended)
        if picture is None or self._reading is None:
            return
        reading, apart = self._reading, self._apart
        if self._watcher is not None:
            apart(self._watch, self._watcher, picture, reading)
        self._sign()
        changes = apart(self._replan, picture, reading)
        if changes is None:
            self._plan.reread_all()
        if self._plan.book is None:
            return
        if changes is not None:
            # A plan that is not whole leaves the answerer with its last picture, or with none.
            self._hand_over(reading, changes)
        self._moved.clear()
        self._sent_away.clear()
        if self._overviews is not None:
            state = apart(self._counted, reading, picture)
            apart(self._overviews.write_if_due, self._plan, reading, state)
        apart(self._hosts.write_due, reading.at, self._fleets.model_of)
        self._moving.touched.clear()
        if self._acts:
            apart(self._living.step, reading.at)
            if self._places and self._pins.fleet is not None:
                apart(self._lists.look, self._pins.fleet, reading.jobs)
            self._pins.written += apart(self._evictions.step, reading.jobs, reading.at) or 0
            if self._places:
                if self._chooses_gpus:
                    self._pins.written += apart(self._moving.step, self._plan, picture, reading) or 0
                    self._moved |= self._moving.touched
                self._put_off(changes or ())
                apart(self._pins.list_pinned, self._plan.queue, reading.jobs)
                if self._chooses_gpus:
                    self._pins.written += apart(self._pins.asked.step, self._plan.queue, reading) or 0
                    apart(self._closers.look, self._plan.queue, picture.fleet, self._moved)
            self._pins.written += apart(self._degraded.send_elsewhere, reading.at) or 0
            held = apart(self._disagreements.look, reading) or ()
            self._pins.written += apart(self._degraded.tell_held, held) or 0
            apart(self._failures.watch, reading)
            apart(self._preflights.step, reading)
            self._reasons_left = MOST_REASONS if self._places else 0
        apart(self._plan.expect_notices)

    def _apart(self, step: Callable[..., T], *arguments: object) -> T | None:
        """One part of a pass; what it throws, other than Slurm's own trouble, costs that part alone."""
        return self._plan.isolation.group(time.time(), step, *arguments)

    def take(self, found: Sequence[Notice]) -> None:
        """Plan what ended jobs have freed: pins on their nodes first, then their Epilogs go on, then the other pins."""
        self._hear([notice for notice in found if notice.word])
        found = [notice for notice in found if not notice.word]
        self.notices_taken += len(found)
        if not found:
            return
        for notice in found:
            if notice.degraded and self._acts and self._reading is not None:
                self._apart(self._degraded.note, notice.job, notice.node, time.time())
                self._apart(self._failures.leave, notice.job, time.time())
        rest: Sequence[Change] | None = None
        try:
            rest = self._apart(self._use_freed, found)
        finally:
            for notice in found:
                notice.answer(done=self.in_charge)
        if rest is None:
            self._plan.reread_all()
        self._put_off(rest or ())
        self.hand_over_if_due()

    def _hear(self, found: Sequence[Notice]) -> None:
        """Do what nodes ask for, and remember what they tell; the yes means that they need not say it again."""
        for notice in found:
            if not self._apart(self._hear_one, notice):
                notice.answer(done=False)
        if found and self._picture is not None:
            self._apart(self._close, self._picture, time.time())

    def _close(self, picture: Picture, at: float) -> None:
        picture.closed = self._guards.closed(picture.fleet.index, at)

    def _hear_one(self, notice: Notice) -> bool:
        match notice.word:
            case GuardWord() as word:
                self._hear_guard(word, notice)
            case StepWord() | LossWord() as word:
                notice.answer(done=self.in_charge)
                if self.in_charge:
                    self._hosts.hear(word, self._company.classes.of, time.time())
            case LevelWord() as word:
                notice.answer(done=self.in_charge)
                if self._acts:
                    self._levels.hear(word)
            case NodeWord() as word:
                if word.degraded and self._acts:
                    self._degraded.note_again(word.job, word.node, word.start, time.time())
                notice.answer(done=self._failures.hear(word, time.time()) if self._acts else self.in_charge)
        return True

    def _hear_guard(self, word: GuardWord, notice: Notice) -> None:
        """A guest that has to leave is put back before its guard goes on: then it ends as Slurm expects it."""
        reading = self._reading
        self._guards.hear(word, time.time())
        if word.word == "fault" and word.job:
            self._culprits.blame(word.job, time.time())
        if word.sends_away:
            log.info(f"JobId={word.job} NodeList={word.node} its guard says {word.word}: {word.reason}", 648)
        notice.answer(done=reading is not None and reading.in_control and self._send_away(word))
        if harm := self._company.hear(word, time.time()):
            self._move_on(word.job, harm)

    def _job(self, job_id: int) -> JobFacts | None:
        return self._jobs().get(job_id)

    def _jobs(self) -> Mapping[int, JobFacts]:
        if self._reading is None:
            return {}
        if self._by_number is None or self._by_number[0] is not self._reading:
            self._by_number = self._reading, {job.id: job for job in self._reading.jobs}
        return self._by_number[1]

    def _send_away(self, word: GuardWord) -> bool:
        """Put a guest back as its guard asks; whether the guard may leave that to us."""
        if not word.sends_away:
            return True
        job = self._job(word.job)
        if not self._acts or job is None or not job.guest:
            return False
        at = time.time()
        avoid = {word.node: at + AVOID_FOR[word.word]}
        self._pins.written += self._evictions.obey(job, word.reason, at, avoid, word.patience)
        self._keep_from_pins(word.job)
        return word.patience is not None or self._evictions.has_asked(word.job)

    def _move_on(self, job_id: int, reason: str) -> None:
        """Put a guest back that harms its host, so that it gets another seat."""
        job = self._job(job_id)
        if self._acts and job is not None and job.rides:
            self._pins.written += self._evictions.begin(job, reason, time.time())
            self._keep_from_pins(job_id)

    def _keep_from_pins(self, job_id: int) -> None:
        """Let nothing be written into a guest that leaves before it was read again."""
        self._sent_away.add(job_id)
        for key in [key for key in self._to_write if key[0] == job_id]:
            self._plan.reread(job_id)
            del self._to_write[key]

    def close(self) -> None:
        """Write what is in memory alone."""
        WAITS.tell(None)
        self._company.close()
        if self._overviews is not None:
            self._overviews.close()

    def write_one(self) -> bool:
        """Write one update that was put off; False when none is left. Each takes its time, and Epilogs come between."""
        if self._reading is None or self._picture is None:
            return False
        apart = self._apart
        if self._to_write:
            self._write([self._to_write.pop(next(iter(self._to_write)))], self._reading)
            return True
        if (job_id := apart(self._levels.write_one)) is not None:
            self._pins.written += 1
            self._moved.add(job_id)
            return True
        if self._places and (job_id := apart(self._lists.write_one, self._jobs(), self._moved)) is not None:
            self._moved.add(job_id)
            return True
        if self._chooses_gpus and apart(self._closers.write_one, self._jobs(), self._picture.fleet, self._moved):
            return True
        now = time.time()
        if self._acts and (
            job_id := apart(self._failures.step, self._reading, now) or apart(self._hosts.write_one, now)
        ):
            self._moved.add(job_id)
            return True
        if self._reasons_left:
            self._reasons_left -= 1
            if apart(self._explainer.explain_one, self._plan, self._picture.book(), self._moved):
                self._pins.written += 1
                return True
            self._reasons_left = 0
        looked = self._chooses_gpus and apart(self._moving.search, self._plan, self._picture, self._reading)
        self._moved |= self._moving.touched
        return bool(looked)

    def _put_off(self, changes: Sequence[Change]) -> None:
        # A guest's way out takes longest.
        for change in sorted(changes, key=lambda change: not isinstance(change, Evict)):
            self._to_write[_key(change)] = change
            self._moved.add(change.job.id)

    def hand_over_if_due(self) -> None:
        """Let the answerer know what notices have changed, and that this process goes on."""
        self._sign()
        if self._stale and self._reading is not None and time.monotonic() - self._handed_over >= HAND_OVER_EVERY:
            self._hand_over(self._reading)

    def _use_freed(self, found: Sequence[Notice]) -> list[Change]:
        picture = self._picture
        if picture is None or self._reading is None or not self._places:
            return []
        # Asking Slurm would cost the Epilog the wait for slurmctld's locks, for what the notices say themselves.
        known = [picture.end(notice.job, notice.node) for notice in found]
        nodes = set().union(*known)
        left = nodes.copy()
        looks = not all(known) and time.monotonic() >= self._look_from
        if not (nodes or looks):
            return []
        if looks:
            if self._look(ended=False) is not picture:
                return []
            nodes |= self._changed
            nodes |= {picture.fleet.index[notice.node] for notice in found if notice.node in picture.fleet.index}
        changes = self._plan.freed(picture, nodes, self._reading.jobs) if self._pass_took > _CHEAP else None
        if changes is None:
            starting = frozenset() if looks else self._plan.starting(left)
            changes = self._replan(picture, self._reading, starting)
        for change in [one for one in changes if one.job.id in self._sent_away]:
            self._plan.reread(change.job.id)
            changes.remove(change)
        self._stale = True
        names = {notice.node for notice in found} | {picture.fleet.names[node] for node in set().union(*known)}
        here = [change for change in changes if isinstance(change, Move) and not names.isdisjoint(change.concerns)]
        for change in here:
            self._to_write.pop(_key(change), None)
            self._moved.add(change.job.id)
        if self._chooses_gpus:
            self._apart(self._closers.before_start, self._plan.queue, picture.fleet, self._moved)
        self._write(here, self._reading, hurry=True)
        written = {id(change) for change in here}
        return [change for change in changes if id(change) not in written]

    @staticmethod
    def _watch(watcher: Watcher, picture: Picture, reading: Reading) -> None:
        watcher.watch(picture.book(), reading)

    def _replan(self, picture: Picture, reading: Reading, starting: frozenset[int] = frozenset()) -> list[Change]:
        began = time.monotonic()
        changes = self._plan.replan(picture.book(), reading.jobs, starting)
        self._pass_took = time.monotonic() - began
        self._passes_took.append(self._pass_took)
        if self._state_maker is not None:
            self._state_maker.passes.observe(self._pass_took)
        return changes

    @property
    def in_charge(self) -> bool:
        """Tells whether the slurmctld of this host is the one that decides."""
        return self._reading is not None and self._reading.in_control

    @property
    def _acts(self) -> bool:
        """Tells whether jobs are ours to change: not on a standby, in a federation, or while only watching."""
        reading = self._reading
        return reading is not None and reading.in_control and not reading.federated and not self._observe

    @property
    def _places(self) -> bool:
        """Tells whether pins are ours to write."""
        return self._acts

    @property
    def _chooses_gpus(self) -> bool:
        """Tells whether pins name GPUs: not on the plain layout."""
        return self._places and self._node_pins is None

    def _write(self, changes: Sequence[Change], reading: Reading, *, hurry: bool = False) -> None:
        write = partial(self._pins.write, reading=reading, hurry=hurry)
        for change in changes:
            failed = self._plan.isolation.once(change.job, time.time(), write, [change])
            if failed is None or failed:
                self._plan.reread(change.job.id)

    def _look(self, *, ended: bool) -> Picture | None:
        """Bring the picture up to date; None where Slurm cannot be read."""
        began = time.monotonic()
        reading = self._read(ended=ended)
        if reading is None:
            return None
        self._looks_took.append(time.monotonic() - began)
        self._look_from = time.monotonic() + REST * self.look_takes
        if self._state_maker is not None:
            self._state_maker.looks.observe(self._looks_took[-1])
        self._sign()
        self._reading = reading
        self._apart(partial(self._company.look, writes=self._acts), reading)
        self._apart(self._hosts.look, reading)
        return self._apart(self._bring_up_to_date, reading)

    def _bring_up_to_date(self, reading: Reading) -> Picture:
        fleet = self._fleets.of(reading, self._culprits.users(reading.at), self._company.foes)
        picture = self._picture
        if picture is None or picture.fleet is not fleet:
            picture = Picture(fleet, self._plan.isolation)
        # A pin that names nodes alone changes nothing else of the job.
        self._pins.fleet = fleet if self._excludes_others(len(fleet.names)) and self._node_pins is None else None
        self._pins.counting = fleet if fleet.counted and self._node_pins is None else None
        picture.closed = self._guards.closed(fleet.index, reading.at)
        picture.neighbours = self._company.neighbours
        picture.spare_sms = self._company.activity.all_left(reading.at)
        self._changed = picture.update(reading)
        self._picture = picture
        return picture

    @property
    def look_takes(self) -> float:
        """Seconds that a look at Slurm takes, of late."""
        return statistics.median(self._looks_took) if self._looks_took else 0.0

    def _read(self, *, ended: bool) -> Reading | None:
        """Reads Slurm; where that fails, the last picture stays in use."""
        try:
            reading = self._gateway.read(ended=ended)
            # One job's record costs that job; if all have another form, it is Slurm's answer that cannot be read.
            if len(reading.unreadable) > 1 and not reading.jobs:
                raise UnreadableError(f"no job's record can be read: {next(iter(reading.unreadable.values()))}")
        except SlurmError as fault:
            problem, blind = str(fault), isinstance(fault, UnreadableError)
        except (FormatError, LookupError, ValueError) as fault:
            problem, blind = f"Slurm's answer cannot be read: {fault!r}", True
        else:
            if self._problem:
                log.info("Slurm can be read again", 649)
            self._problem, self._blind = "", False
            self._tell_unreadable(reading)
            # Who only watches can also do so where Slurm alone chooses the GPUs of a node.
            reading = numbered(reading) if self._watcher is not None else reading
            return self._node_pins.shown(reading) if self._node_pins is not None else reading
        if problem != self._problem:
            log.error(f"{problem}; the last picture of Slurm stays in use", 650)
        self._problem, self._blind = problem, blind
        self._sender.send(Snapshot(None, frozenset(), "", self._gateway.name, problem))
        return None

    def _tell_unreadable(self, reading: Reading) -> None:
        """Logs each job that cannot be read, once while that lasts: it is left to Slurm."""
        for job_id in reading.unreadable.keys() - self._unreadable:
            log.error(
                f"JobId={job_id} is left to Slurm, Berth cannot read its record: {reading.unreadable[job_id]}", 664
            )
        self._unreadable = frozenset(reading.unreadable)

    def _sign(self) -> None:
        """Whoever waits for Slurm lives; who cannot read what it says is of no use, and is not to be kept for long."""
        if not self._blind:
            self._sender.sign()

    def _hand_over(self, reading: Reading, changes: Iterable[Change] = ()) -> None:
        """Gives the answerer the book, and what its `changes`, and those that were put off before, still have to do."""
        book = self._plan.book
        assert book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        leave = "the cluster is in a federation, whose jobs Berth leaves alone" if reading.federated else ""
        self._sender.send(
            Snapshot(
                book.cluster,
                reading.seen,
                reading.version,
                self._gateway.name,
                "",
                leave=leave,
                refused=reading.refused,
                observed=self._watcher.told() if self._watcher else {},
                notices=self.notices_taken,
                notices_late=self.notices_late,
                updates=self._pins.written,
                took={"look_ms": _middle(self._looks_took), "pass_ms": _middle(self._passes_took)},
                failures=self._told(),
                given_up=self._apart(parts_given_up, (*self._to_write.values(), *changes)) or {},
            )
        )
        self._handed_over, self._stale = time.monotonic(), False

    def _told(self) -> dict[str, str]:
        """Returns the counters of the parts of a pass, for `berth status` and the metrics."""
        told = {"unreadable": str(len(self._unreadable))} if self._unreadable else {}
        for part in (self._failures, self._disagreements, self._moving, self._plan.isolation):
            told |= self._apart(getattr, part, "told") or {}
        return told

    def _counted(self, reading: Reading, picture: Picture) -> ClusterState | None:
        maker = self._state_maker
        if maker is not None and time.monotonic() >= maker.due:
            counts = planner_counts(self._pins, self._evictions, self.notices_taken, self.notices_late)
            maker.make(reading, picture.book().cluster, self._plan.queue, counts, self._told())
        return None if maker is None else maker.latest


def _middle(took: Sequence[float]) -> str:
    return f"{statistics.median(took) * 1_000:.1f}" if took else ""


def _key(change: Change) -> tuple[int, str | int | None]:
    return change.job.id, change.task if isinstance(change, Move | Release) else None
