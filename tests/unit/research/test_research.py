# SPDX-License-Identifier: Apache-2.0
"""The package for notebooks: ten lines are a policy, and its tables are DataFrames."""

import json
import re
import runpy
import textwrap
from pathlib import Path

import pandas as pd
import pytest

import berth
from policy.cli.main import main
from tests.unit.policy.report import test_report
from topology.scores import Score, dump

ROOT = Path(__file__).parents[3]
SIZE = {"nodes": 2, "gpus_per_node": 4}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The docstring's example in a file, and two traces, with jobs on two nodes."""
    code = "\n".join(line for line in (berth.__doc__ or "").split("\n") if not line or line.startswith("    "))
    example = textwrap.dedent(code).partition("runs = ")[0]
    (tmp_path / "mine.py").write_text(example)
    for name, step in (("a", 40), ("b", 70)):
        jobs = "".join(f"{job},{(1, 2, 8)[job % 3]},{job * step},300\n" for job in range(12))
        (tmp_path / f"{name}.csv").write_text(f"job_id,num_gpus,submit_time,duration\n{jobs}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_ten_lines_are_a_policy_that_is_played_beside_slurm_and_pal(site: Path) -> None:
    mine = runpy.run_path(str(site / "mine.py"))["FirstFit"]

    runs = berth.simulate(["a.csv", "b.csv"], ["slurm", "pal", mine], seeds=(1, 2), **SIZE)
    beside = berth.compare(runs, beside="pal")

    assert set(runs["policy"]) == {"slurm", "pal", "first-fit"}
    assert len(runs) == 3 * 2 * 2
    assert (runs["jobs"] == 12).all(), "jobs on two nodes are placed too"
    assert set(beside["policy"]) == {"slurm", "first-fit"}
    assert (beside["pairs"] == 4).all()
    assert (beside["lower"] <= beside["ratio"]).all()
    assert (beside["ratio"] <= beside["upper"]).all()


@pytest.mark.slow
def test_one_command_compares_it_with_intervals(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "apart.toml").write_text("apart = true\n")
    words = ["--nodes", "2", "--gpus-per-node", "4", "--study", "apart.toml", "--seed", "1:2", "--workers", "1"]
    policies = ["--policy", "slurm", "--policy", "pal", "--policy", f"{site}/mine.py:FirstFit"]

    assert main(["simulate", "a.csv", "b.csv", *words, *policies]) == 0

    told = capsys.readouterr().out
    assert "mine.py:FirstFit" in told
    assert "4 pairs of the same arrivals" in told


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs_and_draws_three_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = json.loads((ROOT / "docs" / "research" / "policy.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join(cells))

    found = runpy.run_path("cells.py")

    plots = [tmp_path / f"{name}.png" for name in ("ratios", "traces", "chance")]
    assert all(plot.read_bytes()[:4] == b"\x89PNG" for plot in plots)
    assert set(found["both"]["policy"]) == {"slurm", "pal", "first-fit"}
    assert (found["both"]["lower"] <= found["both"]["upper"]).all()
    widest = max(pd.read_csv(trace)["num_gpus"].max() for trace in found["traces"])
    assert widest > found["cluster"]["gpus_per_node"], "there are jobs on several nodes"
    assert len(cells[2].splitlines()) <= 12


@pytest.mark.parametrize(("name", "words"), [("none.py:A", "No such file"), ("mine.py:Other", "'Other'")])
@pytest.mark.usefixtures("site")
def test_a_file_without_the_policy_is_one_sentence(capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    assert main(["simulate", "a.csv", "--nodes", "2", "--gpus-per-node", "4", "--policy", name]) == 1
    assert words in capsys.readouterr().err


def test_past_jobs_are_a_table(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text(f"{test_report.HEADER}\n{test_report.line(1)}\n{test_report.line(2)}\n")

    found = berth.report(tmp_path / "runs")

    assert list(found["id"]) == ["1", "2"]
    assert (found["gpu_s"] == found["gpus"] * found["ran_s"]).all()
    found.to_csv(tmp_path / "runs.csv")
    assert "wait_s" in (tmp_path / "runs.csv").read_text()


def test_tables_go_into_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "runs").write_text(f"{test_report.HEADER}\n{test_report.line(1)}\n")

    berth.report(tmp_path / "runs").to_parquet(tmp_path / "runs.parquet")

    assert (tmp_path / "runs.parquet").read_bytes()[:4] == b"PAR1"


def test_scores_are_a_table(tmp_path: Path) -> None:
    dump([Score("n1", 0, "GPU-a", "compute", 1.02), Score("n1", 1, "GPU-b", "compute", 0.98)], tmp_path / "scores")

    assert list(berth.score(tmp_path / "scores")["score"]) == [1.02, 0.98]


def test_nothing_else_of_berth_needs_it_or_pandas() -> None:
    needs = re.compile(r"^\s*(?:import|from) (?:pandas|pyarrow|berth)\b", re.MULTILINE)
    files = [path for folder in ("policy", "topology", "prolog_epilog") for path in (ROOT / folder).rglob("*.py")]

    assert [path for path in files if needs.search(path.read_text())] == []
    assert len((ROOT / "berth" / "__init__.py").read_text().splitlines()) <= 150
