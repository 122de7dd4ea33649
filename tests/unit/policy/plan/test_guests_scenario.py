# SPDX-License-Identifier: Apache-2.0
"""Any order of events: a small Slurm that obeys its own books, and the plan in charge of who sits where."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.daemon.known.profiles import load_fit
from policy.daemon.write.evictions import evicted
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.answer.told import moved, parked
from policy.plan.ledger.changes import Evict, Move, Own, Park, Release
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.all import all_opinions
from policy.plan.opinions.guests.choosing import Chooser
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.sharing.companions import Companions
from policy.sharing.profiles import ProfileKey, Store
from tests.examples import examples
from tests.unit.company_world import ALONE
from tests.unit.guest_world import NOW, fleet, reading
from tests.unit.guest_world import node as gpu_node
from tests.unit.guest_world import parked as parked_guest
from tests.unit.policy_world import waiting

NODES = ("n1", "n2")
GPUS = 8
CPUS = 12
LATER = int(NOW) + 86_400


@dataclass
class Slurm:
    """Two nodes and their jobs; it starts what is pinned where its books have room."""

    at: float = NOW
    jobs: dict[int, JobFacts] = field(default_factory=dict)
    started: int = 0
    restarts: dict[int, int] = field(default_factory=dict)

    def submit(self, kind: str, k: int, cpus: int) -> None:
        number = len(self.jobs) + 1
        common = {"priority": 10_000 - number, "submitted": int(self.at), "limit": 600, "cpus": cpus}
        segment = {"state": "later", "k": str(k), "cpus": str(cpus), "asked": f"tres_per_job:gres/gpu:{k}"}
        if kind == "opportunistic":
            job = parked_guest(number, **common, segment={"cpus": str(cpus)})
        else:
            tier = {"guaranteed": {"tier": "guaranteed", "way": "time"}, "upgrade": {"upgrade": "0"}}.get(kind, {})
            base = waiting(number, "", 0, required=(), **common)
            job = replace(base, plan=JobPlan({**base.known.texts, **segment, **tier}))
        self.jobs[number] = replace(job, account="lab", name=("light", "heavy", "new")[number % 3])

    def nodes(self) -> list[NodeFacts]:
        found = []
        for name in NODES:
            here = [job for job in self.jobs.values() if job.state == "RUNNING" and name in job.nodes]
            gpus = sum(job.gpus or 0 for job in here if not job.guest)
            seats = sum(job.gpus or 0 for job in here if takes_seat(job))
            found.append(
                gpu_node(name, used=gpus, seats_used=seats, cpus=CPUS, cpus_used=sum(job.cpus for job in here))
            )
        return found

    def look(self) -> Reading:
        return reading(self.nodes(), [job for job in self.jobs.values() if job.state != "COMPLETED"], at=self.at)

    def start_what_can(self) -> None:
        for job in sorted(self.jobs.values(), key=lambda job: job.id):
            if job.state != "PENDING" or not job.gpus or not job.required or (job.begin or 0) > self.at:
                continue
            [here] = [one for one in self.nodes() if one.name == job.required[0]]
            seats = job.gpus if takes_seat(job) else 0
            gpus = 0 if job.guest else job.gpus
            if here.gpus_used & gpus or here.seats_used & seats or here.cpus - here.cpus_used < job.cpus:
                continue
            self.started += 1
            end = int(self.at) + 600
            held = (0,) if job.guest else (job.gpus,)
            self.jobs[job.id] = replace(
                job, state="RUNNING", nodes=job.required, start=int(self.at), end=end, holds=held, mem=100
            )

    def obey(self, change: object) -> None:
        assert not isinstance(change, Release), f"nothing is given up: {change}"
        assert isinstance(change, Move | Park | Evict | Own)
        job = self.jobs[change.job.id]
        if isinstance(change, Move):
            values = moved(change, self.at)
            self.jobs[job.id] = replace(
                job, required=change.berth.names, gpus=change.berth.mask, guest=bool(change.way), plan=values,
                reason="Resources", begin=None,
            )  # fmt: skip
        elif isinstance(change, Park):
            self.jobs[job.id] = replace(
                job, required=(), gpus=None, guest=False, plan=parked(change, self.at), reason="BeginTime",
                begin=LATER,
            )  # fmt: skip
        elif isinstance(change, Own):
            self.jobs[job.id] = replace(job, plan=JobPlan({**job.known.texts, "owns": "1"}))
        else:
            assert job.state == "RUNNING"
            assert job.guest, "only guests are sent away"
            assert "owns" not in job.known.texts, "what was given for good is not taken back"
            self.restarts[job.id] = self.restarts.get(job.id, 0) + 1
            self.jobs[job.id] = replace(
                job, state="PENDING", nodes=(), start=None, end=None, holds=(), reason="BeginTime",
                begin=int(self.at) + 120, plan=evicted(job.known, change.reason, self.at + 3, {}),
            )  # fmt: skip

    def end(self, which: int) -> None:
        running = [job for job in self.jobs.values() if job.state == "RUNNING"]
        if running:
            job = running[which % len(running)]
            self.jobs[job.id] = replace(job, state="COMPLETED")


def takes_seat(job: JobFacts) -> bool:
    return job.guest or job.known.texts.get("seats") == "1"


def check(slurm: Slurm) -> None:
    """What must hold in Slurm's books at every moment, whoever plans."""
    for name in NODES:
        here = [job for job in slurm.jobs.values() if job.state == "RUNNING" and name in job.nodes]
        for gpu in range(GPUS):
            there = [job for job in here if (job.gpus or 0) >> gpu & 1]
            owners = [job for job in there if not job.guest or "owns" in (job.known.texts)]
            guests = [job for job in there if job.guest]
            assert len(guests) <= 1
            assert len(owners) <= 1
            for guest in guests:
                assert all(one is guest or one.known.texts.get("tier") == "guaranteed" for one in owners)
    for job in slurm.jobs.values():
        assert job.state != "PENDING" or "parked" not in (job.known.texts) or job.guest or not job.required


