# SPDX-License-Identifier: Apache-2.0
"""Slurm's scheduling, on clusters so small that every start can be worked out by hand."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from policy.cluster.cost import CostModel, one_factor, pal_locality
from policy.formats.errors import UsageError
from policy.placement.base import Policy
from policy.placement.berth import BerthPolicy
from policy.placement.slurm_like import SlurmPolicy
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.philly import USUAL_LIMITS, with_limits, with_models
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.backfill.profile import BackfillProfile
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.queue.jobs import _whole_nodes
from policy.simulate.slurm.queue.waits import REASONS
from policy.simulate.slurm.settings import LocalityRule, Quotas, SlurmSettings
from policy.simulate.world import Layout, all_to_all, build, demand_of, view
from tests.bench.philly_data import quotas
from topology.model import Link, Machine


def job(job_id: str, gpus: int, submit: float, work: float, **other: object) -> TraceJob:
    return TraceJob(job_id, gpus, submit, work, **{"limit": work, **other})  # type: ignore[arg-type]  # fields of Job


def play(
    jobs: Sequence[TraceJob], plan: Layout, settings: SlurmSettings | None = None, policy: Policy | None = None
) -> SimulationOutcome:
    return run(jobs, build(plan), policy or SlurmPolicy(), settings)


def seconds(outcome: SimulationOutcome, size: str) -> Mapping[str, float]:
    waits = outcome.extra["waits"]
    assert isinstance(waits, dict)
    found: Mapping[str, float] = waits["seconds"][size]
    return found


ONE_NODE = Layout(1, 4)

BLOCKED = [job("first", 3, 0, 100), job("head", 4, 1, 100)]
"""The head of the queue needs the whole node, of which one GPU is free until second 100."""


def test_the_main_pass_stops_at_the_first_job_that_cannot_start() -> None:
    outcome = play([*BLOCKED, job("small", 1, 2, 50)], ONE_NODE, SlurmSettings(backfill=False))

    assert outcome.starts == {"first": 0, "head": 100, "small": 200}


def test_backfill_starts_on_its_own_clock_what_ends_before_the_head_is_planned() -> None:
    outcome = play([*BLOCKED, job("small", 1, 2, 50)], ONE_NODE, SlurmSettings(bf_interval_s=30))

    assert outcome.starts == {"first": 0, "head": 100, "small": 30}


@pytest.mark.parametrize(("limit", "start"), [(70, 30), (70.5, 200)])
def test_backfill_never_delays_the_planned_start_of_the_head(limit: float, start: float) -> None:
    outcome = play([*BLOCKED, job("small", 1, 2, 10, limit=limit)], ONE_NODE)

    assert outcome.starts["head"] == 100
    assert outcome.starts["small"] == start


def test_backfill_looks_no_further_than_bf_max_job_test() -> None:
    jobs = [*BLOCKED, job("second", 4, 2, 100), job("small", 1, 3, 50)]

    assert play(jobs, ONE_NODE, SlurmSettings(bf_max_job_test=2)).starts["small"] == 300
    assert play(jobs, ONE_NODE, SlurmSettings(bf_max_job_test=3)).starts["small"] == 30


def test_the_main_pass_looks_no_further_than_the_queue_depth() -> None:
    # Over their quota, the first two do not stop the pass, but nor do they count.
    jobs = [job(f"a{i}", 2, i, 100, account="a") for i in range(3)] + [job("b", 1, 3, 10, account="b")]
    settings = SlurmSettings(default_queue_depth=1, backfill=False, quotas=Quotas({"a": 2}))

    assert play(jobs, ONE_NODE, settings).starts == {"a0": 0, "a1": 100, "a2": 200, "b": 3}


def test_a_pinned_head_bars_only_its_own_nodes() -> None:
    # Both nodes have one GPU free; the head is planned on n0, where the others end first.
    jobs = [job("a", 3, 0, 100), job("b", 3, 0, 200), job("head", 4, 1, 50), job("small", 1, 2, 1_000)]
    plain = play(jobs, Layout(2, 4), SlurmSettings(backfill=False))
    pinned = play(jobs, Layout(2, 4), SlurmSettings(backfill=False, pinned=True))

    assert plain.starts == {"a": 0, "b": 0, "head": 100, "small": 100}
    assert pinned.starts == {"a": 0, "b": 0, "head": 100, "small": 2}


@pytest.mark.parametrize(("borrow", "limit", "start"), [(0, 50, 100), (60, 50, 1), (60, 61, 100), (math.inf, 1_000, 1)])
def test_a_quota_holds_beyond_what_may_be_borrowed(borrow: float, limit: float, start: float) -> None:
    jobs = [job("a", 2, 0, 100, account="a"), job("over", 1, 1, 40, account="a", limit=limit)]
    jobs.append(job("b", 1, 1, 5, account="b"))
    outcome = play(jobs, ONE_NODE, SlurmSettings(quotas=Quotas({"a": 2}, borrow_s=borrow)))

    assert outcome.starts == {"a": 0, "over": start, "b": 1}
    assert seconds(outcome, "1")["fair_share"] == start - 1


def test_borrowers_come_after_all_jobs_within_their_quota() -> None:
    quotas = Quotas({"a": 2, "b": 4}, borrow_s=math.inf)
    jobs = [job("b0", 2, 0, 30, account="b"), job("a0", 2, 0, 100, account="a"), job("over", 2, 1, 10, account="a")]

    outcome = play([*jobs, job("b1", 2, 2, 10, account="b")], ONE_NODE, SlurmSettings(quotas=quotas))

    assert outcome.starts["b1"] == 30
    assert outcome.starts["over"] == 40


LEAVES = Layout(4, 4, nodes_per_leaf=2)
NO_LEAF_FREE = [job("n0", 4, 0, 500), job("n1", 4, 0, 1), job("n2", 4, 0, 500), job("wide", 8, 2, 100, nodes=2)]
"""From second 1 on n1 and n3 are free, each in another leaf."""


@pytest.mark.parametrize("policy", [SlurmPolicy(), BerthPolicy()])
def test_a_locality_wait_relaxes_at_its_very_second(policy: Policy) -> None:
    outcome = play(NO_LEAF_FREE, LEAVES, SlurmSettings(locality=LocalityRule("leaf", wait_s=61.5)), policy)

    assert outcome.starts["wide"] == 2 + 61.5
    assert seconds(outcome, "5-8") == {"fair_share": 0, "fragmentation": 61.5, "capacity": 0, "priority": 0}
    levels = outcome.extra["levels"]
    assert isinstance(levels, dict)
    assert levels["5-8"] == {"pod": 1}


def test_levels_are_relaxed_one_by_one() -> None:
    # Of n0 to n3, one node in each of two pods is free.
    plan = replace(LEAVES, nodes_per_leaf=1, leaves_per_pod=2)

    assert play(NO_LEAF_FREE, plan, SlurmSettings(locality=LocalityRule("leaf", 30))).starts["wide"] == 62


def test_a_single_job_can_insist_on_a_level() -> None:
    settings = SlurmSettings(localities={"wide": LocalityRule("leaf", 40)})

    assert play(NO_LEAF_FREE, LEAVES).starts["wide"] == 2
    assert play(NO_LEAF_FREE, LEAVES, settings).starts["wide"] == 42


def test_a_policy_that_knows_no_leaves_is_offered_one_after_another() -> None:
    # n0 is half taken, so the smallest run of whole nodes starts with n1, in the first leaf; n2 and n3 share one.
    jobs = [job("a", 2, 0, 500), job("wide", 8, 1, 10, nodes=2)]
    outcome = play(jobs, LEAVES, SlurmSettings(localities={"wide": LocalityRule("leaf", 60)}))

    assert outcome.starts["wide"] == 1
    assert outcome.stretches[-1].gpus == tuple(range(8, 16))


def test_a_time_limit_kills() -> None:
    jobs = [job("long", 1, 0, 100, limit=60), job("short", 1, 0, 50, limit=60)]

    outcome = play(jobs, ONE_NODE)
    assert (outcome.ends, outcome.extra["killed"]) == ({"long": 60, "short": 50}, 1)
    assert play(jobs, ONE_NODE, SlurmSettings(kill=False)).ends["long"] == 100


def test_a_job_goes_at_the_pace_of_its_slowest_gpu_and_of_its_level() -> None:
    scores = np.ones((2, 4))
    scores[1, 3] = 1.5
    fleet = build(Layout(2, 4), scores={"compute": scores}, costs=CostModel(pal_locality(1.2)))

    outcome = run([job("wide", 8, 0, 100, nodes=2)], fleet, SlurmPolicy(), SlurmSettings(kill=False))

    assert outcome.ends["wide"] == pytest.approx(100 * 1.5 * 1.2)


def test_a_slow_node_slows_for_as_long_as_it_is_slow() -> None:
    settings = SlurmSettings(kill=False, events=[NodeEvent(0, 50, 100, 2.0)])

    # 50 seconds of work are done by 50, 25 more by 100.
    assert play([job("a", 1, 0, 100)], ONE_NODE, settings).ends["a"] == 125


def test_a_failed_node_requeues_its_jobs() -> None:
    end = 200 + 7 + 100
    settings = SlurmSettings(events=[NodeEvent(0, 50, 200, math.inf)], requeue_cost_s=7, kill=False)
    outcome = play([job("a", 1, 0, 100)], ONE_NODE, settings)

    assert (outcome.ends["a"], outcome.moves) == (end, 1)
    assert [(one.start, one.end) for one in outcome.stretches] == [(0, 50), (200, end)]


def test_shortest_first_and_smallest_first() -> None:
    first = job("first", 4, 0, 10)
    jobs = [first, job("long", 1, 1, 50), job("wide", 4, 2, 20), job("short", 2, 3, 30)]

    def order(name: str) -> list[str]:
        settings = SlurmSettings(order=name, backfill=False)
        return sorted((outcome := play(jobs, ONE_NODE, settings)).starts, key=lambda one: outcome.starts[one])

    assert order("srtf") == ["first", "wide", "short", "long"]
    assert order("srsf") == ["first", "long", "short", "wide"]


def test_in_slurms_order_a_greater_priority_beats_a_little_more_age() -> None:
    """In its first pass `old` is 490 s older, which is worth 0.81 of the thousand for an age of a week."""
    jobs = [job("first", 4, 0, 1_000), job("old", 4, 10, 10), job("favoured", 4, 500, 10)]

    def starts(priority: float) -> list[float]:
        favoured = [*jobs[:2], replace(jobs[2], priority=priority)]
        outcome = play(favoured, ONE_NODE, SlurmSettings(order="slurm"))
        return [outcome.starts["old"], outcome.starts["favoured"]]

    assert starts(0.5) == [1_000, 1_010]
    assert starts(1.0) == [1_010, 1_000]


def test_predictions_let_small_jobs_in_where_limits_do_not() -> None:
    history = [job(f"h{i}", 1, i * 20, 10, limit=5_000, user="ann", name="tune") for i in range(20)]
    jobs = [
        *history,
        job("first", 3, 1_000, 1_000, user="bob", name="train"),
        job("head", 4, 1_001, 10, user="bob", name="eval"),
        job("small", 1, 1_002, 10, limit=5_000, user="ann", name="tune"),
    ]

    assert play(jobs, ONE_NODE).starts["small"] == 2_010
    assert play(jobs, ONE_NODE, SlurmSettings(durations="predicted")).starts["small"] == 1_020


def test_a_job_that_no_state_of_the_cluster_could_start_is_named() -> None:
    with pytest.raises(UsageError, match=r"job big asks for 64 GPUs and could never start"):
        play([job("big", 64, 0, 10)], ONE_NODE)
    with pytest.raises(UsageError, match=r"its account may hold 2"):
        play([job("big", 4, 0, 10, account="a")], ONE_NODE, SlurmSettings(quotas=Quotas({"a": 2})))


@pytest.mark.parametrize(
    ("quota", "borrow_s", "refused"), [(4, 0.0, False), (3, 0.0, True), (3, 10.0, False), (3, 9.0, True)]
)
def test_a_job_above_its_quota_starts_only_if_its_limit_lets_it_borrow(
    quota: int, borrow_s: float, *, refused: bool
) -> None:
    settings = SlurmSettings(quotas=Quotas({"a": quota}, borrow_s=borrow_s), durations="limit")
    jobs = [job("big", 4, 0, 10, account="a")]
    if refused:
        with pytest.raises(UsageError, match=f"its account may hold {quota}"):
            play(jobs, ONE_NODE, settings)
    else:
        assert play(jobs, ONE_NODE, settings).starts == {"big": 0}


@pytest.mark.parametrize(
    ("gpus", "width", "nodes"), [(8, 8, 1), (16, 8, 2), (12, 8, 2), (9, 8, 3), (7, 4, 7), (2, 1, 2), (1, 0, 1)]
)
def test_a_job_lies_on_the_fewest_nodes_that_have_as_many_of_its_gpus_each(gpus: int, width: int, nodes: int) -> None:
    assert _whole_nodes(job("a", gpus, 0, 10), width) == nodes
    assert _whole_nodes(job("a", gpus, 0, 10, nodes=gpus), width) == gpus


def test_wrong_settings_name_the_nearest_right_one() -> None:
    with pytest.raises(UsageError, match="did you mean srtf"):
        SlurmSettings(order="strf")
    with pytest.raises(UsageError, match="did you mean leaf"):
        LocalityRule("leave")


def drawn(seed: int, count: int = 80) -> list[TraceJob]:
    draw = random.Random(seed)
    jobs, at = [], 0.0
    for number in range(count):
        at += draw.expovariate(1 / 40)
        work = draw.uniform(20, 900)
        gpus = draw.choice([1, 1, 2, 4, 8, 16])
        account = draw.choice("ab")
        jobs.append(
            TraceJob(str(number), gpus, at, work, limit=work * draw.uniform(0.9, 4), account=account, user=account)
        )
    return jobs


STYLES = [
    SlurmSettings(),
    SlurmSettings(pinned=True, durations="predicted", order="srtf"),
    SlurmSettings(locality=LocalityRule("nvlink", 100), order="slurm"),
    SlurmSettings(quotas=Quotas({"a": 16, "b": 16}), locality=LocalityRule("leaf", 300)),
    SlurmSettings(quotas=Quotas({"a": 16, "b": 16}, borrow_s=600), durations="true", order="srsf"),
]


@pytest.mark.parametrize("policy", [SlurmPolicy(), BerthPolicy()])
@pytest.mark.parametrize("settings", STYLES)
def test_what_holds_for_every_outcome(settings: SlurmSettings, policy: Policy) -> None:
    jobs = drawn(seed=7)
    plan = Layout(4, 8, nodes_per_leaf=2)
    outcome = play(jobs, plan, settings, policy)

    waits = outcome.extra["waits"]
    assert isinstance(waits, dict)
    by_reason = sum(waits["seconds"][size][reason] for size in waits["seconds"] for reason in REASONS)
    assert by_reason == pytest.approx(sum(outcome.starts[one.id] - one.submit for one in jobs))
    assert by_reason > 0
    assert len(outcome.ends) == len(jobs)
    assert all(outcome.starts[one.id] >= one.submit for one in jobs)
    assert all(outcome.ends[one.id] - outcome.starts[one.id] <= (one.limit or 0) + 1e-6 for one in jobs)
    no_gpu_is_held_twice(outcome)
    assert outcome.gpu_seconds_held == pytest.approx(
        sum(len(one.gpus) * (one.end - one.start) for one in outcome.stretches)
    )
    if settings.quotas.gpus and not settings.quotas.borrow_s:
        quotas_are_kept(outcome, jobs, settings.quotas.gpus)


def no_gpu_is_held_twice(outcome: SimulationOutcome) -> None:
    until: dict[int, float] = {}
    for stretch in sorted(outcome.stretches, key=lambda one: one.start):
        for gpu in stretch.gpus:
            assert stretch.start >= until.get(gpu, 0.0)
            until[gpu] = stretch.end


def quotas_are_kept(outcome: SimulationOutcome, jobs: Sequence[TraceJob], quotas: Mapping[str, int]) -> None:
    account = {one.id: one.account for one in jobs}
    for moment in {one.start for one in outcome.stretches}:
        held = dict.fromkeys(quotas, 0)
        for one in outcome.stretches:
            if one.start <= moment < one.end:
                held[account[one.job]] += len(one.gpus)
        assert all(held[name] <= quota for name, quota in quotas.items())


@pytest.mark.parametrize("settings", STYLES)
def test_the_same_trace_gives_the_same_outcome(settings: SlurmSettings) -> None:
    first, second = (replace(play(drawn(3), Layout(4, 8, 2), settings), wall_s=0.0) for _ in range(2))

    assert repr(first) == repr(second)


@pytest.mark.parametrize(
    ("busy", "count", "taken"),
    [(0, 2, (0, 1)), (0, 4, (0, 1, 2, 3)), (1, 2, (1, 2)), (1, 4, (1, 2, 3, 5))],
)
def test_plain_slurm_takes_the_gpus_that_were_seen_on_a_real_one(busy: int, count: int, taken: tuple[int, ...]) -> None:
    pattern = all_to_all("n0", 8)
    pairs = tuple(Link(a, b, 4, 100.0) for a, b in ((0, 5), (1, 4), (2, 7), (3, 6)))
    fleet = build(Layout(1, 8), machine=Machine("n0", "gpu", pattern.gpus, pairs))

    berth = SlurmPolicy().place(demand_of(job("a", count, 0, 1, nodes=1), fleet), view(fleet, fleet.full & ~busy))

    assert berth.gpus == taken


def test_plain_slurm_takes_the_smallest_run_of_nodes_that_is_enough() -> None:
    fleet = build(Layout(8, 4))
    free = fleet.full.copy()
    free[[3, 6]] = 0  # runs: n0 to n2, n4 and n5, n7

    def nodes(count: int) -> tuple[int, ...]:
        demand = demand_of(job("a", 4 * count, 0, 1, nodes=count), fleet)
        return SlurmPolicy().place(demand, view(fleet, free)).nodes

    assert [nodes(1), nodes(2), nodes(3), nodes(4)] == [(7,), (4, 5), (0, 1, 2), (0, 1, 2, 4)]


def test_a_plan_waits_for_several_nodes_of_one_leaf() -> None:
    fleet = build(LEAVES, costs=CostModel({"*": one_factor(leaf=1.0)}))
    ledger = Ledger(fleet)
    for node, until in enumerate((10, 40, 30, 25)):
        ledger.take([node], [0b1111], until)
    profile = BackfillProfile(ledger, now=0.0)
    wide = demand_of(job("a", 8, 0, 100, nodes=2), fleet)

    assert profile.earliest(wide, 100) == (25, [0, 3])
    assert profile.earliest(wide.at_level("leaf"), 100) == (30, [2, 3])


def test_drawn_limits_are_usual_ones_that_leave_room() -> None:
    jobs = [replace(one, limit=None) for one in drawn(5)]
    limited = with_limits(jobs, seed=1)

    assert limited == with_limits(jobs, seed=1) != with_limits(jobs, seed=2)
    assert all(one.limit in USUAL_LIMITS and one.limit >= 1.5 * one.work for one in limited)


def test_models_are_drawn_for_jobs_of_several_gpus() -> None:
    modelled = with_models(drawn(5), ("bert", "lm"), seed=1)

    assert {one.model for one in modelled if one.gpus > 1} == {"bert", "lm"}
    assert {one.model for one in modelled if one.gpus == 1} == {""}


def test_quotas_share_out_every_gpu_in_proportion() -> None:
    assert quotas({"a": 1, "b": 1, "c": 2, "unused": 50}, ["a", "b", "c", "a"], 10) == {"a": 3, "b": 2, "c": 5}


def test_nodes_that_are_too_slow_for_a_job_are_left_to_others() -> None:
    """On n0 one GPU takes three times as long: a job on a whole node costs less on n1, though that is busy."""
    scores = np.ones((2, 4))
    scores[0, 0] = 3.0
    fleet = build(Layout(nodes=2, gpus_per_node=4), {"compute": scores})
    jobs = [
        job("first", 4, 0, 600),
        job("wide", 4, 1, 600),
        job("small", 2, 2, 600),
        job("other", 4, 3, 600, app_class="D"),
    ]

    with_scores, without = (
        run(jobs, fleet, policy, SlurmSettings(kill=False, pinned=True)) for policy in (BerthPolicy(), SlurmPolicy())
    )

    assert with_scores.starts == {"first": 0, "wide": 600, "small": 2, "other": 602}
    assert without.ends["first"] == 1_800


def test_a_job_of_another_class_is_not_held_up_by_one_that_waits_for_faster_gpus() -> None:
    scores = np.ones((2, 4))
    scores[0, 0] = 3.0
    fleet = build(Layout(nodes=2, gpus_per_node=4), {"compute": scores})
    jobs = [job("first", 4, 0, 600), job("wide", 4, 1, 600), job("other", 4, 1, 600, app_class="D")]

    outcome = run(jobs, fleet, BerthPolicy(), SlurmSettings(pinned=True))

    assert outcome.starts == {"first": 0, "wide": 600, "other": 1}
