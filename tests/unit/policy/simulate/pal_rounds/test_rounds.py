# SPDX-License-Identifier: Apache-2.0
"""The `pal-rounds` simulator on clusters small enough to work out by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cluster.cost import CostModel, pal_locality
from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.errors import Never, NotNow
from policy.placement.base import Berth, Policy
from policy.placement.published.pal import PalPolicy
from policy.placement.registry import create
from policy.request.demand import Demand
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.orders import ORDERS, JobProgress
from policy.simulate.pal_rounds.round_policies import RoundPolicy, in_rounds
from policy.simulate.pal_rounds.rounds import RoundsSettings, arrivals, run
from policy.simulate.result import SimulationOutcome
from policy.simulate.world import Layout, build, demand_of
from tests.examples import examples

ROUND = 100.0
PACKED = create("packed")
MOVING = in_rounds(create("packed"), sticky=False)


def fleet(nodes: int = 2, gpus: int = 4, scores: Sequence[Sequence[float]] | None = None) -> Fleet:
    table = {} if scores is None else {"compute": np.array(scores, np.float64)}
    return build(Layout(nodes, gpus), table, CostModel(pal_locality(1.7)))


def job(name: str, gpus: int, submit: float, work: float) -> TraceJob:
    return TraceJob(name, gpus, submit, work)


def go(
    jobs: Sequence[TraceJob], on: Fleet | None = None, policy: Policy | RoundPolicy = PACKED, **changes: object
) -> SimulationOutcome:
    return run(jobs, on or fleet(), policy, RoundsSettings(**{"round_s": ROUND, **changes}))  # type: ignore[arg-type]


def test_a_job_starts_at_the_next_edge_and_ends_with_the_round_in_which_it_completes() -> None:
    outcome = go([job("a", 1, 30, 250), job("b", 1, 100, 100)])

    assert (outcome.starts, outcome.ends) == ({"a": 100, "b": 100}, {"b": 200, "a": 400})
    assert outcome.figures()["avg_jct_s"] == (370 + 100) / 2
    assert outcome.gpu_seconds_held == 300 + 100


class _SaysNothing(Policy):
    """Places as `packed` does, counts how often it is asked, and tells only whether it is sticky."""

    name = "says nothing"

    def __init__(self, *, moves: bool) -> None:
        self.asked = 0
        if moves:
            self.sticky = False

    def place(self, demand: Demand, view: View) -> Berth:
        self.asked += 1
        return PACKED.place(demand, view)


class _LastFirst(Policy):
    """Another package's policy, which says itself in which order and how it places the jobs of a round."""

    name = "last first"
    sticky = False
    steady = True

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def place(self, demand: Demand, view: View) -> Berth:
        return PACKED.place(demand, view)

    def order(self, demands: Sequence[Demand]) -> Sequence[int]:
        return range(len(demands))[::-1]

    def place_together(
        self, demands: Sequence[Demand], view: View, held: Sequence[Berth | None] = ()
    ) -> list[Berth | None]:
        self.rounds.append(len(demands))
        return in_rounds(PACKED).place_together(demands, view, held)


def test_another_packages_policy_may_say_how_it_takes_part_in_rounds() -> None:
    policy = _LastFirst()

    go([job("a", 4, 0, 500), job("b", 4, 0, 500)], policy=policy)

    assert policy.rounds == [2], "it is steady: one call for all rounds of the same jobs"
    assert in_rounds(policy).sticky is False
    assert list(in_rounds(policy).order([demand_of(job("a", 1, 0, 1), fleet())] * 3)) == [2, 1, 0]


class _LikePal(PalPolicy):
    """Another package's policy, which is PAL but for its name."""

    name = "like pal"


