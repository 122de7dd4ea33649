# SPDX-License-Identifier: Apache-2.0
"""The replay benchmark without a cluster: its jobs, the program that they run, and what is made of their logs."""

import shutil
import subprocess
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from policy.formats import segment
from policy.site.config import load
from tests.bench.replay import analysis, outcome, simulated, workload
from tests.bench.replay.chaos import Chaos
from tests.bench.replay.figures import figures
from tests.bench.replay.outcome import Outcome, Run
from tests.bench.replay.stretch import MACHINES, Stretch, linked, machine_of
from tests.bench.replay.systems import SYSTEMS
from tests.bench.replay.testbed import topology_conf
from topology.model import Gpu, Link, Machine

SOURCE = Path(__file__).parents[2] / "bench" / "c" / "replay_job.c"
SENSITIVITY = {"compute": 1.0, "mixed": 0.6, "memory": 0.1}
LEVEL = {"nvlink": 1.0, "node": 1.12, "leaf": 1.25, "pod": 1.5, "any": 1.7}


def machine(kind: str, pairs: list[tuple[int, int]]) -> Machine:
    gpus = tuple(Gpu(position, position, f"GPU-{kind}-{position}") for position in range(8))
    return Machine(kind, kind, gpus, tuple(Link(a, b, 1, 25.0) for a, b in pairs))


KINDS = {
    "dgx-1v": machine("dgx-1v", [*combinations(range(4), 2), *combinations(range(4, 8), 2), (0, 4), (3, 7)]),
    "hgx-h100": machine("hgx-h100", list(combinations(range(8), 2))),
    "a6000-pairs": machine("a6000-pairs", [(0, 7), (1, 6), (2, 5), (3, 4)]),
    "l40s": machine("l40s", []),
}


def table() -> Stretch:
    draws = Random(3)
    gpu = {f"n{node}:{place}": round(draws.uniform(0.93, 1.7), 4) for node in range(1, 65) for place in range(8)}
    return Stretch(SENSITIVITY, LEVEL, 4, 16, gpu)


