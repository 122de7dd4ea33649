# SPDX-License-Identifier: Apache-2.0
"""The queue walk: each waiting job in order claims its place, and gets another one if it has to.

What a capability has to say of a job is asked of the opinions (policy/plan/opinions/opinion.py).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from policy.formats.arrays import Bools
from policy.formats.slurm_syntax.array_tasks import waiting_tasks
from policy.placement.base import Berth
from policy.plan.jobs.waiting import Shape, Waiting, impossible
from policy.plan.ledger.changes import Move, Release
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.tracker import HOLDING
from policy.plan.opinions.opinion import STUCK_AFTER, Changed, HeldBack, Opinion, PassState
from policy.plan.queue.outlook import Outlook, PastSearch
from policy.plan.queue.simple_claims import SimpleClaims
from policy.request.demand import Demand
from policy.request.spread import on_nodes


class Walk(SimpleClaims):
    """One walk along the queue."""

    def __init__(
        self, state: PassState, opinions: Sequence[Opinion], began: Sequence[Opinion], searched: dict[int, PastSearch]
    ) -> None:
        """`began` are the opinions that have something to say in this pass; `searched` outlives the walk."""
        super().__init__(state, began)
        self._owners = [(one, one in began) for one in opinions if "owns" in one.says]
        self._none_empty = False
        self._left_to: dict[int, Bools] = {}
        """Sets of nodes of which the empty ones are left to big jobs already; few objects stand for many jobs."""
        self._searched = searched
        self._crowd = 0
        """Number of GPU jobs that only wait for room."""

    def know(self) -> None:
        """Counts the jobs that wait for room, before any job moves; a walk on some nodes uses the last such count."""
        at, waits = self._book.at, 0
        for entry in self.state.queue:
            if entry.last.start == 0.0 or not (entry.plain or entry.may_start_at(at)):
                continue
            self._crowd += entry.job.wants_gpus
            if entry.demand.is_piece:
                waits += entry.demand.k
        self._book.await_pieces(waits)

    @cached_property
    def _outlook(self) -> Outlook:
        return Outlook(self._book, self._ledger.policy, self._searched, self._crowd)

    def settle(self, entry: Waiting) -> None:
        """Claims a job's place, or those of an array's tasks; first finds other places for those that need some."""
        last = entry.last
        last.claimed = last.start = last.lets = None
        last.place, last.refuses_until, last.waits_for_fewer = (), 0.0, False
        self.state.settled.add(entry.job.id)
        for owner, began in self._owners:
            if owner.owns(entry):
                if began:
                    owner.plan(entry)
                return
        if not self._set_aside(entry):
            self._settle(entry)
        if entry.job.tasks and self._ledger.only is None:
            self._spread_tasks(entry)

    def _settle(self, entry: Waiting) -> None:
        job, state, ledger = entry.job, self.state, self._ledger
        demand, shape = self._needs(entry)
        start, stuck, may_move = None, False, ledger.may_change
        if entry.nodes:
            start, entry.mask = ledger.start_of(demand, entry.nodes, entry.mask)
        if start == 0.0:
            state.free_since.setdefault(job.id, ledger.at)
            kept = self._kept(entry, demand, start)
            stuck = state.is_stuck(entry) and not isinstance(kept, Release)
            if not stuck:
                if isinstance(kept, Release) or not self._call_back(entry, demand):
                    self._keep(entry, demand, start, kept)
                return
            may_move = state.gives_up_place(entry) and may_move
            demand, shape = self._needs(entry)
            if bool(demand.candidates[list(entry.nodes)].all()):
                demand = demand.without(entry.nodes)
            else:
                # In another partition, a place that comes free later is good enough too.
                start = None
        else:
            state.free_since.pop(job.id, None)
        if may_move:
            berth = ledger.now(demand, shape)
            if not stuck and any(one.leave(entry, demand, berth) for one in self._leave):
                ledger.forget_free()
                return
            move = self._better(entry, demand, berth, start)
            if move is not None:
                state.free_since.pop(job.id, None)
                self._move(entry, demand, move)
                return
            stuck = stuck or (impossible(job) and ledger.only is None)
        if stuck:
            given_up = f"it did not start in {STUCK_AFTER} s on a place that looks free"
            ledger.write(Release(job, "no place can ever start it as it is now" if impossible(job) else given_up))
        else:
            self._keep(entry, demand, start, self._kept(entry, demand, start))

    def _set_aside(self, entry: Waiting) -> bool:
        """Handles a job that gets no place of its own now; returns whether it is one."""
        if impossible(entry.job) and entry.nodes:
            self._ledger.write(Release(entry.job, "Slurm found that the place can never start it"))
        elif not (entry.may_start_at(self._book.at) or entry.must_leave):
            self._keep(entry, entry.demand, None, self._kept(entry, entry.demand, None, rests=True))
        else:
            return False
        return True

    def _needs(self, entry: Waiting) -> tuple[Demand, Shape]:
        """Returns what a job needs now, on the nodes that all opinions leave to it."""
        all_of_it, shape = entry.demand_at(self._book.at)
        demand = all_of_it
        for one in self._narrow:
            demand = one.narrow(entry, demand)
        return demand, shape if demand is all_of_it else (*shape[:-1], -entry.job.id)

    def _kept(self, entry: Waiting, demand: Demand, start: float | None, *, rests: bool = False) -> Changed:
        """Returns the change of a pin whose job finds no better place; None if it stays as it is."""
        found = (one.keep(entry, demand, start, rests=rests) for one in self._keepers)
        return next((change for change in found if change is not None), None)

    def _keep(self, entry: Waiting, demand: Demand, start: float | None, kept: Changed) -> None:
        """Claims the place of a pin, if it comes free in sight, and changes the pin or gives it back."""
        if isinstance(kept, Release):
            self._ledger.write(kept)
            return
        if start is not None:
            self._claim(entry, demand, entry.nodes, entry.mask, start)
        if kept is not None:
            self._write(entry, demand, kept)

    def _spread_tasks(self, entry: Waiting) -> None:
        """Gives array tasks that can start now places of their own; one task stays with the array's pin."""
        ledger, at = self._ledger, self._book.at
        if not entry.may_start_at(at):
            return
        demand, shape = self._needs(entry)
        given = entry.last.given
        for claim in (one for claims in given.values() for one in claims):
            ledger.claim(claim.lasting(demand.limit, at))
        at_the_pin = 1 if entry.last.start == 0.0 else 0
        tasks = waiting_tasks(entry.job.tasks)
        room = len(tasks) if entry.job.at_once is None else entry.job.at_once - self._running[entry.job.array]
        room -= len(given)
        for task in [task for task in tasks if task not in given][at_the_pin : max(0, room)]:
            if not ledger.may_change:
                return
            berth = ledger.now(demand, shape)
            if berth is not None:
                begins = self._after_guests(demand, berth)
                ledger.write(Move(entry.job, berth, begins, "a task of its array can start there now", task))
                claim = claim_on(self._book.fleet, demand, berth.nodes, berth.mask, at)
                given[task] = (claim,)
                ledger.claim(claim)
            elif not any(one.leave(entry, demand, None, task) for one in self._leave):
                return

    @cached_property
    def _running(self) -> Counter[int]:
        """Returns the number of each array's tasks that run or have a record of their own."""
        apart = (one for one in self.state.jobs if one.array)
        return Counter(
            one.array for one in apart if one.state in HOLDING or (one.state == "PENDING" and one.task is not None)
        )

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
        self._ledger.claim(claim_on(self._book.fleet, demand, here, entry.last.mask, start))

    def leave_empty_nodes_to(self, entry: Waiting) -> None:
        """Keeps wholly empty nodes for a big job, until the next whole pass decides whether the job takes them."""
        ledger, candidates = self._ledger, entry.demand.candidates
        assert ledger.only is not None, "a whole walk lets big jobs choose"  # noqa: S101 - narrows the type
        if not self.leaves_empty_nodes(entry):
            return
        empty = ledger.only & (self._book.cluster.gpus_now == self._book.fleet.full)
        self._none_empty = not empty.any()
        self._left_to[id(candidates)] = candidates
        ledger.only &= ~(empty & candidates)
        ledger.forget_free()

    def leaves_empty_nodes(self, entry: Waiting) -> bool:
        """Tells whether there are empty nodes that are still to be left to a job on several nodes."""
        return not (self._none_empty or id(entry.demand.candidates) in self._left_to)

    def may_start(self, entry: Waiting) -> bool:
        """Tells whether a job may start by itself; components start together, by backfill, in whole passes alone."""
        return not entry.job.het and self._ledger.may_change and entry.may_start_at(self._book.at)

    def bring(self, entry: Waiting) -> None:
        """Moves a job to nodes of this pass if it can start there now; its old claim stays until a whole pass."""
        demand, shape = self._needs(entry)
        berth = self._ledger.now(demand, shape)
        if berth is not None and self._held(entry, demand, berth, entry.last.start) is None:
            self._move(entry, demand, Move(entry.job, berth, 0.0, starts_now(entry, berth)))
            self.state.settled.add(entry.job.id)

    def _move(self, entry: Waiting, demand: Demand, move: Move) -> None:
        """Adds a move to the changes; from here on the job counts as pinned there, before Slurm shows it."""
        demand = demand.on(len(move.berth.nodes))
        if move.start == 0.0 and (begins := self._after_guests(demand, move.berth)):
            move = replace(move, start=begins)
        entry.last.claimed = None
        entry.lay_on(demand.n)
        self._write(entry, demand, replace(move, adopted=entry.adopted))
        self._claim(entry, demand, move.berth.nodes, move.berth.mask, move.start)
        entry.nodes, entry.mask = tuple(move.berth.nodes), move.berth.mask

    def _write(self, entry: Waiting, demand: Demand, move: Move) -> None:
        # A packed job gives up its part before another job gets it, so its change is written first. Changes of later
        # jobs in line come before those of earlier ones: only a later job can lose its place to an earlier one.
        self._ledger.write(move, first=entry.share.packed)
        entry.share.packed = demand.share is not None and move.start == 0.0

    def _after_guests(self, demand: Demand, berth: Berth) -> float:
        """Returns the start that is written for a free place: 0; now for a packed job whose GPUs guests have to leave.

        With a start it asks for whole GPUs until the guests are gone.
        """
        waits = demand.share is not None and self._book.has_guests(berth.nodes, berth.mask)
        return self._book.at if waits else 0.0

    def _better(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> Move | None:
        """Returns the move to a better place; `berth` is one that is free now."""
        less = entry.gets_less(self._book.at)
        if berth is not None:
            held = self._held(entry, demand, berth, start)
            if held is None:
                return Move(entry.job, berth, 0.0, less or starts_now(entry, berth))
            if held.why:
                return None if held.place is None else Move(entry.job, *held.place, held.why)
        if self._ledger.only is not None or not self.state.may_wait(entry):
            return None
        searches = bool(less) or self._gathers(entry) or demand.n > demand.every_split[0].n
        if start is not None and not (searches and self._outlook.has_turn(entry, self._gathering)):
            return None
        place = self._outlook.best(entry, demand, start)
        if place is None:
            return None
        if start is None:
            return Move(entry.job, *place, "its former place is gone" if entry.mask else "a place is in sight")
        why = self._outlook.why_better(entry, demand, start, place)
        return Move(entry.job, *place, less or why) if why else None

    def _held(self, entry: Waiting, demand: Demand, berth: Berth | None, start: float | None) -> HeldBack | None:
        """Returns why a job does not start now on `berth`, or where it is pinned; None if it does."""
        if not self.state.may_wait(entry):
            return None
        found = (one.hold(entry, demand, berth, start) for one in self._hold)
        return next((held for held in found if held is not None), None)

    def _call_back(self, entry: Waiting, demand: Demand) -> bool:
        """Pins a job whose place has just come free to a later one, if it is held back; returns whether it is."""
        held = self._held(entry, demand, None, 0.0) if self._ledger.may_change else None
        if held is None or held.place is None:
            return False
        self.state.free_since.pop(entry.job.id, None)
        self._move(entry, demand, Move(entry.job, *held.place, held.why))
        return True

    def _claim(self, entry: Waiting, demand: Demand, nodes: Sequence[int], mask: int, start: float) -> None:
        claim = claim_on(self._book.fleet, demand, nodes, mask, start or self._book.at)
        entry.last.start, entry.last.place, entry.last.mask = start, claim.nodes, mask
        if entry.last.lets is not None and start != 0.0:
            self._book.bar(claim.nodes)
            return  # a place kept for it would put off small jobs behind it
        self._ledger.claim(claim)
        if start != 0.0:
            # Slurm's main pass keeps the nodes of a waiting pinned job from later jobs: those start by backfill, late.
            self._book.bar(claim.nodes)
            self._gathering += entry.collects


def starts_now(entry: Waiting, berth: Berth) -> str:
    """Returns why a job gets a place that is free now."""
    nodes = len(berth.nodes)
    other = entry.demand.splits and nodes != entry.demand.n
    return f"it can start now on {on_nodes(nodes)}" if other else "it can start there now"
