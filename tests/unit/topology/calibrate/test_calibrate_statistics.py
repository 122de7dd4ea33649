# SPDX-License-Identifier: Apache-2.0
"""Scores from runs: slow chips are found, waiting nodes are not blamed, changes are told, and errors are honest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.paper.fleet import FleetPlan, SpeedStep, draw
from tests.bench.scores_exact import exact
from tests.bench.scores_fleets import LONGHORN, centred, found, measured
from tests.examples import examples
from topology.calibrate.health import watch_list
from topology.calibrate.peers import peers_of, verdicts
from topology.calibrate.posterior import Disturbance, Floats, Outlier, Variances, fit, locate
from topology.calibrate.runs import KernelRun, Visit, seconds_of
from topology.calibrate.statistics import calibrate, table
from topology.calibrate.variances import PUBLISHED, complete_blocks, reml
from topology.scores import decode, encode

pytestmark = pytest.mark.slow

SMALL = replace(LONGHORN, nodes=64)
CALM = FleetPlan(nodes=32, waiting=0.0, slow_gpus=0.0)
TRUE = Variances(0.026**2, 0.010**2, 0.049**2, 0.019**2)


def last(visits: tuple[Visit, ...]) -> float:
    return max(seconds_of(visit.at) for visit in visits)


def test_without_outliers_the_fixed_point_is_the_best_linear_estimate() -> None:
    fleet = draw(replace(CALM, nodes=8), 1)
    nodes, gpus, visits = fleet.times.shape
    gpu, visit = np.repeat(np.arange(gpus), visits), np.tile(np.arange(visits), gpus)
    covariance = TRUE.node + TRUE.gpu * (gpu[:, None] == gpu) + TRUE.node_run * (visit[:, None] == visit)
    covariance = covariance + TRUE.gpu_run * np.eye(gpus * visits)
    cross = TRUE.node + TRUE.gpu * (np.arange(gpus)[:, None] == gpu)
    best = fleet.times.reshape(nodes, -1) @ np.linalg.solve(covariance, cross.T)

    assert np.abs(fit(fleet.times, TRUE).mean() - best).max() < 0.002


def test_a_located_value_lies_between_what_was_seen_and_the_typical() -> None:
    one = locate(np.array([[0.10, np.nan, np.nan]]), np.array([[0.01]]), 0.01, Outlier(1e-9), Disturbance(1e-9))

    assert one.mean[0] == pytest.approx(0.05, abs=1e-6)
    assert one.variances[0, 0] == pytest.approx(0.005)


def test_nothing_seen_leaves_what_was_assumed() -> None:
    one = locate(np.full((1, 2), np.nan), np.array([[0.01]]), 0.04, Outlier(0.1), Disturbance(0.1))

    assert one.odds[0] == pytest.approx(0.1)
    assert one.variances[0, 0] == pytest.approx(0.04)


def test_variances_are_found_and_few_runs_fall_back_to_the_published() -> None:
    sizes = [
        np.sqrt([v.node, v.gpu, v.node_run, v.gpu_run])
        for v in (reml(draw(replace(CALM, nodes=200), seed).times, PUBLISHED["mixed"])[0] for seed in range(5))
    ]

    assert np.mean(sizes, axis=0) == pytest.approx([0.026, 0.010, 0.049, 0.019], rel=0.12)
    assert reml(np.full((1, 1, 1), np.nan), PUBLISHED["mixed"]) == (PUBLISHED["mixed"], 0.0)
    one = reml(np.zeros((1, 1, 1)), PUBLISHED["compute"])[0]
    assert 0.2 < one.node / PUBLISHED["compute"].node < 5


def test_a_block_is_what_lacks_nothing() -> None:
    times = np.zeros((1, 4, 3))
    times[0, 2, :2] = np.nan

    assert [block.shape for block in complete_blocks(times)] == [(3, 3)]


@pytest.mark.parametrize("gpus", [4, 8])
def test_scores_are_near_the_exact_posterior_and_slow_chips_are_found(gpus: int) -> None:
    some = [
        (one, exact(one.fleet))
        for one in (measured(replace(SMALL, gpus=gpus, nodes=256 // gpus), seed) for seed in range(2))
    ]
    own = np.concatenate([one.wrong.ravel() for one, _ in some])
    best = np.concatenate([(centred(e.mean) - centred(one.fleet.truth)).ravel() for one, e in some])
    who = found([(one.slow > 0.5, one.fleet.slow) for one, _ in some])

    assert np.sqrt((own**2).mean()) <= 1.10 * np.sqrt((best**2).mean())
    assert who.recall >= 0.95
    assert who.precision >= 0.95


def test_stated_errors_are_kept() -> None:
    some = [measured(SMALL, seed) for seed in range(2)]
    within = np.concatenate([(np.abs(one.wrong) < 1.96 * one.errors).ravel() for one in some])

    assert 0.90 < within.mean() < 0.99


def test_a_waiting_node_is_no_slow_chip_however_often_it_waits() -> None:
    one = measured(replace(SMALL, waiting=0.2, silent=0.0, stuck=(3,), slow_gpus=0.0), 5)

    assert not (one.slow > 0.5).any()
    stuck = [e for e in one.calibration.estimates if e.place.node == "n3"]
    assert {e.now for e in stuck} == {"waiting"}
    assert all(e.runs == 0 and abs(e.score - 1.0) < 0.02 for e in stuck)


def test_one_visit_of_a_node_is_too_little_to_call_it_slow_and_enough_for_one_of_its_gpus() -> None:
    fleet = draw(replace(CALM, visits=1, nodes=64, waiting=0.1, wait=(1.2, 1.5), silent=1.0), 3)

    def slower(visit: Visit) -> Visit:
        first, *others = visit.gpus
        run = replace(first.runs[0], time_ms=first.runs[0].time_ms * 1.3)
        return replace(visit, gpus=(replace(first, runs=(run,)), *others)) if visit.node == "n1" else visit

    assert fleet.waited.sum() >= 4
    assert not fleet.waited[1, 0]
    slow = [e.place for e in calibrate(map(slower, fleet.visits), last(fleet.visits)).estimates if e.slow > 0.5]
    assert [(place.node, place.position) for place in slow] == [("n1", 0)]


def test_a_wait_that_only_the_time_tells_is_left_out_and_named() -> None:
    fleet = draw(replace(CALM, visits=4), 2)
    visits = [
        replace(
            visit, gpus=tuple(replace(g, runs=(replace(g.runs[0], time_ms=g.runs[0].time_ms * 2),)) for g in visit.gpus)
        )
        if visit.node == "n5" and visit.at == fleet.visits[-1].at
        else visit
        for visit in fleet.visits
    ]
    mine = [e for e in calibrate(visits, last(fleet.visits)).estimates if e.place.node == "n5"]

    assert {(e.now, e.runs, e.left_out) for e in mine} == {("waiting", 3, 1)}
    assert all(e.score < 1.08 for e in mine)


def test_one_gpu_with_little_power_at_full_clock_is_not_excused_by_its_host() -> None:
    fleet = draw(replace(CALM, visits=3), 3)

    def broken(visit: Visit) -> Visit:
        first, *others = visit.gpus
        run = replace(first.runs[0], time_ms=first.runs[0].time_ms * 1.5, power_w=100.0)
        return replace(visit, gpus=(replace(first, runs=(run,)), *others)) if visit.node == "n1" else visit

    found_ = calibrate(map(broken, fleet.visits), last(fleet.visits)).estimates
    bad = next(e for e in found_ if e.place.node == "n1" and e.place.position == 0)
    assert bad.slow > 0.99
    assert bad.now == ""


def test_a_gpu_that_became_slower_gets_its_new_score_and_is_announced() -> None:
    plan = replace(CALM, visits=7, steps=(SpeedStep(4, 2, 5, 1.20),))
    one = measured(plan, 4)

    assert [(c.node, c.place.position if c.place else None, c.kind) for c in one.calibration.changes] == [
        ("n4", 2, "step")
    ]
    assert "GPU 2 of n4 became" in str(one.calibration.changes[0])
    assert one.calibration.changes[0].since == one.fleet.visits[5 * 32].at
    assert one.slow[4, 2] > 0.9


def test_a_single_slow_run_is_no_change() -> None:
    fleet = draw(replace(CALM, visits=6), 6)

    def once(visit: Visit) -> Visit:
        first, *others = visit.gpus
        run = replace(first.runs[0], time_ms=first.runs[0].time_ms * 1.4)
        slow = visit.node == "n1" and visit.at == fleet.visits[3 * 32].at
        return replace(visit, gpus=(replace(first, runs=(run,)), *others)) if slow else visit

    result = calibrate(map(once, fleet.visits), last(fleet.visits))
    assert result.changes == ()
    assert next(e for e in result.estimates if e.place.node == "n1").slow < 0.05


def test_a_drift_is_announced_and_followed() -> None:
    fleet = draw(replace(CALM, visits=8), 7)
    ages = {at: number for number, at in enumerate(sorted({visit.at for visit in fleet.visits}))}

    def slower(visit: Visit) -> Visit:
        first, *others = visit.gpus
        run = replace(first.runs[0], time_ms=first.runs[0].time_ms * 1.03 ** ages[visit.at])
        return replace(visit, gpus=(replace(first, runs=(run,)), *others)) if visit.node == "n1" else visit

    result = calibrate(map(slower, fleet.visits), last(fleet.visits))
    one = next(e for e in result.estimates if e.place.node == "n1")
    assert [(c.node, c.kind) for c in result.changes] == [("n1", "drift")]
    assert one.score == pytest.approx(1.23, abs=0.07)


def test_old_runs_say_less() -> None:
    fleet = draw(CALM, 8)
    now, later = (calibrate(fleet.visits, last(fleet.visits) + days * 86_400.0).estimates for days in (0, 2_000))

    assert all(b.error > a.error for a, b in zip(now, later, strict=True))
    assert max(abs(e.score - 1) for e in later) < max(abs(e.score - 1) for e in now)


def test_a_gpu_that_moved_has_one_score_where_it_is_now() -> None:
    fleet = draw(CALM, 9)
    late = fleet.visits[-1].at

    def moved(visit: Visit) -> Visit:
        if visit.at != late or visit.node not in {"n1", "n2"}:
            return visit
        other = next(v for v in fleet.visits if v.at == late and v.node != visit.node and v.node in {"n1", "n2"})
        return replace(visit, gpus=(other.gpus[0], *visit.gpus[1:]))

    found_ = [e.place for e in calibrate(map(moved, fleet.visits), last(fleet.visits)).estimates]
    assert len(found_) == len({place.uuid for place in found_}) == 128
    assert next(place.node for place in found_ if place.uuid == "GPU-n1-0") == "n2"


def test_a_gpu_that_was_exchanged_has_no_score_beside_the_new_one_and_is_no_longer_watched() -> None:
    fleet = draw(CALM, 9)
    late = fleet.visits[-1].at

    def visit_of(visit: Visit) -> Visit:
        old, *others = visit.gpus
        broken = replace(old, xids=(79,)) if visit.node == "n1" else old
        new = replace(old, uuid="GPU-new") if visit.node == "n1" else old
        return replace(visit, gpus=(new if visit.at == late else broken, *others))

    result = calibrate(map(visit_of, fleet.visits), last(fleet.visits))
    assert decode(encode(table(result.estimates)).splitlines()) == table(result.estimates)
    assert [one.place.uuid for one in result.estimates if (one.place.node, one.place.position) == ("n1", 0)] == [
        "GPU-new"
    ]
    assert not watch_list(result)


def test_gpus_of_another_model_or_driver_are_no_peers() -> None:
    fleet = draw(replace(CALM, nodes=40), 10)

    def other(visit: Visit) -> Visit:
        number = int(visit.node[1:])
        factor, model, driver = (
            (2.0, "big", "580") if number < 20 else (1.0 + 0.3 * (number < 30), "small", str(number < 30))
        )
        return replace(
            visit,
            gpus=tuple(
                replace(g, model=model, driver=driver, runs=(replace(g.runs[0], time_ms=factor * g.runs[0].time_ms),))
                for g in visit.gpus
            ),
        )

    result = calibrate(map(other, fleet.visits), last(fleet.visits))
    assert {key.model for key, _ in result.variances} == {"big", "small"}
    assert max(abs(e.score - 1) for e in result.estimates) < 0.12


def test_the_table_has_what_planning_needs() -> None:
    one = measured(replace(SMALL, nodes=8), 1)
    scores = table(one.calibration.estimates)

    assert len(scores) == 32
    assert {score.app_class for score in scores} == {"compute"}
    assert all(0 < score.error < 0.1 and score.runs for score in scores)


def test_waiting_is_told_from_the_peers_signs() -> None:
    fleet = draw(replace(CALM, nodes=12, stuck=(2,)), 1)
    wrong: dict[str, set[str]] = {}
    for _, _, visit, _, _, verdict in verdicts(fleet.visits):
        wrong.setdefault(visit.node, set()).add(verdict)

    assert wrong.pop("n2") == {"waiting"}
    assert set.union(*wrong.values()) == {""}


def test_runs_of_one_by_one_are_not_mixed_with_those_of_all_together() -> None:
    fleet = draw(replace(CALM, nodes=4), 1)

    assert peers_of(replace(visit, way="alone") for visit in fleet.visits) == []


def test_a_fleet_of_one_gpu_is_typical() -> None:
    fleet = draw(replace(CALM, nodes=1, gpus=1), 1)
    (only,) = calibrate(fleet.visits, last(fleet.visits)).estimates

    assert only.score == pytest.approx(1.0)
    assert isinstance(only.place.uuid, str)


def test_classes_have_scores_of_their_own() -> None:
    fleet = draw(CALM, 11)
    both = [
        replace(
            visit,
            gpus=tuple(
                replace(g, runs=(*g.runs, KernelRun("memory", 20.0 + 0.01 * g.position, kernel="triad")))
                for g in visit.gpus
            ),
        )
        for visit in fleet.visits
    ]
    scores: dict[str, Floats] = {}
    for app_class in ("compute", "memory"):
        found_ = [e.score for e in calibrate(both, last(fleet.visits)).estimates if e.app_class == app_class]
        scores[app_class] = np.array(found_)

    assert scores["compute"].size == scores["memory"].size == 128
    assert scores["memory"].std() < 0.002 < scores["compute"].std()


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_whatever_is_missing_scores_are_finite_and_every_gpu_is_told_of(data: st.DataObject) -> None:
    plan = FleetPlan(
        nodes=data.draw(st.integers(1, 3)), gpus=data.draw(st.integers(1, 3)), visits=data.draw(st.integers(1, 5))
    )
    visits = []
    for visit in draw(plan, 1).visits:
        gpus = tuple(
            replace(gpu, xids=(79,) * data.draw(st.sampled_from([0, 0, 1])))
            for gpu in visit.gpus
            if data.draw(st.sampled_from([True, True, False]))
        )
        visits.append(replace(visit, gpus=gpus))

    result = calibrate(visits, last(tuple(visits)))

    assert {e.place.uuid for e in result.estimates} == {gpu.uuid for visit in visits for gpu in visit.gpus}
    assert all(0.2 < e.score < 5.0 and 0.0 < e.error < 2.0 and 0.0 <= e.slow <= 1.0 for e in result.estimates)
    assert len(watch_list(result)) <= len(result.estimates) + plan.nodes


def test_no_visit_says_nothing() -> None:
    assert calibrate([], 0.0).estimates == ()
