# SPDX-License-Identifier: Apache-2.0
"""`berth scores`."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.main import main
from tests.bench.paper.fleet import FleetPlan, draw
from topology.calibrate.runs import append
from topology.calibrate.steps import JobReport, Rank
from topology.calibrate.steps import encode as steps_line
from topology.scores import Score, decode, dump, encode, load

TABLE = tuple(
    Score(f"n{node}", gpu, f"GPU-{node}-{gpu}", "compute", score, 3, 0.01, "2026-11-21T10:00:00Z", 0.02)
    for node, scores in {2: (1.0, 0.9), 10: (1.03, 1.2), 1: (1.07, 1.12)}.items()
    for gpu, score in enumerate(scores)
)


def test_errors_of_scores_are_written_and_read_and_may_be_absent() -> None:
    assert decode(encode(TABLE).splitlines()) == TABLE
    assert encode(TABLE).splitlines()[1].endswith(",at,error")
    without = [line.rpartition(",")[0] for line in encode(TABLE).splitlines()[1:]]
    assert {one.error for one in decode(["# berth-scores/1", *without])} == {0.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "runs"
    append(draw(FleetPlan(nodes=12, slow_gpus=0.08, stuck=(4,)), 3).visits, path)
    return path


def test_show_lists_scores_with_errors(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scores", "show", str(runs)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NODE", "GPU", "CLASS", "SCORE", "ERROR", "RUNS", "LAST", "RUN", "NOW"]
    # Nobody knows anything of the node that always waited.
    assert len(rows) == 44

    assert main(["scores", "show", str(runs), "--slow", "--json"]) == 0
    slow = json.loads(capsys.readouterr().out)["scores"]
    assert slow
    assert all(one["score"] >= 1.10 and one["slow"] > 0.5 and one["peers"] == 48 for one in slow)


def test_the_watch_list_needs_evidence(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scores", "show", str(runs), "--watch"]) == 0
    assert "n4: look at the host: its GPUs waited in 3 of the last 3 visits" in capsys.readouterr().out
    assert main(["scores", "show", str(runs), "--watch", "--json"]) == 0
    assert {one["node"] for one in json.loads(capsys.readouterr().out)["watch"]} >= {"n4"}

    dump(TABLE, tmp_path / "scores.csv")
    assert main(["scores", "show", str(tmp_path / "scores.csv"), "--watch"]) == 2
    assert "needs a file of runs" in capsys.readouterr().err


def test_export_makes_the_table_that_berthd_reads(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "scores.csv"
    assert main(["scores", "export", str(runs), "--output", str(table)]) == 0
    assert len(load(table)) == 44

    (tmp_path / "berth.conf").write_text(f'[berthd]\nscores = "{table}"\n')
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    capsys.readouterr()
    assert main(["scores", "show"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 45


def test_without_a_file_and_a_table_in_berth_conf_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "none"))

    assert main(["scores", "show"]) == 2
    assert "name a file" in capsys.readouterr().err
    assert main(["scores", "show", str(tmp_path / "none")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_step_times_refresh_the_table_and_tell_who_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [replace(one, score=1.0, error=0.01) for one in TABLE]
    dump(table, tmp_path / "table.csv")
    slow = table[0].uuid
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ranks = tuple(Rank(one.node, one.position, one.uuid, 120.0 if one.uuid == slow else 100.0) for one in table)
    # One user alone would have one vote.
    apps = [f"{1000 + number % 5}-bert" for number in range(30)]
    reports = [JobReport(str(number), app, "compute", at, ranks) for number, app in enumerate(apps)]
    steps = tmp_path / "steps"
    steps.write_text("\n".join(['{"format": "berth-steps/1"}', *map(steps_line, reports), ""]))

    assert main(["scores", "refresh", str(tmp_path / "table.csv"), "--steps", str(steps)]) == 0
    told = capsys.readouterr()
    scores = {one.uuid: one.score for one in load(tmp_path / "steps.scores")}
    assert scores.pop(slow) > 1.15
    assert all(abs(score - 1.0) < 0.02 for score in scores.values())
    assert told.err.count("measure it again") == 1
