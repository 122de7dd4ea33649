"""`berth efficiency`, on lines as sacct prints them, a score table, step times and topology files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from policy.cli.main import main
from policy.report.rows import COLUMNS
from tests.programs import python_program
from tests.unit.policy_world import machine
from topology.calibrate.steps import FORMAT, JobReport, Rank, encode
from topology.files import dump
from topology.scores import Score
from topology.scores import dump as write_scores

HEADER = "|".join(COLUMNS)
START = 1_793_600_000


def line(job: int, segment: str, *, state: str = "COMPLETED", gpus: int = 2, used: str = "", step: str = "") -> str:
    over = "Unknown" if state == "RUNNING" else START + 3_600
    tres = f"cpu=1,gres/gpu={gpus},node=1" if gpus else "cpu=1,gres/shard=30,node=1"
    times = (START - 60, START - 60, START, over, 3_600)
    values = (f"{job}{step}", *times, state, "0:0", "None", 1, 60, "ann", "lab", tres, tres, used, "n1", segment)
    return "|".join(map(str, values))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sacct that prints `answer`, or `others` if it is asked for a node, and a site without any record."""
    (tmp_path / "bin").mkdir()
    python_program(
        tmp_path / "bin" / "sacct",
        "import sys\nname = 'others' if '-N' in sys.argv else 'answer'\n"
        "sys.stdout.write(open(sys.path[0] + '/../' + name).read())\n",
    )
    (tmp_path / "topology").mkdir()
    conf(tmp_path, "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    return tmp_path


def conf(site: Path, more: str) -> None:
    (site / "berth.conf").write_text(f'[berthd]\ntopology_dir = "{site}/topology"\n{more}')


def answer(site: Path, *lines: str, name: str = "answer") -> None:
    (site / name).write_text("\n".join([HEADER, *lines]) + "\n")


def told(capsys: pytest.CaptureFixture[str], job: str = "7") -> dict[str, Any]:
    assert main(["efficiency", "--json", job]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


PLACED = "[berth/1 state=placed nodes=n1 gpus=1,4]"


def test_of_a_job_of_which_nothing_was_recorded_that_is_said(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(site, line(7, PLACED))

    found = told(capsys)

    assert (found["schema_version"], found["gpu_use"], found["steps"], found["better_place"]) == (1, None, None, [])
    assert [text.split(" ")[0] for text in found["unknown"]] == ["Slurm", "no", "no", "no"]
    assert main(["efficiency", "7"]) == 0
    printed = capsys.readouterr().out
    assert "not recorded" in printed
    assert printed.count("not known") == 4
    assert "nothing that was recorded speaks for another one" in printed


def test_slurms_gpu_use_and_the_links_of_a_better_place(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(machine("n1", "v100"), site / "topology" / "n1.json")
    answer(site, line(7, PLACED.replace("1,4", "1,3")), line(7, "", used="gres/gpuutil=120", step=".batch"))

    found = told(capsys)

    assert found["gpu_use"] == 0.6
    assert (found["all_reduce_gbps"], found["best_all_reduce_gbps"]) == (19.0, 38.0)
    assert "on the best 2 GPUs of such a node it has 38 GB/s" in found["better_place"][0]


def test_scores_and_step_times_name_the_gpu_that_held_the_others_up(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf(site, f'scores = "{site}/scores"\nsteps = "{site}/steps"\n')
    write_scores([Score("n1", 1, "a", "compute", 1.0), Score("n1", 4, "b", "compute", 1.25)], site / "scores")
    ranks = (Rank("n1", 1, "a", 100.0, 50), Rank("n1", 4, "b", 120.0, 50), Rank("n1", 5, "c", 100.0, 50))
    report = JobReport("7", "app", "compute", "2026-11-21T10:00:00Z", ranks)
    (site / "steps").write_text(f'{{"format": "{FORMAT}"}}\n{encode(report)}\n')
    answer(site, line(7, PLACED))

    found = told(capsys)

    assert (found["slowest_gpu"], found["slowest_score"]) == ("n1:4", 1.25)
    assert found["steps"] == {"ranks": 3, "median_ms": 100.0, "slowest_ms": 120.0, "slowest_gpu": "n1:4"}
    assert found["better_place"][0].startswith("n1 GPU 4 takes 25% more time than a typical GPU")
    assert "steps would have been up to 17% shorter" in found["better_place"][1]


def test_neighbours_are_those_that_had_a_gpu_of_its_own_at_the_time(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = "[berth/1 state=placed share=30 nodes=n1 gpus=1]"
    answer(site, line(7, share, gpus=0))
    elsewhere = share.replace("gpus=1", "gpus=2")
    answer(site, line(7, share, gpus=0), line(8, share, gpus=0), line(9, elsewhere, gpus=0), name="others")

    found = told(capsys)

    assert (found["shared_as"], found["neighbours"]) == ("packed", ["8"])


@pytest.mark.parametrize(
    ("lines", "job", "code", "says"),
    [
        ([], "7", 1, "job 7 is not in the accounting"),
        ([line(7, PLACED, state="RUNNING")], "7", 1, "job 7 has not ended; berth why 7 tells"),
        ([line(7, PLACED), line(8, PLACED)], "7", 2, "7 is an array"),
        ([], "seven", 2, "is not a job's number"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(
    site: Path, capsys: pytest.CaptureFixture[str], lines: list[str], job: str, code: int, says: str
) -> None:
    answer(site, *lines)

    assert main(["efficiency", job]) == code
    assert says in capsys.readouterr().err
