"""The queue walk: each waiting job in order claims its place, and gets another one if it has to."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from policy.cluster.fit import may_wait_pinned
from policy.cluster.partitions import BLAMED_FOR, beyond, holding
from policy.cluster.reserved import counted_nodes, first
from policy.formats.array_tasks import waiting_tasks
from policy.formats.arrays import Bools
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.placement.keep_together import is_piece
from policy.plan.jobs.waiting import Shape, Waiting, impossible
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.claims import Claim, claim_on
from policy.plan.opinions.later_places import Outlook, PlannedBefore
from policy.plan.opinions.splitting import free_now
from policy.plan.opinions.spreading import AGAIN_AFTER, OPEN_FOR
from policy.plan.queue.ahead import QueueAhead
from policy.plan.queue.move_reasons import STUCK_AFTER, given_back, may_be_its_place, relaxed, starts_now
from policy.plan.queue.simple_claims import SimpleClaims
from policy.request.demand import Demand
from policy.request.settings import Settings

STUCK_ON_A_NODE = 15
"""The same, of a job on one node of which Slurm chooses the GPUs: without its pin, the next backfill starts it."""

_COUNTED = "a reservation counts GPUs of its node"

MOST_EXPECTED = 40
"""Jobs without GPUs, the first in line, for which room is left; those behind them start much later."""

NEAR = 600.0
"""Seconds before the expected start of these jobs in which their nodes are not filled up.

