# SPDX-License-Identifier: Apache-2.0
"""Whoever chooses places, the queue, the passes, the quotas and the nodes are the same Slurm's."""

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.errors import NotNow, UsageError
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.placement.slurm_like import SlurmPolicy
from policy.request.demand import Demand
from policy.simulate.berthd import processes
from policy.simulate.berthd.records import request_of
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.queue.jobs import Task
from policy.simulate.slurm.settings import Delays, Quotas, SlurmSettings
from policy.simulate.world import Layout, build
from tests.examples import examples

LAYOUT = Layout(4, 8, nodes_per_leaf=2)
AT_ONCE = Delays(read=0, plan=0, look=0, freed=0, update=0, most_held_up=0)
"""Slurm takes its time, and berthd takes none."""
WAYS = {
    "fifo": SlurmSettings(),
    "multifactor": SlurmSettings(order="slurm"),
    "quotas": SlurmSettings(quotas=Quotas({"a": 16, "b": 16}), order="srsf"),
    "lent": SlurmSettings(quotas=Quotas({"a": 16, "b": 24}, borrow_s=900.0)),
    "failures": SlurmSettings(events=[NodeEvent(0, 300, 900, math.inf), NodeEvent(1, 500, 1_500, 2.0)]),
}


def drawn(seed: int, count: int = 60) -> list[TraceJob]:
    """More than four nodes can run at once, of two accounts."""
    draw, jobs, at = Random(seed), list[TraceJob](), 0.0
    for number in range(count):
        at += draw.expovariate(1 / 30)
        gpus, work, account = draw.choice((1, 1, 2, 4, 8, 16)), draw.uniform(20, 900), draw.choice("ab")
        limit = work * draw.uniform(0.9, 4)
        jobs.append(TraceJob(str(number), gpus, at, work, limit=limit, account=account, user=account))
    return jobs


def play(seed: int, settings: SlurmSettings) -> SimulationOutcome:
    return run(drawn(seed), build(LAYOUT), BerthPolicy() if settings.berthd else SlurmPolicy(), settings)


def left_to_slurm(task: Task, partition: str) -> dict[str, str]:
    """A request with an option of which berthd knows nothing."""
    return {**request_of(task, partition), "slurms_own": "--an-option"}


