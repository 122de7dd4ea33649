# SPDX-License-Identifier: Apache-2.0
"""Why jobs wait, and what watching alone finds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes import explainer as explainer_module
from policy.daemon.passes.explainer import Explainer
from policy.daemon.passes.handover import Snapshot
from policy.daemon.passes.watcher import Watcher
from policy.formats import segment, wire
from policy.formats.job_plan import JobPlan, Pairs
from policy.formats.slurm_facts import AdmissionRule, JobFacts, JobText, NodeFacts, PartitionFacts, Reading, Reservation
from policy.placement.berth import BerthPolicy
from policy.plan.answer.beside import compare
from policy.plan.answer.explain import rows, sentence
from policy.plan.jobs.waiting import Waiting
from policy.plan.ledger.tracker import Tracker
from policy.plan.opinions.opinion import Reason
from policy.plan.queue.plan import Plan
from policy.plan.queue.wait_reasons import KINDS, why
from policy.plan.queue.what_helps import what_helps
from policy.request.settings import Settings
from policy.site.config import Config
from tests.unit.deciding import decide, only_watch
from tests.unit.guest_world import parked
from tests.unit.policy_world import NOW, book, fleet, node, reading, running, submit, waiting
from topology.network.blocks import Blocks
from topology.network.fabric import Fabric

POLICY = BerthPolicy()


def reason_of(nodes: list[NodeFacts], jobs: list[JobFacts], job_id: int = 5, kind: str = "h100") -> Reason | None:
    return reason_in(reading(nodes, jobs), job_id, kind)


def reason_in(look: Reading, job_id: int = 5, kind: str = "h100", fabric: Fabric | None = None) -> Reason | None:
    tracker = Tracker(fleet(look, {one.name: kind for one in look.nodes}, fabric))
    tracker.update(look)
    plan = Plan(POLICY, Settings())
    plan.replan(tracker.book(), look.jobs)
    [entry] = [entry for entry in plan.queue if entry.job.id == job_id]
    assert plan.book is not None
    return why(entry, plan.book, tracker.book(), POLICY, plan.queue)


@pytest.fixture(autouse=True)
def _a_machine_without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explainer_module, "_LONGEST", 600.0)


@pytest.mark.parametrize(("begin", "number"), [(NOW - 1, 515), (NOW + 60, 503)])
def test_a_begin_time_that_has_passed_is_no_reason(begin: float, number: int) -> None:
    """Slurm gives it as the reason until it has tried the job again."""
    waits = waiting(5, "n1", 0b11, reason="BeginTime", begin=int(begin))
    found = reason_of([node("n1", used=0xFF)], [running(1, "n1", 0xFF, 9_000), waits])
    assert found is not None
    assert found.number == number


LONG = [running(1, "n1", 0xFF, 9_000), running(2, "n2", 0xFF, 9_000)]


@pytest.mark.parametrize(
    ("nodes", "jobs", "kind", "words"),
    [
        ([node("n1", used=0xFF)], [LONG[0], waiting(5, "n1", 0b11)], "capacity", "0 GPUs are free"),
        (
            [node("n1", used=0b0111_1111), node("n2", used=0b0111_1111)],
            [running(1, "n1", 0x7F, 9_000), running(2, "n2", 0x7F, 9_000), waiting(5, "n1", 0b11)],
            "fragmentation",
            "2 GPUs are free, but no node has 2",
        ),
        (
            [node("n1", used=0x0F)],
            [running(1, "n1", 0x0F, 600), waiting(4, "n1", 0xFF, priority=9), waiting(5, "n1", 0b11 << 4)],
            "fair_share",
            "kept for a job of 8 GPUs before it",
        ),
        ([node("n1", up=False)], [waiting(5, "n1", 0b11)], "node", "down, drained or reserved"),
        ([node("n1")], [waiting(5, "n1", 0b11, reason="Dependency")], "dependency", "has to end first"),
        ([node("n1")], [waiting(5, "n1", 0b11, reason="DependencyNeverSatisfied")], "dependency", "never starts"),
        ([node("n1")], [waiting(5, "n1", 0b11, reason="QOSMaxGRESPerUser")], "fair_share", "QOSMaxGRESPerUser"),
        ([node("n1")], [waiting(5, "n1", 0b11, reason="Licenses")], "capacity", "licences"),
        (
            [node("n1")],
            [waiting(5, "n1", 0b11, reason="NvidiaImexChannels")],
            "capacity",
            "all IMEX channels are in use",
        ),
        ([node("n1")], [waiting(5, "n1", 0b11, reason="JobHeldUser")], "held", "held"),
    ],
)
def test_each_wait_has_its_reason(nodes: list[NodeFacts], jobs: list[JobFacts], kind: str, words: str) -> None:
    reason = reason_of(nodes, jobs)

    assert reason is not None
    assert reason.kind == kind
    assert kind in KINDS
    assert words in reason.text


def test_a_gang_is_told_how_many_nodes_of_one_block_are_free() -> None:
    """Five nodes are free, and two of them stand in one rack, three in the other."""
    names = [f"n{number}" for number in range(1, 9)]
    taken = ("n2", "n3", "n8")
    jobs = [running(place, name, 0xFF, 9_000) for place, name in enumerate(taken, 11)]
    needs = {"n": "4", "k": "8", "nodes": "n1,n2,n3,n4", "asked": "tres_per_node:gres/gpu:8"}
    gang = waiting(5, "n1", 0xFF, segment=needs, required=("n1", "n2", "n3", "n4"))
    look = reading([node(name, used=0xFF * (name in taken)) for name in names], [*jobs, gang])
    fabric = replace(Fabric.flat(tuple(names)), blocks=Blocks((4,), np.arange(8) // 4))

    reason = reason_in(look, fabric=fabric)

    assert reason is not None
    assert (reason.kind, reason.text) == (
        "fragmentation",
        "40 GPUs are free, but Slurm's blocks join at most 3 nodes for one job that are free, it needs 4",
    )


def test_a_wait_for_a_level_says_how_long_it_may_last() -> None:
    job = waiting(5, "n1", 0b11, submitted=int(NOW) - 100, segment={"insists": "nvlink", "wait": "600"})
    jobs = [running(1, "n1", 0b1010_1010, 9_000), job]

    reason = reason_of([node("n1", used=0b1010_1010)], jobs, kind="a6000")

    assert reason is not None
    assert (reason.kind, reason.text) == ("locality", "it waits 500 s more for GPUs that share one nvlink level")


def test_a_parked_guest_that_its_user_holds_is_held() -> None:
    look = reading([node("n1")], [parked(5, reason="JobHeldUser")])
    made = Plan(POLICY, Settings())
    opened = book(look)
    made.replan(opened, look.jobs)
    [entry] = made.queue
    assert made.book is not None

    reason = why(entry, made.book, book(look), POLICY)

    assert reason is not None
    assert reason.kind == "held"


def test_a_job_that_starts_within_seconds_waits_for_nothing() -> None:
    assert reason_of([node("n1")], [waiting(5, "n1", 0b11)]) is None


# What would help


def helps_of(look: Reading, job_id: int = 5) -> Pairs:
    tracker, plan = Tracker(fleet(look)), Plan(POLICY, Settings())
    tracker.update(look)
    plan.replan(tracker.book(), look.jobs)
    [entry] = [entry for entry in plan.queue if entry.job.id == job_id]
    assert plan.book is not None
    return what_helps(entry, plan.book, POLICY)


def kept_for_eight(ends_in: float, **job: object) -> Reading:
    """Four GPUs are free until a running job ends, and kept for a job of eight; job 5 waits behind it."""
    jobs = [
        running(1, "n1", 0x0F, ends_in, holds=(0x0F,)),
        waiting(4, "n1", 0xFF, priority=9),
        waiting(5, "n1", 0b11 << 4, limit=14_400, **job),
    ]
    return reading([node("n1", used=0x0F)], jobs)


def test_a_limit_that_ends_before_the_gpus_are_needed_helps() -> None:
    assert helps_of(kept_for_eight(7_000)) == (("limit", "3600"),)
    assert helps_of(kept_for_eight(200)) == (), "no limit is that short"


def test_fewer_gpus_help_where_the_rest_is_not_kept() -> None:
    jobs = [running(1, "n1", 0x3F, 9_000, holds=(0x3F,)), waiting(5, "n1", 0x0F)]

    assert helps_of(reading([node("n1", used=0x3F)], jobs)) == (("gpus", "2"),)


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({}, (("partition", "idle"),)),
        ({"max_time": 60}, ()),
        ({"up": False}, ()),
        ({"for_all_groups": False}, ()),
        ({"apart": True}, ()),
        ({"accounts": AdmissionRule(frozenset({"other"}))}, ()),
    ],
)
def test_another_partition_helps_that_surely_takes_the_job(changes: dict[str, Any], helps: Pairs) -> None:
    nodes = [node("n1", used=0xFF), node("n2", partitions=frozenset({"idle"}))]
    partitions = PartitionFacts("gpu", default=True), PartitionFacts("idle", **changes)
    jobs = [running(1, "n1", 0xFF, 9_000, holds=(0xFF,)), waiting(5, "n1", 0xFF)]

    assert helps_of(reading(nodes, jobs, partitions=partitions)) == helps


@pytest.mark.parametrize("changes", [{"segment": {"share": "50"}, "share": 50}, {"het": 4}])
def test_nothing_is_tried_for_jobs_on_shares_or_of_several_components(changes: dict[str, object]) -> None:
    assert helps_of(kept_for_eight(7_000, **changes)) == ()


def test_what_helps_is_written_beside_the_reason_and_read_in_one_sentence() -> None:
    look = kept_for_eight(7_000, submitted=int(NOW) - 100)
    tracker, plan, notes = Tracker(fleet(look)), Plan(POLICY, Settings()), Notes(look.jobs)
    tracker.update(look)
    plan.replan(tracker.book(), look.jobs)
    explainer = Explainer(notes, POLICY)  # type: ignore[arg-type]
    explainer.left = 99

    while explainer.explain_one(plan, tracker.book(), frozenset()):
        pass

    told = sentence(5, "PENDING", JobPlan(notes.said[5]))
    assert "kept for a job of 8 GPUs before it in Slurm's order; it would fit now with a time limit of 1 h" in told
    assert told.endswith("[BERTH-513]")
    assert dict(rows(5, "PENDING", JobPlan(notes.said[5])))["would fit now"] == "with a time limit of 1 h"


def test_the_start_that_is_told_follows_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job ahead has a sooner end now, and the reason is the same; a minute's difference is not worth an update."""
    monkeypatch.setattr(explainer_module, "AGAIN_AFTER", 0.0)
    explainer = Explainer(Notes(()), POLICY)  # type: ignore[arg-type]
    told = {"start": str(int(NOW) + 9_000)}
    for ends_in, starts_in in ((9_000.0, 9_000), (5_000.0, 5_000), (4_960.0, 5_000)):
        waits = waiting(5, "n1", 0xFF, submitted=int(NOW) - 100, segment=told)
        look = reading([node("n1", used=0xFF)], [running(1, "n1", 0xFF, ends_in), waits])
        tracker, plan = Tracker(fleet(look)), Plan(POLICY, Settings())
        tracker.update(look)
        plan.replan(tracker.book(), look.jobs)
        explainer._gateway = notes = Notes(look.jobs)  # type: ignore[assignment]
        explainer.left = 99
        explainer.explain_one(plan, tracker.book(), frozenset())
        told = {"start": notes.said[5]["start"]} if notes.said else told
        assert told == {"start": str(int(NOW) + starts_in)}


