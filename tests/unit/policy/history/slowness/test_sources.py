# SPDX-License-Identifier: Apache-2.0
"""Step times from the guard's record, NCCL's inspector and berth-ops/1."""

import json

import numpy as np
import pytest

from policy.formats.errors import FormatError
from policy.history.slowness.job import analyse
from policy.history.slowness.sources import from_guard, read
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
    assert [rank.text for rank in times.ranks] == ["rank 0 on n1:0", "rank 1 on n1:1"]
    assert "1 hours are left out" in times.notes[0]
    assert from_guard(reports, "9") is None


def inspector(own: list[list[float]], version: str, *, verbose: bool) -> list[str]:
    """Writes what NCCL's inspector does for ranks that take these milliseconds between collectives of 1 ms."""
    clocks = [1_000.0 * rank for rank in range(len(own[0]))]
    clocks_us = [0.0] * len(own[0])
    records: list[list[dict[str, object]]] = [[] for _ in clocks]
    for number, row in enumerate(own):
        arrived = [now + 1_000.0 * one for now, one in zip(clocks_us, row, strict=True)]
        left = max(arrived) + 1_000.0
        for rank, began in enumerate(arrived):
            operation: dict[str, object] = {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_exec_time_us": int(left - began),
            }
            if verbose:
                # Clocks of hosts differ.
                apart = clocks[rank]
                kernel = {"channel_id": 0, "kernel_start_ts": int(began + apart), "kernel_stop_ts": int(left + apart)}
                operation["event_trace_ts"] = {"kernel_events": [kernel]}
            records[rank].append(operation)
        clocks_us = [left] * len(clocks)
    lines = []
    for rank, some in enumerate(records):
        header = {"id": "0xab", "rank": rank, "n_ranks": len(records), "nnodes": 1}
        begin, end = (
            {"inspector_output_format_version": version, "dump_timestamp_us": int(at), "hostname": f"h{rank}"}
            for at in (0.0, clocks_us[0])
        )
        if version == "v4.3":
            stats = {"coll_records": len(some), "p2p_records": 0}
            lines.append({"header": header, "metadata": begin, "dump_stats": stats})
            lines += [{"coll_perf": one} for one in some]
            lines.append({"header": header, "metadata": end, "dump_stats": {"coll_records": 0, "p2p_records": 0}})
        else:
            lines += [
                {"header": header, "metadata": metadata, "coll_perf": one}
                for one, metadata in zip(some, [begin] * (len(some) - 1) + [end], strict=True)
            ]
    return [json.dumps(line) for line in lines]


@pytest.mark.parametrize("version", ["v4.2", "v4.3"])
@pytest.mark.parametrize("verbose", [True, False])
def test_nccls_inspector_tells_each_ranks_own_time(version: str, verbose: bool) -> None:
    own = [[10.0, 10.0, 13.0, 10.0] for _ in range(60)]

    times = read(inspector(own, version, verbose=verbose), "dumps")

    assert times.source == "nccl"
    assert np.allclose(times.own[1:], own[1:], rtol=0.001), times.own[1:3].tolist()
    assert times.shared_ms == pytest.approx(np.ones(60), abs=0.01)
    found = analyse(times)
    assert (found.cause, found.parts[0].ranks[0].text) == ("gpu", "rank 2 on h2")
    assert found.parts[0].share == pytest.approx(3.0 / 14.0, abs=0.01)


def test_a_communicator_of_which_a_rank_is_missing_is_refused() -> None:
    lines = [line for line in inspector([[10.0, 11.0]] * 60, "v4.2", verbose=True) if '"h0"' in line]

    with pytest.raises(FormatError, match="give the files of all ranks"):
        read(lines, "dumps")


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

    times = read(lines, "ops")

    assert times.micro == 4
    assert times.ops["forward"].tolist() == [[1.0, 2.0]] * 3
    assert [rank.stage for rank in times.ranks] == [None, 1]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["nothing"], "has no step times"),
        (['{"format": "berth-ops/1"}', '{"step": 1, "rank": 0, "forward_ms": -1}'], "no number"),
        (['{"format": "berth-ops/1"}', '{"step": 1, "forward_ms": 1}'], "lacks, or has wrong, 'rank'"),
        (['{"format": "berth-ops/1"}'], "no step that all ranks tell"),
        (['{"header": {}, "metadata": {}, "coll_perf": {"coll_sn": 1}}'], "lacks, or has wrong, 'id'"),
    ],
)
def test_what_cannot_be_read_is_said(lines: list[str], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        read(lines, "file")
