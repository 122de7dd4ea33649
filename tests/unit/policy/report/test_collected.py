# SPDX-License-Identifier: Apache-2.0
"""berth collect: one file of sacct's lines, which berth report and berth simulate read."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from policy.cli.main import main
from policy.report.collected import COLUMNS
from policy.simulate.inputs import read_traces
from tests.programs import python_program

MIDNIGHT = 1_793_491_200
"""The first of November 2026, where the clock is UTC's."""
DAY, HOUR = 86_400, 3_600

SACCT = """
import os, sys, json
from datetime import datetime
assert os.environ["SLURM_TIME_FORMAT"] == "%s"
words = sys.argv[1:]
begin, end = (datetime.fromisoformat(words[words.index(name) + 1]).timestamp() for name in ("-S", "-E"))
columns = words[words.index("-o") + 1]
separator = next((word.removeprefix("--delimiter=") for word in words if word.startswith("--delimiter=")), "|")
print(columns.replace(",", separator))
for first, last, line in json.load(open(sys.path[0] + "/../rows")):
    if first < end and (last or end) >= begin:
        print(separator.join(line[name] for name in columns.split(",")))
"""


def run(
    job: str, start: int, ran: int, *, end: int | None = 0, gpus: int = 4, **more: str
) -> tuple[int, Any, dict[str, str]]:
    """Return the columns of a run that began so many seconds after midnight; with `end` None it has not ended."""
    begin = MIDNIGHT + start
    tres = f"cpu=1,gres/gpu={gpus},node=1"
    row = dict.fromkeys(COLUMNS, "") | {
        "JobIDRaw": job, "JobID": job, "Submit": str(begin - 60), "Eligible": str(begin - 60), "Start": str(begin),
        "End": "Unknown" if end is None else str(begin + ran), "ElapsedRaw": str(ran), "State": "COMPLETED",
        "ExitCode": "0:0", "Reason": "None", "NNodes": "1", "TimelimitRaw": "120", "Timelimit": "02:00:00",
        "User": "ann", "Account": "lab", "JobName": 'a|"name"', "ReqTRES": tres, "AllocTRES": tres, "NodeList": "n1",
    } | more  # fmt: skip
    return begin, None if end is None else begin + ran, row


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two days: a run over midnight, one that goes on, one of an array, steps, and strange comments."""
    comment = "site|note [berth/1 fail=import_error]\nof two lines, one secret"
    rows = [
        run("7", HOUR, HOUR, AdminComment=comment),
        run("7.0", HOUR, HOUR, TRESUsageInTot="gres/gpuutil=200", AllocTRES="cpu=1"),
        run("7.1", HOUR, HOUR, TRESUsageInTot="cpu=00:00:01", AllocTRES="cpu=1"),
        run("8", DAY - HOUR, 2 * HOUR, JobID="5_3"),
        run("9", DAY + HOUR, HOUR, end=None, State="RUNNING", User="bob"),
    ]
    (tmp_path / "bin").mkdir()
    (tmp_path / "rows").write_text(json.dumps(rows))
    python_program(tmp_path / "bin" / "sacct", SACCT)
    python_program(tmp_path / "bin" / "scontrol", "raise SystemExit(1)\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("TZ", "UTC")
    return tmp_path


def collect(path: Path, *words: str) -> list[dict[str, str]]:
    assert main(["collect", str(path), "--since", "2026-11-01", "--until", "2026-11-03", *words]) == 0
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    header, *lines = (line.split("|") for line in text.splitlines())
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_each_run_is_kept_once_with_the_steps_that_say_how_it_used_its_gpus(slurm: Path) -> None:
    found = collect(slurm / "all")

    assert [row["JobIDRaw"] for row in found] == ["7", "7.0", "8", "9"]
    # Of a comment only Berth's own part is kept.
    assert [row["AdminComment"] for row in found] == ["[berth/1 fail=import_error]", "", "", ""]
    assert list(slurm.glob(".*")) == []


@pytest.mark.parametrize("name", ["all", "all.gz"])
def test_report_and_simulate_read_the_file(slurm: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    collect(slurm / name)
    capsys.readouterr()
    words = ["--gpus-per-node", "8", "--json", "-"]
    assert main(["report", "--since", "2026-11-01", "--until", "2026-11-03", *words]) == 0
    asked = json.loads(capsys.readouterr().out)
    read = ["--from", str(slurm / name), "--since", "2026-11-01", "--until", "2026-11-03", *words]
    assert main(["report", *read]) == 0
    saved = json.loads(capsys.readouterr().out)

    assert saved == asked
    assert saved["counts"]["runs"] == 2
    trace = read_traces([str(slurm / name)])
    assert [(job.id, job.gpus, job.work, job.limit, job.user) for job in trace.jobs] == [
        ("7", 4, HOUR, 2 * HOUR, "ann"),
        ("5_3", 4, 2 * HOUR, 2 * HOUR, "ann"),
        ("9", 4, HOUR, 2 * HOUR, "bob"),
    ]


def test_names_are_replaced_by_words_that_tell_nobody_who_it_was(slurm: Path) -> None:
    first, again = collect(slurm / "one", "--hash-names"), collect(slurm / "two", "--hash-names")

    users = [row["User"] for row in first]
    assert users[0] == users[2] != users[3]
    assert len({*users, first[0]["Account"], first[0]["JobName"]}) == 4
    # Another file has other words.
    assert {row["User"] for row in again}.isdisjoint(users)
    text = (slurm / "one").read_text()
    assert not any(name in text for name in ("ann", "bob", "lab", "secret"))


def test_wrong_calls_are_told(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", str(slurm / "x"), "--since", "2026-11-03", "--until", "2026-11-01"]) == 2
    assert "--since must lie before --until" in capsys.readouterr().err
    assert main(["collect", "/nowhere/x"]) == 2
    assert "/nowhere/x cannot be written" in capsys.readouterr().err
    (slurm / "wrong").write_text("a|b\n1|2\n")
    assert main(["report", "--from", str(slurm / "wrong")]) == 1
    assert "berth collect" in capsys.readouterr().err