# Watching only


def test_watching_changes_nothing_but_what_is_written_down() -> None:
    opened = book(reading([node("n1")]))

    decision = only_watch(decide(submit(tres_per_job="gres/gpu:2"), opened, POLICY, Settings(), NOW))

    assert decision.verb == "pass"
    assert set(decision.fields) == {"nonce", "segment"}
    assert decision.claim is None
    values = segment.fields(f"[berth/1 {decision.fields['segment']}]") or {}
    assert (values["state"], values["nodes"], values["gpus"]) == ("observed", "n1", "0,1")


def test_what_slurm_chose_is_compared_with_the_best_that_was_free() -> None:
    """On bridged pairs Slurm took GPUs 0 and 2."""
    look = reading([node("n1", used=0b101)], [running(1, "n1", 0b101, 600, holds=(0b101,), cpus=2)])
    opened = book(look, {"n1": "a6000"})
    demand = Plan(POLICY, Settings())._reader_of(opened.fleet).read(waiting(5, "n1", 0b11), NOW).demand

    found = compare(opened, demand, [0], [0b101], POLICY)

    assert found.better_links
    assert (found.got.gpus, found.best.gpus) == ((0, 2), (0, 1))


def test_the_watcher_counts_each_job_once() -> None:
    watcher = Watcher(POLICY)
    job = running(
        1, "n1", 0, 600, holds=(0b101,), cpus=2,
        segment={"state": "observed", "n": "1", "k": "2", "cpus": "1", "mem": "100"},
    )  # fmt: skip
    look = reading([node("n1", used=0b101)], [job])
    opened = book(look, {"n1": "a6000"})

    watcher.watch(opened, look)
    watcher.watch(opened, look)

    assert watcher.told()["observed"] == "1"
    assert watcher.told()["observed_better_links"] == "1"


