# SPDX-License-Identifier: Apache-2.0
"""Checks what only the whole can see: berthd's pins, Slurm's jobs and the books of the nodes say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.daemon.hear.guards import AVOID_FOR, GuardWord
from policy.daemon.write.mps_faults import APART_FOR
from policy.formats import plan_fields, segment
from tests.world import checks
from tests.world.checks import ViolationError
from tests.world.cluster import ModelJob
from tests.world.nodes.invariants import read_books, stays_out
from tests.world.nodes.slurm import NodeRun

if TYPE_CHECKING:
    from tests.world.whole.world import WholeWorld

BookedTenant = tuple[str, int, int]
"""A node, a GPU by its place, and a job that is in the GPU's books."""


class WholeLaws:
    """What has to be remembered from step to step."""

    def __init__(self, world: WholeWorld) -> None:
        self._world = world
        self._pinned: dict[tuple[int, int], dict[str, str]] = {}
        """By job and requeues: the segment with which a run began."""
        self._sent_away: dict[int, tuple[str, float]] = {}
        """By guest: the node from which it was sent away last, and until when it keeps away from there."""
        self._leaving = frozenset[int]()
        """Guests that left before their guards spoke, as their GPUs are others': they may have another one there."""
        self._clock_was_set = False
        """Since the last pass: Slurm's delay after a requeue may be over at once."""
        self._shown: set[int] = set()
        self._planned: set[int] = set()
        """Those of them that a pass without trouble has seen waiting, and for whom all was written since."""

    def starts(self, job: ModelJob, was_over: bool) -> None:
        """A run begins: where its pin says, and on no node from which its guard has sent it away."""
        world = self._world
        world.met["runs"] += 1
        try:
            checks.starts_right(world.cluster, job, was_over=was_over)
        except ViolationError as problem:
            world.nodes.slurm.problems.append(str(problem))
        values = segment.fields(job.admin_comment) or {}
        self._pinned[job.id, job.restarts] = values
        if "evicted" in values and not was_over:
            world.met["guests that came back"] += 1
        node, until = self._sent_away.get(job.id, ("", 0.0))
        # Slurm itself chooses for a job that was given back to it, and its user for one that was changed.
        ours = values.get("state") in plan_fields.PINNED_STATES and not (job.touched or job.user_nodes)
        chosen = ours and job.id in self._planned
        if node in job.nodes and until > world.clock.time() and chosen:
            world.nodes.slurm.problems.append(f"job {job.id} was sent away from {node} and starts there again")

    def keeps_apart(self, run: NodeRun, user: int) -> bool:
        """Tells whether berthd knew, when it pinned a run, that a program of a user had brought MPS down."""
        planner = self._world.processes.planner
        until = planner._heard.mps_faults._until.get(user, 0.0) if planner is not None else 0.0
        return until - APART_FOR < int(self._pinned[run.job.id, run.number].get("at", "0")) < until

    def clock_set(self) -> None:
        """Nobody can tell how long a guest has kept away, and one may start again before berthd looks."""
        self._sent_away.clear()
        self._clock_was_set = True

    def waiting(self) -> set[int]:
        """The guests that were sent away and wait."""
        jobs = self._world.cluster.jobs
        return {number for number in self._sent_away if number in jobs and jobs[number].waits}

    def passed(self, waiting: set[int]) -> None:
        """A pass without trouble has seen these waiting."""
        self._clock_was_set = False
        self._shown |= waiting

    def troubled(self) -> None:
        """What was planned may never have been written."""
        self._shown.clear()

    def written(self) -> None:
        """All that passes have planned stands in Slurm's records; until then a guest keeps its old pin."""
        self._planned |= self._shown
        self._shown.clear()

    def told(self) -> None:
        """berthd is about to hear notices."""
        planner = self._world.processes.planner
        self._leaving = frozenset(planner._evictions._going) if planner is not None else frozenset()

    def answered(self, word: object, line: bytes) -> None:
        """berthd has told a guard that it sends its guest away: then the guest runs no more."""
        if not isinstance(word, GuardWord) or not word.sends_away or line != b"berth/1 done\n":
            return
        world, job = self._world, self._world.cluster.jobs.get(word.job)
        world.met[f"guests told to {word.word}"] += 1
        if job is None or word.patience is not None:
            return
        if job.state == "RUNNING" and not (job.ends_on or (self._clock_was_set and job.restarts)):
            world.nodes.slurm.problems.append(
                f"berthd says that guest {job.id} was sent away from {word.node}, and it runs"
            )
        if job.id in self._leaving:
            return
        self._shown.discard(job.id)
        self._planned.discard(job.id)
        self._sent_away[job.id] = word.node, world.clock.time() + AVOID_FOR[word.word]

    def look(self) -> None:
        """All that must hold at any moment."""
        for run in self._world.nodes.slurm.runs.values():
            if run.phase == "runs" and run.programs and run.sharing and not run.again and not run.excuse:
                self._books_agree(run)

    def _books_agree(self, run: NodeRun) -> None:
        """The books of a node say of a job's share what its pin says."""
        nodes, values = self._world.nodes, self._pinned.get((run.job.id, run.number))
        if values is None or run.job.touched or nodes.excuse(run.node):
            return
        machine = nodes.side.machines[run.node]
        books = read_books(machine)
        booked = {
            gpu.index: books[gpu.uuid][run.job.id] for gpu in machine.gpus if run.job.id in books.get(gpu.uuid, {})
        }
        out = {place for place in run.gpus if stays_out(nodes, run, machine.gpus[place].uuid)}
        if ",".join(map(str, sorted(booked.keys() | out))) != values.get("gpus"):
            raise ViolationError(
                f"job {run.job.id} is pinned to GPUs {values.get('gpus')}, and {run.node} has it on {sorted(booked)}"
            )
        for gpu, tenant in booked.items():
            # Slurm may count more for its memory. The node gives the SMs that it asked for.
            wanted = "" if "tier" in values else values.get("asked_share", values.get("share", ""))
            if (wanted and str(tenant["share"]) != wanted) or (run.guest and tenant["tier"] != "opportunistic"):
                raise ViolationError(
                    f"job {run.job.id} is pinned with share {wanted!r}, and {run.node} GPU {gpu} has it as {tenant}"
                )

    def tenants(self) -> set[BookedTenant]:
        """The tenants in the books of all nodes, but for guests: their seats are on GPUs that are others' to have."""
        found = set()
        for name, machine in self._world.nodes.side.machines.items():
            for uuid, tenants in read_books(machine).items():
                gpu = machine.gpu(uuid)
                found |= {
                    (name, gpu.index, job)
                    for job, one in tenants.items()
                    if gpu is not None and one["tier"] != "opportunistic"
                }
        return found

    def free_is_free(self, before: set[BookedTenant]) -> None:
        """A GPU that berthd shows as free after a pass has no tenant that was in its node's books all the time."""
        world = self._world
        planner = world.processes.planner
        tracker = planner._tracker if planner is not None else None
        if tracker is None:
            return
        for name, gpu, job in sorted(before & self.tenants()):
            place = tracker.fleet.index.get(name)
            if place is None or world.nodes.excuse(name) or self._ends(job, name):
                continue
            if int(tracker._gpus[place, 0]) >> gpu & 1:
                raise ViolationError(f"berthd shows GPU {gpu} of {name} as free, and job {job} is in its books")

    def _ends(self, number: int, node: str) -> bool:
        """Tells whether a job's Epilog on a node has yet to come to its end."""
        run = self._world.nodes.slurm.runs.get((number, node))
        return run is not None and (run.phase in {"ends", "epilog"} or run.prolog is not None)
