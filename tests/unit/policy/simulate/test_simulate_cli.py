# SPDX-License-Identifier: Apache-2.0
"""`berth simulate` from end to end, on small drawn workloads."""

import argparse
import csv
import dataclasses
import doctest
import importlib
import io
import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from policy.cli.main import build_parser, main
from policy.report import charts
from policy.simulate import command
from policy.simulate import study as studies
from policy.simulate.report.progress import RunProgress
from policy.simulate.slurm import settings
from tests.unit.policy.simulate.study_file import study
from topology import files
from topology.machines import machine
from topology.scores import PAL_CLASSES

MODELS = ("BERT", "vgg19", "resnet50", "PointNet")
SETUP = ("--mode", "pal-rounds", "--nodes", "4", "--gpus-per-node", "4", "--order", "fifo")
FOUR = ("--policy", "pal", "--policy", "pm-first", "--policy", "packed-sticky", "--policy", "packed")
ITERATION = {"BERT": 0.179, "vgg19": 0.300610341, "resnet50": 0.17540429367763434, "PointNet": 0.28125}


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with trace.csv in PAL's form, gpus.csv with one very slow GPU, and nothing else."""
    draw = random.Random(7)
    lines = [
        f"{job},{draw.choice([1, 1, 2, 4, 6])},{job * 200},{draw.randrange(2_000, 40_000)},{draw.choice(MODELS)}"
        for job in range(40)
    ]
    (tmp_path / "trace.csv").write_text("job_id,num_gpus,submit_time,duration,model\n" + "\n".join(lines) + "\n")
    scores = [
        f"{gpu},{gpu // 4}," + ",".join(f"{2.5 if gpu == 5 else draw.uniform(0.95, 1.08):.4f}" for _ in "ABCD")
        for gpu in range(16)
    ]
    head = "GPU_ID,Node_ID,PerfVar_classA,PerfVar_classB,PerfVar_classC,PerfVar_classD\n"
    (tmp_path / "gpus.csv").write_text(head + "\n".join(scores) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def play(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    code = main(["simulate", "trace.csv", *options])
    streams = capsys.readouterr()
    assert code == 0, streams.err
    return streams.out


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    found = json.loads(play(capsys, *options, "--json"))["runs"]
    assert isinstance(found, list)
    return found


def without_wall(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "wall_s"} for one in found]


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["simulate", *options]) in {1, 2}
    streams = capsys.readouterr()
    assert not streams.out
    assert streams.err.count("\n") == 1
    return streams.err


def test_the_published_set_up_is_one_command(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, *SETUP, *FOUR, "--scores", "gpus.csv", *study(locality_penalty=1.7), "--workers", "1")

    assert [one["policy"] for one in found] == ["pal", "pm-first", "packed-sticky", "packed"]
    for one in found:
        assert one["avg_jct_s"] >= one["geomean_jct_s"] > 0
        assert one["makespan_s"] >= one["p99_jct_s"]
        assert 0 < one["gpu_util_useful"] <= one["gpu_util_allocated"] <= 1
        assert one["wall_s"] > 0
    pal, _, packed_sticky, _ = (one["avg_jct_s"] for one in found)
    assert pal < packed_sticky


