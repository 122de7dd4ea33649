# SPDX-License-Identifier: Apache-2.0
"""`berth why --slow`: from berth-guard's record, and from files of the job's own."""

import json
import os
from pathlib import Path

import pytest

from policy.cli.main import main
from tests.programs import python_program
from tests.unit.policy.report.test_report import HEADER, line
from topology.calibrate.steps import FORMAT, JobReport, Rank, encode


def report(job: str, at: int, times: list[float], shift: int = 0) -> JobReport:
    ranks = tuple(Rank("n1", gpu + shift, f"GPU-{gpu + shift}", own, 4_000) for gpu, own in enumerate(times))
    return JobReport(job, "1000-a", "compute", f"2026-11-26T{at:02}:00:00Z", ranks)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    steps = tmp_path / "steps"
    (tmp_path / "berth.conf").write_text(f'[berthd]\nsteps = "{steps}"\n')
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    return steps


def write(record: Path, *reports: JobReport) -> None:
    record.write_text("\n".join([json.dumps({"format": FORMAT}), *map(encode, reports)]) + "\n")


def test_it_names_the_gpu_that_other_jobs_found_slow_too(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [report("7", hour, [100.0, 101.0, 100.0, 130.0]) for hour in range(6)]
    write(record, *own, report("8", 7, [50.0, 51.0, 50.0, 64.0]))

    assert main(["why", "--slow", "7"]) == 0

    told = capsys.readouterr().out
    assert told.startswith("Job 7 lost 22% of its time because the rank on n1:3 needs 1.30 times as long as the others")
    assert "its GPU takes 27% more time in other runs too" in told
    assert "the hardware is to blame" in told


def test_rows_and_json(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(record, *(report("7", hour, [100.0, 101.0, 100.0, 130.0]) for hour in range(6)))

    assert main(["why", "--slow", "-v", "7"]) == 0
    rows = capsys.readouterr().out
    assert main(["why", "--slow", "--json", "7"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert "24000 steps of 4 ranks, from berth-guard's record" in rows
    assert "the rank on n1:3 needs 1.30 times as long" in rows
    slow = told["slow"]
    assert (slow["source"], slow["cause"], slow["parts"][0]["blame"]) == ("guard", "gpu", "unknown")
    assert slow["parts"][0]["ranks"] == [3]
    assert [(rank["rank"], rank["gpu"]) for rank in slow["ranks"]] == [(None, gpu) for gpu in range(4)]


def test_an_even_job_was_not_slowed(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(record, *(report("7", hour, [100.0, 101.0, 100.0, 100.5]) for hour in range(6)))

    assert main(["why", "--slow", "7"]) == 0

    assert "Job 7 was not slowed" in capsys.readouterr().out


def test_a_file_of_the_job_needs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "none.conf"))
    file = tmp_path / "ops"
    lines = [
        {"step": step, "rank": rank, "compute_ms": 10.0, "input_ms": 40.0 if step % 10 == 0 else 0.1}
        for step in range(60)
        for rank in range(4)
    ]
    file.write_text("\n".join(map(json.dumps, [{"format": "berth-ops/1"}, *lines])) + "\n")

    assert main(["why", "--slow", "7", "--from", str(file)]) == 0

    told = capsys.readouterr().out
    assert "all ranks alike took longer: their input did" in told
    assert "the program is to blame, no GPU" in told


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["why", "7", "--from", "x"], 2, "--from needs --slow"),
        (["why", "--slow", "seven"], 2, "not a job's number"),
        (["why", "--slow", "9"], 1, "no step times of job 9 are known"),
        (["why", "--slow", "7", "--from", "/none/there"], 1, "/none/there cannot be read"),
    ],
)
def test_wrong_calls(
    record: Path, arguments: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(record, report("7", 1, [100.0, 100.0]))

    assert main(arguments) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ([], "job 7_3 is not in the accounting"),
        (["FAILED", "RUNNING"], "job 7_3 has not ended; until then berth why 7_3 explains"),
        (["COMPLETED"], "no step times of job 9 are known"),
    ],
)
def test_a_task_is_known_by_its_number_in_the_accounting(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], states: list[str], says: str
) -> None:
    lines = [line(9, state=state) for state in states]
    (record.parent / "bin").mkdir()
    printed = "\n".join([HEADER, *lines]) + "\n"
    python_program(record.parent / "bin" / "sacct", f"import sys\nsys.stdout.write({printed!r})\n")
    monkeypatch.setenv("PATH", f"{record.parent / 'bin'}:{os.environ['PATH']}")

    assert main(["why", "--slow", "7_3"]) == 1
    assert says in capsys.readouterr().err
