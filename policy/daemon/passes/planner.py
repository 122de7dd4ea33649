# SPDX-License-Identifier: Apache-2.0
"""The planning process: reads Slurm, updates the pins of waiting jobs, and sends snapshots to the answerer.

It may be slow, and it may die: the answerer goes on with the last snapshot and starts a new planner.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from policy.daemon.hear.gpu_use import NONE_SEEN, SeenGpus
from policy.daemon.hear.notices import Notice
from policy.daemon.known.company import ProfileKeeper
from policy.daemon.known.fleets import Fleets
from policy.daemon.passes.cluster_state import StateMaker, planner_counts
from policy.daemon.passes.explainer import MOST_REASONS, Explainer
from policy.daemon.passes.handover import Sender, Snapshot
from policy.daemon.passes.listeners import Listeners
from policy.daemon.passes.looks import LAST, SlurmLooks
from policy.daemon.passes.overviews import OverviewWriter
from policy.daemon.passes.updates import Updates
from policy.daemon.passes.watcher import Watcher
from policy.daemon.write.closers import Closers
from policy.daemon.write.evictions import Evictions
from policy.daemon.write.lists import Lists
from policy.daemon.write.pins import Pins
from policy.daemon.write.preflights import Preflights
from policy.daemon.write.relocation_writer import RelocationWriter
from policy.formats.slurm_facts import Reading
from policy.placement.registry import create
from policy.plan.ledger.changes import Change, Move, parts_given_up
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.all import all_opinions
from policy.plan.queue.plan import Plan
from policy.plan.relocation.under_way import Relocations
from policy.site import log
from policy.site.config import Config
from policy.site.metrics_state import ClusterState
from policy.slurm.interface import Gateway

T = TypeVar("T")

_CHEAP = 0.01
"""Seconds of a pass up to which a notice gets a whole pass, which finds more than a look at a few nodes."""

REST = 20.0
"""The pause after a reading, as a multiple of its time: while slurmctld packs its jobs, it takes no submission."""

HAND_OVER_EVERY = 0.2
"""Seconds between snapshots that follow notices: each costs the answerer a millisecond or two."""


class Planner:
    """Plans all jobs in each pass, and between passes the GPUs that ended jobs free."""

    def __init__(
        self, gateway: Gateway, config: Config, sender: Sender, overviews: OverviewWriter | None = None
    ) -> None:
        settings = config.settings
        self._evictions = Evictions(gateway, settings.sharing)
        self._pins = Pins(
            gateway,
            config.pinned_file,
            self._evictions,
            config.skip_partitions,
            settings.sharing.tier_allowed,
            settings.exclude_others,
        )
        company = ProfileKeeper(settings.sharing)
        self._plan = Plan(
            create(config.policy),
            settings,
            all_opinions(settings, company.chooser),
            company.classes,
            partial(log.error, number=662),
        )
        self._looks = SlurmLooks(gateway, config, sender)
        self._updates = Updates(self._plan, self._pins)
        self._heard = Listeners(gateway, config, self._looks, self._updates, self._evictions, company)
        self._fleets = Fleets(config)
        self._lists = Lists(self._pins)
        self._closers = Closers(self._pins, allowed=settings.exclude_others > 0)
        relocations = Relocations(settings.moving, create(config.policy), company.classes)
        self._moving = RelocationWriter(gateway, self._pins, relocations, self._updates.moved)
        self._preflights = Preflights(gateway, config.preflight_wait)
        self._explainer = Explainer(gateway, create(config.policy))
        self._watcher = Watcher(create(config.policy)) if config.observe or config.plain else None
        self._state_maker = StateMaker(job_info=config.metrics.job_info) if config.metrics.enabled else None
        self._overviews = overviews
        self._answerer = ToTheAnswerer(sender, gateway.name)
        self._tracker: Tracker | None = None
        self._passes_took: deque[float] = deque(maxlen=LAST)
        self.notices_taken = self.notices_late = 0

    @property
    def in_charge(self) -> bool:
        """Tells whether the slurmctld of this host is in charge."""
        return self._looks.in_charge

    @property
    def look_takes(self) -> float:
        """Returns the median of the seconds that the last readings took."""
        return self._looks.takes

    def _apart(self, step: Callable[..., T], *arguments: object) -> T | None:
        """Runs one part of a pass; an exception ends that part alone, which then returns None."""
        return self._plan.isolation.group(time.time(), step, *arguments)

    def one_pass(self, *, ended: bool) -> None:
        """Reads, plans, and sends a snapshot; most updates are queued, so that Epilogs need not wait for them."""
        self._updates.begin_pass()
        self._apart(self._pins.begin)
        tracker = self._look(ended=ended or self._heard.failures.asks_for_ended)
        reading, apart = self._looks.reading, self._apart
        if tracker is None or reading is None:
            return
        if self._watcher is not None:
            apart(self._watch, self._watcher, tracker, reading)
        self._looks.sign()
        changes = apart(self._replan, tracker, reading)
        if changes is None:
            self._plan.reread_all()
        if self._plan.book is None:
            return
        if changes is not None:
            # After a failed pass the answerer keeps its last snapshot.
            self._hand_over(reading, changes)
        self._updates.plan_is_made()
        hangs = apart(self._heard.still.hangs, reading.jobs, reading.at) or {}
        seen = apart(self._heard.gpus.seen, reading.jobs, reading.at) or NONE_SEEN
        if self._overviews is not None:
            state = apart(self._counted, reading, tracker, seen)
            apart(self._overviews.write_if_due, self._plan, reading, state, seen, self._heard.told(hangs))
        apart(self._heard.hosts.write_due, reading.at, self._fleets.model_of)
        if self._looks.acts:
            self._updates.count(apart(self._heard.hangs.step, hangs, reading))
            self._updates.count(apart(self._heard.idle_ends.step, seen.idle, reading.jobs, reading.at))
            self._prepare_updates(changes or (), tracker, reading)
        apart(self._plan.expect_notices)

    def _prepare_updates(self, changes: Sequence[Change], tracker: Tracker, reading: Reading) -> None:
        """Queues the changes of the plan, and lets each part of berthd make its own updates."""
        apart = self._apart
        apart(self._heard.scores_now.step, reading.at)
        if self._pins.fleet is not None:
            apart(self._lists.look, self._pins.fleet, reading.jobs)
        self._updates.count(apart(self._evictions.step, reading.jobs, reading.at))
        if self._looks.chooses_gpus:
            apart(self._moving.step, self._plan, tracker, reading)
        self._updates.put_off(changes)
        apart(self._pins.list_pinned, self._plan.queue, reading.jobs)
        if self._looks.chooses_gpus:
            self._updates.count(apart(self._pins.asked.step, self._plan.queue, reading))
            apart(self._closers.look, self._plan.queue, tracker.fleet, self._updates.moved)
        self._updates.count(self._heard.look(reading, apart))
        apart(self._preflights.step, reading)
        self._explainer.left = MOST_REASONS

    def take(self, found: Sequence[Notice]) -> None:
        """Handles notices. When GPUs come free: pins jobs to their nodes, lets Epilogs go on, queues other pins."""
        words = [notice for notice in found if notice.word]
        self._heard.hear(words, self._apart)
        if words and self._tracker is not None:
            self._apart(self._close_nodes, self._tracker, time.time())
        found = [notice for notice in found if not notice.word]
        self.notices_taken += len(found)
        found = self._true_ones(found)
        if not found:
            return
        self._heard.note_degraded(found, self._apart)
        rest: Sequence[Change] | None = None
        try:
            rest = self._apart(self._use_freed, found)
        finally:
            for notice in found:
                notice.answer(done=self.in_charge)
        if rest is None:
            self._plan.reread_all()
        self._updates.put_off(rest or ())
        self.hand_over_if_due()

    def _true_ones(self, found: Sequence[Notice]) -> list[Notice]:
        """Drops hints of jobs that do not end by Slurm's records; their Epilogs go on at once."""
        hinted = {notice.job for notice in found if notice.is_hint}
        ends = {job for job in hinted if self._looks.acts and self._apart(self._looks.ends, job)}
        true = [notice for notice in found if not notice.is_hint or notice.job in ends]
        for notice in found:
            if notice.is_hint and notice.job not in ends:
                notice.answer(done=self.in_charge)
        return true

    def _close_nodes(self, tracker: Tracker, at: float) -> None:
        tracker.closed = self._heard.guards.closed(tracker.fleet.index, at)

    def close(self) -> None:
        """Writes the data that are only in memory."""
        self._looks.close()
        self._heard.company.close()
        if self._overviews is not None:
            self._overviews.close()

    def write_one(self) -> bool:
        """Writes one queued update; returns False if none is left.

        One at a time, so that Epilogs are answered in between.
        """
        reading, tracker, moved = self._looks.reading, self._tracker, self._updates.moved
        if reading is None or tracker is None:
            return False
        if self._updates.write_one(reading):
            return True
        apart, looks = self._apart, self._looks
        if (job_id := apart(self._heard.levels.write_one)) is not None:
            self._updates.count(1)
            moved.add(job_id)
            return True
        if looks.acts and (job_id := apart(self._lists.write_one, looks.jobs(), moved)) is not None:
            moved.add(job_id)
            return True
        if looks.chooses_gpus and apart(self._closers.write_one, looks.jobs(), tracker.fleet, moved):
            return True
        if looks.acts and (job_id := apart(self._heard.failures.step, reading, time.time())):
            moved.add(job_id)
            return True
        if self._plan.book is None or self._plan.book.fleet is not tracker.fleet:
            return False  # notices have read nodes that the next pass plans with
        if self._explainer.left and apart(self._explainer.explain_one, self._plan, tracker.book(), moved):
            self._updates.count(1)
            return True
        return bool(looks.chooses_gpus and apart(self._moving.search, self._plan, tracker, reading))

    def hand_over_if_due(self) -> None:
        """Sends a sign of life, and a snapshot if notices have changed the plan."""
        self._looks.sign()
        if self._looks.reading is not None and self._answerer.is_due:
            self._hand_over(self._looks.reading)

    def _use_freed(self, found: Sequence[Notice]) -> list[Change]:
        tracker, looks = self._tracker, self._looks
        if tracker is None or looks.reading is None or not looks.acts:
            return []
        # The notices themselves say which jobs end: to ask Slurm, the Epilog would have to wait for slurmctld's locks.
        # Only about a job on several nodes it is asked, once: if that one lost a node, it may keep the others, which
        # the next reading shows (policy/plan/opinions/lost_node.py).
        found = [notice for notice in found if not self._apart(looks.is_requeued, notice.job)]
        known = [tracker.end(notice.job, notice.node) for notice in found]
        nodes = set().union(*known)
        left = nodes.copy()
        asks = not all(known) and looks.may_look_again(REST)
        if not (nodes or asks):
            return []
        if asks:
            if self._look(ended=False) is not tracker:
                return []
            nodes |= tracker.changed
            nodes |= {tracker.fleet.index[notice.node] for notice in found if notice.node in tracker.fleet.index}
        changes = self._plan.freed(tracker, nodes, looks.reading.jobs) if self._last_pass_took > _CHEAP else None
        if changes is None:
            starting = frozenset() if asks else self._plan.starting(left)
            changes = self._replan(tracker, looks.reading, starting)
        changes = self._updates.of_guests_that_stay(changes)
        self._answerer.stale = True
        names = {notice.node for notice in found} | {tracker.fleet.names[node] for node in set().union(*known)}
        here = [change for change in changes if isinstance(change, Move) and not names.isdisjoint(change.concerns)]
        self._updates.take_over(here)
        if looks.chooses_gpus:
            self._apart(self._closers.before_start, self._plan.queue, tracker.fleet, self._updates.moved)
        self._updates.write_now(here, looks.reading)
        written = {id(change) for change in here}
        return [change for change in changes if id(change) not in written]

    @staticmethod
    def _watch(watcher: Watcher, tracker: Tracker, reading: Reading) -> None:
        watcher.watch(tracker.book(), reading)

    @property
    def _last_pass_took(self) -> float:
        return self._passes_took[-1] if self._passes_took else 0.0

    def _replan(self, tracker: Tracker, reading: Reading, starting: frozenset[int] = frozenset()) -> list[Change]:
        self._apart(self._heard.company.match)
        began = time.monotonic()
        changes = self._plan.replan(tracker.book(), reading.jobs, starting)
        self._passes_took.append(time.monotonic() - began)
        self._apart(self._heard.company.match)
        if self._state_maker is not None:
            self._state_maker.passes.observe(self._last_pass_took)
        return changes

    def _look(self, *, ended: bool) -> Tracker | None:
        """Reads Slurm and updates the tracker; returns None if Slurm cannot be read."""
        reading = self._looks.look(ended=ended)
        if reading is None:
            return None
        if self._state_maker is not None:
            self._state_maker.looks.observe(self._looks.took[-1])
        self._apart(partial(self._heard.company.look, writes=self._looks.acts), reading)
        self._apart(self._heard.hosts.look, reading)
        return self._apart(self._bring_up_to_date, reading)

    def _bring_up_to_date(self, reading: Reading) -> Tracker:
        company = self._heard.company
        users = self._heard.mps_faults.users(reading.at)
        fleet = self._fleets.of(reading, users, company.foes, self._heard.machines.told)
        tracker = self._tracker
        if tracker is None or tracker.fleet is not fleet:
            tracker = Tracker(fleet, self._plan.isolation)
        self._pins.learn(fleet, typed=not self._looks.names_nodes_alone)
        tracker.closed = self._heard.guards.closed(fleet.index, reading.at)
        tracker.neighbours = company.neighbours
        tracker.spare_sms = company.activity.all_left(reading.at)
        tracker.update(reading, lambda job: bool(self._apart(self._looks.is_requeued, job)))
        self._tracker = tracker
        return tracker

    def _hand_over(self, reading: Reading, changes: Iterable[Change] = ()) -> None:
        """Sends the answerer the book, and the parts of GPUs that unwritten changes, old and new, give up."""
        book = self._plan.book
        assert book is not None, "a pass has left its book"  # noqa: S101 - narrows the type
        self._answerer.send(
            Snapshot(
                book.cluster,
                reading.seen,
                reading.version,
                self._answerer.gateway,
                "",
                leave=self._looks.leave,
                refused=reading.refused,
                observed=self._watcher.told() if self._watcher else {},
                notices=self.notices_taken,
                notices_late=self.notices_late,
                updates=self._pins.written,
                took={"look_ms": _middle(self._looks.took), "pass_ms": _middle(self._passes_took)},
                failures=self._told(),
                given_up=self._apart(parts_given_up, (*self._updates.waiting.values(), *changes)) or {},
            )
        )

    def _told(self) -> dict[str, str]:
        """Returns the counters of all parts, for `berth status` and the metrics."""
        counts = {"unreadable": len(self._looks.unreadable)} if self._looks.unreadable else {}
        heard, plan = self._heard, self._plan
        for part in (
            heard.failures,
            heard.hangs,
            heard.idle_ends,
            heard.disagreements,
            self._moving.relocations,
            plan.isolation,
            *plan.opinions,
        ):
            counts |= self._apart(getattr, part, "counts") or {}
        return {name: str(count) for name, count in counts.items()}

    def _counted(self, reading: Reading, tracker: Tracker, seen: SeenGpus) -> ClusterState | None:
        maker = self._state_maker
        if maker is not None and time.monotonic() >= maker.due:
            counts = planner_counts(self._pins, self._evictions, self.notices_taken, self.notices_late)
            maker.make(reading, tracker.book().cluster, self._plan.queue, counts, self._told(), seen.idle)
        return None if maker is None else maker.latest


class ToTheAnswerer:
    """Sends snapshots to the answerer."""

    def __init__(self, sender: Sender, gateway: str) -> None:
        self._sender, self.gateway = sender, gateway
        self._at = 0.0
        self.stale = False
        """True if notices have changed the plan since the last snapshot."""

    @property
    def is_due(self) -> bool:
        """Tells whether the last snapshot is out of date, and was sent long enough ago."""
        return self.stale and time.monotonic() - self._at >= HAND_OVER_EVERY

    def send(self, snapshot: Snapshot) -> None:
        """Sends a snapshot."""
        self._sender.send(snapshot)
        self._at, self.stale = time.monotonic(), False


def _middle(took: Sequence[float]) -> str:
    return f"{statistics.median(took) * 1_000:.1f}" if took else ""