def test_a_policy_that_is_made_of_a_published_one_takes_part_as_that_does() -> None:
    ours, theirs = in_rounds(_LikePal()), in_rounds(create("pal"))
    two = [demand_of(TraceJob(name, 1, 0, 1, app_class=name), fleet()) for name in ("memory", "compute")]

    assert (ours.sticky, ours.steady, list(ours.order(two))) == (theirs.sticky, theirs.steady, [1, 0])
    assert (theirs.sticky, theirs.steady, list(theirs.order(two))) == (False, True, [1, 0])
    assert [(one.sticky, one.steady) for one in map(in_rounds, (PACKED, create("slurm")))] == [
        (True, True), (True, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("moves", "asked"), [(False, 1), (True, 5)])
def test_a_policy_is_asked_each_round_unless_it_keeps_jobs_where_they_are(moves: bool, asked: int) -> None:
    policy = _SaysNothing(moves=moves)

    go([job("a", 1, 0, 500)], policy=policy)

    assert policy.asked == asked


def test_a_job_is_as_slow_as_its_slowest_gpu_times_its_locality() -> None:
    on = fleet(scores=[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]])

    outcome = go([job("wide", 8, 0, 100)], on, round_s=1.0)

    assert outcome.ends["wide"] == pytest.approx(100 * 2.0 * 1.7)


def test_the_queue_stops_at_the_first_job_that_does_not_fit() -> None:
    jobs = [job("a", 6, 0, 200), job("wide", 8, 1, 100), job("small", 1, 2, 100)]

    assert go(jobs).starts == {"a": 0, "wide": 400, "small": 600}


def test_with_backfill_jobs_that_do_not_fit_are_skipped() -> None:
    jobs = [job("a", 6, 0, 200), job("wide", 8, 0, 100), job("small", 1, 0, 100)]

    outcome = go(jobs, backfill=True)

    assert outcome.starts == {"a": 0, "small": 0, "wide": 400}


def test_a_policy_that_moves_jobs_packs_them_again_and_pays_for_the_move() -> None:
    # b lies on the second node until a ends; then the first node takes it.
    jobs = [job("a", 3, 0, 100), job("b", 2, 0, 300)]

    free, paid = (go(jobs, policy=MOVING, move_cost_s=cost) for cost in (0.0, 150.0))

    assert [stretch.gpus for stretch in free.stretches if stretch.job == "b"] == [(4, 5), (0, 1)]
    assert (free.moves, free.ends["b"]) == (1, 300)
    assert (paid.moves, paid.ends["b"]) == (1, 500)
    assert go(jobs).moves == 0


def test_sticky_jobs_give_way_to_those_before_them_in_the_order_the_last_first() -> None:
    # By attained service the new job comes first; of the two that run, `b` has run as long and stands behind `a`.
    jobs = [job("a", 4, 0, 300), job("b", 4, 0, 300), job("new", 4, 150, 100)]

    outcome = go(jobs, order="las")

    first = {stretch.job: stretch for stretch in reversed(outcome.stretches)}
    assert outcome.starts["new"] == 200
    assert (first["b"].end, first["a"].end) == (200, 300)
    assert first["new"].gpus == first["b"].gpus
    assert outcome.moves >= 1


def test_a_slow_node_slows_its_jobs_while_the_event_lasts() -> None:
    events = (NodeEvent(0, 100, 300, 2.0),)

    outcome = go([job("a", 4, 0, 300), job("b", 4, 0, 300)], events=events)

    assert outcome.ends == {"a": 400, "b": 300}


def test_a_node_that_is_down_keeps_its_jobs_from_getting_on() -> None:
    events = (NodeEvent(0, 100, 400, math.inf),)

    assert go([job("a", 4, 0, 200)], events=events).ends == {"a": 500}


def test_a_job_that_fits_by_count_but_not_by_form_waits_and_holds_up_nobody() -> None:
    # Each node has two GPUs left; three on one node, as `square` asks for, are free when `b` has ended.
    jobs = [
        replace(job("a", 3, 0, 500), nodes=1),
        replace(job("b", 3, 0, 200), nodes=1),
        replace(job("square", 3, 0, 100), nodes=1),
        job("c", 1, 1, 100),
    ]
    on = fleet(nodes=2, gpus=5)

    for policy in (PACKED, MOVING):
        assert go(jobs, on, policy).starts == {"a": 0, "b": 0, "square": 200, "c": 100}


def test_repeats_follow_the_trace_with_the_artifacts_draws() -> None:
    trace = [job("a", 1, 0, 10), job("b", 1, 50, 10)]
    draw = Random(1)
    gaps = [math.ceil(-math.log(1.0 - draw.random()) / 2.0 * 3600) for _ in range(3)]

    come = arrivals(trace, 2.0, seed=1)

    found = [next(come) for _ in range(5)]
    assert [one.id for one in found] == ["a", "b", "a~1", "b~1", "a~2"]
    assert [one.submit for one in found[2:]] == [50 + gaps[0], 50 + sum(gaps[:2]), 50 + sum(gaps)]