def test_status_shows_what_was_watched() -> None:
    made = Answerer(Config(observe=True), "1", 1)
    cluster = book(reading([node("n1")])).cluster
    made.take(Snapshot(cluster, frozenset(), "24.11.5", "x", "", observed={"observed": "7"}), NOW)

    status = wire.decode(made.answer(b"berth/1 status\n", NOW) or b"").fields

    assert status["observed"] == "7"


class Notes:
    """A gateway that keeps annotations, of jobs whose records are as they were read, or `changed` since."""

    def __init__(self, jobs: Iterable[JobFacts], changed: Mapping[int, str] = MappingProxyType({})) -> None:
        self.said: dict[int, dict[str, str]] = {}
        self.texts = {job.id: segment.put("", job.known.texts) for job in jobs} | dict(changed)

    def job(self, job_id: int) -> JobText:
        return JobText(job_id, "PENDING", 0, self.texts[job_id], "", "", "", "")

    def annotate(self, job_id: int, plan: JobPlan) -> None:
        self.said[job_id] = dict(plan.texts)


def test_reasons_are_written_once_after_a_minute_and_never_into_an_array() -> None:
    old = {"submitted": int(NOW) - 100}
    jobs = [
        running(1, "n1", 0xFF, 9_000),
        waiting(5, "n1", 0b11, **old),
        waiting(6, "n1", 0b11, state="ARRAY", array=6, tasks="1-9", **old),
        waiting(7, "n1", 0b11, submitted=int(NOW) - 5),
    ]
    look = reading([node("n1", used=0xFF)], jobs)
    tracker = Tracker(fleet(look))
    tracker.update(look)
    plan, notes = Plan(POLICY, Settings()), Notes(jobs)
    changes = plan.replan(tracker.book(), look.jobs)
    explainer = Explainer(notes, POLICY)  # type: ignore[arg-type]
    explainer.left = 99

    changed = {change.job.id for change in changes}
    assert explainer.explain_one(plan, tracker.book(), changed)
    assert not explainer.explain_one(plan, tracker.book(), changed)
    assert {job_id: values["because"] for job_id, values in notes.said.items()} == {5: "capacity"}


