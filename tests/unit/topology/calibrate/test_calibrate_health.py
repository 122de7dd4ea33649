# SPDX-License-Identifier: Apache-2.0
"""The watch list: who stands out, on what evidence, and what is proposed."""

from dataclasses import replace

import pytest

from tests.bench.paper.fleet import FleetPlan, SpeedStep, draw
from topology.calibrate.health import Advice, Watched, watch_list
from topology.calibrate.runs import KernelRun, Verdict, Visit, seconds_of
from topology.calibrate.statistics import calibrate

CALM = FleetPlan(nodes=24, waiting=0.0, slow_gpus=0.0, node_run=0.02, node=0.01)


def listed(visits: tuple[Visit, ...]) -> dict[tuple[str, int | None], Watched]:
    now = max(seconds_of(visit.at) for visit in visits)
    return {(one.node, one.position): one for one in watch_list(calibrate(visits, now))}


def slowed(visits: tuple[Visit, ...], factor: float) -> tuple[Visit, ...]:
    """GPU 1 of n7 takes more time."""

    def one(visit: Visit) -> Visit:
        if visit.node != "n7":
            return visit
        gpu = visit.gpus[1]
        run = replace(gpu.runs[0], time_ms=gpu.runs[0].time_ms * factor)
        return replace(visit, gpus=(visit.gpus[0], replace(gpu, runs=(run,)), *visit.gpus[2:]))

    return tuple(map(one, visits))


def test_nobody_stands_out_where_all_are_typical() -> None:
    assert listed(draw(CALM, 1).visits) == {}


def test_a_very_slow_chip_is_proposed_to_be_drained_with_the_evidence() -> None:
    watched = listed(slowed(draw(CALM, 2).visits, 1.3))

    assert set(watched) == {("n7", 1)}
    one = watched["n7", 1]
    assert one.advice is Advice.DRAIN
    assert "of 3 runs, 96 peers" in one.evidence
    assert one.drain().startswith("scontrol update NodeName=n7 State=DRAIN Reason=")
    assert one.drain().endswith('peers"')


def test_no_drain_is_proposed_on_too_few_runs() -> None:
    assert listed(slowed(draw(replace(CALM, visits=2), 2).visits, 1.3)) == {}


def test_a_host_that_lets_its_gpus_wait_is_listed_once_and_never_drained() -> None:
    watched = listed(draw(replace(CALM, stuck=(5,), visits=4), 4).visits)

    assert watched["n5", None].advice is Advice.HOST
    assert "waited in 3 of the last 3 visits" in watched["n5", None].evidence
    assert {one.advice for one in watched.values()} == {Advice.HOST}
    assert watched["n5", None].drain() == ""


@pytest.mark.parametrize(
    ("trouble", "advice"), [("throttled", Advice.COOLING), ("xid", Advice.DRAIN), ("foreign", None)]
)
def test_trouble_that_comes_again_is_listed(trouble: Verdict, advice: Advice | None) -> None:
    visits = draw(replace(CALM, visits=6), 5).visits
    latest = sorted({visit.at for visit in visits})[-2:]

    def troubled(visit: Visit) -> Visit:
        if visit.node != "n3" or visit.at not in latest:
            return visit
        gpu = visit.gpus[0]
        run: KernelRun = replace(
            gpu.runs[0], thermal_s=5.0 * (trouble == "throttled"), foreign=(1,) * (trouble == "foreign")
        )
        return replace(visit, gpus=(replace(gpu, runs=(run,), xids=(79,) * (trouble == "xid")), *visit.gpus[1:]))

    watched = listed(tuple(map(troubled, visits)))
    assert {one.advice for one in watched.values()} == ({advice} if advice else set())


def test_a_step_is_part_of_the_evidence() -> None:
    watched = listed(draw(replace(CALM, visits=7, steps=(SpeedStep(2, 3, 4, 1.3),)), 7).visits)

    assert "became" in watched["n2", 3].evidence
    assert "slower for compute since" in watched["n2", 3].evidence
