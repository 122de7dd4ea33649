# SPDX-License-Identifier: Apache-2.0
"""Jobs of berthd's plan that let others go first: which, for how long at most, and where none does."""

from dataclasses import replace

import pytest

from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts
from policy.placement.berth import BerthPolicy
from policy.plan.jobs.promise import SLACK
from policy.plan.jobs.roll_out import QueuedJob, RoomAhead
from policy.plan.ledger.changes import Change, Move
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions import others_first
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import why
from policy.request.demand import A_YEAR
from policy.request.settings import Settings
from tests.unit.policy_world import NOW, fleet, memory_of, node, reading, running, waiting

FULL = 0xFF
HOUR = 3_600
EXPECTED = 0.3 * 0.02 + 0.4 * 0.3 + 0.3
"""Part of its limit for which a job is expected to run without any history."""
RAN = round(EXPECTED * 40 * HOUR) - 360
"""Seconds that the job on n2 has run."""
SMALL, GANG = 5, 4
ON = Settings()
MOST = SLACK * 0.3 * 20 * HOUR
"""Seconds for which the small job may wait: plain Slurm would start it at once, so it is promised that."""


class World:
    """n1 is free, and n2 is expected to be in six minutes, by its job's limit in 28 hours.

    A short job waits for both nodes; behind it a long one on one GPU could start on n1, and be gone in 20 hours.
    """

    def __init__(self, settings: Settings | None = None, pinned: str = "n2", limit: int = 20 * HOUR) -> None:
        gang = waiting(
            GANG, "n1", FULL, limit=60, priority=10, count=2, required=("n1", "n2"),
            segment={"n": "2", "nodes": "n1,n2"},
        )  # fmt: skip
        self.jobs = [
            running(1, "n2", FULL, 40 * HOUR - RAN, limit=40 * HOUR, start=int(NOW) - RAN, holds=(FULL,)),
            waiting(SMALL, pinned, 1, limit=limit, priority=9),
            gang,
        ]
        self.nodes = [node("n1"), node("n2", used=FULL)]
        self.plan = Plan(BerthPolicy(), settings or ON)
        self.fleet = fleet(reading(self.nodes))
        self.tracker = Tracker(self.fleet)

    def replan(self, at: float = NOW) -> list[Change]:
        look = reading(self.nodes, self.jobs, at=at)
        self.tracker.update(look)
        return self.plan.replan(self.tracker.book(), look.jobs)

    def start_of_small(self) -> float | None:
        return next(entry.last.start for entry in self.plan.queue if entry.job.id == SMALL)


def moves_of(changes: list[Change], job: int = SMALL) -> list[Move]:
    return [change for change in changes if isinstance(change, Move) and change.job.id == job]


def test_a_long_small_job_keeps_its_later_place_for_a_short_gang() -> None:
    world = World()
    assert moves_of(world.replan()) == []
    assert world.start_of_small() != 0.0


@pytest.mark.parametrize("pinned", ["n1", "n2"])
def test_the_later_place_of_a_job_that_lets_others_go_first_bars_nobody(pinned: str) -> None:
    world = World(pinned=pinned)
    world.replan()
    [entry] = [entry for entry in world.plan.queue if entry.job.id == SMALL]
    assert world.plan.book is not None
    assert entry.last.start
    assert world.plan.book.start_of(entry.demand, entry.last.place, entry.last.mask) == entry.last.start


def test_a_job_whose_place_has_come_free_is_pinned_to_a_later_one() -> None:
    [move] = moves_of((world := World(pinned="n1")).replan())
    assert move.berth.names == ("n2",)
    assert move.start > NOW
    assert move.reason == "it lets others go first"
    assert world.start_of_small() == move.start


@pytest.mark.parametrize("pinned", ["n1", "n2"])
def test_no_job_waits_where_the_site_turns_it_off(pinned: str) -> None:
    world = World(Settings(look_ahead=False), pinned)
    moves = moves_of(world.replan())
    assert [move.berth.names for move in moves] == ([] if pinned == "n1" else [("n1",)])
    assert world.start_of_small() == 0.0


def test_it_needs_pins_to_later_places() -> None:
    assert (world := World(replace(ON, pin_ahead=False), "n1")).replan() is not None
    assert world.start_of_small() == 0.0


@pytest.mark.parametrize("in_a_hole", [False, True])
def test_a_job_keeps_its_hole_in_the_plan_where_it_could_not_get_it_again(*, in_a_hole: bool) -> None:
    """A short job would hold n1 for 20 minutes at most. Then the long one would reach into the gang's time."""
    world = World()
    gang = replace(world.jobs[-1], priority=10 if in_a_hole else 1)
    world.jobs = [
        running(1, "n2", FULL, 24 * HOUR, limit=24 * HOUR, start=int(NOW), holds=(FULL,)),
        waiting(SMALL, "n2", FULL, limit=85_680, priority=9),
        waiting(6, "n2", FULL, limit=1_200, priority=8),
        gang,
    ]
    world.replan()

    assert (world.start_of_small() == 0.0) == in_a_hole


