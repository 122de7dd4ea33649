# SPDX-License-Identifier: Apache-2.0
"""Packed jobs that wait: where they move, when they ask for a part of a GPU, and what never happens on one."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.daemon.write.pins import Pins
from policy.formats import segment
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.placement.berth import BerthPolicy
from policy.plan.answer.told import moved
from policy.plan.jobs.waiting_jobs import nodes_avoided
from policy.plan.ledger.changes import Change, Move, Release, parts_given_up
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from policy.request.settings import Settings, Sharing
from policy.slurm.interface import Pin
from tests.unit.deciding import decide
from tests.unit.policy_world import NONCE, NOW, reading, running, submit, waiting
from tests.unit.share_world import GPU_MIB, book, fleet, node, packed, packed_waiting

WHOLE = {"share": 0, "segment": {"whole": "1"}}
"""A packed job whose pin asks for its GPU whole, until its part of it is free."""


def replan(nodes: list[NodeFacts], jobs: list[JobFacts], plan: Plan | None = None, at: float = NOW) -> list[Change]:
    look = reading(nodes, jobs, at=at)
    tracker = Tracker(fleet(look))
    tracker.update(look)
    return (plan or Plan(BerthPolicy(), Settings())).replan(tracker.book(), look.jobs)


def moves(changes: list[Change] | None) -> list[Move]:
    return [change for change in changes or () if isinstance(change, Move)]


def test_a_packed_job_stays_where_it_can_start() -> None:
    jobs = [packed(1, "n1", 0, 30), packed_waiting(5, "n1", 0, 70)]

    assert replan([node("n1", shared=(30,)), node("n2")], jobs) == []


def test_what_is_left_of_an_array_is_behind_its_own_tasks() -> None:
    """So Slurm has it: were it before them, Slurm would keep its part free for one of them, and neither would start."""
    tasks = [packed_waiting(50 + task, "n1", 0, 30, array=50, task=task) for task in (2, 3, 4)]
    rest = packed_waiting(50, "n1", 0, 30, array=50, tasks="1", state="ARRAY")
    others = running(9, "n1", 0xFE, 9_000)

    [move] = moves(replan([node("n1", used=0xFE)], [others, rest, *tasks]))

    assert (move.job.id, move.reason) == (50, "its part of them is not free any more")


def test_it_moves_to_where_its_part_is_free_now() -> None:
    full = [
        running(9, "n1", 0xFE, 9_000),
        packed(1, "n1", 0, 50),
        packed(2, "n2", 3, 40),
        running(8, "n2", 0xF7, 9_000),
    ]
    nodes = [node("n1", used=0xFE, shared=(50,)), node("n2", used=0xF7, shared=(0, 0, 0, 40))]

    [move] = moves(replan(nodes, [*full, packed_waiting(5, "n1", 0, 60, **WHOLE)]))

    assert (move.berth.names, move.berth.gpus, move.start) == (("n2",), (3,), 0.0)
    values = moved(move, NOW)
    assert (values.texts["share"], values.texts["seats"], "whole" in values.texts) == ("60", "0", False)


def test_until_its_part_is_free_it_asks_for_the_gpu_whole() -> None:
    # The other user's job leaves 70 %: Slurm would start it there at once.
    nodes = [node("n1", used=0xFE, shared=(30,))]
    jobs = [running(9, "n1", 0xFE, 9_000), packed(1, "n1", 0, 30, 500, user=7), packed_waiting(5, "n1", 0, 50)]

    [move] = moves(replan(nodes, jobs))

    assert (move.berth.gpus, move.start) == ((0,), NOW + 500)
    assert (moved(move, NOW).texts["whole"], moved(move, NOW).texts["seats"]) == ("1", "1")


def test_when_its_part_comes_free_it_asks_for_just_that() -> None:
    nodes = [node("n1", used=0xFE, shared=(30,))]
    jobs = [running(9, "n1", 0xFE, 9_000), packed(1, "n1", 0, 30), packed_waiting(5, "n1", 0, 50, **WHOLE)]

    [move] = moves(replan(nodes, jobs))

    assert (move.berth.gpus, move.start, moved(move, NOW).texts["seats"]) == ((0,), 0.0, "0")


@pytest.mark.parametrize("reason", ["Dependency", "JobHeldUser", "QOSMaxJobsPerUserLimit"])
def test_one_that_may_not_start_yet_asks_for_the_gpu_whole(reason: str) -> None:
    [move] = moves(replan([node("n1")], [packed_waiting(5, "n1", 0, 50, reason=reason)]))

    assert (move.berth.gpus, move.start > 0) == ((0,), True)
    assert replan([node("n1")], [packed_waiting(5, "n1", 0, 50, reason=reason, **WHOLE)]) == []


@pytest.mark.parametrize(("seconds", "asks"), [(60, False), (4, False), (3, True), (0, True)])
def test_one_that_begins_at_a_time_asks_for_its_part_before_slurm_starts_it(seconds: int, asks: bool) -> None:
    """A job that was put back into the queue begins two minutes later, on a GPU that is wholly free by then."""
    job = packed_waiting(5, "n1", 0, 50, reason="BeginTime", begin=int(NOW) + seconds, **WHOLE)

    found = moves(replan([node("n1")], [job]))

    assert [(move.berth.gpus, move.start, moved(move, NOW).texts["seats"]) for move in found] == [
        ((0,), 0.0, "0")
    ] * asks


def test_what_was_planned_is_not_written_again_before_slurm_shows_it() -> None:
    plan = Plan(BerthPolicy(), Settings())
    nodes = [node("n1", used=0xFE, shared=(30,))]
    jobs = [running(9, "n1", 0xFE, 9_000), packed(1, "n1", 0, 30), packed_waiting(5, "n1", 0, 50, **WHOLE)]
    look = reading(nodes, jobs)
    tracker = Tracker(fleet(look))
    tracker.update(look)

    assert len(plan.replan(tracker.book(), look.jobs)) == 1
    assert plan.replan(tracker.book(), look.jobs) == []


def test_whose_part_is_not_free_any_more_is_told_once() -> None:
    plan = Plan(BerthPolicy(), Settings())
    rest = packed_waiting(50, "n1", 0, 30, array=50, tasks="1", state="ARRAY")
    tasks = [packed_waiting(50 + task, "n1", 0, 30, array=50, task=task) for task in (2, 3, 4)]
    look = reading([node("n1", used=0xFE)], [running(9, "n1", 0xFE, 9_000), rest, *tasks])
    tracker = Tracker(fleet(look))
    tracker.update(look)

    assert [move.reason for move in moves(plan.replan(tracker.book(), look.jobs))] == [
        "its part of them is not free any more"
    ]
    assert plan.replan(tracker.book(), look.jobs) == []


def test_who_must_not_start_any_more_is_told_before_another_gets_its_place() -> None:
    nodes = [node("n1", used=0xFE)]
    jobs = [
        running(9, "n1", 0xFE, 9_000),
        packed_waiting(5, "n1", 0, 50, priority=1, user=7),
        packed_waiting(6, "n1", 0, 50, priority=9, **WHOLE),
    ]

    changes = moves(replan(nodes, jobs))

    assert [(move.job.id, move.start > 0) for move in changes] == [(5, True), (6, False)]


def test_who_moves_aside_is_written_before_who_comes() -> None:
    # Job 6 comes first in line and takes the place of job 5, which goes to the other GPU.
    nodes = [node("n1", used=0xFC)]
    jobs = [
        packed_waiting(5, "n1", 0, 50, priority=1, user=7),
        packed_waiting(6, "n1", 0, 50, priority=9, share=0, segment={"whole": "1"}),
    ]

    changes = moves(replan(nodes, [*jobs, running(9, "n1", 0xFC, 9_000)]))

    assert [(move.job.id, move.berth.gpus) for move in changes] == [(5, (1,)), (6, (0,))]


def given_back() -> tuple[list[NodeFacts], list[JobFacts], list[Change]]:
    """Job 6 takes the place of job 5, which is not pinned ahead: its site lets Slurm preempt."""
    nodes = [node("n1", used=0xFE)]
    jobs = [
        running(9, "n1", 0xFE, 9_000),
        packed_waiting(5, "n1", 0, 50, priority=1, user=7),
        packed_waiting(6, "n1", 0, 50, priority=9, **WHOLE),
    ]
    return nodes, jobs, replan(nodes, jobs, Plan(BerthPolicy(), Settings(pin_ahead=False)))


def test_who_is_given_back_is_told_before_another_gets_its_place() -> None:
    changes = given_back()[2]
    assert [(type(one), one.job.id) for one in changes] == [(Release, 5), (Move, 6)]
    assert parts_given_up(changes) == {"n1": 1}


def test_who_moves_gives_its_part_up_and_who_asks_for_whole_gpus_has_none() -> None:
    assert parts_given_up(replan([node("n1", used=0xFE), node("n2")], [
        running(9, "n1", 0xFE, 9_000),
        packed(7, "n1", 0, 60),
        packed_waiting(5, "n1", 0, 50, priority=1),
        packed_waiting(6, "n1", 0, 50, **WHOLE),
    ])) == {"n1": 1}  # fmt: skip


def test_an_ended_packed_job_gives_its_part_to_the_first_that_it_helps() -> None:
    nodes = [node("n1", used=0xFE, shared=(90,))]
    jobs = [
        *(running(9, "n1", 0xFE, 9_000), packed(1, "n1", 0, 40), packed(2, "n1", 0, 50)),
        packed_waiting(5, "n1", 0, 70, priority=9, **WHOLE),
        # It ends before the first in line can start.
        packed_waiting(6, "n1", 0, 40, priority=5, limit=600, **WHOLE),
        waiting(7, "n1", 0b1, priority=2),
    ]
    look = reading(nodes, jobs)
    tracker = Tracker(fleet(look))
    tracker.update(look)
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(tracker.book(), look.jobs)

    # As the Epilog says, before any reading shows it.
    assert tracker.end(1, "n1")
    changes = moves(plan.freed(tracker, [0], look.jobs))

    assert [(move.job.id, move.start) for move in changes] == [(6, 0.0)]
    assert tracker.end(2, "n1")
    assert tracker.book().cluster.gpus_now[0] == 0b1


def test_why_a_packed_job_waits_speaks_of_its_part() -> None:
    nodes = [node("n1", used=0xFE, shared=(90,))]
    look = reading(
        nodes, [running(9, "n1", 0xFE, 9_000), packed(1, "n1", 0, 90), packed_waiting(5, "n1", 0, 30, **WHOLE)]
    )
    tracker = Tracker(fleet(look))
    tracker.update(look)
    plan = Plan(BerthPolicy(), Settings())
    plan.replan(tracker.book(), look.jobs)
    assert plan.book is not None

    reason = why(plan.queue[0], plan.book, tracker.book(), BerthPolicy())

    assert reason is not None
    assert (reason.kind, "30 %" in reason.text) == ("capacity", True)


def test_one_that_could_not_have_its_share_leaves_before_it_may_start_again() -> None:
    # Slurm would start it with the pin that it has then.
    sent_away = {"degraded": "1", "avoids": f"n1@{int(NOW) + 600}"}
    job = packed_waiting(5, "n1", 0, 30, segment=sent_away, reason="BeginTime", begin=int(NOW) + 100)
    nodes = [node("n1"), node("n2")]
    [move] = moves(replan(nodes, [job]))
    assert move.berth.names == ("n2",)


def test_a_node_that_failed_a_job_is_avoided_for_a_time() -> None:
    plan = Plan(BerthPolicy(), Settings())
    job = packed_waiting(5, "n1", 0, 30, segment={"avoids": f"n1@{int(NOW) + 60}"})
    nodes = [node("n1"), node("n2", used=0xFF)]

    # Nowhere else to go: it must not start there.
    assert moves(replan(nodes, [job, running(9, "n2", 0xFF, 9_000)], plan, NOW))[0].berth.names == ("n2",)
    [move] = moves(replan([node("n1"), node("n2")], [job]))
    assert (move.berth.names, move.start) == (("n2",), 0.0)
    assert nodes_avoided(job.known, NOW + 61) == {}
    assert replan([node("n1"), node("n2")], [job], plan, NOW + 61) == []


# Writing


@dataclass
class Gateway:
    """Takes pins down; Slurm has started some jobs meanwhile."""

    started: frozenset[int] = frozenset()
    pins: list[tuple[int, Pin]] = field(default_factory=list)

    def pin(self, job_id: int, pin: Pin, *, hurry: bool) -> None:
        assert not hurry, "no Epilog waits"
        if job_id in self.started:
            raise SlurmError(f"job {job_id} is running")
        self.pins.append((job_id, pin))

    def release(self, job_id: int, _: str, **__: object) -> bool:
        if job_id in self.started:
            raise SlurmError(f"job {job_id} is running")
        return True


def write(changes: list[Change], look: Reading, *started: int) -> tuple[list[tuple[int, Pin]], list[int]]:
    gateway = Gateway(frozenset(started))
    failed = Pins(gateway, None).write(changes, look)  # type: ignore[arg-type]
    return gateway.pins, failed


def test_nobody_is_put_beside_a_job_that_started_when_it_should_not() -> None:
    nodes = [node("n1", used=0xFE)]
    jobs = [
        running(9, "n1", 0xFE, 9_000),
        packed_waiting(5, "n1", 0, 50, priority=1, user=7),
        packed_waiting(6, "n1", 0, 50, priority=9, **WHOLE),
    ]
    changes = replan(nodes, jobs)

    assert write(changes, reading(nodes, jobs), 5) == ([], [5, 6])
    written, failed = write(changes, reading(nodes, jobs))
    assert [(job_id, pin.share, pin.seats) for job_id, pin in written] == [(5, 0, True), (6, 50, False)]
    assert failed == []


def test_nor_beside_one_that_could_not_be_given_back() -> None:
    nodes, jobs, changes = given_back()
    assert write(changes, reading(nodes, jobs), 5) == ([], [5, 6])


# Whatever comes, in whatever order: a small Slurm that starts what it may by its own rules, which are percent only.


OPEN = {"n1": 0b11, "n2": 0b1}
"""The GPUs that are not in other hands for ever."""


@dataclass
class World:
    """A Slurm that counts percent, and a Berth that knows users and memory."""

    sharing: Sharing
    jobs: dict[int, JobFacts] = field(default_factory=dict)
    at: float = NOW
    cpus: int = 32
    kept_out: set[str] = field(default_factory=set)
    """As in Pins: nodes with a packed job that started before it could be taken away from there."""

    def __post_init__(self) -> None:
        self.plan = Plan(BerthPolicy(), Settings(sharing=self.sharing))
        look = self.read()
        self.fleet = fleet(look, self.sharing)
        self.tracker = Tracker(self.fleet)

    def held(self, name: str) -> list[JobFacts]:
        return [job for job in self.jobs.values() if job.state == "RUNNING" and name in job.nodes]

    def nodes(self) -> list[NodeFacts]:
        found = []
        for name, free in OPEN.items():
            here, shared, used = self.held(name), [0] * 8, 0xFF & ~free
            for job in here:
                used |= job.gpus or 0
                for gpu in range(8):
                    shared[gpu] += job.share if (job.gpus or 0) >> gpu & 1 else 0
            parts = tuple(shared) if any(shared) else ()
            found.append(node(name, used=used, shared=parts, cpus_used=len(here), mem_used=100 * len(here)))
        return found

    def read(self) -> Reading:
        return reading(self.nodes(), list(self.jobs.values()), at=self.at)

    def submit(
        self, percent: int, mem: int, user: int, k: int, minutes: int, priority: int, *, may_start: bool
    ) -> None:
        self.replan()
        assert self.plan.book is not None
        flags = {"flag.gpu-share": str(percent)} if percent else {}
        if percent and mem:
            flags["flag.gpu-mem"] = f"{mem}M"
        asked = {"tres_per_job": f"gres/gpu:{k}", "gpus": str(k), "uid": str(user), "time_limit": str(minutes)}
        held = {} if may_start else {"dependency": "1"}
        decision = decide(submit(**asked, **flags, **held), self.plan.book, BerthPolicy(), self.plan._settings, self.at)
        if decision.verb != "place":
            return
        number = len(self.jobs) + 1
        values = segment.fields(f"[berth/1 {decision.fields['segment']}]") or {}
        self.jobs[number] = waiting(
            number, decision.fields["nodes"], sum(1 << int(gpu) for gpu in decision.fields["gpus"].split(",")),
            user=user, share=int(decision.fields.get("share", "0")), limit=minutes * 60, priority=priority,
            reason="Resources" if may_start else "Dependency", submitted=int(self.at),
        )  # fmt: skip
        self.jobs[number] = replace(self.jobs[number], plan=JobPlan({**values, "id": NONCE}))

    def replan(self) -> None:
        look = self.read()
        self.tracker.update(look)
        self.kept_out.clear()
        for change in self.plan.replan(self.tracker.book(), look.jobs):
            if isinstance(change, Move):
                self.obey(change)
            else:
                # It asks for its GPUs whole from now on, wherever Slurm likes.
                self.jobs[change.job.id] = replace(change.job, state="COMPLETED")
        self.start()

    def obey(self, move: Move) -> None:
        job = self.jobs[move.job.id]
        values = moved(move, self.at)
        share = 0 if "whole" in values.texts else int(values.texts.get("share", "0"))
        if job.state != "PENDING" or (share and not self.kept_out.isdisjoint(move.berth.names)):
            if move.job.share:
                self.kept_out.update(move.job.required)
            self.plan.reread(job.id)
            return
        self.jobs[job.id] = replace(job, required=move.berth.names, gpus=move.berth.mask, share=share, plan=values)
        self.start()

    def start(self) -> None:
        """Slurm starts what its own books allow, in its order."""
        for job in sorted(self.jobs.values(), key=lambda one: (-one.priority, one.id)):
            if job.state != "PENDING" or job.reason == "Dependency":
                continue
            [name] = job.required
            if self.room(name, job):
                end = int(self.at) + (job.limit or 0)
                self.jobs[job.id] = replace(job, state="RUNNING", nodes=(name,), start=int(self.at), end=end)
        self.check()

    def room(self, name: str, job: JobFacts) -> bool:
        for gpu in range(8):
            if not (job.gpus or 0) >> gpu & 1:
                continue
            others = [other.share for other in self.held(name) if (other.gpus or 0) >> gpu & 1]
            if not OPEN[name] >> gpu & 1 or 0 in others or (others and not job.share) or sum(others) + job.share > 100:
                return False
        return True

    def end(self, number: int, *, notice: bool) -> None:
        running_jobs = [job for job in self.jobs.values() if job.state == "RUNNING"]
        if not running_jobs:
            return
        job = running_jobs[number % len(running_jobs)]
        look = self.read()
        if notice and self.plan.book is not None:
            self.tracker.update(look)
            self.tracker.end(job.id, job.nodes[0])
            self.kept_out.clear()
        self.jobs[job.id] = replace(job, state="COMPLETED")
        if notice and self.plan.book is not None:
            self.start()
            place = self.fleet.index[job.nodes[0]]
            # As berthd: by the reading that the snapshot was made of, whatever Slurm has started since.
            for change in moves(self.plan.freed(self.tracker, [place], look.jobs)):
                self.obey(change)
        self.start()

    def hold(self, number: int) -> None:
        if waits := [job for job in self.jobs.values() if job.state == "PENDING"]:
            job = waits[number % len(waits)]
            self.jobs[job.id] = replace(job, reason="Dependency")

    def release(self) -> None:
        for job in self.jobs.values():
            if job.reason == "Dependency":
                self.jobs[job.id] = replace(job, reason="Resources")

    def check(self) -> None:
        for name in OPEN:
            for gpu in range(2):
                here = [job for job in self.held(name) if (job.gpus or 0) >> gpu & 1]
                packed_here = [job for job in here if job.share]
                assert len(here) <= 1 or len(packed_here) == len(here), "a whole-GPU job beside another"
                assert sum(job.share for job in packed_here) <= 100
                granted = [job.known.texts.get("gpu_mem") for job in packed_here]
                room = GPU_MIB - self.sharing.gpu_mem_reserve
                total = sum(
                    int(asked) if asked else room * job.share // 100
                    for asked, job in zip(granted, packed_here, strict=True)
                )
                assert total <= room, "the memory of a GPU was promised twice"
                if not self.sharing.mixes_users:
                    assert len({job.user for job in packed_here}) <= 1, "two users on one GPU"
                assert len({job.gpus for job in packed_here}) <= 1, "two sets of GPUs, so two MPS daemons, on one"


submits = st.tuples(
    st.just("submit"), st.sampled_from([0, 10, 30, 30, 50, 50, 70, 100]), st.sampled_from([0, 0, 500, 4_000, 12_000]),
    st.sampled_from([7, 8]), st.sampled_from([1, 1, 1, 2]), st.sampled_from([5, 60]), st.booleans(), st.integers(1, 9),
)  # fmt: skip
others = st.one_of(
    st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("replan")),
    st.tuples(st.just("later"), st.sampled_from([1, 100, 2_000])),
    st.tuples(st.just("slurm")),
    st.tuples(st.just("hold"), st.integers(0, 9)),
    st.tuples(st.just("release")),
)
steps = st.one_of(submits, submits, others, others)


@settings(deadline=None)
@given(history=st.lists(steps, min_size=10, max_size=60), mixed=st.booleans())
@example(
    # A job starts between the reading and the notice, and the place of it is still its own.
    history=[
        ("submit", 0, 0, 7, 1, 5, False, 1),
        ("submit", 0, 0, 7, 1, 5, True, 1),
        ("submit", 10, 0, 7, 1, 5, False, 2),
        ("end", 0, False),
        *[("submit", 0, 0, 7, 1, 5, False, 1)] * 3,
        ("submit", 10, 0, 8, 2, 5, False, 3),
        ("release",),
        ("submit", 10, 0, 8, 2, 5, True, 1),
        ("end", 1, True),
    ],
    mixed=False,
)
def test_whatever_comes_nobody_gets_what_is_anothers(history: list[tuple[object, ...]], mixed: bool) -> None:
    world = World(Sharing(multi_user=mixed))
    for step in history:
        match step:
            case ("submit", int(percent), int(mem), int(user), int(k), int(minutes), bool(may_start), int(priority)):
                world.submit(percent, mem, user, k, minutes, priority, may_start=may_start)
            case ("slurm",):
                world.start()
            case ("hold", int(number)):
                world.hold(number)
            case ("end", int(number), bool(notice)):
                world.end(number, notice=notice)
            case ("replan",):
                world.replan()
            case ("later", int(seconds)):
                world.at += seconds
            case ("release",):
                world.release()
    # In the end all get their turn.
    for _ in range(200):
        world.release()
        world.replan()
        if all(job.state == "COMPLETED" for job in world.jobs.values()):
            return
        world.end(0, notice=False)
        world.at += 10
    raise AssertionError([job for job in world.jobs.values() if job.state != "COMPLETED"])


def test_a_book_of_one_reading_knows_its_tenants() -> None:
    opened = book([node("n1", shared=(30,))], [packed(1, "n1", 0, 30)])

    assert [(one.percent, one.party) for one in opened.cluster.tenants[0]] == [(30, 1_000)]