def test_repeated_jobs_keep_the_cluster_busy_but_do_not_count() -> None:
    trace = [job("a", 1, 0, 500_000), job("b", 4, 50, 10)]

    outcome = go(trace, repeat=2.0, measured=range(1))

    assert [one.id for one in outcome.jobs] == ["a"]
    assert "b~1" in outcome.ends
    assert outcome.figures()["jobs"] == 1


def test_the_orders_say_what_they_promise() -> None:
    one = JobProgress(job("a", 4, 7, 100), 0, demand_of(job("a", 4, 7, 100), fleet()), done=30, service=60)

    assert {name: order(one) for name, order in ORDERS.items()} == {
        "fifo": 7,
        "las": 60,
        "srtf": 40,
        "srsf": 280,
    }


def test_priority_comes_before_the_order() -> None:
    jobs = [job("a", 8, 0, 100), replace(job("urgent", 8, 0, 100), priority=1.0)]

    assert go(jobs).starts == {"urgent": 0, "a": 200}


def test_a_job_that_can_never_fit_is_refused() -> None:
    with pytest.raises(Never, match="job a asks for 9 GPUs of 8"):
        go([job("a", 9, 0, 100)])


class Refusing(Policy):
    name = "refusing"

    def place(self, demand: Demand, view: View) -> Berth:
        raise NotNow(f"{demand.gpus} of {view.free.size} nodes: no")


def test_a_policy_that_never_places_is_told_so() -> None:
    with pytest.raises(NotNow, match="refusing places none of 1 jobs"):
        go([job("a", 1, 0, 100)], policy=Refusing())


NO_EVENT = (NodeEvent(0, 0.0, math.inf, 1.0),)
"""Changes nothing, and keeps the simulator from jumping over rounds."""

TRACES = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 900), st.integers(1, 1500)),
    min_size=1,
    max_size=12,
).map(lambda rows: [job(f"j{place}", *row) for place, row in enumerate(sorted(rows, key=lambda row: row[1]))])

POLICIES = (
    PACKED,
    MOVING,
    create("pm-first"),
    create("pal"),
    in_rounds(create("pal"), sticky=True),
    create("pinned-random"),
    in_rounds(create("pinned-random"), sticky=False),
)

SCORES = [[0.9, 1.0, 1.1, 1.0], [1.0, 2.5, 1.0, 0.95]]


@settings(max_examples=examples(60), deadline=None)
@given(TRACES, st.sampled_from(POLICIES), st.sampled_from([0.0, 70.0, 250.0]), st.booleans())
def test_jumping_over_rounds_changes_nothing(
    jobs: list[TraceJob], policy: Policy | RoundPolicy, move_cost_s: float, backfill: bool
) -> None:
    on = fleet(scores=SCORES)
    changes = {"move_cost_s": move_cost_s, "backfill": backfill, "repeat": 2.0}

    jumped, stepped = go(jobs, on, policy, **changes), go(jobs, on, policy, events=NO_EVENT, **changes)

    assert jumped.ends == stepped.ends
    assert jumped.stretches == stepped.stretches
    assert jumped.moves == stepped.moves
    assert jumped.gpu_seconds_held == pytest.approx(stepped.gpu_seconds_held)


@settings(max_examples=examples(60), deadline=None)
@given(TRACES, st.sampled_from(POLICIES), st.sampled_from(sorted(ORDERS)), st.booleans())
def test_no_gpu_serves_two_jobs_and_every_job_gets_all_it_asks_for(
    jobs: list[TraceJob], policy: Policy | RoundPolicy, order: str, backfill: bool
) -> None:
    outcome = go(jobs, fleet(scores=SCORES), policy, order=order, backfill=backfill)

    widths = {one.id: one.gpus for one in jobs}
    assert set(outcome.ends) == set(widths)
    held: dict[int, list[tuple[float, float]]] = {}
    for stretch in outcome.stretches:
        assert len(set(stretch.gpus)) == widths[stretch.job]
        for gpu in stretch.gpus:
            held.setdefault(gpu, []).append((stretch.start, stretch.end))
    for spans in held.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    held_s = sum((one.end - one.start) * len(one.gpus) for one in outcome.stretches)
    assert held_s == pytest.approx(outcome.gpu_seconds_held)