def test_a_reason_is_not_written_into_a_record_that_has_changed_since_it_was_read() -> None:
    jobs = [running(1, "n1", 0xFF, 9_000), *(waiting(one, "n1", 0b11, submitted=int(NOW) - 100) for one in (5, 6))]
    look = reading([node("n1", used=0xFF)], jobs)
    tracker = Tracker(fleet(look))
    tracker.update(look)
    plan, notes = Plan(POLICY, Settings()), Notes(jobs, {5: "[berth/1 state=released n=1 k=2]"})
    plan.replan(tracker.book(), look.jobs)
    explainer = Explainer(notes, POLICY)  # type: ignore[arg-type]
    explainer.left = 99

    while explainer.explain_one(plan, tracker.book(), frozenset()):
        pass

    assert set(notes.said) == {6}


class CountedQueue(list[Waiting]):
    """A queue that counts how often somebody walks along it."""

    walks = 0

    def __iter__(self) -> Iterator[Waiting]:
        self.walks += 1
        return super().__iter__()


def test_reasons_of_one_queue_cost_one_walk_along_it_and_each_of_its_jobs_has_its_turn() -> None:
    old = {"submitted": int(NOW) - 100}
    numbers = range(5, 12)
    jobs = [running(1, "n1", 0xFF, 9_000), *(waiting(number, "n1", 0b11, **old) for number in numbers)]
    look = reading([node("n1", used=0xFF)], jobs)
    tracker = Tracker(fleet(look))
    tracker.update(look)
    plan, notes = Plan(POLICY, Settings()), Notes(jobs)
    plan.replan(tracker.book(), look.jobs)
    queue = plan.queue = CountedQueue(plan.queue)
    explainer = Explainer(notes, POLICY)  # type: ignore[arg-type]
    explainer.left = 99

    while explainer.explain_one(plan, tracker.book(), {7}):
        pass

    assert queue.walks == 1
    assert set(notes.said) == set(numbers) - {7}

    # A later pass has a queue of its own, in which a job may be gone.
    plan.queue = [entry for entry in queue if entry.job.id != 5]
    explainer.left = 1
    assert not explainer.explain_one(plan, tracker.book(), {7})
    explainer.left = 1
    assert explainer.explain_one(plan, tracker.book(), frozenset())
    assert not explainer.left
    assert set(notes.said) == set(numbers)


@pytest.mark.parametrize(
    ("start", "cores", "gpus", "words"),
    [
        (-10, (), (), "all nodes that could hold it are down, drained or reserved"),
        (
            -10,
            (("n1", 1),),
            (("", 4), ("g0", 1), ("g1", 1), ("g2", 1), ("g3", 1)),
            "4 GPUs are free where it could run",
        ),
        (60, (), (), "no node has 8"),
    ],
)
def test_a_job_that_a_reservation_keeps_waiting_is_told_its_name(
    start: int, cores: tuple[tuple[str, int], ...], gpus: tuple[tuple[str, int], ...], words: str
) -> None:
    begin = int(NOW) + start
    ours = Reservation(begin, begin + 600, ("n1",), "r", cores, gpus)
    elsewhere, over = (
        replace(ours, nodes=("n9",), name="s"),
        replace(ours, start=begin - 99, end=int(NOW) - 1, name="t"),
    )
    look = replace(reading([node("n1")], [waiting(5, "n1", 0xFF)]), reservations=(ours, elsewhere, over))

    reason = reason_in(look)

    assert reason is not None
    assert words in reason.text
    assert reason.text.endswith("reservation r takes GPUs or nodes that it needs")
