# SPDX-License-Identifier: Apache-2.0
"""Step times from the guard's record and berth-ops/1."""

import json

import pytest

from policy.formats.errors import FormatError
from policy.history.slowness.sources import from_guard, from_ops
from topology.calibrate.steps import JobReport, Rank


def hour(at: int, times: dict[int, float], job: str = "7") -> JobReport:
    ranks = tuple(Rank("n1", gpu, f"GPU-{gpu}", own, 400) for gpu, own in times.items())
    return JobReport(job, "1000-a", "compute", f"2026-11-26T{at:02}:00:00Z", ranks)


def test_the_guards_hours_become_rows_and_hours_without_all_ranks_are_left_out() -> None:
    reports = [hour(2, {0: 20.0, 1: 22.0}), hour(1, {0: 10.0, 1: 12.0}), hour(3, {1: 5.0}), hour(1, {0: 1.0}, job="8")]

    times = from_guard(reports, "7")

    assert times is not None
    assert times.own.tolist() == [[10.0, 12.0], [20.0, 22.0]]
    assert times.steps.tolist() == [400.0, 400.0]
    assert [rank.text for rank in times.ranks] == ["the rank on n1:0", "the rank on n1:1"]
    # A guard knows GPUs: the numbers of the processes there need not follow theirs.
    assert [rank.rank for rank in times.ranks] == [None, None]
    assert "1 hours are left out" in times.notes[0]
    assert from_guard(reports, "9") is None


def test_operations_of_each_step() -> None:
    lines = [json.dumps({"format": "berth-ops/1", "microbatches": 4})]
    lines += [
        json.dumps(
            {
                "step": step,
                "rank": rank,
                "node": "n1",
                "gpu": rank,
                "stage": rank,
                "forward_ms": 1.0 + rank,
                "backward_ms": 2,
            }
        )
        for step in range(3)
        for rank in range(2)
    ]
    lines.append(json.dumps({"step": 3, "rank": 0, "forward_ms": 1.0}))

    times = from_ops(lines, "ops")

    assert times.micro == 4
    assert times.ops["forward"].tolist() == [[1.0, 2.0]] * 3
    assert [rank.stage for rank in times.ranks] == [None, 1]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["nothing"], "has no step times"),
        (['{"format": "berth-ops/1"}', '{"step": 1, "rank": 0, "forward_ms": -1}'], "no number"),
        (['{"format": "berth-ops/1"}', '{"step": 1, "forward_ms": 1}'], "lacks, or has wrong, 'rank'"),
        (['{"format": "berth-ops/1"}', '{"step": 1, "rank": 1e400, "forward_ms": 1}'], "lacks, or has wrong, "),
        (['{"format": "berth-ops/1"}'], "no step that all ranks tell"),
    ],
)
def test_what_cannot_be_read_is_said(lines: list[str], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        from_ops(lines, "file")