EVENTS = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(["exclusive", "guaranteed", "opportunistic", "opportunistic", "upgrade"]),
        st.sampled_from([1, 1, 2, 4, 8]),
        st.integers(1, 4),
    ),
    st.tuples(st.just("end"), st.integers(0, 99)),
    st.tuples(st.just("pass")),
)


def by_profiles() -> Chooser:
    """Seats are chosen by what is known of jobs: of one in three light, of one heavy, of one nothing."""
    known = Store({ProfileKey("ann", "lab", name): one for name, one in ALONE.items()})
    return Chooser(Companions(known, load_fit(), lambda _: "ann"), tries=True)


@pytest.mark.parametrize("knows", [False, True])
@settings(deadline=None, max_examples=examples(100))
@given(events=st.lists(EVENTS, min_size=1, max_size=25))
def test_whatever_happens_seats_and_gpus_agree_and_owners_do_not_wait(
    knows: bool, events: list[tuple[object, ...]]
) -> None:
    slurm = Slurm()
    tracker = Tracker(fleet(slurm.look()))
    plan = Plan(BerthPolicy(), Settings(), all_opinions(Settings(), by_profiles() if knows else None))

    def one_pass() -> None:
        slurm.at += 1
        look = slurm.look()
        tracker.update(look)
        given_now: set[tuple[str, int]] = set()
        for change in plan.replan(tracker.book(), look.jobs):
            if isinstance(change, Move) and change.way:
                seat = change.berth.names[0], change.berth.mask
                assert seat not in given_now, "one seat is given once"
                given_now.add(seat)
            slurm.obey(change)
        slurm.start_what_can()
        check(slurm)

    for event in events:
        if event[0] == "submit":
            _, kind, k, cpus = event
            assert isinstance(kind, str)
            assert isinstance(k, int)
            assert isinstance(cpus, int)
            slurm.submit(kind, 1 if kind in {"opportunistic", "upgrade"} else k, cpus)
        elif event[0] == "end":
            assert isinstance(event[1], int)
            slurm.end(event[1])
            check(slurm)
        one_pass()
    for _ in range(9):
        one_pass()
    # The plan has come to rest: who could start among owners alone runs.
    look = slurm.look()
    tracker.update(look)
    assert plan.replan(tracker.book(), look.jobs) == []
    for entry in plan.queue:
        if entry.last.start == 0.0:
            assert slurm.jobs[entry.job.id].state == "RUNNING", "it looks free, and yet it waits"