def test_a_short_job_starts() -> None:
    world = World(limit=60)
    [move] = moves_of(world.replan())
    assert move.start == 0.0


def test_it_ends_when_the_job_could_not_start_by_its_promise_any_more() -> None:
    world = World()
    world.replan()
    promise = memory_of(world.plan, others_first.OthersFirst)[SMALL].promise
    assert (promise.start, promise.latest) == (NOW, NOW + MOST)
    # The job on n2 is expected to end in six minutes, as before: with the gang's minute, that is too late in the end.
    for at, starts in ((NOW + 60, []), (NOW + MOST - 360, [0.0])):
        world.jobs[0] = replace(world.jobs[0], start=int(at) - RAN, end=int(at) + 40 * HOUR - RAN)
        assert [move.start for move in moves_of(world.replan(at))] == starts
    assert memory_of(world.plan, others_first.OthersFirst)[SMALL].promise == promise


def test_a_job_whose_request_changes_is_promised_another_start() -> None:
    world = World()
    world.replan()
    world.jobs[1] = replace(world.jobs[1], limit=30 * HOUR)
    world.replan(NOW + 60)
    promise = memory_of(world.plan, others_first.OthersFirst)[SMALL].promise
    # It would now keep n1 from the gang, which is planned there at the limit of the job on n2.
    assert promise.start == NOW + 40 * HOUR - RAN + 60


def test_a_job_that_was_let_go_is_not_called_back() -> None:
    world = World(limit=60)
    [move] = moves_of(world.replan())
    small = world.jobs[1]
    segment = {**small.known.texts, "nodes": "n1", "gpus": "0"}
    world.jobs[1] = replace(small, required=("n1",), gpus=move.berth.mask, limit=20 * HOUR, plan=JobPlan(segment))
    assert moves_of(world.replan(NOW + 1)) == []
    assert world.start_of_small() == 0.0


@pytest.mark.parametrize(("user", "starts"), [(0, []), (7, [0.0])])
def test_equal_jobs_keep_their_order_whatever_the_roll_out_says_of_each(
    monkeypatch: pytest.MonkeyPatch, user: int, starts: list[float]
) -> None:
    def gain(_: RoomAhead, job: QueuedJob, *__: object) -> float:
        return float(job.number == SMALL)

    monkeypatch.setattr(RoomAhead, "gain_of_waiting", gain)
    world = World()
    world.jobs.append(waiting(6, "n2", 2, limit=20 * HOUR, priority=8, user=user))
    changes = world.replan()
    assert moves_of(changes) == []
    assert [move.start for move in moves_of(changes, 6)] == starts


def test_a_job_for_which_room_was_made_starts() -> None:
    world = World()
    world.plan.first = frozenset({SMALL})
    [move] = moves_of(world.replan())
    assert move.start == 0.0


@pytest.mark.parametrize("bound", ["MOST_RUNNING", "MOST_LOOKS", "MOST_NODES", "FEW_NODES"])
def test_beyond_its_bounds_nobody_waits(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(others_first, bound, 0)
    [move] = moves_of(World().replan())
    assert move.start == 0.0


def test_on_many_nodes_jobs_are_promised_a_start_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others_first, "FEW_NODES", 1)
    world = World()
    world.replan()
    promises = {entry.job.id: entry.last.promise for entry in world.plan.queue}
    assert promises[SMALL] is not None
    assert promises[GANG] is not None


def test_what_ended_jobs_ran_for_counts_more_than_the_limit() -> None:
    """Jobs like the small one have run a few seconds each, so it starts."""
    world = World()
    for at in range(0, 30, 10):
        short = [running(20 + gpu, "n1", 1 << gpu, HOUR, limit=20 * HOUR, holds=(1 << gpu,)) for gpu in range(1, 8)]
        begun = [replace(job, id=job.id + 10 * at, start=int(NOW) + at) for job in short]
        world.nodes[0] = node("n1", used=FULL - 1)
        world.jobs = [*world.jobs[:3], *begun]
        world.replan(NOW + at)
        world.nodes[0] = node("n1")
        world.jobs = [world.jobs[0], replace(world.jobs[1]), world.jobs[2]]
        moves = moves_of(world.replan(NOW + at + 5))
    assert [move.start for move in moves] == [0.0]


def test_when_a_node_is_freed_the_rest_of_the_plan_holds() -> None:
    world = World()
    world.replan()
    changes = world.plan.freed(world.tracker, {0}, world.jobs)
    assert changes is not None
    assert moves_of(changes) == []