Not longer: nodes that stand idle for hours cost more than the earlier start gains."""


class Walk(SimpleClaims):
    """One walk along the queue. Claims only take GPUs away, so a shape that did not fit once does not fit later."""

    def __init__(
        self,
        book: Book,
        policy: Policy,
        settings: Settings,
        free_since: dict[int, float],
        changes: list[Change],
        memories: dict[int, PlannedBefore],
        *,
        only: "Bools | None" = None,
        queue_ahead: QueueAhead | None = None,
    ) -> None:
        """`free_since` and `memories` outlive the walk; `only` marks the nodes that the walk may use."""
        ahead = queue_ahead is not None
        super().__init__(book, settings, free_since, changes, memories, only, lets_others_first=ahead)
        self._policy = policy
        self._none_empty = False
        self._left_to: dict[int, Bools] = {}
        """Sets of nodes of which the empty ones are left to big jobs already; few objects stand for many jobs."""
        self._expected = 0
        self._memories = memories
        self._outlook = Outlook(book, policy, memories)
        self._queue_ahead = queue_ahead
        """None: no job lets others go first."""
        self._queue: Sequence[Waiting] = ()
        self._settled: set[int] = set()
        self._siblings: dict[int, dict[int, Sequence[int]]] = {}
        """Nodes of each heterogeneous job, by component: Slurm gives no node to two components."""

    def know(self, queue: Sequence[Waiting]) -> None:
        """Counts the jobs that wait for room and notes where components are pinned, before any job moves."""
        self.know_part(queue, queue)
        at, waits = self._book.at, 0
        for entry in queue:
            if entry.last.start == 0.0 or not (entry.plain or entry.may_start_at(at)):
                continue
            self._outlook.crowd += entry.job.wants_gpus
            if is_piece(entry.demand):
                waits += entry.demand.k
        self._book.await_pieces(waits)

    def know_part(self, queue: Sequence[Waiting], het: Iterable[Waiting]) -> None:
        """Notes where components are pinned, for a walk on some nodes: the book still has what the last one counted."""
        self._queue = queue
        for entry in het:
            if entry.job.het:
                self._siblings.setdefault(entry.job.het, {})[entry.job.id] = entry.nodes

    def _apart_from_siblings(self, entry: Waiting, demand: Demand) -> Demand:
        others = self._siblings.get(entry.job.het, {})
        taken = [node for job_id, nodes in others.items() if job_id != entry.job.id for node in nodes]
        return demand.without(taken) if taken else demand

    def settle(self, entry: Waiting) -> None:
        """Claims a job's place; first finds another place if it needs one."""
        entry.last.claimed = None
        entry.last.start, entry.last.place, entry.last.refuses_until, entry.last.waits_for_fewer = None, (), 0.0, False
        entry.last.lets = None
        self._settled.add(entry.job.id)
        job, book, at = entry.job, self._book, self._book.at
        if self._set_aside(entry):
            return
        demand, shape = self._demand(entry)
        if job.het:
            demand, shape = self._apart_from_siblings(entry, demand), (*shape[:-1], -job.id)
        start = self._start_of(entry, demand) if entry.nodes else None
        stuck = False
        if start == 0.0:
            since = self._free_since.setdefault(job.id, at)
            stuck = self._is_stuck(entry, at - since)
            if not stuck and self._call_back(entry, demand):
                return
            if not stuck:
                company = "" if entry.packed else book.company(demand, entry.nodes, entry.mask)
                self._claim(entry, demand, entry.nodes, entry.mask, 0.0)
                self._ask_for_a_part(entry, demand, start, company)
                return
            blamed = self._blame_partition(entry)
            demand, shape = self._demand(entry) if blamed else (demand.without(entry.nodes), shape)
            # In another partition, a place that comes free later is good enough too.
            start = None if blamed else start
        else:
            self._free_since.pop(job.id, None)
        if not stuck and (self._left_to_slurm(entry, demand) or self._on_several_nodes(entry, demand, shape)):
            return
        if self._may_change() and not (stuck and self._on_any_node(entry)):
            move = self._better(entry, demand, shape, start)
            if move is not None:
                self._free_since.pop(job.id, None)
                self._move(entry, demand, move)
                return
            stuck = stuck or (impossible(job) and self._only is None)
        ahead, in_part = self._ahead(entry), self._only is not None
        if reason := given_back(entry, book, stuck=stuck, ahead=ahead, in_part=in_part):
            self._changes.append(Release(job, reason))
            return
        if start is not None:
            self._claim(entry, demand, entry.nodes, entry.mask, start)
        self._ask_for_a_part(entry, demand, start)

    def _set_aside(self, entry: Waiting) -> bool:
        """Handles a job that gets no place of its own now; returns whether it is one."""
        if impossible(entry.job) and entry.nodes:
            self._changes.append(Release(entry.job, "Slurm found that the place can never start it"))
        elif not (entry.may_start_at(self._book.at) or entry.must_leave):
            self._let_wait(entry)
        elif not entry.job.wants_gpus:
            self._expect(entry, self._demand(entry)[0])
        else:
            return False
        return True

    def _left_to_slurm(self, entry: Waiting, demand: Demand) -> bool:
        """Leaves a job without a pin that Slurm may start beside or in a reservation; returns whether it does."""
        job, book, cluster = entry.job, self._book, self._book.cluster
        passes = self._passes(entry)
        in_parts = bool(job.het or (job.tasks and entry.nodes))
        if not (cluster.rooms or passes) or (in_parts and not passes) or not self._may_change():
            return False
        memory = self._memories.setdefault(job.id, PlannedBefore())
        if memory.spread_since is not None and book.at - memory.spread_since > OPEN_FOR:
            memory.spread_since, memory.spread_again = None, book.at + AGAIN_AFTER
        waits = in_parts or memory.spread_again > book.at
        name = "" if waits else first(cluster.rooms, cluster.typed, demand, cluster.at, job.user, job.account)
        if name and entry.nodes:
            self._changes.append(Release(job, f"Slurm may start it by reservation {name}", for_now=True))
        elif passes:
            # Its pin would pass the reservation.
            self._changes.append(Release(job, _COUNTED, for_now=True))
            return True
        if name:
            memory.spread_since = memory.spread_since or book.at
            entry.last.start = 0.0
        return bool(name)

    def _on_several_nodes(self, entry: Waiting, demand: Demand, shape: Shape) -> bool:
        """Lets a job start on several nodes now, where no place is free for it; returns whether it can."""
        # Tasks of an array with a place are let start one by one; the last of them has no record of its own.
        if (entry.job.tasks and entry.nodes) or self._only is not None or not self._may_change():
            return False
        if not self._spreading.worth(entry) or self._now(demand, shape) or not self._spreading.start(entry, demand):
            return False
        self._most = None
        return True

    def _demand(self, entry: Waiting) -> tuple[Demand, Shape]:
        """Returns what a job needs now, without the partitions that did not start it."""
        at = self._book.at
        demand, shape = entry.demand_at(at)
        memory = self._memories.get(entry.job.id)
        if memory is None or memory.blamed_until <= at:
            return demand, shape
        left = demand.within(beyond(self._book.fleet, entry.job.partition, memory.blamed))
        return (left, (*shape[:-1], -entry.job.id)) if left.could_be_held else (demand, shape)

    def _blame_partition(self, entry: Waiting) -> bool:
        """Notes that the partitions which hold a job's place did not start it; tells whether others are left."""
        if not entry.apart:
            return False
        fleet, listed, at = self._book.fleet, entry.job.partition, self._book.at
        memory = self._memories.setdefault(entry.job.id, PlannedBefore())
        blamed = holding(fleet, listed, entry.nodes)
        if memory.blamed_until > at:
            blamed |= memory.blamed
        if not entry.demand.within(beyond(fleet, listed, blamed)).could_be_held:
            return False
        memory.blamed, memory.blamed_until = blamed, at + BLAMED_FOR
        return True

    def _ask_for_a_part(self, entry: Waiting, demand: Demand, start: float | None, company: str = "") -> None:
        """Makes a packed job ask for its part of its GPUs while it may take that part, else for whole GPUs.

        Slurm counts percent only. It knows neither whose jobs may share a GPU nor the GPU's memory, so it would start
        the job.
        """
        if demand.share is None or not entry.nodes:
            return
        if entry.packed == (start == 0.0 and self._book.takes_part(demand, entry.nodes, entry.mask)):
            return
        view = self._book.cluster.now(demand.limit)
        why = f"where it was pinned before{company}"
        berth = Policy.spread(demand, view, entry.nodes, [entry.mask] * len(entry.nodes), why)
        if not entry.packed:
            if len(self._changes) < self._settings.most_moves:
                self._changes.append(Move(entry.job, berth, 0.0, "its part of them is free", adopted=entry.adopted))
                entry.packed = True
            return
        # First in the list, as in _move.
        until = start or self._book.at
        self._changes.insert(0, Move(entry.job, berth, until, "its part of them is not free any more"))
        entry.packed = False

    def spread_tasks(self, entry: Waiting, running: int) -> None:
        """Gives array tasks that can start now places of their own; one task stays with the array's pin."""
        if not entry.may_start_at(self._book.at):
            return
        demand, shape = self._demand(entry)
        tasks = waiting_tasks(entry.job.tasks)
        at_the_pin = 1 if entry.last.start == 0.0 else 0
        room = len(tasks) if entry.job.at_once is None else entry.job.at_once - running
        given = self._spreading.given(entry, demand)
        tasks = [task for task in tasks if task not in given]
        for task in tasks[at_the_pin : max(0, room - len(given))]:
            if not self._may_change():
                return
            berth = self._now(demand, shape)
            if berth is not None:
                begins = self._after_guests(demand, berth)
                self._changes.append(Move(entry.job, berth, begins, "a task of its array can start there now", task))
                entry.last.given[task] = berth.nodes, berth.mask
                self._book.note(claim_on(self._book.fleet, demand, berth.nodes, berth.mask, self._book.at))
            elif not (self.most_free and self._spreading.start_task(entry, demand, task)):
                return
            self._most = None

    def hold(self, entry: Waiting, touched: set[int], *, free_now: bool) -> None:
        """Claims a job's place again on the nodes in `touched`, unless it is free now and the job lets others go first.

        The next whole pass may find a better one; until then the claims on other nodes stay.
        """
        if not entry.may_start_at(self._book.at) or not entry.last.place:
            return
        demand, _ = entry.demand_at(self._book.at)
        if free_now and entry.pinned_to(entry.last.place, entry.last.mask) and self._call_back(entry, demand):
            return
        entry.last.claimed = None
        if free_now:
            entry.last.start = 0.0
        here = [place for place in entry.last.place if place in touched]
        start = entry.last.start or self._book.at
        self._book.note(claim_on(self._book.fleet, demand, here, entry.last.mask, start))
        self._most = None

    def leave_empty_nodes_to(self, entry: Waiting) -> None:
        """Keeps wholly empty nodes for a big job, until the next whole pass decides whether the job takes them."""
        assert self._only is not None, "a whole walk lets big jobs choose"  # noqa: S101 - narrows the type
        if not self.leaves_empty_nodes(entry):
            return
        candidates, book = entry.demand.candidates, self._book
        empty = self._only & (book.cluster.gpus_now == book.fleet.full)
        self._none_empty = not empty.any()
        self._left_to[id(candidates)] = candidates
        self._only &= ~(empty & candidates)
        self._most = None

    def leaves_empty_nodes(self, entry: Waiting) -> bool:
        """Tells whether there are empty nodes that are still to be left to a job on several nodes."""
        return not (self._none_empty or id(entry.demand.candidates) in self._left_to)

    def may_fit(self, entry: Waiting) -> bool:
        """Tells whether it is worth checking if a job could start now."""
        if entry.job.het:
            return False  # its components start together, by backfill: only whole passes plan them
        return entry.may_start_at(self._book.at) and self._may_have(entry.demand) and self._may_change()

    def bring(self, entry: Waiting) -> None:
        """Moves a job to nodes of this pass if it can start there now; its old claim stays until a whole pass."""
        demand, shape = self._demand(entry)
        berth = self._now(demand, shape)
        if (
            berth is not None
            and not self._refuses(entry, demand, berth, entry.last.start)
            and not self._lets_others_first(entry, demand.on(len(berth.nodes)), berth)
        ):
            self._move(entry, demand, Move(entry.job, berth, 0.0, starts_now(entry, berth), adopted=entry.adopted))

    def _move(self, entry: Waiting, demand: Demand, move: Move) -> None:
        """Adds a move to the changes; from here on the job counts as pinned there, before Slurm shows it."""
        demand = demand.on(len(move.berth.nodes))
        if move.start == 0.0 and (begins := self._after_guests(demand, move.berth)):
            move = replace(move, start=begins)
        entry.last.claimed = None
        entry.lay_on(demand.n)
        # A packed job gives up its part before another job gets it, so its change is written first. Changes of later
        # jobs in line come before those of earlier ones: only a later job can lose its place to an earlier one.
        self._changes.insert(0 if entry.packed else len(self._changes), move)
        self._claim(entry, demand, move.berth.nodes, move.berth.mask, move.start)
        entry.nodes, entry.mask = tuple(move.berth.nodes), move.berth.mask
        if move.start == 0.0 and self._queue_ahead is not None:
            self._memories.setdefault(entry.job.id, PlannedBefore()).goes_to = entry.nodes
            self._settled.add(entry.job.id)
        entry.packed = demand.share is not None and move.start == 0.0

    def _after_guests(self, demand: Demand, berth: Berth) -> float:
        """Returns the start that is written for a free place: 0; now for a packed job whose GPUs guests have to leave.

        With a start it asks for whole GPUs until the guests are gone.
        """
        waits = demand.share is not None and self._book.has_guests(berth.nodes, berth.mask)
        return self._book.at if waits else 0.0

    def _better(self, entry: Waiting, demand: Demand, shape: Shape, start: float | None) -> Move | None:
        less = relaxed(entry, self._book.at)
        berth = self._now(demand, shape)
        if berth is not None and not self._refuses(entry, demand, berth, start):
            if self._lets_others_first(entry, demand.on(len(berth.nodes)), berth):
                return None if start is not None else self._to_later(entry, demand)
            return Move(entry.job, berth, 0.0, less or starts_now(entry, berth), adopted=entry.adopted)
        if self._only is not None or not self._ahead(entry):
            return None
        searches = bool(less) or self._gathers(entry) or demand.n > demand.every_split[0].n
        if start is not None and not (searches and self._has_turn(entry)):
            return None
        place = self._outlook.best(entry, demand, start)
        if place is None:
            return None
        if start is None:
            reason = "its former place is gone" if entry.mask else "a place is in sight"
            return Move(entry.job, place.berth, place.start, reason, adopted=entry.adopted)
        why = self._outlook.why_better(entry, demand, start, place)
        return Move(entry.job, place.berth, place.start, less or why) if why else None

    def _refuses(self, entry: Waiting, demand: Demand, berth: Berth, start: float | None) -> bool:
        if not self._ahead(entry):
            return False
        entry.last.waits_for_fewer = bool(entry.nodes) and self._outlook.waits_for_fewer(entry, demand, berth, start)
        laid = demand.on(len(berth.nodes))
        return entry.last.waits_for_fewer or self._outlook.refuses(entry, laid, berth, start)

    def _call_back(self, entry: Waiting, demand: Demand) -> bool:
        """Pins a job whose place has just come free to a later one, if it lets others go first."""
        memory = self._memories.get(entry.job.id)
        if self._queue_ahead is None or not self._may_change() or (memory and memory.goes_to == entry.nodes):
            return False
        view = self._book.cluster.now(demand.limit)
        berth = Policy.spread(demand, view, entry.nodes, [entry.mask] * len(entry.nodes), "")
        move = self._to_later(entry, demand) if self._lets_others_first(entry, demand, berth) else None
        if move is None:
            entry.last.lets = None
            self._queue_ahead.starts(entry)
            self._memories.setdefault(entry.job.id, PlannedBefore()).goes_to = entry.nodes
            return False
        self._free_since.pop(entry.job.id, None)
        self._move(entry, demand, move)
        return True

    def _lets_others_first(self, entry: Waiting, demand: Demand, berth: Berth) -> bool:
        """Tells whether a job that could start now lets others go first, and notes until when it does at most."""
        if self._queue_ahead is None or not self._ahead(entry):
            return False
        entry.last.lets = self._queue_ahead.holds(entry, demand, berth, filter(self._begins, self._queue))
        if entry.last.lets is None:
            return False
        memory = self._memories.setdefault(entry.job.id, PlannedBefore())
        memory.lets_until, memory.goes_to = entry.last.lets.until, ()
        if memory.lets_since is None:
            memory.lets_since = self._book.at
        return True

    def _begins(self, entry: Waiting) -> bool:
        """Tells whether a job has a place in this pass on which it starts now."""
        if entry.last.start != 0.0 or not entry.last.place:
            return False
        if entry.job.id in self._settled:
            return True
        return self._only is not None and not bool(self._only[list(entry.last.place)].any())

    def _to_later(self, entry: Waiting, demand: Demand) -> Move | None:
        place = self._outlook.later(demand)
        if place is None:
            return None
        return Move(entry.job, place.berth, place.start, "it lets others go first", adopted=entry.adopted)

    def _ahead(self, entry: Waiting) -> bool:
        """Tells whether a job may be pinned to a place that is not free yet."""
        fleet = self._book.fleet
        return self._settings.pin_ahead and (not fleet.nodes_alone or may_wait_pinned(entry.demand, fleet))

    def _let_wait(self, entry: Waiting) -> None:
        """Leaves a job that may not start yet as it is, or its node to Slurm."""
        if self._on_any_node(entry):
            why = "it may not start yet, and Slurm chooses its node when it may"
            self._changes.append(Release(entry.job, why))
        elif self._passes(entry):
            # Slurm would start it with this pin as soon as it may, before the next pass.
            self._changes.append(Release(entry.job, _COUNTED, for_now=True))
        self._ask_for_a_part(entry, entry.demand, None)

    def _passes(self, entry: Waiting) -> bool:
        """Tells whether a job's pin passes a reservation, also a pin to nodes that are not for the job any more."""
        counted = counted_nodes(self._book.cluster.counted, self._book.at + entry.demand.limit)
        if entry.nodes or entry.job.gpus is None or not counted:
            return not counted.isdisjoint(entry.nodes)
        return not counted.isdisjoint(map(self._book.fleet.index.get, entry.job.required))

    def _on_any_node(self, entry: Waiting) -> bool:
        """Tells whether a job is pinned to nodes alone, on which it starts now or not at all."""
        return self._book.fleet.nodes_alone and bool(entry.nodes) and not self._ahead(entry)

    def _is_stuck(self, entry: Waiting, seconds: float) -> bool:
        """Tells whether a job has failed for too long to start on a place that looks free."""
        if self._on_any_node(entry):
            return seconds > STUCK_ON_A_NODE
        return seconds > STUCK_AFTER and may_be_its_place(entry)

    def _start_of(self, entry: Waiting, demand: Demand) -> float | None:
        """Returns when a job's place is free: 0 for now.

        For a pin to nodes alone other GPUs of these nodes do too, as Slurm chose others than the plan for other jobs.
        """
        start = self._book.start_of(demand, entry.nodes, entry.mask)
        if start == 0.0 or not (self._book.fleet.nodes_alone and entry.job.wants_gpus):
            return start
        here = np.zeros(len(self._book.fleet.names), np.bool_)
        here[list(entry.nodes)] = True
        try:
            berth = self._book.now(demand.within(here), self._policy)
        except NotNow:
            return start
        entry.mask = berth.mask
        return 0.0

    def _has_turn(self, entry: Waiting) -> bool:
        return self._outlook.has_turn(entry, self._gathering)

    def _now(self, demand: Demand, shape: Shape) -> Berth | None:
        if not self._may_have(demand) or self._refused.get(shape, demand.limit + 1) <= demand.limit:
            return None
        try:
            if self._only is not None:
                return free_now(demand.within(self._only), lambda one: self._book.now(one, self._policy))
            return free_now(demand, lambda one: self._book.now_together(one, self._policy))
        except NotNow:
            self._refused[shape] = min(demand.limit, self._refused.get(shape, demand.limit))
            return None

    def _expect(self, entry: Waiting, demand: Demand) -> None:
        """Claims room for a job without GPUs on the nodes where Slurm will probably start it."""
        self._expected += 1
        if self._expected > MOST_EXPECTED:
            return
        found = self._book.soonest_without_gpus(demand)
        if found is not None:
            nodes, start = found
            self._claim(entry, demand, nodes, 0, start)

    def _claim(self, entry: Waiting, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> None:
        at = self._book.at
        claim = claim_on(self._book.fleet, demand, nodes, mask, start or at)
        entry.last.start, entry.last.place, entry.last.mask = start, claim.nodes, mask
        if entry.last.lets is not None and start != 0.0:
            self._book.bar(claim.nodes)
            return  # a place kept for it would put off small jobs behind it
        self._book.note(claim)
        if entry.job.het:
            self._siblings.setdefault(entry.job.het, {})[entry.job.id] = claim.nodes
        if start == 0.0:
            self._most = None
        elif entry.job.wants_gpus:
            # Slurm's main pass keeps the nodes of a waiting pinned job from later jobs: those start by backfill, late.
            self._book.bar(claim.nodes)
            if self._gathers(entry):
                self._favour(claim)
            self._gathering += entry.collects

    def _favour(self, claim: Claim) -> None:
        """Keeps short jobs off the nodes of a claim in the last `NEAR` seconds before its start.

        This is for the first jobs in line that need several nodes. A time limit tells only the latest end of a job, and
        the nodes should be free together as soon as possible.
        """
        picture, nodes = self._book.cluster, list(claim.nodes)
        picture.hole_until[nodes] = np.minimum(picture.hole_until[nodes], max(picture.at, claim.start - NEAR))

    def _may_have(self, demand: Demand) -> bool:
        """Tells whether some node may have enough GPUs; a share may also go where no GPU is free."""
        return min(one.k for one in demand.every_split) <= self.most_free or demand.share is not None
