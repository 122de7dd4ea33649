# SPDX-License-Identifier: Apache-2.0
"""Commands show past days of a file that `berth collect` wrote, without Slurm."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policy.cli.main import main
from policy.report.rows import COLUMNS
from tests.unit.policy.report.collected import line

HOUR, DAY = 3_600, 86_400


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of nine days, on two leaves; no command of Slurm is there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "topology.conf").write_text(
        "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=top Switches=leaf[1-2]\n"
    )
    lines = [
        line("1", DAY, DAY, DAY + HOUR, "n[2-3]", 16),
        line("2", 8 * DAY, 8 * DAY + 600, 8 * DAY + HOUR, "n[1-2]", 16, said="[berth/1 because=capacity]"),
        line("3", 9 * DAY, 9 * DAY, 9 * DAY + HOUR, "n[2-3]", 16),
        line("4", 9 * DAY, 9 * DAY, 9 * DAY + 2 * HOUR, "n[1,4]", 16),
    ]
    path = tmp_path / "past"
    path.write_text("\n".join(["|".join(COLUMNS), *lines, ""]))
    return path


def test_a_report_has_waits_and_gangs_over_leaves(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--from", str(saved), "--fabric", str(saved.with_name("topology.conf"))]) == 0

    out = capsys.readouterr().out
    assert "4 runs of GPU jobs ended" in out
    assert "capacity" in out
    gangs = out[out.index("Jobs in more leaves than needed") :].splitlines()
    assert [row.split()[:5] for row in gangs[2:4]] == [["4", "16", "n[1,4]", "2", "1"], ["3", "16", "n[2-3]", "2", "1"]]


def test_it_says_what_to_do_first_and_what_that_could_bring_in_a_week(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--from", str(saved), "--fabric", str(saved.with_name("topology.conf")), "--since", "1970-01-08"]
    assert main(["report", *words]) == 0

    # 48 GPU hours of two runs; the first run of these days began 26 hours before the last end.
    first = "What to do first: --locality=leaf. It could bring 312 GPU h a week at most (0.00 to 768 with a chance "
    verdict = capsys.readouterr().out.splitlines()[0]
    assert first in verdict
    assert verdict.endswith("2 of 3 runs on several nodes lay in more leaves than they needed.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--from", "nowhere"], "name a file that berth collect wrote"),
        (["web", "--day", "2026-11-20"], "--from-collect FILE"),
        (["web", "--from-collect", "FILE", "--day", "today"], "2026-11-20"),
        (["web", "--from-simulation", "FILE", "--from-collect", "FILE"], "--from-simulation stands alone"),
    ],
)
def test_a_wrong_call_is_answered_with_the_right_one(
    saved: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(saved) if word == "FILE" else word for word in words]) != 0

    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report", "--from"], ["web", "--port", "0", "--from-collect"]])
def test_lines_of_another_form_name_berth_collect(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_text("JobID|Submit|AllocTRES|ElapsedRaw\n7|2026-11-01T08:30:00|gres/gpu=2|60\n")

    assert main([*command, str(other)]) != 0

    assert "berth collect" in capsys.readouterr().err


def test_a_simulation_of_lines_for_reports_alone_names_berth_collect(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(saved), "--nodes", "4", "--gpus-per-node", "8"]) != 0

    assert "berth collect" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["report", "--from"], ["web", "--from-collect"], ["simulate"]])
@pytest.mark.parametrize("harm", ["cut off", "damaged"])
def test_a_packed_file_that_is_not_whole_is_told_in_a_sentence(
    saved: Path, capsys: pytest.CaptureFixture[str], words: list[str], harm: str
) -> None:
    cluster = ["--nodes=4", "--gpus-per-node=8"] if words == ["simulate"] else []
    text = saved.read_bytes() if not cluster else b"job_id,num_gpus,submit_time,duration\n1,8,0,60\n"
    path, packed = saved.with_name("past.gz"), gzip.compress(text)
    path.write_bytes(packed[:-20] if harm == "cut off" else packed[:10] + bytes(8) + packed[18:])

    assert main([*words, str(path), *cluster]) in {1, 2}
    (said,) = capsys.readouterr().err.splitlines()
    assert str(path) in said
    assert "read" in said


def test_names_in_any_encoding_are_read_and_shown_on_any_terminal(saved: Path) -> None:
    lines = saved.read_bytes().replace(b"|ann|", b"|andr\xe9|").replace(b"|lab|", "|\u7814|".encode())
    command = [sys.executable, "-m", "policy.cli.main", "report", "--from", "-", "--gpus-per-node=8"]
    for encoding in ("utf-8", "ascii"):
        strict = {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[4])}
        done = subprocess.run(command, input=lines, capture_output=True, env=strict, check=False, timeout=30)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"andr" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_disk_that_is_full_is_told_in_a_sentence(saved: Path) -> None:
    command = [sys.executable, "-m", "policy.cli.main", "report", "--from", str(saved), "--gpus-per-node=8"]
    with Path("/dev/full").open("wb") as full:
        paths = {"PYTHONPATH": str(Path(__file__).parents[4])}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=paths, check=False, timeout=30)
    said = b"berth: error: the output cannot be written: No space left on device; make room, or write it elsewhere"
    assert (done.returncode, done.stderr.rpartition(b" [")[0]) == (1, said)


@pytest.mark.parametrize("name", [".", "/", "pipe"])
def test_what_is_no_plain_file_is_not_replaced(
    name: str, saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(saved.parent)
    os.mkfifo("pipe")
    assert main(["collect", name]) == 2
    assert f"berth: error: {name} is no plain file; name another file" in capsys.readouterr().err
