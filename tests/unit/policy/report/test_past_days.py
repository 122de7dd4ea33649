# SPDX-License-Identifier: Apache-2.0
"""Past days of a cluster, from sacct's lines: who waited and ran where."""

from __future__ import annotations

from policy.report.past_days import past_days
from policy.report.rows import COLUMNS, read
from tests.unit.policy.report.collected import line

HEADER = "|".join(COLUMNS)


def test_a_job_waits_and_runs_on_the_first_free_gpus_of_its_nodes() -> None:
    lines = [
        line("7", 1_000, 1_000, 1_100, "n1", 2),
        line("8", 1_010, 1_020, 1_200, "n1", 4, said="[berth/1 state=placed why=linked]"),
        line("9", 1_020, 1_150, 1_300, "n[1-2]", 16),
    ]

    found = past_days(read([HEADER, *lines]))

    assert (found.names, found.gpus) == (("n1", "n2"), (12, 8))
    by_id = {job["id"]: job for job in found.jobs}
    assert by_id["7"]["runs"] == [[1_000.0, 1_100.0, [[0, 0b11]]]]
    assert by_id["8"]["runs"] == [[1_020.0, 1_200.0, [[0, 0b111100]]]]
    assert by_id["9"]["submitted"] == 1_020.0
    assert found.written == [[1_020.0, "8", {"state": "placed", "why": "linked"}]]


def test_each_run_of_a_requeued_job_is_told_and_who_never_ran_waited() -> None:
    lines = [
        line("7", 1_000, 1_000, 1_100, "n1", 2),
        line("7", 1_100, 1_160, 1_300, "n2", 2),
        line("8", 1_010, None, 1_400, "", 2),
    ]

    found = past_days(read([HEADER, *lines]))

    jobs = {job["id"]: job for job in found.jobs}
    assert [run[:2] for run in jobs["7"]["runs"]] == [[1_000.0, 1_100.0], [1_160.0, 1_300.0]]
    assert (jobs["7"]["submitted"], jobs["7"]["ends"]) == (1_000.0, 1_300.0)
    assert (jobs["8"]["runs"], jobs["8"]["ends"]) == ([], 1_400.0)


def test_a_part_of_the_time_has_those_who_were_there_then() -> None:
    lines = [
        line("7", 1_000, 1_000, 1_100, "n1", 2),
        line("8", 1_150, 1_150, 1_300, "n1", 2),
        line("9", 1_500, 1_500, 1_600, "n1", 1),
    ]

    assert [job["id"] for job in past_days(read([HEADER, *lines]), 1_120, 1_400).jobs] == ["8"]