@pytest.mark.parametrize("delays", [None, AT_ONCE], ids=["instant", "timed"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [1, 2])
def test_with_berthd_that_places_nothing_every_job_runs_as_under_plain_slurm(
    seed: int, way: str, delays: Delays | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "request_of", left_to_slurm)
    settings = replace(WAYS[way], delays=delays)

    plain, beside = play(seed, settings), play(seed, replace(settings, berthd=True))

    assert beside.extra["unplanned"] == len(beside.jobs) + beside.moves
    assert beside.starts == plain.starts
    assert beside.ends == plain.ends
    assert beside.stretches == plain.stretches
    assert (beside.extra["levels"], beside.extra["killed"]) == (plain.extra["levels"], plain.extra["killed"])
    assert waits(beside) == pytest.approx(waits(plain))


def waits(outcome: SimulationOutcome) -> dict[str, float]:
    found = outcome.extra["waits"]
    assert isinstance(found, dict)
    return {f"{size}: {why}": waited for size, by in found["seconds"].items() for why, waited in by.items()}


@pytest.mark.parametrize("delays", [None, Delays()], ids=["instant", "timed"])
def test_quotas_hold_for_jobs_that_berthd_pins(delays: Delays | None) -> None:
    quotas = {"a": 16, "b": 20}
    outcome = play(3, SlurmSettings(berthd=True, delays=delays, quotas=Quotas(quotas, borrow_s=0.0)))
    account = {job.id: job.account for job in outcome.jobs}

    assert outcome.extra["unplanned"] != len(outcome.jobs)
    for moment in sorted(one.start for one in outcome.stretches):
        held: dict[str, int] = {}
        for one in outcome.stretches:
            if one.start <= moment < one.end:
                held[account[one.job]] = held.get(account[one.job], 0) + len(one.gpus)
        assert all(gpus <= quotas[name] for name, gpus in held.items())


@pytest.mark.parametrize("delays", [None, Delays()], ids=["instant", "timed"])
def test_berthd_pins_jobs_of_a_failed_node_elsewhere(delays: Delays | None) -> None:
    down = NodeEvent(0, 50, 100_000, math.inf)
    fleet = build(Layout(2, 8))
    jobs = [TraceJob(str(number), 4, number, 400, limit=600) for number in range(4)]
    outcome = run(jobs, fleet, BerthPolicy(), SlurmSettings(berthd=True, delays=delays, events=[down]))

    assert outcome.moves == 2
    assert nodes_after(outcome, fleet, 50.0) == {1}
    assert outcome.ends.keys() == {job.id for job in jobs}


def nodes_after(outcome: SimulationOutcome, fleet: Fleet, moment: float) -> set[int]:
    width = int(fleet.size.max())
    return {gpu // width for one in outcome.stretches if one.start > moment for gpu in one.gpus}


@pytest.mark.parametrize("delays", [None, Delays()], ids=["instant", "timed"])
def test_priorities_order_what_berthd_pins(delays: Delays | None) -> None:
    """Two jobs wait for all GPUs: the later one has the greater priority."""
    jobs = [
        TraceJob("first", 8, 0, 300, limit=600),
        TraceJob("low", 8, 10, 60, limit=120),
        TraceJob("high", 8, 20, 60, limit=120, priority=10.0),
    ]
    settings = SlurmSettings(berthd=True, delays=delays, order="slurm", bf_interval_s=5)
    outcome = run(jobs, build(Layout(1, 8)), BerthPolicy(), settings)

    assert outcome.starts["high"] < outcome.starts["low"]


@pytest.mark.parametrize("berthd", [False, True])
@pytest.mark.parametrize("delays", [None, Delays()], ids=["instant", "timed"])
def test_jobs_that_wait_for_a_node_that_never_comes_back_are_named(
    delays: Delays | None, berthd: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SlurmSettings(berthd=berthd, delays=delays, events=[NodeEvent(0, 50, math.inf, math.inf)])
    jobs = [TraceJob("one", 8, 0, 400, limit=600), TraceJob("wide", 16, 60, 400, limit=600, nodes=2)]

    found = run(jobs, build(Layout(2, 8)), BerthPolicy() if berthd else SlurmPolicy(), settings)
    assert ([job.id for job in found.jobs], found.extra["never_started"]) == (["one"], 1)
    assert "1 jobs can never start, first job wide: the policy gives them no place, or" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"1 jobs can never start, first job wide: .* or a node that they need never"):
        run(jobs[1:], build(Layout(2, 8)), BerthPolicy() if berthd else SlurmPolicy(), settings)


class OnOneNode(SlurmPolicy):
    """A site's policy that refuses jobs wider than a node."""

    def place(self, demand: Demand, view: View) -> Berth:
        if demand.n != 1:
            raise NotNow("this site's jobs stay on one node")
        return super().place(demand, view)


@given(st.lists(st.sampled_from([1, 4, 8, 16, 24]), min_size=1, max_size=12))
@hypothesis_settings(max_examples=examples(15), deadline=None)
def test_a_policy_that_refuses_wide_jobs_loses_those_jobs_and_no_run(widths: list[int]) -> None:
    jobs = [TraceJob(f"j{n}", gpus, n, 60, limit=120, nodes=-(-gpus // 8)) for n, gpus in enumerate(widths)]
    narrow = [job.id for job in jobs if job.gpus <= 8]
    if not narrow:
        with pytest.raises(UsageError, match="the policy gives them no place"):
            run(jobs, build(Layout(3, 8)), OnOneNode(), SlurmSettings())
        return
    found = run(jobs, build(Layout(3, 8)), OnOneNode(), SlurmSettings())
    assert [job.id for job in found.jobs] == narrow, "jobs that the policy takes have run"
    assert found.extra.get("never_started", 0) == len(jobs) - len(narrow)


def test_a_job_that_follows_another_comes_when_that_has_ended() -> None:
    jobs = [TraceJob("one", 1, 0, 100, limit=200), TraceJob("then", 1, 0, 50, limit=100)]
    after: Mapping[str, tuple[str, float]] = {"then": ("one", 7.0)}

    assert run(jobs, build(Layout(1, 8)), SlurmPolicy(), SlurmSettings(after=after)).starts["then"] == 107