def test_backfill_serves_every_policy(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = (*SETUP, *FOUR, "--scores", "gpus.csv", "--workers", "1")

    plain, filled = rows(capsys, *setup), rows(capsys, *setup, *study(backfill=True))

    assert all(with_it["avg_wait_s"] < one["avg_wait_s"] for one, with_it in zip(plain, filled, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mode", studies.MODES)
def test_placements_are_enough_to_recompute_the_result(
    workload: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    setup = (*SETUP, "--mode", mode, "--scores", "gpus.csv", *study(locality_penalty=1.5, repeat=0))
    (one,) = rows(capsys, *setup, "--policy", "packed", "--placements", "p.csv", "--limits", "9")

    with (workload / "trace.csv").open() as file:
        jobs = {job["job_id"]: job for job in csv.DictReader(file)}
    with (workload / "gpus.csv").open() as file:
        score = {int(gpu["GPU_ID"]): gpu for gpu in csv.DictReader(file)}
    column = {"BERT": "B", "vgg19": "C", "resnet50": "A", "PointNet": "D"}
    done = dict.fromkeys(jobs, 0.0)
    ends = dict.fromkeys(jobs, 0.0)
    with (workload / "p.csv").open() as file:
        for row in csv.DictReader(file):
            model = jobs[row["job"]]["model"]
            gpus = [int(gpu) for gpu in row["gpus"].split(";")]
            assert len(gpus) == int(jobs[row["job"]]["num_gpus"])
            slow = max(float(score[gpu][f"PerfVar_class{column[model]}"]) for gpu in gpus)
            rate = slow * (1.5 if len({gpu // 4 for gpu in gpus}) > 1 else 1.0)
            done[row["job"]] += (float(row["end_s"]) - float(row["start_s"])) / rate
            ends[row["job"]] = max(ends[row["job"]], float(row["end_s"]))

    jct = [ends[name] - float(job["submit_time"]) for name, job in jobs.items()]
    assert sum(jct) / len(jct) == pytest.approx(one["avg_jct_s"])
    # A job ends when its work is done; in rounds, with the round.
    for name, job in jobs.items():
        work = float(job["duration"]) * ITERATION[job["model"]]
        assert work * (1 - 1e-6) <= done[name] <= work + (360 if mode == "pal-rounds" else 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in studies.MODES if mode != "berthd"])
def test_the_same_seed_gives_the_same_bytes(workload: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    setup = [*SETUP, "--mode", mode, "--policy", "pal", "--policy", "random", "--scores", "gpus.csv", "--seed", "1:2"]
    setup += ["--limits", "drawn", *study(models="drawn", repeat=0, locality_penalty=1.7)]

    def files_of(name: str, *options: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
        (workload / name).mkdir()
        found = rows(capsys, *setup, "--placements", f"{name}/p.csv", *options)
        texts = {path.name: path.read_text() for path in sorted((workload / name).iterdir())}
        return found, texts

    (alone, one), (together, two) = files_of("alone", "--workers", "1"), files_of("together", "--workers", "2")

    assert len(one) == 4, "a file of placements for each run"
    assert one == two
    assert without_wall(alone) == without_wall(together)
    order = [(policy, seed) for seed in (1, 2) for policy in ("pal", "random")]
    assert [(run["policy"], run["seed"]) for run in alone] == order
    random_ones = [run["avg_jct_s"] for run in alone if run["policy"] == "random"]
    assert len(set(random_ones)) == len(random_ones)


def test_placements_hold_what_still_ran_at_the_end(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = rows(capsys, *SETUP, "--policy", "packed-sticky", "--placements", "p.csv", *study(repeat=9))

    with (workload / "p.csv").open() as file:
        stretches = list(csv.DictReader(file))
    held = sum((float(row["end_s"]) - float(row["start_s"])) * len(row["gpus"].split(";")) for row in stretches)
    assert any("~" in row["job"] for row in stretches), "repeated jobs ran too"
    assert held == pytest.approx(one["gpu_util_allocated"] * 16 * one["makespan_s"])


def test_each_run_of_many_has_its_own_placements(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(capsys, *SETUP, "--policy", "pal", "--policy", "packed", "--placements", "p.csv", "--workers", "1")

    assert sorted(file.name for file in workload.glob("p.*")) == ["p.packed.seed1.csv", "p.pal.seed1.csv"]


def test_the_table_compares_with_the_first_policy(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said, _, head, *body = play(capsys, *SETUP, *FOUR, "--scores", "gpus.csv", "--workers", "1").splitlines()

    assert said.startswith("packed would have ")
    assert head.split()[:3] == ["policy", "avg", "JCT"]
    assert "+0.0 %" in body[0]
    assert [line.split()[0] for line in body] == ["pal", "pm-first", "packed-sticky", "packed"]
    assert len({line.index(" %") for line in body}) == 1


def test_the_page_is_whole_and_needs_nothing_else(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(capsys, *SETUP, *FOUR, "--report", "r.html", "--seed", "1:2", "--workers", "1")

    text = (workload / "r.html").read_text()
    page = ET.fromstring(text.partition("\n")[2])  # noqa: S314 - our own text
    space = "{http://www.w3.org/2000/svg}"
    assert len(list(page.iter(f"{space}svg"))) == (2 if charts.available() else 0)
    assert not any(mark in text for mark in ("<script", "src=", "href=", "@import", "url("))
    assert text.index('class="verdict"') < text.index("<table>")
    assert all("nan" not in (line.get("d") or "") for line in page.iter(f"{space}path"))


def test_accounting_stands_beside_what_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text(
        "JobID|Submit|Start|ElapsedRaw|State|AllocTRES|Timelimit|NNodes\n"
        "1|2026-10-01T00:00:00|2026-10-01T00:00:00|3600|COMPLETED|gres/gpu=4|02:00:00|1\n"
        "2|2026-10-01T00:00:00|2026-10-01T01:00:00|3600|COMPLETED|gres/gpu=4|02:00:00|1\n"
        "3|2026-10-01T00:00:00|2026-10-01T02:00:00|3600|COMPLETED|gres/gpu=64|02:00:00|8\n"
    )

    setup = ("--nodes", "1", "--gpus-per-node", "8", "--policy", "berth", "--seed", "1", "--shift", "0")

    found = rows(capsys, *setup, "--report", "r.html")

    assert [(one["policy"], one["jobs"], one["avg_jct_s"]) for one in found] == [
        ("berth", 2, 3600.0),
        ("recorded", 2, 5400.0),
    ]
    assert "more GPUs than the cluster" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "name a trace"),
        (("trace.csv",), "say how big the cluster is"),
        (("none.csv", *SETUP), "cannot read none.csv"),
        (("trace.csv", *SETUP, "--policy", "pall"), "did you mean pal"),
        (("trace.csv", *SETUP, "--order", "slurm"), "--order slurm belongs to --mode slurm"),
        (
            ("trace.csv", *SETUP, "--policy", "berth"),
            "berth gives a job one place, as Slurm keeps it: take --mode slurm",
        ),
        (
            ("trace.csv", *SETUP, "--policy", "pal", "--policy", "berthd"),
            "there is no policy berthd; did you mean berth",
        ),
        (("trace.csv", *SETUP, "--nodes", "0"), "--nodes is a whole number from 1 on, not '0'"),
        (("trace.csv", *SETUP, "--shift", "soon"), "--shift is a number from 0 on, not 'soon'"),
        (("trace.csv", *SETUP, "--seed", "x"), "--seed x: write a whole number"),
        (("trace.csv", *SETUP, "--seed", "9:1"), "the range is empty"),
        (("trace.csv", *SETUP, "--scores", "none.csv"), "cannot read none.csv"),
        (
            ("trace.csv", *SETUP, "--scores", "gpus.csv", "--nodes", "5"),
            "it has 4 nodes, but the cluster has 5",
        ),
        (("trace.csv", *SETUP, "--limits", "some"), "--limits some"),
        (("trace.csv", *SETUP, "--locality", "rack"), "--locality=rack"),
        (("trace.csv", *SETUP, "--machine", "dgx-a100"), "dgx-a100 has 8 GPUs, and --gpus-per-node says 4"),
        (("trace.csv", *SETUP, "--placements", "none/f.csv", "--policy", "packed"), "cannot write none/f.csv"),
        (("trace.csv", "--topology", "."), "has no topology file"),
        (("trace.csv", *SETUP, "--study", "none.toml"), "cannot read none.toml"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    workload: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert says in refused(capsys, *options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roud = 300\n", "s.toml: a study has no key roud; did you mean round"),
        ('round = "often"\n', "s.toml: round is a number from 0 on, not 'often'"),
        ("backfill = 1\n", "s.toml: backfill is true or false, not 1"),
        ("nodes = 2.5\n", "s.toml: nodes is a whole number from 1 on, not 2.5"),
        ("nodes = true\n", "s.toml: nodes is a whole number from 1 on, not True"),
        ('mode = "slrum"\n', "s.toml: mode is one of slurm, berthd, pal-rounds, not 'slrum'"),
        ('policies = "pal"\n', "s.toml: policies is a list of texts, not 'pal'"),
        ('seeds = "x"\n', "write a whole number, or a range"),
        ("round 300\n", "s.toml: "),
        ('locality_penalty = "leef=1.5"\n', "did you mean leaf"),
        ('locality_penalty = "leaf=far"\n', "leaf=far should be LEVEL=NUMBER"),
        ("locality_penalty = 0.5\n", "factors lie in 1 to 100"),
        ('locality_penalty = "none.csv"\n', "neither a number, nor LEVEL=NUMBER"),
        ('durations = "true"\nmode = "berthd"\n', "durations belongs to --mode slurm"),
    ],
)
def test_a_wrong_study_file_is_one_sentence(
    workload: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    Path("s.toml").write_text(text)
    setup = SETUP[2:6] if "berthd" in text or "slrum" in text else SETUP

    assert says in refused(capsys, "trace.csv", *setup, "--study", "s.toml")


def test_a_study_may_stand_in_a_file_and_the_command_line_counts_before_it(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("all.toml").write_text(
        'traces = ["trace.csv"]\npolicies = ["pal", "packed"]\nmode = "pal-rounds"\nnodes = 8\ngpus_per_node = 4\n'
        'seeds = ["1:2"]\nrepeat = 0\nmove_cost = 30\n'
    )
    assert main(["simulate", "--study", "all.toml", *study(nodes=5), "--nodes", "4", "--workers", "1", "--json"]) == 0
    by_file = json.loads(capsys.readouterr().out)["runs"]

    words = (*SETUP, "--policy", "pal", "--policy", "packed", "--seed", "1:2", *study(repeat=0, move_cost=30))
    assert without_wall(by_file) == without_wall(rows(capsys, *words, "--workers", "1"))


def test_the_command_line_stays_short_and_the_page_lists_every_key() -> None:
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    shown = commands.choices["simulate"]._actions
    page = (Path(__file__).parents[4] / "docs" / "research" / "simulate-inputs.md").read_text()
    fields = {field.name for field in dataclasses.fields(studies.Study)}

    assert len(shown) <= 25
    assert set(studies.KEYS) == fields
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(studies.KEYS)


def test_the_locality_table_may_come_from_a_file(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = (*SETUP, "--policy", "packed", "--workers", "1")
    (workload / "far.csv").write_text("name,level,width,factor\n*,any,2,1.7\n*,leaf,2,1.7\n*,pod,2,1.7\n")

    by_file, by_number = (
        rows(capsys, *setup, *study(repeat=0, locality_penalty="far.csv")),
        rows(capsys, *setup, *study(repeat=0, locality_penalty="leaf=1.7,pod=1.7,any=1.7")),
    )

    assert without_wall(by_file) == without_wall(by_number)


def test_the_parsers_choices_are_the_studys() -> None:
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    choices = {action.dest: action.choices for action in commands.choices["simulate"]._actions if action.choices}

    assert choices["mode"] == studies.MODES
    assert choices["order"] == settings.ORDERS
    assert set(command._POLICIES) == set(studies.MODES)
    assert set(PAL_CLASSES.values()) == {"compute", "mixed", "memory"}


def test_real_nodes_are_known_by_their_names(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = workload / "nodes"
    nodes.mkdir()
    for name in ("gpu-a", "gpu-b"):
        files.dump(machine("dgx-a100", name), nodes / f"{name}.json")
    (workload / "slow.csv").write_text("node,start,end,factor\ngpu-b,0,1e9,3\n")
    setup = ("--topology", "nodes", "--policy", "packed", "--order", "fifo", "--seed", "1")

    (well,), (slow,) = rows(capsys, *setup), rows(capsys, *setup, *study(events="slow.csv"))
    assert slow["avg_jct_s"] > well["avg_jct_s"]

    (nodes / "gpu-d.json").write_text("{")
    assert "gpu-d.json: not a topology file" in refused(capsys, "trace.csv", *setup)


def test_a_long_study_tells_what_is_left() -> None:
    now, stream = [0.0], io.StringIO()
    progress = RunProgress(5, stream, lambda: now[0])
    now[0] = 60.0
    progress.tick(1)
    now[0] = 70.0
    progress.show()

    assert stream.getvalue() == "berth simulate: 1 of 5 runs done in 1:10, about 3:50 left\n"


def test_what_is_done_soon_shows_nothing() -> None:
    stream = io.StringIO()
    with RunProgress(1, stream):
        pass

    assert not stream.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "topology.scores",
        "policy.simulate.study",
        "policy.simulate.inputs.models",
        "policy.simulate.report.files",
        "policy.simulate.report.table",
    ],
)
def test_the_examples_in_the_text_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), raise_on_error=True).attempted


@pytest.mark.parametrize("mode", ["slurm", "berthd", "pal-rounds"])
@pytest.mark.parametrize("jobs", [1, 3])
def test_jobs_that_end_as_they_start_are_played_too(
    workload: Path, capsys: pytest.CaptureFixture[str], mode: str, jobs: int
) -> None:
    """Accounting is full of them, and a short extract may hold nothing else."""
    lines = [f"{job},1,50,0,BERT" for job in range(jobs)]
    (workload / "trace.csv").write_text("job_id,num_gpus,submit_time,duration,model\n" + "\n".join(lines) + "\n")

    words = ("--mode", mode, "--nodes", "2", "--gpus-per-node", "4", "--report", "out.html")
    assert ("pal" if mode == "pal-rounds" else "berth") in play(capsys, *words)
    for row in rows(capsys, *words[:6]):
        assert (row["jobs"], row["gpu_util_useful"]) == (jobs, 0.0)
