# SPDX-License-Identifier: Apache-2.0
"""What berthd wrote into jobs that were tried again, pre-flown or moved, in the report."""

from __future__ import annotations

from policy.report.rows import COLUMNS
from policy.report.text import text
from tests.unit.policy.report.test_report import figures, line


def test_what_trying_again_saved_is_told_by_what_berthd_wrote() -> None:
    lost = "fail=mpi_runtime_failure tried=mpi_runtime_failure:60:n1 retry_text=try%202"
    found = figures(
        line(1, gpus=8, comment=f"[berth/1 f.retry=auto {lost}]"),
        line(2, gpus=4, ran=1_800, state="FAILED", code="1:0", nodes="n2",
             comment="[berth/1 f.retry=2 fail=import_error tried=import_error:1800:n2]"),
        # Who asked for nothing, and who failed of what may pass by itself.
        line(3, gpus=4, state="FAILED", code="1:0", nodes="n3", comment="[berth/1 fail=import_error]"),
        line(4, gpus=4, state="FAILED", code="1:0", nodes="n4", comment=f"[berth/1 f.retry=1 {lost}]"),
    )  # fmt: skip

    assert found["saved"]["tries_passed"] == {"asked": 3, "runs": 1, "gpu_hours": 8.0}
    assert found["saved"]["tries_not_made"] == {"asked": 3, "runs": 1, "gpu_hours": 4.0}
    assert "work that no user had to submit again" in text(found)


def test_a_preflight_saved_its_job_all_other_gpus() -> None:
    said = "[berth/1 preflight=1]"
    never = line(2, gpus=32, ran=0, state="CANCELLED by 0", nodes="None assigned", comment=said).split("|")
    never[COLUMNS.index("Start")] = "None"
    found = figures(
        line(1, gpus=1, ran=90, state="FAILED", code="1:0", comment="[berth/1 preflight=run]"),
        "|".join(never),
        line(3, gpus=32, ran=600, comment="[berth/1 preflight=9]"),
        # A failure that said nothing about the job.
        line(4, gpus=1, ran=90, state="FAILED", code="1:0", comment="[berth/1 preflight=run]"),
        line(5, gpus=32, ran=600, comment="[berth/1 preflight=4]"),
    )

    assert found["saved"]["preflights"] == {"asked": 3, "runs": 1, "gpu_hours": 0.78}


def test_each_move_counts_once_and_a_report_says_what_nobody_asked_for() -> None:
    moved = "[berth/1 f.movable= moves=1000,2000]"
    found = figures(line(1, comment="[berth/1 f.movable= moves=1000]", state="REQUEUED"), line(1, comment=moved))

    assert (found["saved"]["moves"]["runs"], found["saved"]["moves"]["gpu_hours"]) == (2, 0.0)
    assert "no job asked for it" in text(found)
