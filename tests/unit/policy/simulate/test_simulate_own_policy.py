# SPDX-License-Identifier: Apache-2.0
"""A policy of another package, installed as pip would, runs by its name."""

import importlib
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.cli.main import main

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "research" / "simulate-inputs.md"


def fenced(word: str) -> str:
    """The indented block of the guide's section that holds a word."""
    section = GUIDE.read_text().partition("## Write your own policy")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^ {4}.*\n|^\n)+", section, re.MULTILINE)
    (found,) = [block for block in blocks if word in block]
    return textwrap.dedent(found).strip() + "\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with what the guide says: a package, and the entry point that its installation leaves."""
    package, metadata = tmp_path / "site-packages" / "my_site", tmp_path / "site-packages" / "my_site-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "placement.py").write_text(fenced("class FirstFit"))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-site\nVersion: 1.0\n")
    project = fenced("[project.entry-points").replace('[project.entry-points."berth.policies"]', "[berth.policies]")
    (metadata / "entry_points.txt").write_text(project.replace('"', ""))
    (tmp_path / "trace.csv").write_text(
        "job_id,num_gpus,submit_time,duration\n" + "".join(f"{job},{1 + job % 3},0,100\n" for job in range(8))
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("my_site.placement", None)
    sys.modules.pop("my_site", None)


@pytest.mark.parametrize("mode", ["slurm", "pal-rounds"])
def test_it_runs_beside_ours(site: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    setup = ["simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--mode", mode, "--workers", "1"]

    assert main([*setup, "--policy", "first-fit", "--policy", "packed", "--json", "--placements", "p.csv"]) == 0

    found = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["policy"], one["jobs"]) for one in found] == [("first-fit", 8), ("packed", 8)]
    stretches = (site / "p.first-fit.seed1.csv").read_text().splitlines()[1:]
    gpus = {line.split(",")[0]: line.split(",")[3] for line in stretches}
    # The first node that fits, and there the lowest positions.
    assert [gpus[job] for job in "01"] == ["0", "1;2"]


@pytest.mark.slow
def test_workers_know_it_too(site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site / "site-packages"))
    setup = ["simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--seed", "1:2", "--json"]

    assert main([*setup, "--policy", "first-fit", "--workers", "2"]) == 0

    assert [one["policy"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["first-fit"] * 2


def test_a_broken_one_is_a_sentence(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "site-packages" / "my_site" / "placement.py").write_text("import nothing_of_that_name\n")

    assert main(["simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--policy", "first-fit"]) in {1, 2}

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "policy first-fit cannot be loaded from my_site.placement:FirstFit" in said


@pytest.mark.parametrize("mode", ["slurm", "pal-rounds"])
def test_jobs_that_it_never_places_are_left_out_and_counted(
    site: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    with (site / "trace.csv").open("a") as trace:
        trace.write("wide,8,0,100\nlast,1,50,100\n")
    setup = ["simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--mode", mode, "--workers", "1"]
    setup += ["--seed", "1", "--shift", "0"]

    assert main([*setup, "--policy", "first-fit", "--policy", "packed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert main([*setup, "--policy", "first-fit", "--policy", "packed"]) == 0
    said = capsys.readouterr().out

    assert [(one["policy"], one["jobs"], one.get("never_started")) for one in found] == [
        ("first-fit", 9, 1),
        ("packed", 10, None),
    ]
    assert said.startswith("Some jobs never started (first-fit: 1): the means are of the others, and are not compared.")


@pytest.mark.parametrize("mode", ["slurm", "pal-rounds"])
def test_a_policy_that_places_no_job_at_all_is_a_sentence(
    site: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    (site / "trace.csv").write_text("job_id,num_gpus,submit_time,duration\nwide,8,0,100\n")
    setup = ["simulate", "trace.csv", "--nodes", "2", "--gpus-per-node", "4", "--mode", mode, "--workers", "1"]

    assert main([*setup, "--policy", "first-fit"]) != 0

    *progress, said = capsys.readouterr().err.splitlines()
    assert all("run done in" in line for line in progress)
    assert "the policy gives them no place" in said or "places none of 1 jobs on an empty cluster" in said
