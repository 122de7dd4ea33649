# SPDX-License-Identifier: Apache-2.0
"""berthd beside slurmctld on paper: what holds whatever the plan does, and Slurm's rules as real clusters show them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from policy.cli.main import main
from policy.cluster.fleet import Fleet
from policy.cluster.view import View
from policy.formats.errors import UsageError
from policy.placement.base import Berth
from policy.placement.berth import BerthPolicy
from policy.placement.slurm_like import SlurmPolicy
from policy.plan.queue import outlook, simple_claims
from policy.simulate.berthd.records import record_of
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import EPOCH, SimulationOutcome
from policy.simulate.slurm.clock import Clock, Loop
from policy.simulate.slurm.nodes.ledger import Ledger
from policy.simulate.slurm.nodes.tree_choice import TreeChoice
from policy.simulate.slurm.passes import QueuePasses
from policy.simulate.slurm.queue.jobs import Task, Tasks
from policy.simulate.slurm.queue.priority import Queue
from policy.simulate.slurm.queue.running import RunningJobs
from policy.simulate.slurm.queue.waits import WaitClocks
from policy.simulate.slurm.settings import Delays, LocalityRule, SlurmSettings
from policy.simulate.world import Layout, build
from tests.bench.replay import simulated
from tests.bench.replay.limits import limit_figures
from tests.bench.replay.systems import SYSTEMS
from tests.bench.replay.workload import Shape, draw
from tests.unit.benches.test_replay import KINDS, LEVEL, SENSITIVITY, table
from tests.unit.policy.simulate.study_file import study
from tests.unit.policy_world import machine
from topology.model import Machine

pytestmark = pytest.mark.slow

FLEET = replace(build(Layout(nodes=8, gpus_per_node=8, nodes_per_leaf=4)), cpus=np.full(8, 16, np.int64))
PLAIN = SlurmSettings(delays=Delays(), bf_interval_s=2, default_queue_depth=2_000, bf_max_job_test=2_000)
BERTHD = replace(PLAIN, berthd=True)
ORACLE = replace(BERTHD, durations="true", kill=False)


def job(name: str, gpus: int, at: float, work: float = 60, *, limit: float = 120, nodes: int | None = None) -> TraceJob:
    return TraceJob(name, gpus=gpus, submit=at, work=work, limit=limit, nodes=nodes)


def crowd(seed: int, jobs: int = 60, gap: float = 1.2) -> list[TraceJob]:
    """More than the eight nodes can run at once: all widths, gangs that want one leaf, and jobs without GPUs."""
    draws = Random(seed)
    asked, at = list[TraceJob](), 0.0
    for number in range(jobs):
        at += draws.expovariate(1 / gap)
        gpus = draws.choice((0, 0, 1, 1, 2, 4, 8, 16, 32))
        nodes = max(1, gpus // 8)
        work = draws.uniform(5, 40)
        one = job(str(number), gpus, at, work, limit=60 * draws.randint(1, 3), nodes=nodes)
        asked.append(replace(one, cpus=draws.choice((1, 4, 8)) if not gpus else 0))
    return asked


def play(asked: Sequence[TraceJob], settings: SlurmSettings = BERTHD) -> SimulationOutcome:
    gangs = {one.id: LocalityRule("leaf", 15) for one in asked if (one.nodes or 1) > 1}
    policy = BerthPolicy() if settings.berthd else SlurmPolicy()
    return run(asked, FLEET, policy, replace(settings, localities=gangs))


@cache
def crowded(seed: int) -> SimulationOutcome:
    return play(crowd(seed))


def mean_wait(outcome: SimulationOutcome) -> float:
    return float(np.mean([outcome.starts[one.id] - one.submit for one in outcome.jobs]))


@pytest.mark.parametrize("settings", [BERTHD, PLAIN, ORACLE], ids=["berthd", "plain", "oracle"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_job_runs_once_and_no_gpu_serves_two(seed: int, settings: SlurmSettings) -> None:
    asked = crowd(seed)
    outcome = play(asked, settings)

    assert {one.job for one in outcome.stretches} == {one.id for one in asked}
    assert len(outcome.stretches) == len(asked)
    for one in asked:
        assert outcome.starts[one.id] >= one.submit
        assert outcome.ends[one.id] > outcome.starts[one.id]
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    width = {one.id: one.gpus for one in asked}
    for stretch in outcome.stretches:
        assert len(stretch.gpus) == width[stretch.job]
        for gpu in stretch.gpus:
            by_gpu.setdefault(gpu, []).append((stretch.start, stretch.end))
    for stays in by_gpu.values():
        stays.sort()
        # Between two jobs on a GPU there is at least the epilog of the first.
        assert all(after[0] - before[1] > Delays().epilog for before, after in pairwise(stays))


def test_every_gpu_job_starts_where_it_is_pinned() -> None:
    asked = crowd(1)

    assert crowded(1).extra["unplanned"] == 0
    assert play(asked, PLAIN).extra["unplanned"] == sum(one.gpus > 0 for one in asked)


def test_the_same_input_gives_the_same_outcome() -> None:
    first, again = crowded(1), play(crowd(1))

    assert first.starts == again.starts
    assert first.stretches == again.stretches
    assert first.extra == again.extra


def test_equal_jobs_start_in_the_order_of_their_submission() -> None:
    asked = [job(str(number), 8, number * 0.5) for number in range(40)]
    by_turns = play(asked, PLAIN).starts
    in_order = [by_turns[one.id] for one in asked]
    assert in_order == sorted(in_order)

    # Pins go by time limits, which tell little of ends; who is overtaken by that waits for one more end, not longer.
    pinned = play(asked).starts
    for one in asked:
        assert pinned[one.id] <= by_turns[one.id] + one.work + 2


def test_a_gang_is_not_starved_by_a_stream_of_small_jobs() -> None:
    draws = Random(5)
    small = [
        job(f"s{number}", draws.choice((1, 2)), number * 0.4, draws.uniform(20, 50), limit=60) for number in range(150)
    ]
    gang = job("gang", 32, 30.0, nodes=4)
    asked = sorted([*small, gang], key=lambda one: one.submit)
    waits = {settings.berthd: play(asked, settings).starts["gang"] - 30.0 for settings in (BERTHD, PLAIN)}

    assert waits[False] > 1, "the gang found no room at once"
    assert waits[True] <= 1.25 * waits[False]


def test_lost_notices_lose_no_job() -> None:
    heard, deaf = crowded(1), play(crowd(1), replace(BERTHD, delays=Delays(lost_notices=1.0)))

    assert deaf.ends.keys() == heard.ends.keys()
    assert deaf.extra["unplanned"] == 0
    assert mean_wait(deaf) <= 1.5 * mean_wait(heard)


def test_a_slow_berthd_loses_no_job_and_moves_none_that_runs() -> None:
    slow = replace(BERTHD, delays=Delays(tick=5, read=1, plan=2, update=0.5, most_held_up=0.3))
    outcome = play(crowd(3), slow)

    assert outcome.ends.keys() == crowded(3).ends.keys()
    assert outcome.extra["unplanned"] == 0
    assert outcome.extra["denied"], "some updates came after the start"


def test_jobs_without_gpus_share_the_cores() -> None:
    one_node = replace(build(Layout(nodes=1, gpus_per_node=8)), cpus=np.full(1, 16, np.int64))
    asked = [replace(job(str(number), 0, 0.0, 30 + number), cpus=8) for number in range(3)]
    outcome = run(asked, one_node, BerthPolicy(), BERTHD)

    assert outcome.starts["1"] < 2
    assert outcome.starts["2"] > outcome.ends["0"]


def test_a_limit_ends_a_job() -> None:
    asked = [job("long", 1, 0.0, 500, limit=60)]
    outcome = play(asked)

    assert outcome.ends["long"] - outcome.starts["long"] == pytest.approx(60)
    assert outcome.extra["killed"] == 1
    kept = play(asked, replace(BERTHD, kill=False))
    assert kept.ends["long"] - kept.starts["long"] == pytest.approx(500)


def test_an_oracle_reads_how_long_jobs_take_and_when_they_will_end() -> None:
    asked = job("1", gpus=8, at=0, work=7.4, limit=600)
    told, known = (Tasks(FLEET, settings).of(0, asked) for settings in (BERTHD, ORACLE))
    for task in (told, known):
        task.state, task.started, task.ended = "RUNNING", 10.0, 25.2

    ends = [(facts.limit, facts.end) for facts in (record_of(task, ("n1",), "gpu") for task in (told, known))]

    assert ends == [(600, EPOCH + 610), (8, EPOCH + 26)]
    assert [told.ends_by, known.ends_by] == [610, 25.2]


def test_a_job_that_no_node_could_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"job wide asks for 8 GPUs and 17 cores on each node and could never start"):
        play([replace(job("wide", 8, 0.0), cpus=17)])


# Slurm's passes


class Bench:
    """Slurm's passes on a cluster where nothing happens but what a test does."""

    def __init__(self, nodes: int = 2, settings: SlurmSettings = BERTHD) -> None:
        fleet = replace(build(Layout(nodes, 8, nodes_per_leaf=2)), cpus=np.full(nodes, 16, np.int64))
        self.settings = settings
        self.ledger = Ledger(fleet)
        self.jobs = RunningJobs(self.ledger, settings, lambda *_: None)
        self.queue = Queue(settings.order)
        waits = WaitClocks(self.ledger, {}, self.jobs.held)
        self.passes = QueuePasses(self.queue, self.jobs, waits, SlurmPolicy(), settings, self.start)
        self.started: list[Task] = []
        self.now, self.count = 0.0, 0

    def add(self, gpus: int, *, on: tuple[int, ...] = (), limit: float = 60, wait: int = 0) -> Task:
        wide = max(1, len(on), gpus // 8)
        one = job(str(self.count), gpus, 0.0, limit=limit, nodes=wide)
        rules = {one.id: LocalityRule("leaf", wait)} if wait else {}
        task = Tasks(self.ledger.fleet, replace(self.settings, localities=rules)).of(self.count, one)
        self.count += 1
        if on:
            task.pin_to(on, (1 << task.demand.k) - 1)
        self.queue.add(task, self.now)
        return task

    def start(self, task: Task, berth: Berth, now: float) -> None:
        self.queue.remove(task)
        self.jobs.start(task, berth, now)
        self.started.append(task)

    def main(self) -> list[int]:
        before = len(self.started)
        self.passes.main(self.now)
        return [task.id for task in self.started[before:]]

    def backfill(self) -> list[int]:
        before = len(self.started)
        self.passes.backfill(self.now)
        return [task.id for task in self.started[before:]]


def test_a_waiting_pin_bars_its_nodes_and_no_others() -> None:
    bench = Bench()
    bench.add(4, on=(0,))
    assert bench.main() == [1]
    waits, beside, elsewhere = bench.add(8, on=(0,)), bench.add(1, on=(0,)), bench.add(8, on=(1,))
    beside.pin_to((0,), 0b10000000)

    assert bench.main() == [elsewhere.id]
    assert (waits.reason, beside.reason) == ("Resources", "ReqNodeNotAvail")


def test_a_job_that_slurm_places_stops_the_main_pass_but_not_backfill() -> None:
    bench = Bench()
    bench.add(4, on=(0,), limit=600)
    bench.main()
    bench.add(16, limit=600)
    behind = bench.add(1, on=(1,), limit=60)
    too_long = bench.add(1, on=(1,), limit=6_000)

    assert bench.main() == []
    assert behind.reason == "Priority"
    assert bench.backfill() == [behind.id]
    assert too_long in bench.queue, "it would delay the job before it"


def test_a_node_with_a_running_epilog_takes_no_job() -> None:
    bench = Bench(nodes=1)
    first = bench.add(1, on=(0,))
    bench.main()
    bench.jobs.stop(first, bench.now)
    bench.ledger.epilog(0, 1)
    after = bench.add(1, on=(0,))

    assert bench.main() == []
    assert bench.backfill() == []
    bench.ledger.epilog(0, -1)
    assert bench.main() == [after.id]


def test_switches_keep_a_gang_from_two_leaves_for_its_time() -> None:
    bench = Bench(nodes=4, settings=PLAIN)
    bench.add(8, on=(0,), limit=600)
    bench.add(8, on=(2,), limit=600)
    bench.main()
    gang = bench.add(16, wait=15)

    assert (bench.main(), bench.backfill()) == ([], [])
    bench.now = 14.0
    assert bench.main() == []
    bench.now = 15.0
    assert bench.main() == [gang.id]
    assert gang.berth
    assert gang.berth.nodes == (1, 3)


def test_slurms_choice_is_what_a_real_cluster_shows() -> None:
    """DGX-1V nodes under topology/tree, 24.11: sockets take turns, then the GPUs least linked to the first."""
    fleet = replace(build(Layout(4, 8, nodes_per_leaf=2), machine=numa(8)), cpus=np.full(4, 16, np.int64))
    seen = [(berth.nodes[0], list(berth.gpus)) for berth in chosen(fleet, (1, 1, 2, 1, 2, 1, 4))]

    assert seen == [(0, [0]), (0, [4]), (0, [1, 3]), (0, [5]), (0, [6, 7]), (0, [2]), (1, [0, 1, 2, 3])]


def chosen(fleet: Fleet, widths: Sequence[int]) -> list[Berth]:
    """Slurm's own places for jobs that come one after the other and stay."""
    ledger, found = Ledger(fleet), list[Berth]()
    choice = TreeChoice(ledger)
    everywhere = np.ones(len(fleet.names), np.bool_)
    for number, gpus in enumerate(widths):
        task = Tasks(fleet, PLAIN).of(number, job(str(number), gpus, 0.0))
        view = View(fleet, ledger.free, ledger.cpus, fleet.mem, ledger.open, everywhere)
        found.append(choice.place(task.demand, view))
        ledger.take(found[-1].nodes, found[-1].masks, 60.0, task.cpus)
    return found


def numa(size: int) -> Machine:
    whole = machine("n0", "v100", size)
    gpus = tuple(replace(gpu, numa=gpu.position // 4) for gpu in whole.gpus)
    return replace(whole, gpus=gpus)


def test_a_loop_that_wakes_itself_never_stays_at_one_moment() -> None:
    for began in np.random.default_rng(1).uniform(-2, 0, 200).tolist():
        clock = Clock(began)
        moments: list[float] = []

        def act(clock: Clock = clock, moments: list[float] = moments) -> None:
            moments.append(clock.now)

        loop = Loop(clock, 60.0, act)
        for _ in range(20):
            loop.wake()
            clock.step()
        assert all(after - before > 59 for before, after in pairwise(moments))


# The command and the replay on paper


def trace(folder: Path) -> str:
    path = folder / "trace.csv"
    lines = [f"{number},{(1, 2, 8, 16)[number % 4]},{number * 20},300,00:10:00" for number in range(40)]
    path.write_text("\n".join(["job_id,num_gpus,submit_time,duration,limit", *lines]) + "\n")
    return str(path)


def test_the_command_plays_berthd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", trace(tmp_path), "--nodes", "4", "--gpus-per-node", "8", "--mode", "berthd"]

    assert main([*arguments, "--workers", "1"]) == 0
    rows = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["slurm", "berth"]


def test_whose_backfill_it_is_is_no_question_to_other_modes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["simulate", trace(tmp_path), "--nodes", "4", "--gpus-per-node", "8", *study(slurm="26.05")]

    assert main([*arguments, "--mode", "slurm"]) != 0
    assert "slurm = 26.05 belongs to --mode berthd" in capsys.readouterr().err
    assert main([*arguments, "--mode", "berthd", "--policy", "slurm", "--workers", "1"]) == 0


def test_a_constant_of_the_plan_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "FIRST_EVERY", 1.0)
    monkeypatch.setattr(simple_claims, "GATHER_AT_ONCE", 16)
    simulated.change("policy.plan.queue.outlook.FIRST_EVERY=0.5")
    simulated.change("policy.plan.queue.simple_claims.GATHER_AT_ONCE=8")

    assert (outlook.FIRST_EVERY, simple_claims.GATHER_AT_ONCE) == (0.5, 8)


@pytest.mark.parametrize("system", ["plain", "berth"])
def test_the_replay_on_paper_stretches_jobs_as_the_table_says(system: str) -> None:
    stretch = table()
    jobs = draw(1, Shape(jobs=60))
    done = simulated.play(jobs, 1, SYSTEMS[system], simulated.Ground(stretch, KINDS))

    assert [one.name for one in done.outcomes] == [one.name for one in jobs]
    for asked, one in zip(jobs, done.outcomes, strict=True):
        assert one.ended - one.started == pytest.approx(asked.seconds * one.stretch)
        if not asked.gpus:
            continue
        assert (len(one.nodes), len(one.gpus)) == (asked.nodes, asked.gpus)
        slowest = max(stretch.gpu[f"{node}:{gpu}"] for node in one.nodes for gpu in one.gpus)
        assert one.stretch == pytest.approx((1 + SENSITIVITY[asked.app_class] * (slowest - 1)) * LEVEL[one.level])


def test_what_no_plan_can_do_is_told_beside_plain_slurm() -> None:
    found = {one.name: one for one in limit_figures([1], Shape(jobs=40), simulated.Ground(table(), KINDS), 1)}

    assert {name.partition("_")[0] for name in found} == {"plain", "epilog", "berth", "oracle"}
    assert found["plain_wait"].ratio is None
    assert found["oracle_wait"].peer_value == found["plain_wait"].value
    assert all(0 < one.value <= 1 for name, one in found.items() if name.endswith("utilisation"))