def twin(stretch: Stretch, app_class: str, nodes: list[int], gpus: list[int]) -> tuple[str, float]:
    """What the data's description says, written down a second time."""
    if len(nodes) > 1:
        leaves, pods = {(node - 1) // 4 for node in nodes}, {(node - 1) // 16 for node in nodes}
        level = "leaf" if len(leaves) == 1 else "pod" if len(pods) == 1 else "any"
    else:
        joined = {frozenset((link.a, link.b)) for link in KINDS[machine_of(nodes[0])].links}
        level = "nvlink" if all(frozenset(pair) in joined for pair in combinations(gpus, 2)) else "node"
    slowest = max(stretch.gpu[f"n{node}:{gpu}"] for node in nodes for gpu in gpus)
    return level, (1 + stretch.sensitivity[app_class] * (slowest - 1)) * stretch.level[level]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("replay")
    (folder / "bin").mkdir()
    built = folder / "bin" / "replay_job"
    subprocess.run([compiler, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o", built, SOURCE], check=True)
    (folder / "table").write_text(table().flat(KINDS))
    return built


def start(program: Path, words: str, nodes: str, gpus: str) -> subprocess.CompletedProcess[str]:
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_GPUS": gpus}
    return subprocess.run([program, words], env=environment, capture_output=True, text=True, check=False)


def logged(program: Path) -> list[list[str]]:
    log = program.parents[1] / "jobs.log"
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    log.unlink()
    return rows


@pytest.mark.parametrize(
    ("nodes", "text", "gpus"),
    [
        ([1], "n1", [0, 1, 2, 3]),
        ([1], "n1", [0, 5]),
        ([3], "n3", [3, 7]),
        ([20], "n20", list(range(8))),
        ([40], "n40", [2, 5]),
        ([40], "n40", [2, 6]),
        ([64], "n64", [7]),
        ([64], "n64", [6, 7]),
        ([5, 6], "n[5-6]", list(range(8))),
        ([4, 5], "n[4-5]", list(range(8))),
        ([1, 2, 9, 16], "n[1-2,9,16]", list(range(8))),
        ([16, 17], "n[16-17]", list(range(8))),
        ([2, 3], "n2,n3", [1, 4]),
    ],
)
@pytest.mark.parametrize("app_class", sorted(SENSITIVITY))
def test_a_job_is_stretched_by_the_gpus_that_it_really_has(
    program: Path, app_class: str, nodes: list[int], text: str, gpus: list[int]
) -> None:
    assert start(program, f"0.01 {app_class} r1", text, ",".join(map(str, gpus))).returncode == 0
    (first, *begun), ended = logged(program)
    level, expected = twin(table(), app_class, nodes, gpus)
    assert [first, *begun[:2], begun[4]] == ["start", "r1", "7", level]
    assert float(begun[3]) == pytest.approx(expected, abs=1e-6)
    assert ended[:3] == ["end", "r1", "7"]


def test_a_job_sleeps_its_seconds_times_the_stretch(program: Path) -> None:
    assert start(program, "0.4 compute r1", "n64", "0,1,2,3,4,5,6,7").returncode == 0
    begun, ended = logged(program)
    slept = float(ended[3]) - float(begun[3])
    stretch = twin(table(), "compute", [64], list(range(8)))[1]
    assert float(begun[4]) == pytest.approx(stretch, abs=1e-6)
    # A loaded machine wakes it later.
    assert 0.4 * stretch - 0.01 < slept < 0.4 * stretch + 30


def test_a_job_without_gpus_sleeps_its_seconds(program: Path) -> None:
    assert start(program, "0.01 - r1", "n1", "").returncode == 0
    assert logged(program)[0][4:6] == ["1.000000", "none"]


@pytest.mark.parametrize(
    ("words", "nodes", "gpus", "said"),
    [
        ("0.01 other r1", "n1", "0", "no such class: other"),
        ("0.01 mixed r1", "n65", "0", "no such node: n65"),
        ("0.01 mixed r1", "n1", "0,x", "not a list of positions"),
        ("mixed", "n1", "0", "usage"),
    ],
)
def test_a_job_that_cannot_tell_its_stretch_fails(program: Path, words: str, nodes: str, gpus: str, said: str) -> None:
    done = start(program, words, nodes, gpus)
    assert done.returncode == 3
    assert said in done.stderr


def test_a_table_is_flattened_whole() -> None:
    stretch = table()
    lines = [line.split() for line in stretch.flat(KINDS).splitlines() if line.startswith("node ")]
    assert [line[1] for line in lines] == [f"n{node}" for node in range(1, 65)]
    assert float(lines[2][4 + 5].split(":")[0]) == stretch.gpu["n3:5"]
    assert lines[16][2:4] == ["4", "1"]


def test_scores_are_the_truth_with_the_noise_of_a_measurement() -> None:
    nodes = {f"n{node}": KINDS[machine_of(node)] for node in range(1, 65)}
    scores = table().scores(nodes, seed=5, noise=0.01)
    assert len(scores) == 64 * 8 * 3
    wrong = [
        one.score / (1 + SENSITIVITY[one.app_class] * (table().gpu[f"{one.node}:{one.position}"] - 1)) - 1
        for one in scores
    ]
    assert 0.008 < (sum(part**2 for part in wrong) / len(wrong)) ** 0.5 < 0.012
    assert scores == table().scores(nodes, seed=5, noise=0.01)
    assert scores != table().scores(nodes, seed=6, noise=0.01)


def test_links_of_a_machine_are_a_mask_for_each_gpu() -> None:
    assert linked(KINDS["a6000-pairs"]) == [1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2, 1 << 1, 1 << 0]
    assert [machine_of(node) for node in (1, 16, 17, 64)] == [*MACHINES[:1] * 2, MACHINES[1], MACHINES[3]]


def test_a_seed_always_gives_the_same_jobs() -> None:
    shape = workload.Shape(jobs=300)
    assert workload.draw(1, shape) == workload.draw(1, shape)
    assert workload.draw(1, shape) != workload.draw(2, shape)


def test_jobs_offer_the_load_that_is_asked_for() -> None:
    shape = workload.Shape(jobs=1500, load=1.1, mean=25)
    jobs = workload.draw(4, shape)
    offered = sum(job.width * job.seconds for job in jobs) / (512 * jobs[-1].at)
    assert offered == pytest.approx(1.1, rel=0.01)
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert 0.28 < sum(job.width == 0 for job in jobs) / 1500 < 0.39
    assert {job.width for job in jobs} == {0, 1, 2, 4, 8, 16, 32}
    assert all(job.gpus == 8 for job in jobs if job.nodes > 1)
    assert all(5 <= job.seconds <= 100 for job in jobs)
    assert all(60 * job.limit >= 1.5 * job.seconds and job.limit >= 1 for job in jobs)
    assert all(job.limit <= max(1, 4 * job.seconds / 60) + 1 for job in jobs)
    assert 22 < sum(job.seconds for job in jobs) / 1500 < 28


def test_users_ask_each_system_for_the_same_in_its_own_words() -> None:
    job = workload.Job("r1", 1.5, 20.0, "mixed", nodes=4, gpus=8, cpus=8, limit=2, leaf_wait=75)
    assert workload.plan_text([job], berth=False) == "1.500 r1 20.000 mixed 4 8 8 2 1 75 -\n"
    assert (
        workload.plan_text([job], berth=True)
        == "1.500 r1 20.000 mixed 4 8 8 2 0 0 app-class=mixed,locality=leaf@1:15\n"
    )
    alone = workload.Job("r2", 2.0, 20.0, "-", nodes=1, gpus=0, cpus=2, limit=1)
    assert workload.plan_text([alone], berth=True) == "2.000 r2 20.000 - 1 0 2 1 0 0 -\n"


def test_both_topology_plugins_get_leaves_of_four_and_pods_of_sixteen() -> None:
    tree, block = topology_conf("tree").splitlines(), topology_conf("block").splitlines()
    assert tree[4] == "SwitchName=leaf5 Nodes=n[17-20]"
    assert tree[17] == "SwitchName=pod2 Switches=leaf[5-8]"
    assert tree[-1] == "SwitchName=spine Switches=pod[1-4]"
    assert block[15:] == ["BlockName=leaf16 Nodes=n[61-64]", "BlockSizes=4,16"]


def test_the_random_control_differs_from_berth_in_its_policy_alone() -> None:
    ours, control = SYSTEMS["berth"].berth_conf(), SYSTEMS["random"].berth_conf()
    assert ours.replace('policy = "berth"', 'policy = "pinned-random"') == control


def test_the_cluster_s_berth_conf_holds_with_each_system_s_own_lines(tmp_path: Path) -> None:
    for system in SYSTEMS.values():
        path = tmp_path / f"{system.name}.conf"
        path.write_text(system.berth_conf())
        config = load(path)
        assert (config.policy, config.scores is not None) == (system.policy, system.scores)


def test_the_adversary_keeps_small_jobs_coming_around_each_big_one() -> None:
    jobs = workload.draw_adversary(1, workload.Shape(jobs=800))
    big = [job for job in jobs if job.width == 32]
    small = [job for job in jobs if job.width != 32]
    assert len(big) == 5
    assert {job.width for job in small} == {1, 2}
    assert analysis.window(jobs)[0] < big[0].at < big[-1].at < analysis.window(jobs)[1]
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)


def test_chaos_ends_with_every_node_resumed_and_every_notice_on() -> None:
    acts = sorted(Chaos("nowhere", span=200.0, seed=1).script())
    told = [what for _, what, _ in acts]
    assert told.count("berthd killed") == 9
    assert told.count("slurmctld restarted") == 1
    drained = [what.split()[0] for what in told if what.endswith("drained")]
    assert sorted(drained) == sorted(what.split()[0] for what in told if what.endswith("resumed"))
    assert [what for what in told if what.startswith("notices")][-1] == "notices on"


def test_how_long_epilogs_waited_is_read_from_the_notices(tmp_path: Path) -> None:
    assert outcome.notices(tmp_path / "none") == ()
    (tmp_path / "log").write_text("9\tn1\t62314\tdone\t60000\n29\tn32\t919\tunreachable\t-1\n")
    assert outcome.notices(tmp_path / "log") == (62314, 919)
    assert outcome.answers(tmp_path / "log") == (2314,)


def comment(nodes: str, gpus: str, state: str = "placed") -> str:
    return segment.put("site text", {"state": state, "nodes": nodes, "gpus": gpus})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (comment("n1", "0,3"), True),
        (comment("n1", "0,3", "waiting"), True),
        (comment("n1", "0,3", "passed"), False),
        (comment("n1", "0,2"), False),
        (comment("n2", "0,3"), False),
        (comment("n1,n2", "0,3"), False),
        ("site text", False),
        ("-", False),
    ],
)
def test_a_job_is_planned_where_it_runs_on_the_recorded_gpus(text: str, expected: bool) -> None:
    assert outcome.is_planned(text, ("n1",), (0, 3)) is expected


