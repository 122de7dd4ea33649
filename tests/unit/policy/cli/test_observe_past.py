# SPDX-License-Identifier: Apache-2.0
"""`berth observe --from` shows past days of a file that `berth collect` wrote, without Slurm."""

from __future__ import annotations

import json
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


def test_the_last_days_of_the_file_are_shown_with_waits_and_gangs_over_leaves(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["observe", "--from", str(saved), "--fabric", str(saved.with_name("topology.conf"))]) == 0

    out = capsys.readouterr().out
    assert "3 runs of GPU jobs ended" in out
    assert "capacity" in out
    gangs = out[out.index("Jobs in more leaves than needed") :].splitlines()
    assert [row.split()[:5] for row in gangs[2:4]] == [["4", "16", "n[1,4]", "2", "1"], ["3", "16", "n[2-3]", "2", "1"]]


def test_it_ends_with_what_to_do_first_and_what_that_could_bring_in_a_week(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["observe", "--from", str(saved), "--fabric", str(saved.with_name("topology.conf"))]) == 0

    last = capsys.readouterr().out.splitlines()[-1]
    # 48 GPU hours of two runs; the first run of these days began 26 hours before the last end.
    assert last.startswith(
        "What to do first: --locality=leaf. It could bring 312 GPU h a week at most (0.00 to 768 with a chance "
    )
    assert last.endswith("2 of 3 runs on several nodes lay in more leaves than they needed.")


def test_for_programs_it_is_the_past_alone(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "observe",
        "--from",
        str(saved),
        "--fabric",
        str(saved.with_name("topology.conf")),
        "--days",
        "30",
        "--json",
    ]
    assert main(words) == 0

    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"schema_version", "past"}
    assert [one["job"] for one in found["past"]["places"]["in_more_leaves"]] == ["4", "3", "1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["observe", "--from", "-"], "name a file that berth collect wrote"),
        (["observe", "--from", "nowhere"], "name a file that berth collect wrote"),
        (["observe", "--from", "FILE", "--for", "5"], "leave --for or --from out"),
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


@pytest.mark.parametrize(
    "command", [["report", "--from"], ["observe", "--from"], ["web", "--port", "0", "--from-collect"]]
)
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
