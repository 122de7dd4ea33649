# SPDX-License-Identifier: Apache-2.0
"""Jobs with profiles, and a plan that chooses seats by them."""

from dataclasses import replace

from policy.daemon.known.profiles import load_fit
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.all import all_opinions
from policy.plan.opinions.guests.choosing import Chooser, Problem
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings, Sharing
from policy.sharing.companions import Companions
from policy.sharing.matching import match
from policy.sharing.profiles import Measured, ProfileKey, Store
from tests.unit.guest_world import NOW, fleet, host, node, parked, reading, running

ALONE = {
    "light": Measured(at=NOW, runs=5, busy=0.1, bandwidth=0.04, memory=2_500.0),
    "half": Measured(at=NOW, runs=5, busy=0.4, bandwidth=0.2, memory=4_000.0),
    "heavy": Measured(at=NOW, runs=5, busy=0.95, bandwidth=0.6, memory=12_000.0),
}
FULL = 0xFF


def store() -> Store:
    """Ann's jobs, each known by its name."""
    return Store({ProfileKey("ann", "lab", name): one for name, one in ALONE.items()})


def hosts(*names: str) -> tuple[list[NodeFacts], list[JobFacts]]:
    """A node for each host, which has one GPU; the others are a job's that has them alone."""
    nodes = [node(f"n{place}", used=FULL, seats_used=0xFE) for place in range(1, len(names) + 1)]
    jobs = []
    for place, name in enumerate(names, 1):
        jobs.append(replace(host(place, f"n{place}", 0b1), account="lab", name=name))
        jobs.append(running(100 + place, f"n{place}", 0xFE, 9_000))
    return nodes, jobs


def guest(job_id: int, name: str, **changes: object) -> JobFacts:
    """A guest that waits for a seat."""
    return replace(parked(job_id, priority=1_000 - job_id, **changes), account="lab", name=name)


class World:
    """Passes over nodes and jobs, one a second; nothing that is planned ever happens."""

    def __init__(
        self, nodes: list[NodeFacts], jobs: list[JobFacts], *, tries: bool = True, known: Store | None = None,
        answers: bool = True, trials_a_day: int = 50,
    ) -> None:  # fmt: skip
        self.nodes, self.jobs, self.at = nodes, jobs, NOW
        self.asked: list[Problem] = []
        self._answers = answers
        self.companions = Companions(known or store(), load_fit(), lambda _: "ann")
        self.chooser = Chooser(self.companions, tries=tries, trials_a_day=trials_a_day)
        self.plan = Plan(BerthPolicy(), Settings(), all_opinions(Settings(), self.chooser))
        self.closed: dict[int, int] = {}

    def one_pass(self) -> list[Change]:
        look = reading(self.nodes, self.jobs, at=self.at)
        tracker = Tracker(fleet(look, Sharing()))
        tracker.closed = self.closed
        tracker.update(look)
        self.at += 1.0
        changes = self.plan.replan(tracker.book(), look.jobs)
        problem, self.chooser.problem = self.chooser.problem, None
        if problem is not None:
            self.asked.append(problem)
            if self._answers:
                self.chooser.take(match(problem.seats, problem.guests, problem.tables))
        return changes

    def seats(self) -> dict[int, Move]:
        """Who is given a seat in one pass."""
        return {one.job.id: one for one in self.one_pass() if isinstance(one, Move) and one.way}


def where(moves: dict[int, Move]) -> dict[int, str]:
    """The nodes of seats."""
    return {job: move.berth.names[0] for job, move in moves.items()}