def record(number: int, name: str, state: str, nodes: str, text: str, restarts: int = 0) -> str:
    return f"job\t{number}\t{name}\t{state}\t100\t101\t102\t{nodes}\t{restarts}\t{text}\t-"


def begun(name: str, number: int, at: float, nodes: str, gpus: str, stretch: float = 1.1) -> str:
    return f"start\t{name}\t{number}\t{at}\t{stretch}\tnode\t{nodes}\t{gpus}\t0"


def test_logs_are_joined_by_job(tmp_path: Path) -> None:
    jobs = [
        workload.Job(name, 1.0, 10.0, "mixed", nodes, gpus, 1, 1)
        for name, nodes, gpus in [("r1", 1, 2), ("r2", 1, 2), ("r3", 2, 8), ("r4", 1, 1), ("r5", 1, 1), ("r6", 1, 0)]
    ]
    whole = "0,1,2,3,4,5,6,7"
    (tmp_path / "submit.log").write_text(
        "r1\t11\t100.5\t900\nr2\t12\t100.6\t900\nr3\t13\t100.7\t900\nr4\t14\t100.8\t900\n"
        "r5\t0\t100.9\t900\tNode count specification invalid\nr6\t16\t101.0\t900\n"
    )
    (tmp_path / "jobs.log").write_text(
        "\n".join(
            [
                begun("r1", 11, 103.5, "n1", "3,0"),
                begun("r2", 12, 104.0, "n2", "0,1"),
                begun("r3", 13, 105.0, "n7", whole),
                begun("r6", 16, 102.0, "n1", "", 1.0),
                "end\tr1\t11\t114.5",
                "end\tr6\t16\t112.0",
                "",
            ]
        )
    )
    (tmp_path / "watch.log").write_text(
        "\n".join(
            [
                record(11, "r1", "pending", "-", comment("n9", "0,1")),
                record(11, "r1", "running", "n1", comment("n1", "0,3")),
                # What is written later does not make a start planned, or unplanned.
                record(11, "r1", "completed", "n1", comment("n5", "0,3")),
                record(12, "r2", "running", "n2", comment("n2", "4,5")),
                record(13, "r3", "running", "n7", comment("n7,n8", whole)),
                record(13, "r3", "node_fail", "n7", comment("n7,n8", whole)),
                record(14, "r4", "pending", "-", comment("n1", "0")),
                record(16, "r6", "running", "n1", "-"),
                record(16, "r6", "completed", "n1", "-"),
                "queue\t100.0\t4\t0\t0\t100\t1000",
                "queue\t102.0\t1\t3\t0\t150\t1200",
                "",
            ]
        )
    )
    r1, r2, r3, r4, r5, r6 = found = outcome.outcomes(jobs, tmp_path, berth=True)
    assert (r1.wait, r1.jct, r1.gpus, r1.planned, r1.done, r1.shrunk) == (3.0, 14.0, (0, 3), True, True, False)
    assert (r2.planned, r2.done, r2.state) == (False, False, "running")
    assert (r3.planned, r3.shrunk, r3.state) == (False, True, "node_fail")
    assert (r4.started, r4.state) == (0, "pending")
    assert (r5.state, r5.problem) == ("refused", "Node count specification invalid")
    assert (r6.planned, r6.done) == (None, True)
    assert outcome.looks(tmp_path) == (outcome.Look(102.0, 1, 3, 0.25),)
    bad = analysis.faults([Run("berth", 1, "24.11", {}, found, ())])
    assert bad == analysis.Faults(unplanned=2, lost=2, stuck=2, shrunk=1, restarted=0)
    plain = outcome.outcomes(jobs, tmp_path, berth=False)
    assert analysis.faults([Run("plain", 1, "24.11", {}, plain, ())]).unplanned == 0