@pytest.mark.parametrize("whole", [True, False])
def test_a_gang_whose_last_node_is_freed_lets_short_jobs_go_first(whole: bool) -> None:
    """n1 is kept free for it already. The jobs behind it need one node each, and are soon done."""
    ends = running(1, "n2", FULL, HOUR, limit=HOUR, start=int(NOW) - 60, holds=(FULL,))
    others = [
        running(2 + one, f"n{3 + one}", FULL, 40 * HOUR - RAN, limit=40 * HOUR, start=int(NOW) - RAN, holds=(FULL,))
        for one in range(2)
    ]
    gang = waiting(
        GANG, "n1", FULL, limit=20 * HOUR, priority=10, count=2, required=("n1", "n2"),
        segment={"n": "2", "nodes": "n1,n2"},
    )  # fmt: skip
    short = [waiting(10 + one, "n2", FULL, limit=HOUR + 60, priority=5) for one in range(2)]
    world = World()
    world.nodes = [node("n1"), *(node(f"n{place}", used=FULL) for place in (2, 3, 4))]
    world.jobs, world.fleet = [ends, *others, gang, *short], fleet(reading(world.nodes))
    world.tracker = Tracker(world.fleet)
    world.replan()
    freed = world.tracker.end(1, "n2")
    if whole:
        changes: list[Change] | None = world.plan.replan(world.tracker.book(), world.jobs)
    else:
        changes = world.plan.freed(world.tracker, freed, world.jobs)
    assert [move.berth.names for move in moves_of(changes or [], GANG)] == [("n3", "n4")]


@pytest.mark.parametrize("job", [{"het": 3}, {"array": 9, "tasks": "1-3"}, {"limit": None}, {"limit": A_YEAR}])
def test_jobs_of_other_kinds_never_wait_for_it(job: dict[str, object]) -> None:
    world = World()
    world.jobs[1] = replace(world.jobs[1], **job)  # type: ignore[arg-type]
    world.replan()
    [entry] = [entry for entry in world.plan.queue if entry.job.id == SMALL]
    assert entry.last.lets is None


def test_a_restart_of_berthd_promises_anew_what_plain_slurm_would_plan_then() -> None:
    world = World()
    world.replan()
    world.plan = Plan(BerthPolicy(), ON)
    world.replan(NOW + 60)
    promise = memory_of(world.plan, others_first.OthersFirst)[SMALL].promise
    assert (promise.start, promise.latest) == (NOW + 60, NOW + 60 + MOST)


def test_berth_why_says_for_how_long_at_most() -> None:
    world = World()
    world.replan()
    [entry] = [entry for entry in world.plan.queue if entry.job.id == SMALL]
    assert world.plan.book is not None
    reason = why(entry, world.plan.book, world.tracker.book(), BerthPolicy())
    assert reason is not None
    assert (reason.kind, reason.number) == ("fair_share", 517)
    assert f"lets others go first for {MOST:.0f} s more at most" in reason.text


def test_the_looks_of_a_pass_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that would take more looks starts as if there were no roll-out."""
    monkeypatch.setattr(others_first, "MOST_LOOKS", 3)
    [move] = moves_of(World().replan())
    assert move.start == 0.0


def others(number: int) -> list[JobFacts]:
    """Returns jobs that wait for both nodes."""
    return [
        waiting(
            100 + place, "n1", FULL, limit=60, priority=11, count=2, required=("n1", "n2"),
            segment={"n": "2", "nodes": "n1,n2"},
        )
        for place in range(number)
    ]  # fmt: skip


def test_no_job_waits_behind_more_than_its_promise_allows() -> None:
    """Behind so many gangs the small job would end later than it accepts."""
    world = World(limit=HOUR)
    world.jobs += others(60)
    [move] = moves_of(world.replan())
    assert move.start == 0.0


@pytest.mark.parametrize(
    "held",
    [
        {"reason": "JobHeldUser"},
        {"reason": "Dependency"},
        {"reason": "BeginTime", "begin": int(NOW) + 90},
    ],
)
def test_a_job_that_was_held_is_promised_a_start_from_its_release_on(held: dict[str, object]) -> None:
    world = World()
    world.replan()
    waits = world.jobs[1]
    world.jobs[1] = replace(waits, **held)  # type: ignore[arg-type]
    world.replan(NOW + 60)
    world.jobs[1] = replace(waits, begin=held.get("begin"))  # type: ignore[arg-type]
    world.replan(NOW + 7_200)
    assert memory_of(world.plan, others_first.OthersFirst)[SMALL].promise.start == NOW + 7_200


@pytest.mark.parametrize(
    ("late", "happens", "count"),
    [
        (0, "", "promises_kept"),
        (60, "", "promises_late.berth"),
        (60, "node", "promises_late.node"),
        (60, "priority", "promises_late.priority"),
        (60, "end", "promises_late.end"),
    ],
)
def test_starts_are_counted_by_their_promises_and_by_what_made_them_late(late: int, happens: str, count: str) -> None:
    world = World()
    world.replan()
    start = int(NOW + MOST) + late
    if happens == "node":
        world.nodes[1] = node("n2", used=FULL, up=False)
    elif happens == "priority":
        world.jobs.append(running(9, "n1", 2, HOUR, priority=99, submitted=int(NOW) + 1, holds=(2,)))
    elif happens == "end":
        world.jobs[0] = replace(world.jobs[0], end=int(NOW) + 41 * HOUR)
    world.jobs[1] = replace(world.jobs[1], state="RUNNING", start=start, nodes=("n1",), holds=(1,))
    world.replan(start + 5)
    [opinion] = [one for one in world.plan.opinions if isinstance(one, others_first.OthersFirst)]
    assert opinion.counts == {count: 1}
