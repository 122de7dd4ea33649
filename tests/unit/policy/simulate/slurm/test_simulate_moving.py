# SPDX-License-Identifier: Apache-2.0
"""berthd's own moving of running jobs, played beside the simulated slurmctld."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.main import main
from policy.placement.berth import BerthPolicy
from policy.request.settings import RelocationRules, Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.play import run
from policy.simulate.result import SimulationOutcome
from policy.simulate.slurm.settings import Delays, SlurmSettings
from policy.simulate.world import Layout, build
from tests.unit.policy.simulate.study_file import study

RULES = RelocationRules(enabled=True, grace=30, restart=30, after=60)


def play(movable: float | None, rules: RelocationRules = RULES) -> SimulationOutcome:
    """Two nodes of four GPUs: at 400 a job of one GPU is on one of them, and one of three on the other."""
    jobs = [
        TraceJob("filler", 4, 0, 100, limit=120),
        TraceJob("first", 1, 1, 5_000, limit=10_000),
        TraceJob("mate", 3, 2, 298, limit=300, nodes=1),
        TraceJob("second", 3, 200, 9_000, limit=10_000, nodes=1),
        TraceJob("gang", 4, 400, 600, limit=1_000, nodes=1),
    ]
    settings = SlurmSettings(berthd=True, delays=Delays(), bf_interval_s=2, site=Settings(moving=rules))
    may_move = {} if movable is None else {"first": movable}
    return run(jobs, build(Layout(2, 4)), BerthPolicy(), replace(settings, movable=may_move))


def test_a_movable_job_makes_room_and_goes_on_where_it_was() -> None:
    moved = play(100.0)
    runs = [one for one in moved.stretches if one.job == "first"]

    assert moved.moves == 1
    assert 490 <= moved.starts["gang"] <= 650
    assert [one.gpus[0] // 4 for one in runs] in ([0, 1], [1, 0])
    # All its work, what the move costs it, and nothing else; it is run again at once.
    assert sum(one.end - one.start for one in runs) == pytest.approx(5_000 + 100, abs=1)
    assert runs[1].start - runs[0].end < 10


def test_nobody_moves_who_did_not_say_so() -> None:
    assert play(None).moves == 0
    assert play(None).starts["gang"] > 5_000
    assert play(100.0, RelocationRules()).moves == 0


def test_no_gpu_serves_two_while_jobs_move() -> None:
    held = sorted((one.start, one.end, gpu) for one in play(100.0).stretches for gpu in one.gpus)
    for start, end, gpu in held:
        others = [other for other in held if other[2] == gpu and other != (start, end, gpu)]
        assert all(other[1] <= start or other[0] >= end for other in others)


@pytest.mark.parametrize(("mode", "policy"), [("slurm", "berthd"), ("berthd", "berth")])
def test_the_command_plays_it(
    mode: str, policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace.csv"
    rows = [(0, 100, 4), (1, 5_000, 1), (2, 298, 3), (200, 9_000, 3), (400, 600, 4)]
    lines = [f"{number},{gpus},{at},{work}" for number, (at, work, gpus) in enumerate(rows)]
    trace.write_text("job_id,num_gpus,submit_time,duration\n" + "\n".join(lines) + "\n")
    words = [
        str(trace),
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--mode",
        mode,
        "--policy",
        policy,
        "--json",
        "--limits",
        "2",
        "--shift",
        "0",
    ]

    assert main(["simulate", *words]) == 0
    [stayed] = json.loads(capsys.readouterr().out)["runs"]
    assert main(["simulate", *words, *study(movable=1, move_cost=60)]) == 0
    [moved] = json.loads(capsys.readouterr().out)["runs"]
    assert (stayed["moves"], moved["moves"]) == (0, 1)
    assert moved["avg_wait_s"] < stayed["avg_wait_s"]


@pytest.mark.parametrize(
    ("movable", "words", "told"),
    [
        (2, ["--mode", "berthd"], "movable is a part of the jobs"),
        (0.5, ["--mode", "slurm"], "movable belongs to berthd's own code"),
        (0.5, ["--mode", "slurm", "--policy", "slurm"], "movable belongs to berthd's own code"),
        (0.5, ["--mode", "pal-rounds"], "movable belongs to berthd's own code"),
        (0.5, ["--mode", "pal-rounds", "--policy", "slurm"], "movable belongs to berthd's own code"),
    ],
)
def test_what_makes_no_sense_is_refused(
    movable: float,
    words: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "x.csv", "--nodes", "2", "--gpus-per-node", "4", *words, *study(movable=movable)]) != 0
    assert told in capsys.readouterr().err