def replayed(system: str, wait: float, stretch: float, seed: int = 1) -> Run:
    """A hundred jobs, one a second, of 1 and 8 GPUs and without, that all wait and run alike."""
    outcomes = tuple(
        Outcome(
            name=f"r{number}",
            width=(0, 1, 8)[number % 3],
            app_class="mixed",
            at=float(number),
            seconds=10.0,
            limit=1,
            asked=1000.0 + number,
            started=1000.0 + number + wait,
            ended=1000.0 + number + wait + 10 * stretch,
            stretch=stretch,
            state="completed",
            starts=1,
            planned=None if system == "plain" else True,
        )
        for number in range(300)
    )
    return Run(system, seed, "24.11", {}, outcomes, (), updates=100)


def test_ratios_compare_the_same_jobs_between_warm_up_and_drain() -> None:
    plain, berth = replayed("plain", wait=10.0, stretch=1.4), replayed("berth", wait=6.0, stretch=1.2)
    counted = analysis.measured(plain.outcomes)
    assert (counted[0].at, counted[-1].at, len(counted)) == (45.0, 284.0, 240)
    found = analysis.ratios([berth], [plain])
    assert found.jct == pytest.approx(18 / 24)
    assert found.wait == found.p95_wait == found.longest_wait == pytest.approx(0.6)
    assert found.makespan == pytest.approx((299 + 18) / (299 + 24))


def test_only_seeds_that_both_systems_ran_are_compared() -> None:
    plain = [replayed("plain", 10.0, 1.4, seed) for seed in (1, 2)]
    berth = [replayed("berth", 5.0, 1.4, 1), replayed("berth", 500.0, 1.4, 3)]
    assert analysis.ratios(berth, plain).wait == pytest.approx(0.5)


def test_waits_below_slurms_clock_make_no_ratio() -> None:
    plain, berth = replayed("plain", wait=0.01, stretch=1.0), replayed("berth", wait=0.2, stretch=1.0)
    assert analysis.ratios([berth], [plain]).p95_wait == 1.0


def test_figures_say_what_was_missed() -> None:
    runs = [
        replayed("plain", 10.0, 1.4),
        replayed("plain2", 10.5, 1.4),
        replayed("berth", 9.9, 1.2),
        replayed("random", 12.0, 1.6),
        replayed("noscores", 11.0, 1.3),
    ]
    found = {figure.name: figure for figure in figures(runs)}
    assert found["jct_ratio"].good is True
    assert found["wait_ratio"].good is False
    assert found["wait_ratio"].peer_value == pytest.approx(1.05)
    assert found["random_wait_ratio"].value == pytest.approx(1.2)
    assert found["over_noscores_jct_ratio"].value == pytest.approx((9.9 + 12) / (11 + 13))
    assert found["unplanned"].good is True
    assert found["updates_per_job"].value == pytest.approx(0.5)


def test_of_an_epilogs_wait_what_came_before_berthd_knew_is_told_apart() -> None:
    run = replace(replayed("berth", 5.0, 1.2), notices_us=(9_000, 60_000), answers_us=(7_000, 20_000))
    found = {figure.name: figure.value for figure in figures([run])}

    assert found["epilog_p99_ms"] == pytest.approx(59.5, abs=0.1)
    assert found["epilog_answer_p99_ms"] == pytest.approx(19.9, abs=0.1)
    assert found["epilog_before_p99_ms"] == pytest.approx(39.6, abs=0.1)


def test_chance_alone_is_the_most_that_two_plays_of_all_seeds_differ_by() -> None:
    waits = [[10.0, 11.0, 10.5], [20.0, 22.0, 21.0]]
    played = [replayed("berth", wait, 1.2, seed) for seed, own in enumerate(waits) for wait in own]

    assert simulated.chance_alone(played) == pytest.approx(0.1)


def test_a_gpu_is_handed_over_only_to_a_job_that_waited_for_it() -> None:
    def job(name: str, asked: float, started: float, ended: float, gpus: tuple[int, ...]) -> Outcome:
        begun = Outcome(name, len(gpus), "mixed", at=asked, seconds=1.0, limit=1, asked=asked, started=started)
        return replace(begun, ended=ended, nodes=("n1",), gpus=gpus, state="completed")

    jobs = (
        job("last", asked=30.0, started=30.5, ended=40.0, gpus=(1,)),
        job("waited", asked=5.0, started=10.5, ended=20.0, gpus=(0, 1)),
        job("first", asked=1.0, started=1.5, ended=10.0, gpus=(0,)),
    )

    assert analysis.handovers(Run("plain", 1, "24.11", {}, jobs, ())) == [0.5]


def test_a_run_comes_back_from_its_file(tmp_path: Path) -> None:
    from tests.bench.replay.execute import write_json  # noqa: PLC0415

    run = replayed("berth", 3.0, 1.1)
    write_json(tmp_path / "deep" / "run.json", run.as_json())
    assert Run.load(tmp_path / "deep" / "run.json") == run


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)])
def test_a_percentile_lies_between_its_neighbours(share: float, value: float) -> None:
    assert analysis.percentile([4.0, 1.0, 3.0, 2.0], share) == pytest.approx(value)
